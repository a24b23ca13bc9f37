"""TensorFlow, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from remat_cli.frontends.captured.installed import import_libraries
from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.profiling import OperationBench
from remat_cli.frontends.captured.running import PlanBench
from remat_cli.frontends.frameworks import Framework
from remat_cli.frontends.messages import Tell
from remat_cli.frontends.source import called
from remat_cli.frontends.tensorflow.architectures import TENSORFLOW_ARCHITECTURES
from remat_cli.frontends.tensorflow.document import FRONTEND, Step, read_step
from remat_cli.frontends.tensorflow.installed import DEVICES, count_allocations, require_device
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry


class TensorFlow(Framework[Step]):
    """TensorFlow: steps are captured with tf.function, and run as single eager kernels."""

    frontend: ClassVar[Frontend] = FRONTEND
    devices: ClassVar[tuple[str, ...]] = DEVICES
    default_cost: ClassVar[str] = "flops"
    architectures: ClassVar[Registry[Any]] = TENSORFLOW_ARCHITECTURES

    def require_exportable(self, device: str, cost: str) -> None:
        """See :meth:`Framework.require_exportable`."""
        from remat_cli.frontends.tensorflow.capture.costs import cost_model

        cost_model(cost)
        require_device(device)

    def capture(
        self, build: Callable[[], Any], name: str, source: str, *, device: str, cost: str, tell: Tell, **options: str
    ) -> Sequence[Graph]:
        """See :meth:`Framework.capture`; ``build()`` returns (model, batch), (model, batch, loss) or (step, inputs)."""
        import tensorflow as tf

        from remat_cli.frontends.tensorflow.capture.capture import as_model
        from remat_cli.frontends.tensorflow.capture.costs import cost_model
        from remat_cli.frontends.tensorflow.capture.lower import graph_of_step

        costs = cost_model(cost)
        with tf.device(f"/device:{device.upper()}:0"):
            model = as_model(called(build, name, "tensorflow"), name)
            return [graph_of_step(model, name, source, device, costs)[0]]

    def require_present(self, device: str) -> None:
        """See :meth:`Framework.require_present`. TensorFlow's allocator counts bytes from here on."""
        count_allocations()
        require_device(device)

    def read(self, graph: Graph) -> Step:
        """See :meth:`Framework.read`."""
        return read_step(graph)

    def difference(self, ours: Step, theirs: Step) -> str | None:
        """See :meth:`Framework.difference`."""
        from remat_cli.frontends.tensorflow.execute.same_graph import difference

        return difference(ours, theirs)

    def require_harmless(self, step: Step, device: str, libraries: Sequence[str], *, force: bool) -> None:
        """See :meth:`Framework.require_harmless`. Libraries register their operations when they are imported."""
        from remat_cli.frontends.tensorflow.execute.functions import require_known

        import_libraries(libraries)
        require_known(step)

    @contextmanager
    def operation_bench(self, step: Step, device: str, seed: int) -> Iterator[OperationBench]:
        """See :meth:`Framework.operation_bench`."""
        from remat_cli.frontends.tensorflow.measure import Operations

        yield Operations(step, device, seed)

    @contextmanager
    def plan_bench(self, step: Step, device: str, seed: int, peak_bytes: int) -> Iterator[PlanBench]:
        """See :meth:`Framework.plan_bench`."""
        from remat_cli.frontends.tensorflow.measure import Plans

        yield Plans(step, device, seed)
