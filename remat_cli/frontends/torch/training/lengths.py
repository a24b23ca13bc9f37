"""Batches of other lengths, for plans that are made beforehand. Only their form matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.training.arguments import Arguments


def stretched(batch: Any, lengths: Sequence[int]) -> Iterator[Any]:
    """``batch`` with each of ``lengths`` instead of its own, and itself if its own is the largest of them.

    Its length is the second dimension of the first tensor that has one. Every dimension but the first with that size is
    taken for the length, as in masks of ``[batch, 1, length, length]``.

    Raises:
        UsageError: If it has no length, or is longer than all of ``lengths``.
    """
    if not lengths:
        return
    own = _length(batch)
    if own is None:
        raise UsageError(
            "buckets are lengths, and no tensor of the batch has a second dimension",
            hint="leave out buckets, or give fit a batch of [batch, length]",
        )
    if own > max(lengths):
        raise UsageError(
            f"the batch has the length {own}, and the largest bucket is {max(lengths)}",
            hint="the last bucket is the length of the longest batch",
        )
    for length in lengths:
        if length != own or own == max(lengths):
            yield _mapped(batch, partial(_of_length, own, length))


def buffer_bytes(module: Any) -> int:
    """Bytes of a module's buffers."""
    return sum(buffer.nbytes for buffer in module.buffers())


def _of_length(own: int, length: int, tensor: Any) -> Any:
    """A tensor like ``tensor``, of another length."""
    if tensor.dim() < 2 or own not in tensor.shape[1:]:
        return tensor
    shape = [size if k == 0 or size != own else length for k, size in enumerate(tensor.shape)]
    return tensor.new_zeros(shape).requires_grad_(tensor.requires_grad)


def _length(batch: Any) -> int | None:
    found: list[int] = []

    def seen(tensor: Any) -> Any:
        if tensor.dim() > 1:
            found.append(int(tensor.shape[1]))
        return tensor

    _mapped(batch, seen)
    return found[0] if found else None


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Nested arguments with ``change`` of every tensor."""
    import torch

    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, Arguments):
        return Arguments(_mapped(tree.args, change), _mapped(tree.kwargs, change))
    if isinstance(tree, Mapping):
        return {key: _mapped(item, change) for key, item in tree.items()}
    if type(tree) in {list, tuple}:
        return type(tree)(_mapped(item, change) for item in tree)
    return tree
