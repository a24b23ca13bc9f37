"""Loads the functions in a document, which are compiled when they are first called, and runs plans with them.

Every computation is a call, and references are dropped where the plan frees a value: JAX frees the memory of an array
when nobody refers to it any more. The program holds the only references to values, in a list with a place for each. On
a CPU it waits for every result before it goes on: calls return before they are done, and a program that ran ahead would
hold more than the plan says.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from remat_cli.errors import ExecutionFailed, OutOfMemory, UsageError, Worded
from remat_cli.frontends.captured.origin import damaged
from remat_cli.frontends.jax.compat import module_of, stable_calls
from remat_cli.frontends.jax.document import ArraySpec, Constant, Data, Input, Place, Step, Value
from remat_cli.frontends.jax.installed import device_named
from remat_cli.frontends.source import one_line
from remat_cli.plan.model import Compute, Deallocate, Statement
from remat_cli.printable import printable

_CALL = re.compile(r'custom_call\s+@(?:"([^"]*)"|([\w.$-]+))|call_target_name\s*=\s*"([^"]*)"')
_HARMLESS = frozenset({"Sharding", "annotate_device_placement", "mhlo.topk", "mhlo.erf", "chlo.top_k"})


@dataclass(slots=True, weakref_slot=True)
class Function:
    """A function of a document. It is compiled once, for the types that it states, whatever arrays come.

    Equal functions of several plans are one object as long as one of the plans is in use: compiling takes most of the
    time before a first step.

    Attributes:
        exported: The function as JAX reads it.
        device: Kind of device that it runs on.
        reads: The arrays that it reads.
        makes: The arrays that it makes.
    """

    exported: Any
    device: str
    reads: tuple[ArraySpec, ...]
    makes: tuple[ArraySpec, ...]
    _compiled: Any = None

    def compiled(self) -> Any:
        """The compiled function: call it with arrays on the device."""
        if self._compiled is None:
            import jax
            import jax.numpy as jnp

            place = jax.sharding.SingleDeviceSharding(device_named(self.device))
            structs = [jax.ShapeDtypeStruct(s.shape, jnp.dtype(s.dtype), sharding=place) for s in self.reads]
            with wide_numbers():
                self._compiled = jax.jit(self.exported.call).lower(*structs).compile()
        return self._compiled

    def __call__(self, *arrays: Any) -> Any:
        """The arrays that it makes."""
        return (self._compiled or self.compiled())(*arrays)


_SHARED: WeakValueDictionary[tuple[bytes, str], Function] = WeakValueDictionary()
"""The functions in use, by their text and device."""


def wide_numbers() -> AbstractContextManager[Any]:
    """A context in which JAX makes arrays of 64 bits if asked to; functions state the types of all their numbers."""
    import jax

    context: AbstractContextManager[Any] = jax.enable_x64(True)
    return context


@dataclass(slots=True)
class Loaded:
    """The functions of a step, ready to be called.

    Attributes:
        step: The step.
        device: Kind of device that they run on.
        functions: Every function.
    """

    step: Step
    device: str
    functions: list[Function] = field(default_factory=list)


def load(step: Step, device: str) -> Loaded:
    """The functions of ``step`` for a device.

    Raises:
        UsageError: If the document was damaged, or a function is for another device, or calls what JAX does not
            promise to keep: that might run anything.
        ExecutionFailed: If this JAX cannot read a function.
    """
    loaded = Loaded(step, device)
    for number, written in enumerate(step.functions):
        function = _SHARED.get((written, device))
        if function is None:
            function = _SHARED[written, device] = _read(step, written, number, device)
        loaded.functions.append(function)
    for index, operation in enumerate(step.operations):
        function = loaded.functions[operation.function]
        if (_bare(step.read_specs(index)), _bare(operation.values)) != (_bare(function.reads), _bare(function.makes)):
            at = f"node {step.graph.nodes[index].id}"
            raise damaged(step.graph, at, "its function reads or makes arrays of other types or shapes")
    return loaded


def _read(step: Step, written: bytes, number: int, device: str) -> Function:
    """The function ``number`` of ``step``; see :func:`load` for errors."""
    import jax

    try:
        exported = module_of(written)
    except Exception as error:  # whatever is in the document
        raise ExecutionFailed(
            f"JAX cannot read function {number} of the graph {step.graph.name}: {one_line(error)}",
            hint=f"it was written by JAX {step.jax}, and this is {jax.__version__}: export it again",
        ) from error
    at = f"metadata.functions[{number}]"
    if device not in exported.platforms:
        raise UsageError(
            f"the graph {step.graph.name} was exported for {' and '.join(exported.platforms)}, not {device}",
            hint=Worded(f'export it again for device="{device}"', f"export it again with --device {device}"),
        )
    if exported.nr_devices != 1 or exported.ordered_effects or exported.unordered_effects:
        raise damaged(step.graph, at, "it is not for one device, or has side effects")
    _require_known_calls(step, exported, at)
    return Function(exported, device, _specs(exported.in_avals), _specs(exported.out_avals))


def _require_known_calls(step: Step, exported: Any, at: str) -> None:
    """Check that a function calls only library functions that JAX itself promises to keep."""
    text = exported.mlir_module()
    if "custom_call" not in text:
        return
    allowed = stable_calls() | _HARMLESS
    for match in _CALL.finditer(text):
        name = next(name_part for name_part in match.groups() if name_part is not None)
        if name not in allowed:
            raise damaged(step.graph, at, f"it calls {name}, which is no function that JAX keeps")


def _specs(avals: Any) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(str(aval.dtype), tuple(map(int, aval.shape))) for aval in avals)


def _bare(specs: tuple[ArraySpec, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Types and shapes of the numbers, without the generators of keys."""
    return [(spec.dtype, spec.shape) for spec in specs]


@dataclass(frozen=True, slots=True)
class Call:
    """One computation.

    Attributes:
        node: The node.
        function: What computes it.
        reads: The places in the program's list that it reads, in order.
        makes: Those that it writes.
        frees: Those that are cleared afterwards.
    """

    node: int
    function: Callable[..., list[Any]]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    frees: list[int]


@dataclass(frozen=True, slots=True)
class Program:
    """A plan that can be run.

    Attributes:
        step: The step.
        device: The device that it runs on.
        calls: The computations in order.
        constants: The arrays of constants, on the device.
        results: The places of results in the program's list: values, then the step's places, then constants.
    """

    step: Step
    device: str
    calls: tuple[Call, ...]
    constants: tuple[Any, ...]
    results: tuple[int, ...]

    def run(self, places: Sequence[Any], seen: Callable[[Sequence[Any]], None] | None = None) -> list[Any]:
        """Run one step.

        Args:
            places: An array for each place of the graph, keys as the numbers in them. They are not changed.
            seen: Called after every computation, before anything is freed, with the arrays that it made.

        Returns:
            An array for each result of the step.

        Raises:
            OutOfMemory: If memory is exhausted, with the node.
            ExecutionFailed: If an operation fails, with the node.
        """
        held: list[Any] = [None] * len(self.step.graph.size) + [*places, *self.constants]
        wait = self.device == "cpu"
        for call in self.calls:
            try:
                arrays = call.function(*[held[read] for read in call.reads])
                if wait:
                    for array in arrays:
                        array.block_until_ready()
            except Exception as error:  # operations may raise anything
                raise self._failed(call, error) from error
            for place, array in zip(call.makes, arrays, strict=True):
                held[place] = array
            if seen is not None:
                seen(arrays)
            del arrays
            for place in call.frees:
                held[place] = None
        return [held[place] for place in self.results]

    def _failed(self, call: Call, error: Exception) -> ExecutionFailed:
        node = printable(f"node {self.step.graph.nodes[call.node].id}")
        words = one_line(error)
        if "RESOURCE_EXHAUSTED" in words or isinstance(error, MemoryError):
            return OutOfMemory(
                f"{self.device} has too little memory: {node}: {words}", hint="solve for a smaller budget"
            )
        return ExecutionFailed(
            f"{node} failed on {self.device}: {words}",
            hint="was the graph exported for another device or version of JAX?",
        )


def program(loaded: Loaded, statements: Sequence[Statement]) -> Program:
    """The program that does what ``statements``, a valid plan of the graph, say."""
    step, graph = loaded.step, loaded.step.graph
    values, places = len(graph.size), len(step.places)

    def slot(array: Input | Value | Place | Constant, inputs: Sequence[int]) -> int:
        match array:
            case Input(position):
                return inputs[position]
            case Value(number):
                return number
            case Place(number):
                return values + number
            case Constant(number):
                return values + places + number

    holds: dict[str, int] = {}
    calls: list[Call] = []
    for statement in statements:
        if isinstance(statement, Compute):
            node, operation = statement.node, step.operations[statement.node]
            outputs = tuple(graph.values_of(node))
            holds |= dict(zip(statement.registers, outputs, strict=True))
            reads = tuple(slot(read, graph.nodes[node].inputs) for read in operation.reads)
            calls.append(Call(node, loaded.functions[operation.function], reads, outputs, []))
        elif isinstance(statement, Deallocate):
            calls[-1].frees.append(holds.pop(statement.register))
    return Program(
        step=step,
        device=loaded.device,
        calls=tuple(calls),
        constants=tuple(array_of(data, loaded.device) for data in step.constants),
        results=tuple(slot(result.array, ()) for result in step.results),
    )


def array_of(data: Data, device: str) -> Any:
    """The array of a constant, on the device."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    numbers = np.frombuffer(data.data, dtype=jnp.dtype(data.spec.dtype)).reshape(data.spec.shape)
    return jax.device_put(numbers.copy(), device_named(device))
