"""TensorFlow, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from remat_cli.frontends.frameworks import Framework, Profile, Run, Tell
from remat_cli.frontends.tensorflow.architectures import TENSORFLOW_ARCHITECTURES, build_tensorflow_graph
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry
from remat_cli.zoo.base import Architecture


class TensorFlow(Framework):
    """TensorFlow: steps are captured with tf.function, and run as single eager kernels."""

    name: ClassVar[str] = "tf"
    title: ClassVar[str] = "TensorFlow"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "gpu")
    default_cost: ClassVar[str] = "flops"
    architectures: ClassVar[Registry[Architecture]] = TENSORFLOW_ARCHITECTURES

    def export(self, source: str, *, device: str, cost: str, tell: Tell) -> Sequence[Graph]:
        """See :meth:`Framework.export`."""
        from remat_cli.frontends.tensorflow.capturing.export import export_tensorflow

        return [export_tensorflow(source, device=device, cost=cost)]

    def export_architecture(self, spec: str, *, tell: Tell) -> Graph:
        """See :meth:`Framework.export_architecture`."""
        return build_tensorflow_graph(spec)

    @property
    def profile(self) -> Profile:
        """See :attr:`Framework.profile`."""
        from remat_cli.frontends.tensorflow.measuring.profile import profile

        return profile

    @property
    def run(self) -> Run:
        """See :attr:`Framework.run`."""
        from remat_cli.frontends.tensorflow.measuring.run import run_plan

        return run_plan
