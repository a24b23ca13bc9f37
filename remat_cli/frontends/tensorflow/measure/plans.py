"""Runs plans of a step with random weights and inputs, and measures their results, live buffers and time."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.frontends.captured.running import MeasuredPlan, PlanBench, kept, median_s
from remat_cli.frontends.tensorflow.document import Step
from remat_cli.frontends.tensorflow.execute.inputs import Given
from remat_cli.frontends.tensorflow.execute.program import program
from remat_cli.frontends.tensorflow.measure.live_buffers import LiveBuffers
from remat_cli.frontends.tensorflow.reading import read_workspaces
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Statement
from remat_cli.printable import printable


class Plans(PlanBench):
    """Weights and inputs of a step, and programs that run with them."""

    def __init__(self, step: Step, device: str, seed: int) -> None:
        self.step, self.device, self.seed = step, device, seed
        self.given = Given(step.places, device, seed)

    def value_workspaces(self, graph: Graph) -> Sequence[int]:
        """See :meth:`PlanBench.value_workspaces`."""
        return read_workspaces(graph)

    def measure(self, statements: Sequence[Statement], steps: int) -> MeasuredPlan:
        """Run twice for results and memory, then ``steps`` times for the time."""
        import tensorflow as tf

        runnable = program(self.step, statements, self.device, unseeded=self.seed)
        fixed = self.step.graph.fixed_memory
        self.given.restore()
        before = allocated(self.device)
        results = runnable.run(self.given.places)
        above = allocated(self.device)
        found = [kept(f"result {k}", tensor.numpy().copy()) for k, tensor in enumerate(results)]
        del results
        for number, variable in self.given.variables.items():
            name = printable(f"update of {self.step.places[number].name} ({number})")
            found.append(kept(name, variable.numpy().copy()))
        allocator = None if before is None or above is None else fixed + above[1] - before[0]
        highest = allocator
        if self.device == "cpu":
            self.given.restore()
            live = LiveBuffers(runnable.execute, self.given.places, runnable.constants)
            runnable.run(self.given.places, live)
            highest = fixed + live.peak_bytes
        self.given.restore()
        taken = median_s(lambda: runnable.run(self.given.places), tf.test.experimental.sync_devices, steps)
        assert highest is not None  # a GPU's allocator always counts
        return MeasuredPlan(found, highest, taken, allocator)


def allocated(device: str) -> tuple[int, int] | None:
    """Bytes that TensorFlow's allocator has handed out now, and at most since this was asked last; None if unknown."""
    import tensorflow as tf

    name = f"{device.upper()}:0"
    try:
        info = tf.config.experimental.get_memory_info(name)
        tf.config.experimental.reset_memory_stats(name)
    except (ValueError, tf.errors.OpError):  # without TF_CPU_ALLOCATOR_USE_BFC nothing is counted on a CPU
        return None
    return int(info["current"]), int(info["peak"])
