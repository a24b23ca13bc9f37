"""Runs the nodes of a graph one by one, and measures their time and workspace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy

from remat_cli.errors import ExecutionFailed, OutOfMemory
from remat_cli.frontends.captured.profiling import MeasuredOperation, OperationBench, host_facts, time_call
from remat_cli.frontends.tensorflow.document import OPAQUE, Place, Read, Ref, Step
from remat_cli.frontends.tensorflow.execute.program import call_function, words
from remat_cli.frontends.tensorflow.measure.plans import allocated, place_array, random_array
from remat_cli.frontends.tensorflow.reading import read_workspaces
from remat_cli.graph.model import Graph, Node
from remat_cli.printable import printable


class Operations(OperationBench):
    """The nodes of a step, with random inputs."""

    def __init__(self, step: Step, device: str, seed: int) -> None:
        self.graph, self.device = step.graph, device
        self.step = step
        self.generator = numpy.random.default_rng(seed)
        self._value_workspaces = read_workspaces(step.graph)

    def kind(self, index: int) -> str:
        """A text that is equal for nodes with the same operations on tensors of the same form."""
        step, operation = self.step, self.step.operations[index]

        def form(ref: Ref) -> Any:
            number = ref.number if isinstance(ref, Place) else ref.place if isinstance(ref, Read) else None
            return ref if number is None else (type(ref).__name__, step.places[number].kind, step.places[number].spec)

        calls = [
            (c.op, [form(ref) for ref in c.inputs], c.outputs, sorted(c.attributes.items())) for c in operation.calls
        ]
        return repr((calls, operation.values, [step.spec(value) for value in step.graph.nodes[index].inputs]))

    def measure(self, indices: Sequence[int], repeats: int, warmup: int) -> Iterator[MeasuredOperation]:
        """See :meth:`OperationBench.measure`."""
        for index in indices:
            yield self._measured(index, repeats, warmup)

    def node(self, index: int, measured: MeasuredOperation | None, cheapest_us: float) -> Node:
        """See :meth:`OperationBench.node`."""
        assert measured is not None  # every node runs
        workspace = max(self._value_workspaces[index], measured.workspace_bytes or 0)
        return replace(self.graph.nodes[index], cost=measured.timed.median_us, workspace=workspace)

    def machine(self) -> dict[str, Any]:
        """See :meth:`OperationBench.machine`."""
        import tensorflow as tf

        threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()
        return {"tensorflow": str(tf.__version__)} | host_facts(threads)

    def finished(self, graph: Graph) -> Graph:
        """The measured graph, which also says what part of each workspace is values inside the node."""
        said = graph.metadata["profile"] | {"workspaces": list(self._value_workspaces)}
        return replace(graph, metadata=graph.metadata | {"profile": said})

    def _measured(self, index: int, repeats: int, warmup: int) -> MeasuredOperation:
        """Measure one node; its inputs are freed afterwards."""
        import tensorflow as tf

        where = printable(f"node {self.step.graph.nodes[index].id}")
        try:
            call = self._bound(index)
            call()
            space = self._workspace(index, call)
            times = time_call(call, tf.test.experimental.sync_devices, repeats, warmup)
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
        return MeasuredOperation(times, space)

    def _workspace(self, index: int, call: Callable[[], Any]) -> int | None:
        before = allocated(self.device)
        results = call()
        after = allocated(self.device)
        del results
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
