"""PyTorch, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from remat_cli.frontends.frameworks import Framework, Profile, Run, Tell
from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES, build_torch_graph
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry
from remat_cli.zoo.base import Architecture


class Torch(Framework):
    """PyTorch: steps are captured with FX and AOTAutograd."""

    name: ClassVar[str] = "torch"
    title: ClassVar[str] = "PyTorch"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    options: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({"compiler": ("eager", "inductor")})
    architectures: ClassVar[Registry[Architecture]] = TORCH_ARCHITECTURES

    def export(self, source: str, *, device: str, cost: str, tell: Tell, **options: str) -> Sequence[Graph]:
        """See :meth:`Framework.export`."""
        from remat_cli.frontends.torch.export import export_torch_parts

        return export_torch_parts(source, device=device, cost=cost, tell=tell, **options)

    def export_architecture(self, spec: str, *, tell: Tell) -> Graph:
        """See :meth:`Framework.export_architecture`."""
        return build_torch_graph(spec, tell)

    @property
    def profile(self) -> Profile:
        """See :attr:`Framework.profile`."""
        from remat_cli.frontends.torch.measuring.profile import profile

        return profile

    @property
    def run(self) -> Run:
        """See :attr:`Framework.run`."""
        from remat_cli.frontends.torch.measuring.run import run_plan

        return run_plan
