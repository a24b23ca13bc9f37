"""Measures costs: runs every node of a graph on the device, and puts its time and workspace into the graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import ExecutionFailed, OutOfMemory
from remat_cli.frontends.captured.profiling import Timed, facts, groups, host, require_counts, timed, told
from remat_cli.frontends.tensorflow.document import FRONTEND, OPAQUE, Place, Read, Ref, Step
from remat_cli.frontends.tensorflow.executing.inputs import place_array, random_array
from remat_cli.frontends.tensorflow.executing.library import require_known
from remat_cli.frontends.tensorflow.executing.program import call_function, words
from remat_cli.frontends.tensorflow.executing.same_graph import require_home
from remat_cli.frontends.tensorflow.installed import count_allocations, require_device
from remat_cli.frontends.tensorflow.measuring.run import allocated, import_libraries
from remat_cli.frontends.tensorflow.reading import read_step, read_workspaces
from remat_cli.graph.model import Graph
from remat_cli.printable import printable


@dataclass(frozen=True, slots=True)
class Measured:
    """One node on a device.

    Attributes:
        timed: How long a call takes.
        workspace_bytes: Most bytes allocated during the call, without the node's values; None if nothing counts them.
    """

    timed: Timed
    workspace_bytes: int | None


def profile(
    graph: Graph,
    *,
    device: str = "cpu",
    repeats: int = 10,
    warmup: int = 2,
    seed: int = 0,
    force: bool = False,
    libraries: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """``graph`` with measured costs (microseconds) and workspaces.

    Nodes with the same operations on tensors of the same form are measured once.

    Args:
        graph: A graph that this frontend made.
        device: ``cpu`` or ``gpu``.
        repeats: Samples per node; their median is the cost.
        warmup: Calls before the samples.
        seed: Seed of the random inputs.
        force: Whether to measure even if the graph was exported for another TensorFlow or device.
        libraries: Python modules to import, which register operations.
        progress: Called with the number of kinds of nodes that are done, and of all kinds.

    Raises:
        UsageError: If the graph is not of this frontend, or damaged, or was exported for another TensorFlow or device,
            or a number is out of range.
        FrameworkUnavailable: If there is no such device.
        OutOfMemory: If the device's memory is too small for a node and its inputs.
        ExecutionFailed: If a node fails.
    """
    FRONTEND.require(graph)
    require_counts(repeats, warmup)
    count_allocations()
    require_device(device)
    import_libraries(libraries)
    if not force:
        require_home(graph, device)
    step = read_step(graph)
    require_known(step)
    kinds = groups((_kind(step, index), index) for index in range(len(graph.nodes)))
    found: dict[int, Measured] = {}
    bench = _Bench(step, device, seed)
    for members in told(kinds, progress):
        found |= dict.fromkeys(members, bench.measured(members[0], repeats, warmup))
    return _with(graph, found, _facts(device, repeats, warmup, len(kinds)))


def _with(graph: Graph, found: Mapping[int, Measured], said: dict[str, Any]) -> Graph:
    """The graph with its measurements."""
    spaces = read_workspaces(graph)
    nodes = []
    for index, (node, inside) in enumerate(zip(graph.nodes, spaces, strict=True)):
        measured = found[index]
        nodes.append(replace(node, cost=measured.timed.median_us, workspace=max(inside, measured.workspace_bytes or 0)))
    said |= {
        "spread": {graph.nodes[i].id: round(m.timed.spread, 4) for i, m in sorted(found.items())},
        "workspaces": list(spaces),
    }
    metadata = graph.metadata | {"costs": {"model": "measured"}, "profile": said}
    return replace(graph, nodes=tuple(nodes), cost_unit="us", metadata=metadata)


def _kind(step: Step, index: int) -> str:
    """A text that is equal for nodes with the same operations on tensors of the same form."""
    operation = step.operations[index]

    def form(ref: Ref) -> Any:
        number = ref.number if isinstance(ref, Place) else ref.place if isinstance(ref, Read) else None
        return ref if number is None else (type(ref).__name__, step.places[number].kind, step.places[number].spec)

    calls = [(c.op, [form(ref) for ref in c.inputs], c.outputs, sorted(c.attributes.items())) for c in operation.calls]
    return repr((calls, operation.values, [step.spec(value) for value in step.graph.nodes[index].inputs]))


class _Bench:
    """Runs single nodes with random inputs."""

    def __init__(self, step: Step, device: str, seed: int) -> None:
        import numpy

        self.step = step
        self.device = device
        self.generator = numpy.random.default_rng(seed)

    def measured(self, index: int, repeats: int, warmup: int) -> Measured:
        """Measure one node; its inputs are freed afterwards."""
        import tensorflow as tf

        where = printable(f"node {self.step.graph.nodes[index].id}")
        try:
            call = self._bound(index)
            call()
            space = self._workspace(index, call)
            found = timed(call, tf.test.experimental.sync_devices, repeats, warmup)
        except tf.errors.ResourceExhaustedError as error:
            raise OutOfMemory(
                f"{where} does not fit the memory of the device: {words(error)}",
                hint="nodes are run one by one, with their inputs: make room on the device, or profile a smaller batch",
            ) from error
        except tf.errors.OpError as error:
            raise ExecutionFailed(
                f"{where} failed on {self.device}: {words(error)}",
                hint="a graph is for the device it was exported for: was it another one?",
            ) from error
        return Measured(found, space)

    def _workspace(self, index: int, call: Callable[[], Any]) -> int | None:
        before = allocated(self.device)
        made = call()
        after = allocated(self.device)
        del made
        if before is None or after is None:
            return None
        return max(0, after[1] - before[0] - sum(self.step.graph.nodes[index].outputs))

    def _bound(self, index: int) -> Callable[[], list[Any]]:
        """The node bound to random inputs, which live as long as the function does."""
        import tensorflow as tf

        refs = [ref for call in self.step.operations[index].calls for ref in call.inputs]
        numbers = {ref.number for ref in refs if isinstance(ref, Place)}
        numbers |= {ref.place for ref in refs if isinstance(ref, Read)}
        places: dict[int, Any] = {}
        held = []
        with tf.device(f"/device:{self.device.upper()}:0"):
            for number in sorted(numbers):
                place = self.step.places[number]
                dtype = tf.dtypes.as_dtype(place.spec.dtype)
                array = place_array(place, self.generator)
                if place.kind == "variable":
                    held.append(tf.Variable(array, dtype=dtype))
                    places[number] = held[-1].handle
                else:
                    places[number] = tf.constant(array, dtype)
            values = {value: self._value(value) for value in self.step.graph.nodes[index].inputs}
        function = call_function(self.step, index, self.device)

        def call() -> list[Any]:
            assert held is not None  # a variable is gone with its last Python object
            return function(places, values)

        return call

    def _value(self, value: int) -> Any:
        """A valid tensor for a value. Lists of tensors come from the nodes that make them."""
        import tensorflow as tf

        spec = self.step.spec(value)
        if spec is None:
            return None
        if spec.dtype in OPAQUE:
            producer = self.step.graph.producer[value]
            return self._bound(producer)()[value - self.step.graph.first_value[producer]]
        return tf.constant(random_array(spec, self.generator), tf.dtypes.as_dtype(spec.dtype))


def _facts(device: str, repeats: int, warmup: int, kinds: int) -> dict[str, Any]:
    """The machine and the settings of the measurement."""
    import tensorflow as tf

    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()
    return facts(device, "tensorflow", str(tf.__version__), repeats, warmup, kinds) | host(threads)
