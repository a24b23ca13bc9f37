"""Exports for one rank of many: a process group without processes, in which the user's function builds its part."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from remat_cli.errors import CaptureFailed, FrameworkUnavailable, UsageError, Worded
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.rates import FLOPS
from remat_cli.frontends.torch.compat.distributed import fake_group, has_group, is_fully_sharded, is_present
from remat_cli.frontends.torch.types import Module


def require_links(world: int | None, interconnect: Interconnect | None, cost: str, compiler: str) -> None:
    """Check before anything is built that the collectives of a rank's step can have costs.

    Args:
        world: The number of ranks; None if there is no world.
        interconnect: The bandwidths between them, if they are given.
        cost: The cost model.
        compiler: What compiles the step.

    Raises:
        UsageError: If they cannot.
    """
    if world is None:
        return
    if compiler != "eager":
        raise UsageError("steps of one rank of many are not planned for Inductor", hint="take the compiler eager")
    if cost == FLOPS:
        raise UsageError(
            "ranks communicate, which takes time and no FLOPs",
            hint="take costs that are times: device, or roofline:a100",
        )
    if interconnect is None:
        raise UsageError(
            "ranks communicate, and the bandwidth between them is not given",
            hint=Worded("give an interconnect such as 400GB/s", "add --interconnect 400GB/s"),
        )


@contextlib.contextmanager
def world_of(ranks: int | None) -> Iterator[None]:
    """Within this context, this process is rank 0 of a world of ``ranks``; None for no world.

    Rank 0 has the largest part of every tensor: PyTorch divides tensors as ``torch.chunk`` does, where the first parts
    are the largest, and rank 0 has the first part of every dimension of a mesh.

    Raises:
        UsageError: If this process has a process group already.
        FrameworkUnavailable: If this PyTorch has no ``torch.distributed``.
    """
    if ranks is None:
        yield
        return
    if not is_present():
        raise FrameworkUnavailable("this PyTorch was built without torch.distributed", hint="install another build")
    if has_group():
        raise UsageError(
            "this process belongs to a process group already",
            hint="export without a world: the step is then that of this rank",
        )
    with fake_group(ranks):
        yield


def require_gathered_in_code(module: Module) -> None:
    """Check that no hooks gather the parameters of ``module``.

    Raises:
        CaptureFailed: If ``fully_shard`` or ``FullyShardedDataParallel`` does.
    """
    if is_present() and is_fully_sharded(module):
        raise CaptureFailed(
            f"hooks gather the parameters of this {type(module).__name__} (fully_shard, FSDP), which PyTorch does not "
            "capture",
            hint="gather them in a parametrization, as SimpleFSDP does: docs/sharded.md has one in a few lines",
        )
