"""Runs single operations of a graph, with random tensors in place of the user's.

They are valid, and of the right type, shape and strides. Floating-point numbers are normal, or uniform from 0 to the
limit if the graph states one (targets of a binary cross entropy). Integers are below the limit that the graph states
for an index. If an operation makes them (the indices of a pooling layer), that operation is run on random inputs.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from remat_cli.frontends.torch.codec import decode_data, empty_tensor
from remat_cli.frontends.torch.document import (
    Argument,
    Constant,
    Input,
    Operation,
    Place,
    Placeholder,
    Step,
    TensorSpec,
    View,
    tensors_read,
)
from remat_cli.frontends.torch.execute.out_of_memory import no_memory, out_of_memory
from remat_cli.frontends.torch.execute.program import Tensors, call_function, words
from remat_cli.frontends.torch.types import Generator, Tensor
from remat_cli.printable import printable

_INDEXES = frozenset((*INDEXING, *INDEXING_ALONG, *INDEXING_EACH, *INDEXING_FLAT))
"""Operators that fail if an index is out of range."""
_FALLBACK_LIMIT = 2
"""Without a limit, integers are 0 or 1: these are valid for most operators."""


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
    _generator: Generator = field(init=False)
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

    def _zero_integers(self, index: int) -> dict[int, list[Tensor]]:
        """Zeros for the values with integers that a node reads."""
        read = {value: self.step.tensors(value) for value in self.step.graph.nodes[index].inputs}
        return {
            value: [self._empty_mask(tensor.spec) for tensor in tensors]
            for value, tensors in read.items()
            if any(tensor.spec.dtype.startswith(("int", "uint")) for tensor in tensors)
        }

    def _bound(self, index: int, values_of: dict[int, list[Tensor]]) -> Callable[[], Any]:
        node, operation = self.step.graph.nodes[index], self.step.operations[index]
        read = list(tensors_read((*operation.args, *operation.kwargs.values())))
        places = {tensor.number: self.step.places[tensor.number] for tensor in read if isinstance(tensor, Place)}
        tensors = {number: place_tensor(place, self.device, self._generator) for number, place in places.items()}
        numbers = [tensor.number for tensor in read if isinstance(tensor, Constant)]
        constants = {number: decode_data(self.step.constants[number], self.device) for number in numbers}
        for positions, make in ((SHARES, partial(self._new, below=1)), (MASKS, self._empty_mask)):
            for tensor in tensors_read([operation.args[k] for k in positions.get(operation.call, ())]):
                if isinstance(tensor, Place):
                    tensors[tensor.number] = make(places[tensor.number].spec)
                elif isinstance(tensor, Input):
                    value = node.inputs[tensor.position]
                    values_of[value] = [make(returned.spec) for returned in self.step.tensors(value)]
        values = {value: self._value(value, values_of) for value in node.inputs}
        return call_function(self.step, index, self.device, Tensors(tensors, constants, values))

    def _new(self, spec: TensorSpec, below: int | None = None) -> Tensor:
        return new_tensor(spec, self.device, self._generator, below=below)

    def _empty_mask(self, spec: TensorSpec) -> Tensor:
        mask = self._new(spec)
        mask.untyped_storage().fill_(0)
        return mask

    def _value(self, value: int, values_of: dict[int, list[Tensor]]) -> list[Tensor]:
        """Valid tensors for ``value``. Integers come from the operation that makes them, and so does what they are
        computed from, such as the distances behind a table of relative positions.
        """
        if value not in values_of:
            tensors = self.step.tensors(value)
            producer = self.step.graph.producer[value]
            computed = any(tensor.spec.dtype.startswith(("int", "uint")) for tensor in tensors)
            if (computed or producer in self._exact) and producer != self.step.tangents:
                function = self._bound(producer, values_of)
                with self.attempt(producer):
                    result = function()
                values_of[value] = [result if tensor.item is None else result[tensor.item] for tensor in tensors]
            else:
                values_of[value] = [self._new(tensor.spec) for tensor in tensors]
        return values_of[value]

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
    exact: set[int] = set()
    for index, operation in enumerate(step.operations):
        read = tensors_read((*operation.args, *operation.kwargs.values()))
        places = [step.places[tensor.number].spec.dtype for tensor in read if isinstance(tensor, Place)]
        whole = all(dtype.startswith(("int", "uint", "bool")) for dtype in places)
        known = all(graph.producer[value] in exact for value in graph.nodes[index].inputs)
        if whole and known and not operation.random and index != step.tangents:
            exact.add(index)
    return frozenset(exact)


def new_tensor(spec: TensorSpec, device: str, generator: Generator, *, below: int | None = None) -> Tensor:
    """A random tensor; its numbers are below a limit, or normal if there is none."""
    return _filled(empty_tensor(spec, device), below, generator, 1.0)


def place_tensor(place: Placeholder, device: str, generator: Generator) -> Tensor:
    """A valid tensor for a place: weights of usual magnitude, positive vectors and buffers, inputs around 0."""
    return _filled_place(empty_tensor(place.spec, device), place, generator)


def place_tensors(places: Sequence[Placeholder], device: str, seed: int) -> list[Tensor]:
    """A tensor for each of ``places``; the same for the same seed, device and version of torch.

    All are allocated before any is filled. Otherwise the temporary memory of filling would lie between them, and a
    caching allocator could never return it to the device. Tangents are none of ``places``.
    """
    source = seeded(device, seed)
    empty = [empty_tensor(place.spec, device) for place in places]
    return [_filled_place(tensor, place, source) for tensor, place in zip(empty, places, strict=True)]


def _whole(tensor: Tensor) -> Tensor:
    """All memory of ``tensor``'s storage as a flat tensor, in which no two elements overlap."""
    import torch

    return torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,))


def _filled(tensor: Tensor, limit: int | None, generator: Generator, scale: float) -> Tensor:
    """``tensor``, filled with random numbers in place: a second tensor would disturb measurements of memory."""
    import torch

    dtype = tensor.dtype
    flat = _whole(tensor)
    flat = torch.view_as_real(flat) if dtype.is_complex else flat
    if flat.dtype in {torch.float16, torch.bfloat16, torch.float32, torch.float64}:
        if limit is None:
            flat.normal_(0, scale, generator=generator)
        else:
            flat.uniform_(0, limit, generator=generator)
    elif dtype.is_floating_point:  # ``normal_`` does not support types of 8 bits or less
        flat.copy_(torch.randn(flat.shape, device=flat.device, generator=generator) * scale)
    else:
        below = 2 if dtype == torch.bool else limit or _FALLBACK_LIMIT
        below = min(below, 128) if dtype.itemsize == 1 else below
        flat.copy_(torch.randint(0, below, flat.shape, device=flat.device, generator=generator))
    return tensor


def _filled_place(tensor: Tensor, place: Placeholder, generator: Generator) -> Tensor:
    shape = place.spec.shape
    weight = place.kind == "parameter" and len(shape) > 1
    scale = 1 / math.sqrt(max(1, math.prod(shape[1:]))) if weight else 1.0
    _filled(tensor, place.below, generator, scale)
    if weight or place.kind not in {"parameter", "buffer"} or not tensor.is_floating_point():
        return tensor
    _whole(tensor).abs_().clamp_(0.1, 2.0)
    return tensor


def seeded(device: str, seed: int) -> Generator:
    """A generator of random numbers on ``device``."""
    import torch

    return torch.Generator(device=device).manual_seed(seed)
