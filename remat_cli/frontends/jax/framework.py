"""JAX, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.frontends.frameworks import Framework, Tell
from remat_cli.frontends.jax.architectures import JAX_ARCHITECTURES, build_jax_graph
from remat_cli.frontends.ran import Ran
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.registry import Registry
from remat_cli.zoo.base import Architecture


class Jax(Framework):
    """JAX: steps are captured as jaxprs of ``jax.value_and_grad``."""

    name: ClassVar[str] = "jax"
    title: ClassVar[str] = "JAX"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    architectures: ClassVar[Registry[Architecture]] = JAX_ARCHITECTURES

    def export(self, source: str, *, device: str, cost: str, tell: Tell) -> Sequence[Graph]:
        """See :meth:`Framework.export`."""
        from remat_cli.frontends.jax.capturing.export import export_jax

        return [export_jax(source, device=device, cost=cost, tell=tell)]

    def export_architecture(self, spec: str, *, tell: Tell) -> Graph:
        """See :meth:`Framework.export_architecture`."""
        return build_jax_graph(spec, tell)

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
        from remat_cli.frontends.jax.measuring.profile import profile

        _refuse_libraries(libraries)
        return profile(graph, device=device, repeats=repeats, warmup=warmup, seed=seed, force=force, progress=progress)

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
        from remat_cli.frontends.jax.measuring.run import run_plan

        _refuse_libraries(libraries)
        return run_plan(plan, device=device, steps=steps, seed=seed, graph=graph, force=force)


def _refuse_libraries(libraries: Sequence[str]) -> None:
    """Refuse modules with operators: the functions of JAX's graphs hold all that they need."""
    if libraries:
        raise UsageError("libraries of operators are for PyTorch, and this graph is of JAX", hint="leave --library out")
