"""Distributed PyTorch: process groups without processes, collectives in graphs, and the tensors inside of DTensors."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from remat_cli.frontends.torch.types import Device, Module, Tensor

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


def is_fake() -> bool:
    """Whether this process is in a process group without processes, see :func:`fake_group`."""
    import torch

    return has_group() and torch.distributed.get_backend() == "fake"


@contextlib.contextmanager
def fake_group(ranks: int, rank: int = 0) -> Iterator[None]:
    """Within this context, this process is one of a group of ``ranks`` processes, of which there are no others.

    So one process captures the step of one rank of many. Collectives return at once, and their results hold anything.
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
    """Empty caches in which PyTorch takes a mesh for an older one of the same form, whose groups are gone.

    A second export in one process would otherwise get the groups of the first.
    """
    from torch.distributed.tensor import _redistribute, debug

    _redistribute._gen_transform_infos.cache_clear()
    debug._clear_sharding_prop_cache()


def group_size(name: str) -> int:
    """The number of ranks in a process group, by the name that collectives in graphs have as an argument."""
    import torch

    return int(torch.distributed.distributed_c10d._resolve_process_group(name).size())


def group_dimensions(things: Iterable[Any]) -> dict[str, str]:
    """For each process group of the meshes among ``things`` (meshes, DTensors, or anything) the dimension that it is.

    The keys are names of groups. Dimensions without a name are left out. What a collective costs depends on the links
    of its dimension.
    """
    if not is_present():
        return {}
    from torch.distributed.device_mesh import DeviceMesh

    meshes = [mesh for one in things if isinstance(mesh := getattr(one, "device_mesh", one), DeviceMesh)]
    return {mesh.get_group(k).group_name: name for mesh in meshes for k, name in enumerate(mesh.mesh_dim_names or ())}


def mesh_groups(things: Iterable[Any]) -> dict[str, list[str]]:
    """The process groups of the meshes among ``things``, as :func:`group_dimensions` takes them, by dimension.

    Groups of dimensions without names are under ``""``. The order is the same on all ranks, which measure the links of
    each dimension together.
    """
    if not is_present():
        return {}
    from torch.distributed.device_mesh import DeviceMesh

    found: dict[str, list[str]] = {}
    for mesh in (getattr(one, "device_mesh", one) for one in things):
        for k in range(mesh.ndim if isinstance(mesh, DeviceMesh) else 0):
            groups = found.setdefault((mesh.mesh_dim_names or ("",) * mesh.ndim)[k], [])
            if (name := mesh.get_group(k).group_name) not in groups:
                groups.append(name)
    return found


def collective(kind: str, size: int, group: str, device: Device) -> Callable[[], None]:
    """A function that runs an all-gather, a reduce-scatter or an all-reduce, and returns when it has ended.

    By its time, links are measured.

    Args:
        kind: Which of them.
        size: Bytes of the whole tensor; rounded down, so that all ranks have equal parts.
        group: The name of the process group.
        device: Of the tensor.
    """
    import torch

    ops, ranks = torch.ops._c10d_functional, group_size(group)
    part = max(1, size // (4 * ranks))
    tensor = torch.zeros(part if kind == "all-gather" else part * ranks, device=device)

    def run() -> None:
        if kind == "all-gather":
            result = ops.all_gather_into_tensor(tensor, ranks, group)
        elif kind == "reduce-scatter":
            result = ops.reduce_scatter_tensor(tensor, "sum", ranks, group)
        else:
            result = ops.all_reduce(tensor, "sum", group)
        ops.wait_tensor(result)
        if tensor.is_cuda:
            torch.cuda.synchronize(device)

    return run


def has_dtensors(things: Iterable[Any]) -> bool:
    """Whether one of ``things`` is a DTensor."""
    if not is_present():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(one, DTensor) for one in things)


def local_tensor(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this rank has; any other tensor itself.

    That part is the memory that a DTensor takes.
    """
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
    """Whether a value in a graph is an object that is no tensor, such as the mesh of a DTensor.

    remat leaves such inputs and results out.
    """
    from torch._library.fake_class_registry import FakeScriptObject

    return isinstance(value, FakeScriptObject)


def without_meshes(things: Iterable[Any]) -> list[Any]:
    """``things`` without the meshes among them, which are inputs of a graph that makes or reads DTensors."""
    if not is_present():
        return list(things)
    from torch.distributed.device_mesh import DeviceMesh

    return [one for one in things if not isinstance(one, DeviceMesh)]


def whole_description(description: Any) -> Any:
    """The description of an input or output of a joint graph; for the part of a DTensor that of the DTensor.

    AOTAutograd captures a DTensor as its part, and describes that as an attribute of the DTensor.
    """
    from torch._functorch._aot_autograd import descriptors

    parts = descriptors.SubclassGetAttrAOTInput | descriptors.SubclassGetAttrAOTOutput
    if isinstance(description, parts) and description.attr == "_local_tensor":
        return description.base
    return description


def is_fully_sharded(module: Module) -> bool:
    """Whether ``fully_shard`` or ``FullyShardedDataParallel`` gathers parameters of ``module``.

    Hooks do that, which PyTorch does not capture, so the export of a step refuses such modules.
    """
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    return any(isinstance(part, FSDPModule | FullyShardedDataParallel) for part in module.modules())
