"""Autograd: nodes, what they keep, and the gradients that they read and make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from remat_cli.frontends.torch.types import AutogradNode, Tensor


def was_changed_in_place(error: Exception) -> bool:
    """Whether autograd refuses a backward pass because a tensor that it reads has been written to since.

    Reading ``saved_tensors`` of a node raises such an error, too. remat then names the tensor.
    """
    return "modified by an inplace operation" in str(error)


def refuses_second_gradient(error: BaseException) -> bool:
    """Whether PyTorch raised ``error`` because a compiled graph has no gradient of its gradient.

    Only its words tell it from other errors.
    """
    return "does not currently support double backward" in str(error)


def running_node() -> AutogradNode | None:
    """The node of autograd whose backward pass runs in this thread, or whose results autograd adds up; None if none.

    By this, remat tells sums of gradients that autograd writes in place from others.
    """
    import torch

    return torch._C._current_autograd_node()


def nodes_behind(roots: Iterable[AutogradNode | None]) -> Iterator[AutogradNode]:
    """``roots``, and all nodes of autograd that a gradient comes to from them; None is left out."""
    seen: set[AutogradNode] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack += [other for other, _ in node.next_functions]


def has_second_gradient(tensors: Iterable[Tensor]) -> bool:
    """Whether a gradient that a compiled graph computed has a part in ``tensors``; their own gradient would fail.

    A step that reads such gradients is refused when it is captured, before any training.
    """
    nodes = nodes_behind(tensor.grad_fn for tensor in tensors)
    return any(node.name() == "CompiledFunctionBackwardBackward" for node in nodes)


def compiled_node(tensor: Tensor) -> tuple[AutogradNode, int, bool] | None:
    """The node of autograd of the compiled graph that returned ``tensor``, and the position of the result there.

    The last item is false if AOTAutograd has made ``tensor`` as a view of that result. None if it has no such node. A
    compiled graph is an ``autograd.Function``, whose nodes are instances of ``BackwardCFunction``.
    """
    import torch

    node, position, direct = getattr(tensor, "grad_fn", None), getattr(tensor, "output_nr", 0), True
    while node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction):
        [(node, position), *_] = node.next_functions or ((None, 0),)
        direct = False
    return None if node is None else (node, position, direct)


def made_at(node: AutogradNode) -> int:
    """When a node of autograd was made: less than for all that were made later by the same thread.

    Of nodes that are ready, autograd first runs the one that was made last.
    """
    return int(node._sequence_nr())


def kept_by(node: AutogradNode) -> list[Tensor]:
    """The tensors that a node of autograd keeps for the backward pass. Those changed in place since are left out.

    So what code outside of graphs keeps is counted. Nodes of PyTorch's own operators have attributes ``_saved_*``.
    """
    import torch

    python = isinstance(node, torch.autograd.function.BackwardCFunction)
    names = ["saved_tensors"] if python else [name for name in dir(node) if name.startswith("_saved_")]
    tensors = []
    for name in names:
        try:
            saved = getattr(node, name)
        except RuntimeError:  # something was changed in place, so that its backward pass would fail too
            continue
        tensors += [t for t in (saved if isinstance(saved, list | tuple) else [saved]) if isinstance(t, torch.Tensor)]
    return tensors


def gradient_sizes(node: AutogradNode) -> tuple[int, int]:
    """Bytes of the gradients that a node of autograd reads, and of those that it makes.

    Those of code outside of graphs are counted beside the plan.
    """
    behind = (other._input_metadata[at : at + 1] for other, at in node.next_functions if other is not None)
    outputs = [meta for metas in behind for meta in metas]
    return sum(map(_bytes_of, node._input_metadata)), sum(map(_bytes_of, outputs))


def gradient_bytes(node: AutogradNode, position: int) -> int:
    """Bytes of one of the gradients that a node of autograd reads."""
    return sum(_bytes_of(meta) for meta in node._input_metadata[position : position + 1])


def _bytes_of(meta: Any) -> int:
    """Bytes of a gradient, by one of a node's ``_input_metadata``: there is one for each gradient that it reads."""
    return math.prod(map(int, meta.shape)) * int(meta.dtype.itemsize)


def gradients_for(node: AutogradNode, strides: Mapping[int, tuple[int, ...]] | None = None) -> list[Tensor]:
    """A gradient of zeros for each result of the operation that a node of autograd belongs to.

    Where ``strides`` does not say how one lies in memory, by the position of the result, its last dimensions do not lie
    in the usual order, for which some operations make a copy.
    """
    import torch

    gradients = []
    for position, meta in enumerate(node._input_metadata):
        form = {"dtype": meta.dtype, "device": meta.device}
        if strides is not None and position in strides:
            gradients.append(torch.empty_strided(tuple(meta.shape), strides[position], **form).zero_())
            continue
        *shape, last = tuple(meta.shape) or (1,)
        gradients.append(torch.zeros((last, *shape), **form).movedim(0, -1).view(meta.shape))
    return gradients


def parameter_of(node: AutogradNode) -> Tensor | None:
    """The tensor whose gradient a node of autograd collects; None for all other nodes."""
    return getattr(node, "variable", None) if node.name().endswith("AccumulateGrad") else None


def frees_tangents() -> bool:
    """Whether autograd hands tangents over, so that a compiled step can free them; from PyTorch 2.13 on it does.

    Where it does not, plans count tangents to the end of the backward pass.
    """
    import torch

    return hasattr(torch.autograd.Function, "boxed_grads_call")
