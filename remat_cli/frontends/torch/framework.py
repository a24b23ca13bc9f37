"""PyTorch, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, ClassVar

from remat_cli.errors import UsageError
from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.profiling import OperationBench
from remat_cli.frontends.captured.running import PlanBench
from remat_cli.frontends.frameworks import OFF_ON, Framework
from remat_cli.frontends.interconnect import MOST_RANKS, Interconnect
from remat_cli.frontends.messages import Tell
from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES
from remat_cli.frontends.torch.document import FRONTEND, Step, difference, read_step
from remat_cli.frontends.torch.installed import DEVICES, require_present
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry


class Torch(Framework[Step]):
    """PyTorch: steps are captured with FX and AOTAutograd."""

    frontend: ClassVar[Frontend] = FRONTEND
    devices: ClassVar[tuple[str, ...]] = DEVICES
    options: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {"compiler": ("eager", "inductor"), "world": (), "interconnect": (), "split": OFF_ON}
    )
    option_help: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "compiler": "inductor for plans under torch.compile",
            "world": "capture rank 0 of N, for a sharded module",
            "interconnect": "send bandwidth of a rank: 400GB/s, 400GB/s+20us, or fsdp=50GB/s,tp=400GB/s",
            "split": "offer regions, such as the loss, that solve may run in parts",
        }
    )
    option_metavar: ClassVar[Mapping[str, str]] = MappingProxyType({"world": "N", "interconnect": "BANDWIDTH"})
    architectures: ClassVar[Registry[Any]] = TORCH_ARCHITECTURES

    def capture(
        self, build: Callable[[], Any], name: str, source: str, *, device: str, cost: str, tell: Tell, **options: str
    ) -> Sequence[Graph]:
        """See :meth:`Framework.capture`."""
        from remat_cli.frontends.torch.export import export_parts

        world, interconnect = _ranks(options)
        return export_parts(
            build,
            name,
            source,
            device=device,
            cost=cost,
            compiler=options.get("compiler", "eager"),
            world=world,
            interconnect=interconnect,
            tell=tell,
            split=options.get("split") == "on",
        )

    def require_options(self, options: Mapping[str, str]) -> None:
        """See :meth:`Framework.require_options`."""
        super().require_options(options)
        _ranks(options)

    def require_present(self, device: str) -> None:
        """See :meth:`Framework.require_present`."""
        require_present(device)

    def read(self, graph: Graph) -> Step:
        """See :meth:`Framework.read`."""
        return read_step(graph)

    def difference(self, ours: Step, theirs: Step) -> str | None:
        """See :meth:`Framework.difference`."""
        return difference(ours.whole or ours, theirs.whole or theirs)

    def require_harmless(self, step: Step, device: str, libraries: Sequence[str], *, force: bool) -> None:
        """See :meth:`Framework.require_harmless`. Every operation runs once on tensors without data."""
        from remat_cli.frontends.torch.execute.rehearsal import rehearse

        rehearse(step, device, force=force, libraries=libraries)

    def operation_bench(self, step: Step, device: str, seed: int) -> AbstractContextManager[OperationBench]:
        """See :meth:`Framework.operation_bench`."""
        from remat_cli.frontends.torch.measure.benches import operation_bench

        return operation_bench(step, device, seed)

    def plan_bench(self, step: Step, device: str, seed: int, peak_bytes: int) -> AbstractContextManager[PlanBench]:
        """See :meth:`Framework.plan_bench`."""
        from remat_cli.frontends.torch.measure.benches import plan_bench

        return plan_bench(step, device, seed, peak_bytes)


def _ranks(options: Mapping[str, str]) -> tuple[int | None, Interconnect | None]:
    """The number of ranks, and the bandwidths between them, that options of an export state.

    Raises:
        UsageError: If they state something else.
    """
    world, link = options.get("world"), options.get("interconnect")
    ranks = None
    if world is not None:
        ranks = int(world) if re.fullmatch(r"\d{1,7}", world, re.ASCII) else 0
        if not 1 <= ranks <= MOST_RANKS:
            raise UsageError(f'"{world}" is not a number of ranks', hint=f"write a whole number up to {MOST_RANKS}")
    return ranks, None if link is None else Interconnect.of(link)
