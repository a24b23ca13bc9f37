"""TensorFlow, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from remat_cli.frontends.frameworks import Framework, Tell
from remat_cli.frontends.ran import Ran
from remat_cli.frontends.tensorflow.architectures import TENSORFLOW_ARCHITECTURES, build_tensorflow_graph
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
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
        from remat_cli.frontends.tensorflow.measuring.profile import profile

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
        from remat_cli.frontends.tensorflow.measuring.run import run_plan

        return run_plan(plan, device=device, steps=steps, seed=seed, graph=graph, force=force, libraries=libraries)
