"""Runs plans of a step, and its nodes one by one, with random weights and inputs, and measures memory and time.

Random tensors are valid ones, of the right type and shape. Whole numbers are below the limit that the graph states.
Variables without dimensions hold what the user's held. Other variables that are not trained are positive: second
moments of gradients, variances and steps have to be.
"""

import math
import os
import weakref
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

from remat_cli.errors import ExecutionFailed, OutOfMemory
from remat_cli.frontends.captured.profiling import MeasuredOperation, OperationBench, host_facts, time_call
from remat_cli.frontends.captured.running import MeasuredPlan, PlanBench, compared_tensor, median_s
from remat_cli.frontends.source import one_line
from remat_cli.frontends.tensorflow.compat import Execute, address
from remat_cli.frontends.tensorflow.document import (
    ITEM_BYTES,
    OPAQUE,
    Place,
    Placeholder,
    Read,
    Ref,
    Step,
    TensorSpec,
    read_workspaces,
)
from remat_cli.frontends.tensorflow.execute.program import call_function, program
from remat_cli.frontends.tensorflow.operators import ASSIGNS, BY_ROWS, CALLS
from remat_cli.graph.model import Graph, Node
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
        compared = [compared_tensor(f"result {k}", tensor.numpy().copy()) for k, tensor in enumerate(results)]
        del results
        for number, variable in self.given.variables.items():
            name = printable(f"update of {self.step.places[number].name} ({number})")
            compared.append(compared_tensor(name, variable.numpy().copy()))
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
        return MeasuredPlan(compared, highest, taken, allocator)


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


_FALLBACK_LIMIT = 2
"""Without a limit, whole numbers are 0 or 1: these are valid for most operations."""
_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")


def place_array(place: Placeholder, generator: Any) -> Any:
    """A valid array for a place, from a generator of numpy."""
    import numpy
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(place.spec.dtype).as_numpy_dtype
    if place.number is not None:
        return numpy.array(float.fromhex(place.number)).astype(dtype)
    if place.kind != "variable":
        return random_array(place.spec, generator, below=place.below)
    shape = place.spec.shape
    weight = place.trainable and len(shape) > 1
    array = random_array(place.spec, generator, scale=1 / math.sqrt(math.prod(shape[:-1])) if weight else 1.0)
    return array if weight or place.spec.dtype not in _FLOATS else numpy.clip(numpy.abs(array), 0.1, 2).astype(dtype)


def random_array(spec: TensorSpec, generator: Any, *, below: int | None = None, scale: float = 1.0) -> Any:
    """A random array.

    Args:
        spec: Its type and shape.
        generator: Source of random numbers.
        below: Upper limit of whole numbers; None for no limit.
        scale: Standard deviation of other numbers.
    """
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype
    if spec.dtype in _FLOATS:
        return (generator.standard_normal(spec.shape, "float32") * scale).astype(dtype)
    if spec.dtype.startswith("complex"):
        real, imaginary = (generator.standard_normal(spec.shape, "float32") for _ in range(2))
        return (real + 1j * imaginary).astype(dtype)
    limit = 2 if spec.dtype == "bool" else below or _FALLBACK_LIMIT
    limit = min(limit, 128) if ITEM_BYTES[spec.dtype] == 1 else limit
    return generator.integers(0, limit, spec.shape).astype(dtype)


def placed(place: Placeholder, array: Any) -> tuple[Any, Any]:
    """What a program takes for a place: a tensor, or the handle of a variable; and the variable, which has to live."""
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(place.spec.dtype)
    if place.kind != "variable":
        return tf.constant(array, dtype), None
    variable = tf.Variable(array, dtype=dtype)
    return variable.handle, variable


class Given:
    """Random tensors and variables for the places of a step.

    Attributes:
        places: What a program takes: a tensor or the handle of a variable for each place.
        variables: The variables, by place.
    """

    def __init__(self, places: Sequence[Placeholder], device: str, seed: int) -> None:
        import tensorflow as tf

        self._described = places
        self._seed = seed
        self.places: list[Any] = []
        self.variables: dict[int, Any] = {}
        with tf.device(f"/device:{device.upper()}:0"):
            for number, (place, array) in enumerate(zip(places, self._arrays(), strict=True)):
                tensor, variable = placed(place, array)
                self.places.append(tensor)
                if variable is not None:
                    self.variables[number] = variable

    def _arrays(self) -> Any:
        import numpy

        generator = numpy.random.default_rng(self._seed)
        return (place_array(place, generator) for place in self._described)

    def restore(self) -> None:
        """Give all variables, and TensorFlow's own random numbers, the state that they had at the beginning."""
        import tensorflow as tf

        for number, array in enumerate(self._arrays()):
            if number in self.variables:
                self.variables[number].assign(array)
        tf.random.set_seed(self._seed)


@dataclass(slots=True, eq=False)
class _Buffer:
    """Memory from ``start`` on, and references to the tensors in it, by their ids, since tensors have no hash."""

    start: int
    size: int
    tensors: dict[int, weakref.ref[Any]] = field(default_factory=dict)


class LiveBuffers:
    """Runs kernels on the CPU, and counts the bytes that their results take, per buffer, after each of them.

    A buffer is known by its address. It lives as long as one of the tensors that lie in it, whatever made them; so this
    counts what is really there, and not what a plan says.

    Attributes:
        peak_bytes: Most bytes at once, without variables and without tensors that were there before.
        executed: How often each operation has run.
    """

    def __init__(self, execute: Execute, places: Sequence[Any], constants: Sequence[Any] = ()) -> None:
        self.peak_bytes = 0
        self.executed: dict[str, int] = {}
        self._execute = execute
        self._buffers: list[_Buffer] = []  # by their starts, which are in a list of their own
        self._starts: list[int] = []
        self._bytes = 0
        tensors = [tensor for tensor in (*places, *constants) if tensor.dtype.name != "resource"]
        addresses = (address(tensor) for tensor in tensors)
        self._there = Counter(place[0] for place in addresses if place is not None)
        self._handles = {id(handle): handle for handle in places if handle.dtype.name == "resource"}
        self._attributes: dict[int, tuple[Any, ...]] = {}
        self._held: dict[int, int] = {}

    def __call__(self, op: str, inputs: list[Any], attributes: tuple[Any, ...], outputs: int) -> list[Any]:
        """Run a kernel, see :data:`remat_cli.frontends.tensorflow.compat.Execute`."""
        results = self._execute(op, inputs, attributes, outputs)
        self.executed[op] = self.executed.get(op, 0) + 1
        for tensor in results:
            self._add(tensor)
        if op in {"ReadVariableOp", "AssignVariableOp"} and id(inputs[0]) in self._handles:
            types = dict(zip(attributes[::2], attributes[1::2], strict=True))
            self._attributes[id(inputs[0])] = ("dtype", types["dtype"])
            self._locate(inputs[0])
        elif op in ASSIGNS | BY_ROWS | CALLS:
            for handle in inputs:
                if id(handle) in self._attributes:
                    self._locate(handle)
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        return results

    def _add(self, tensor: Any) -> None:
        place = address(tensor)
        if place is None or not place[1]:
            return
        buffer = self._around(*place)
        if buffer is None:
            buffer = _Buffer(*place)
            at = bisect_right(self._starts, buffer.start)
            self._starts.insert(at, buffer.start)
            self._buffers.insert(at, buffer)
            self._bytes += buffer.size if not self._there[buffer.start] else 0
        lies_in = buffer

        def gone(tensor: weakref.ref[Any]) -> None:
            del lies_in.tensors[id(tensor)]
            if not lies_in.tensors:
                self._remove(lies_in)

        reference = weakref.ref(tensor, gone)
        buffer.tensors[id(reference)] = reference

    def _around(self, start: int, size: int) -> _Buffer | None:
        """The buffer that holds these bytes; None if there is none."""
        for at in range(bisect_right(self._starts, start) - 1, -1, -1):
            buffer = self._buffers[at]
            end = buffer.start + buffer.size
            if start + size <= end:
                return buffer
            if end <= start:
                break
        return None

    def _remove(self, buffer: _Buffer) -> None:
        at = self._buffers.index(buffer, bisect_left(self._starts, buffer.start))
        del self._starts[at], self._buffers[at]
        self._bytes -= buffer.size if not self._there[buffer.start] else 0

    def _sized(self, start: int) -> int:
        """Bytes of the buffers that begin at an address."""
        return sum(b.size for b in self._buffers[bisect_left(self._starts, start) : bisect_right(self._starts, start)])

    def _locate(self, handle: Any) -> None:
        """Note where a variable is now; what was read of it may lie elsewhere from then on.

        A variable that is used by rows is copied by each reading, and these copies are tensors like others.
        """
        first, second = (self._execute("ReadVariableOp", [handle], self._attributes[id(handle)], 1)[0] for _ in "12")
        place = address(first)
        before = self._held.pop(id(handle), None)
        if before is not None:
            self._there[before] -= 1
            self._bytes += self._sized(before) if not self._there[before] else 0
        if place is not None and place == address(second):
            self._held[id(handle)] = place[0]
            self._bytes -= self._sized(place[0]) if not self._there[place[0]] else 0
            self._there[place[0]] += 1


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

    def measure_one(self, index: int, repeats: int, warmup: int) -> MeasuredOperation:
        """See :meth:`OperationBench.measure_one`."""
        import tensorflow as tf

        where = printable(f"node {self.step.graph.nodes[index].id}")
        try:
            call = self._bound(index)
            call()
            space = self._workspace(index, call)
            times = time_call(call, tf.test.experimental.sync_devices, repeats, warmup)
        except tf.errors.ResourceExhaustedError as error:
            raise OutOfMemory(
                f"{where} does not fit the memory of the device: {one_line(error)}",
                hint="nodes are run one by one, with their inputs: make room on the device, or profile a smaller batch",
            ) from error
        except tf.errors.OpError as error:
            raise ExecutionFailed(
                f"{where} failed on {self.device}: {one_line(error)}",
                hint="a graph is for the device it was exported for: was it another one?",
            ) from error
        return MeasuredOperation(times, space)

    def node(self, index: int, measured: MeasuredOperation | None, cheapest_us: float) -> Node:
        """See :meth:`OperationBench.node`. Values inside of the node are workspace, too."""
        node = super().node(index, measured, cheapest_us)
        return replace(node, workspace=max(node.workspace, self._value_workspaces[index]))

    def machine(self) -> dict[str, Any]:
        """See :meth:`OperationBench.machine`."""
        import tensorflow as tf

        threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()
        return {"tensorflow": str(tf.__version__)} | host_facts(threads)

    def finished(self, graph: Graph) -> Graph:
        """The measured graph, which also says what part of each workspace is values inside the node."""
        said = graph.metadata["profile"] | {"workspaces": list(self._value_workspaces)}
        return replace(graph, metadata=graph.metadata | {"profile": said})

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
                tensor, variable = placed(place, place_array(place, self.generator))
                places[number] = tensor
                held.append(variable)
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
