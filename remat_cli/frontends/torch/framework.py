"""PyTorch, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from remat_cli.frontends.frameworks import Framework, Tell
from remat_cli.frontends.ran import Ran
from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES, build_torch_graph
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.registry import Registry
from remat_cli.zoo.base import Architecture


class Torch(Framework):
    """PyTorch: steps are captured with FX and AOTAutograd."""

    name: ClassVar[str] = "torch"
    title: ClassVar[str] = "PyTorch"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    compilers: ClassVar[tuple[str, ...]] = ("eager", "inductor")
    architectures: ClassVar[Registry[Architecture]] = TORCH_ARCHITECTURES

    def export(self, source: str, *, device: str, cost: str, tell: Tell) -> Sequence[Graph]:
        """See :meth:`Framework.export`."""
        from remat_cli.frontends.torch.capturing.export import export_torch_parts

        return export_torch_parts(source, device=device, cost=cost, tell=tell)

    def export_compiled(self, source: str, *, device: str, cost: str, compiler: str, tell: Tell) -> Sequence[Graph]:
        """See :meth:`Framework.export_compiled`."""
        from remat_cli.frontends.torch.capturing.export import export_torch_parts

        return export_torch_parts(source, device=device, cost=cost, compiler=compiler, tell=tell)

    def export_architecture(self, spec: str, *, tell: Tell) -> Graph:
        """See :meth:`Framework.export_architecture`."""
        return build_torch_graph(spec, tell)

    def profile(
        self,
        graph: Graph,
        *,
        device: str,
        repeats: int,
        warmup: int,
        seed: int,
        force: bool,
        libraries: Sequence[str],
        progress: Callable[[int, int], None] | None,
    ) -> Graph:
        """See :meth:`Framework.profile`."""
        from remat_cli.frontends.torch.measuring.profile import profile

        return profile(
            graph,
            device=device,
            repeats=repeats,
            warmup=warmup,
            seed=seed,
            force=force,
            libraries=libraries,
            progress=progress,
        )

    def run(
        self,
        plan: Plan,
        *,
        device: str,
        steps: int,
        seed: int,
        graph: Graph | None,
        force: bool,
        libraries: Sequence[str],
    ) -> Ran:
        """See :meth:`Framework.run`."""
        from remat_cli.frontends.torch.measuring.run import run_plan

        return run_plan(plan, device=device, steps=steps, seed=seed, graph=graph, force=force, libraries=libraries)
