"""Runs a plan: one call for every computation, and references dropped where the plan frees a value.

JAX frees the memory of an array when nobody refers to it any more. The program holds the only references to values, in
a list with a place for each. On a CPU it waits for every result before it goes on: calls return before they are done,
and a program that ran ahead would hold more than the plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import ExecutionFailed, OutOfMemory
from remat_cli.frontends.jax.document import Constant, Data, Input, Place, Step, Value
from remat_cli.frontends.jax.execute.functions import Loaded
from remat_cli.frontends.jax.installed import device_named
from remat_cli.plan.model import Compute, Deallocate, Statement
from remat_cli.printable import printable


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
    frees: tuple[int, ...]


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
        words = printable(" ".join(str(error).split()))[:300] or type(error).__name__
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
    frees: list[list[int]] = []
    for statement in statements:
        if isinstance(statement, Compute):
            node, operation = statement.node, step.operations[statement.node]
            outputs = tuple(graph.values_of(node))
            holds |= dict(zip(statement.registers, outputs, strict=True))
            reads = tuple(slot(read, graph.nodes[node].inputs) for read in operation.reads)
            calls.append(Call(node, loaded.functions[operation.function], reads, outputs, ()))
            frees.append([])
        elif isinstance(statement, Deallocate):
            frees[-1].append(holds.pop(statement.register))
    return Program(
        step=step,
        device=loaded.device,
        calls=tuple(
            Call(call.node, call.function, call.reads, call.makes, tuple(freed))
            for call, freed in zip(calls, frees, strict=True)
        ),
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
