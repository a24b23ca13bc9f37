"""Distributed PyTorch: process groups without processes, collectives in graphs, and the tensors inside of DTensors."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from remat_cli.frontends.torch.types import Module, Tensor

WAIT = "_c10d_functional.wait_tensor.default"
"""Waits for a collective, and returns the tensor that it is given."""
COMMUNICATING = ("_c10d_functional", "_dtensor")
"""Namespaces of the operators that communicate."""
SHARD_TO_SHARD = "_dtensor.shard_dim_alltoall.default"
"""Divides a tensor along another dimension; it has ended when it returns."""
_KINDS = {
    "all_gather_into_tensor": "all-gather",
    "all_gather_into_tensor_coalesced": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_reduce_coalesced": "all-reduce",
    "all_to_all_single": "all-to-all",
    "broadcast": "broadcast",
}
COLLECTIVES: Mapping[str, str] = MappingProxyType(
    {
        **{f"_c10d_functional.{name}.default": kind for name, kind in _KINDS.items()},
        SHARD_TO_SHARD: "all-to-all",
    }
)
"""The collectives that make new tensors, with their kinds."""

_STAGED = ("all-gather", "reduce-scatter")
"""Kinds for which gloo takes a buffer as large as all ranks' tensors, until the collective has ended (2.13)."""


def staged_bytes(call: str, device: str, whole: int) -> int:
    """Bytes that a collective takes while it runs, beside its result.

    Args:
        call: The operator.
        device: The kind of device. On a CPU, PyTorch communicates with gloo; what NCCL takes does not depend on the
            operation, and no allocator of PyTorch counts it.
        whole: Bytes of what it reads or of what it makes, whichever is more.
    """
    staging = COLLECTIVES.get(call) in _STAGED or call == SHARD_TO_SHARD
    return whole if device == "cpu" and staging else 0


def in_flight(call: str) -> bool:
    """Whether an operator is a collective that still runs when it returns, until ``wait_tensor`` is called."""
    return call in COLLECTIVES and call != SHARD_TO_SHARD


def is_present() -> bool:
    """Whether this PyTorch was built with ``torch.distributed``."""
    import torch

    return bool(torch.distributed.is_available())


def has_group() -> bool:
    """Whether this process has a process group."""
    import torch

    return is_present() and bool(torch.distributed.is_initialized())


@contextlib.contextmanager
def fake_group(ranks: int, rank: int = 0) -> Iterator[None]:
    """Within this context, this process is one of a group of ``ranks`` processes, of which there are no others.

    Collectives return at once, and their results hold anything.
    """
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    forget_meshes()
    torch.distributed.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
        forget_meshes()


def forget_meshes() -> None:
    """Empty caches in which PyTorch takes a mesh for an older one of the same form, whose groups are gone."""
    from torch.distributed.tensor import _redistribute, debug

    _redistribute._gen_transform_infos.cache_clear()
    debug._clear_sharding_prop_cache()


def group_size(name: str) -> int:
    """The number of ranks in a process group, by the name that collectives in graphs have as an argument."""
    import torch

    return int(torch.distributed.distributed_c10d._resolve_process_group(name).size())


def group_dimensions(things: Iterable[Any]) -> dict[str, str]:
    """For each process group of the meshes among ``things`` (meshes, DTensors, or anything) the dimension that it is.

    The keys are names of groups. Dimensions without a name are left out.
    """
    if not is_present():
        return {}
    from torch.distributed.device_mesh import DeviceMesh

    meshes = [mesh for one in things if isinstance(mesh := getattr(one, "device_mesh", one), DeviceMesh)]
    return {mesh.get_group(k).group_name: name for mesh in meshes for k, name in enumerate(mesh.mesh_dim_names or ())}


def local_tensor(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this rank has; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def is_divided(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def is_uneven(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor whose parts are not equally large on all ranks."""
    if not is_divided(tensor):
        return False
    sizes = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return any(placement.is_shard() and tensor.shape[placement.dim] % ranks for placement, ranks in sizes)


def is_opaque(value: Any) -> bool:
    """Whether a value in a graph is an object that is no tensor, such as the mesh of a DTensor."""
    from torch._library.fake_class_registry import FakeScriptObject

    return isinstance(value, FakeScriptObject)


def whole_description(description: Any) -> Any:
    """The description of an input or output of a joint graph; for the part of a DTensor that of the DTensor."""
    from torch._functorch._aot_autograd import descriptors

    parts = descriptors.SubclassGetAttrAOTInput | descriptors.SubclassGetAttrAOTOutput
    if isinstance(description, parts) and description.attr == "_local_tensor":
        return description.base
    return description


def is_fully_sharded(module: Module) -> bool:
    """Whether ``fully_shard`` or ``FullyShardedDataParallel`` gathers parameters of ``module``."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    return any(isinstance(part, FSDPModule | FullyShardedDataParallel) for part in module.modules())
