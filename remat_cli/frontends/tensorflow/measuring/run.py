"""Runs a plan on a device: checks its results against a run without recomputation, and measures its peak and time."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.errors import UsageError
from remat_cli.frontends.captured.origin import require_same
from remat_cli.frontends.captured.running import Home, Measured, checked, compared, kept, median_s, without_workspace
from remat_cli.frontends.ran import Ran
from remat_cli.frontends.tensorflow.document import FRONTEND, Step
from remat_cli.frontends.tensorflow.executing.inputs import Given
from remat_cli.frontends.tensorflow.executing.program import program
from remat_cli.frontends.tensorflow.executing.same_graph import difference_of_graphs, require_home
from remat_cli.frontends.tensorflow.installed import count_allocations, require_device
from remat_cli.frontends.tensorflow.measuring.buffers import LiveBuffers
from remat_cli.frontends.tensorflow.reading import read_step, read_workspaces
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan, Statement
from remat_cli.plan.replay import Replay
from remat_cli.printable import printable


def run_plan(
    plan: Plan,
    *,
    device: str = "cpu",
    steps: int = 3,
    seed: int = 0,
    graph: Graph | None = None,
    force: bool = False,
    libraries: Sequence[str] = (),
) -> Ran:
    """Run ``plan`` with random weights and inputs, and compare it with the same graph without recomputation.

    Args:
        plan: A plan of a graph that this frontend made.
        device: ``cpu`` or ``gpu``.
        steps: Steps to time; one more is run to measure memory.
        seed: Seed of weights, inputs and random operations.
        graph: The graph that the plan must be for; None for any.
        force: Whether to run it even if it was exported for another TensorFlow or device.
        libraries: Python modules to import, which register operations.

    Raises:
        UsageError: If the plan is not valid, or its graph is not of this frontend, or damaged, or not ``graph``, or was
            exported for another TensorFlow or device.
        FrameworkUnavailable: If there is no such device.
        OutOfMemory: If the device's memory is exhausted, with the place.
        ExecutionFailed: If an operation fails, with the node.
    """
    seen = checked(plan, FRONTEND, steps)
    if graph is not None:
        FRONTEND.require(graph)
    count_allocations()
    require_device(device)
    import_libraries(libraries)
    if graph is not None:
        require_same(plan.graph, graph, difference_of_graphs)
    if not force:
        require_home(plan.graph, device)
    return _ran(plan, read_step(plan.graph), seen, device, steps, seed)


def import_libraries(names: Sequence[str]) -> None:
    """Import modules, which register operations.

    Raises:
        UsageError: If one cannot be imported.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a library may do anything while it is imported
            raise UsageError(f"the library {name} cannot be imported: {type(error).__name__}: {error}") from error


def _ran(plan: Plan, step: Step, seen: Replay, device: str, steps: int, seed: int) -> Ran:
    """Run a plan that passed all checks; ``step`` are the contents of its graph."""
    import tensorflow as tf

    bench = _Bench(step, device, seed, Given(step.places, device, seed))
    home = Home(FRONTEND.name, str(tf.__version__), device, bench.measure)
    return compared(plan, seen, without_workspace(plan.graph, read_workspaces(plan.graph)), home, steps, "result 0")


@dataclass(frozen=True, slots=True)
class _Bench:
    """Weights and inputs, and programs that run with them."""

    step: Step
    device: str
    seed: int
    given: Given

    def measure(self, statements: Sequence[Statement], steps: int) -> Measured:
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
        return Measured(found, highest, taken, allocator)


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
