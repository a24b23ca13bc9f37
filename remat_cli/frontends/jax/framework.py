"""JAX, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from remat_cli.frontends.frameworks import Framework, Profile, Run, Tell
from remat_cli.frontends.jax.architectures import JAX_ARCHITECTURES, build_jax_graph
from remat_cli.graph.model import Graph
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

    @property
    def profile(self) -> Profile:
        """See :attr:`Framework.profile`."""
        from remat_cli.frontends.jax.measuring.profile import profile

        return profile

    @property
    def run(self) -> Run:
        """See :attr:`Framework.run`."""
        from remat_cli.frontends.jax.measuring.run import run_plan

        return run_plan
