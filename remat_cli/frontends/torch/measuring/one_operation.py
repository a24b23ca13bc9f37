"""Runs single operations of a graph, with random inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.aten.value_ranges import (
    INDEXING,
    INDEXING_ALONG,
    INDEXING_EACH,
    INDEXING_FLAT,
    MASKS,
    SHARES,
)
from remat_cli.frontends.torch.codec import decode_data
from remat_cli.frontends.torch.document import (
    Argument,
    Constant,
    Input,
    Operation,
    Place,
    Step,
    TensorSpec,
    View,
    tensors_read,
)
from remat_cli.frontends.torch.executing.inputs import new_tensor, place_tensor, seeded
from remat_cli.frontends.torch.executing.out_of_memory import no_memory, out_of_memory
from remat_cli.frontends.torch.executing.program import Tensors, call_function, words
from remat_cli.printable import printable

_INDEXES = frozenset((*INDEXING, *INDEXING_ALONG, *INDEXING_EACH, *INDEXING_FLAT))
"""Operators that fail if an index is out of range."""


@dataclass(slots=True)
class Operations:
    """The operations of a graph, for running them one by one.

    Attributes:
        step: A graph that this frontend made.
        device: Device to run on.
        seed: Seed of the random inputs.
    """

    step: Step
    device: str
    seed: int = 0
    _generator: Any = field(init=False)
    _exact: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        """Seed the generator, and find the nodes whose results depend on no random input."""
        self._generator = seeded(self.device, self.seed)
        self._exact = _exact_nodes(self.step)

    def kind(self, index: int) -> str:
        """A text that is equal for nodes with the same operation on tensors of the same form."""
        operation = self.step.operations[index]
        args, kwargs = self._forms(operation)
        reads = [[tensor.spec for tensor in self.step.tensors(value)] for value in self.step.graph.nodes[index].inputs]
        return repr((operation.call, args, kwargs, operation.values, reads))

    def _forms(self, called: Operation | View) -> tuple[Any, Any]:
        """The arguments of a call, with the form of each place and the data of each constant instead of its number."""
        kwargs = sorted((key, self._form(argument)) for key, argument in called.kwargs.items())
        return [self._form(argument) for argument in called.args], kwargs

    def _form(self, argument: Argument) -> Any:
        match argument:
            case Place(number):
                place = self.step.places[number]
                return place.kind, place.spec, place.below
            case Constant(number):
                return self.step.constants[number]
            case View():
                return argument.call, self._forms(argument), argument.item
            case tuple():
                return [self._form(item) for item in argument]
            case _:
                return argument

    def prepared(self, index: int) -> Callable[[], Any]:
        """The operation bound to its inputs; it may be called repeatedly. The inputs live as long as it does.

        Raises:
            OutOfMemory: If memory is exhausted.
            ExecutionFailed: If the inputs cannot be made.
        """
        if self.step.operations[index].call not in _INDEXES:
            return self._bound(index, {})
        # Indices that other operations compute from random numbers may be out of range; zeros never are.
        try:
            bound = self._bound(index, {})
            with self.attempt(index):
                bound()
        except ExecutionFailed:
            return self._bound(index, self._zero_integers(index))
        return bound

    def _zero_integers(self, index: int) -> dict[int, list[Any]]:
        """Zeros for the values with integers that a node reads."""
        specs = {
            value: [tensor.spec for tensor in self.step.tensors(value)] for value in self.step.graph.nodes[index].inputs
        }
        return {
            value: [self._empty_mask(spec) for spec in found]
            for value, found in specs.items()
            if any(spec.dtype.startswith(("int", "uint")) for spec in found)
        }

    def _bound(self, index: int, made: dict[int, list[Any]]) -> Callable[[], Any]:
        node, operation = self.step.graph.nodes[index], self.step.operations[index]
        read = list(tensors_read((*operation.args, *operation.kwargs.values())))
        places = {tensor.number: self.step.places[tensor.number] for tensor in read if isinstance(tensor, Place)}
        given = {number: place_tensor(place, self.device, self._generator) for number, place in places.items()}
        numbers = [tensor.number for tensor in read if isinstance(tensor, Constant)]
        constants = {number: decode_data(self.step.constants[number], self.device) for number in numbers}
        for positions, make in ((SHARES, self._share), (MASKS, self._empty_mask)):
            for tensor in tensors_read([operation.args[k] for k in positions.get(operation.call, ())]):
                if isinstance(tensor, Place):
                    given[tensor.number] = make(places[tensor.number].spec)
                elif isinstance(tensor, Input):
                    value = node.inputs[tensor.position]
                    made[value] = [make(returned.spec) for returned in self.step.tensors(value)]
        values = {value: self._value(value, made) for value in node.inputs}
        return call_function(self.step, index, self.device, Tensors(given, constants, values))

    def _new(self, spec: TensorSpec) -> Any:
        return new_tensor(spec, self.device, self._generator)

    def _share(self, spec: TensorSpec) -> Any:
        return new_tensor(spec, self.device, self._generator, below=1)

    def _empty_mask(self, spec: TensorSpec) -> Any:
        mask = self._new(spec)
        mask.untyped_storage().fill_(0)
        return mask

    def _value(self, value: int, made: dict[int, list[Any]]) -> list[Any]:
        """Valid tensors for ``value``. Integers come from the operation that makes them, and so does what they are
        computed from, such as the distances behind a table of relative positions.
        """
        if value not in made:
            tensors = self.step.tensors(value)
            producer = self.step.graph.producer[value]
            computed = any(tensor.spec.dtype.startswith(("int", "uint")) for tensor in tensors)
            if (computed or producer in self._exact) and producer != self.step.tangents:
                result = self._run(producer, made)
                made[value] = [result if tensor.item is None else result[tensor.item] for tensor in tensors]
            else:
                made[value] = [self._new(tensor.spec) for tensor in tensors]
        return made[value]

    def _run(self, index: int, made: dict[int, list[Any]]) -> Any:
        function = self._bound(index, made)
        with self.attempt(index):
            return function()

    @contextlib.contextmanager
    def attempt(self, index: int) -> Iterator[None]:
        """A context without autograd, in which every error becomes one of remat's that names the node.

        Raises:
            OutOfMemory: If memory is exhausted.
            ExecutionFailed: If anything else fails.
        """
        import torch

        where = printable(f"node {self.step.graph.nodes[index].id} ({self.step.operations[index].call})")
        try:
            with torch.no_grad():
                yield
        except Exception as error:  # operators may raise anything
            if out_of_memory(error):
                raise no_memory(error, self.device, where) from error
            raise ExecutionFailed(
                f"{where} failed on {self.device}: {words(error)}",
                hint="a graph is for the device it was exported for: was it another one?",
            ) from error


def _exact_nodes(step: Step) -> frozenset[int]:
    """The nodes that compute from integers and constants alone: positions, distances, masks."""
    graph = step.graph
    found: set[int] = set()
    for index, operation in enumerate(step.operations):
        read = tensors_read((*operation.args, *operation.kwargs.values()))
        places = [step.places[tensor.number].spec.dtype for tensor in read if isinstance(tensor, Place)]
        whole = all(dtype.startswith(("int", "uint", "bool")) for dtype in places)
        known = all(graph.producer[value] in found for value in graph.nodes[index].inputs)
        if whole and known and not operation.random and index != step.tangents:
            found.add(index)
    return frozenset(found)
