"""Questions about tensors and operators in an FX graph."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.compat.distributed import local_tensor
from remat_cli.frontends.torch.compat.operators import is_operator, schema, storage_identity
from remat_cli.frontends.torch.types import FxNode, Tensor


def storage(tensor: Tensor) -> int:
    """Identity of the memory of ``tensor``; the same for all its views. Of a DTensor, that of the part of this rank."""
    return storage_identity(local_tensor(tensor))


def storage_bytes(tensor: Tensor) -> int:
    """Bytes of the memory in which ``tensor`` lies; of a DTensor, the part of this rank."""
    return int(local_tensor(tensor).untyped_storage().nbytes())


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory of all these tensors; memory that several share counts once."""
    return sum({storage(tensor): storage_bytes(tensor) for tensor in tensors}.values())


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is strided, and not sparse or of another layout."""
    import torch

    return bool(tensor.layout == torch.strided)


def is_fixed(tensor: Tensor) -> bool:
    """Whether the size of a fake tensor is a number, and does not depend on the data of other tensors."""
    return all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride(), tensor.untyped_storage().nbytes()))


def dense_bytes(tensor: Tensor) -> int:
    """Bytes of the smallest memory in which a tensor of this form can lie."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * int(tensor.dtype.itemsize)


def tensors_in(result: Any) -> list[tuple[int | None, Tensor]]:
    """Position and tensor of all tensors in a result; the position of a single tensor is None."""
    import torch

    if isinstance(result, torch.Tensor):
        return [(None, result)]
    if isinstance(result, list | tuple):
        if any(isinstance(item, list | tuple) for item in result):
            raise CaptureFailed("an operator returns tuples in a tuple, which remat does not know")
        return [(k, item) for k, item in enumerate(result) if isinstance(item, torch.Tensor)]
    return []


def is_random(node: FxNode) -> bool:
    """Whether the operation draws random numbers. Attention has the tag even if its dropout is 0."""
    import torch

    if not is_operator(node.target) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    for k, argument in enumerate(schema(node.target).arguments):
        if argument.name == "dropout_p":
            dropout = node.kwargs.get(argument.name, node.args[k] if k < len(node.args) else argument.default_value)
            return bool(dropout != 0.0)
    return True


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of all tensors in nested tuples, lists, mappings and dataclasses."""
    import torch

    if isinstance(tree, torch.Tensor):
        yield path, tree
        return
    if isinstance(tree, Mapping):
        items: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, list | tuple):
        items = zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
    elif hasattr(tree, "__dataclass_fields__"):
        items = [(name, getattr(tree, name, None)) for name in tree.__dataclass_fields__]
    else:
        return
    for key, item in items:
        yield from leaves(item, f"{path}.{key}" if path else str(key))


def mapped(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    """Nested tuples, lists and mappings with ``change`` of every tensor; anything else stays as it is."""
    import torch

    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(item, change) for key, item in tree.items()}
    if type(tree) in {list, tuple}:
        return type(tree)(mapped(item, change) for item in tree)
    return tree
