"""Documents that describe the operations and arrays of a captured step: payloads of nodes, and the graph's metadata.

A node's payload names the function that computes it, and what that function reads::

    {"function": 3, "reads": [{"input": 0}, {"place": 2}], "values": [{"dtype": "float32", "shape": [8, 16]}]}

``{"input": k}`` is the k-th value that the node reads, ``{"place": p}`` the p-th array that the step is given, and
``{"constant": c}`` the c-th array whose data is in the document. Every value is one array.

The metadata holds ``functions`` (each written by ``jax.export``, compressed, in base64), ``places``, ``constants`` and
``results``: the loss, auxiliary results and gradients, each with the place, the constant or the value that it is. So a
document runs without the code that it came from.

Arrays of random keys are kept as the numbers in them; ``key`` then names the generator.

The fields of the classes here are what stands in documents, see :mod:`remat_cli.frontends.captured.serialiser`.
This module also reads them, without jax.
"""

import base64
import math
import zlib
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.same_graph import differing_spec, first_difference
from remat_cli.frontends.captured.serialiser import ITEM_BYTES as COMMON_BYTES
from remat_cli.frontends.captured.serialiser import Dtype, Reader, Stored, stored
from remat_cli.graph.model import Graph
from remat_cli.printable import printable

FRONTEND = Frontend("jax", "JAX", "JAX", version=1, forced="JAX may refuse its functions")

AUTO, UNROLLED, BLOCKS, WHOLE = "auto", "unrolled", "blocks", "whole"
SCANS = (AUTO, UNROLLED, BLOCKS, WHOLE)
"""What may become of scans in a graph: ``auto`` unrolls short ones, and divides long ones into blocks."""

ITEM_BYTES = {**COMMON_BYTES, **dict.fromkeys(("float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1)}
"""Bytes of an element, by the name of its type. Documents hold arrays of no other type."""


@dataclass(frozen=True, slots=True)
class ArraySpec(Stored):
    """Type and shape of an array.

    Attributes:
        dtype: ``float32``; that of the numbers in it, for an array of keys.
        shape: Its shape; for an array of keys, that of the numbers in it.
        key: The generator of an array of keys; None for one of numbers.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    key: str | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Input(Stored):
    """The ``position``-th value that a node reads."""

    position: int = field(metadata=stored("input", below="inputs"))


@dataclass(frozen=True, slots=True)
class Value(Stored):
    """A value of the graph, by its number."""

    number: int = field(metadata=stored("value", names=True))


@dataclass(frozen=True, slots=True)
class Place(Stored):
    """An array that the step is given."""

    number: int = field(metadata=stored("place", below="places"))


@dataclass(frozen=True, slots=True)
class Constant(Stored):
    """An array whose data is in the document."""

    number: int = field(metadata=stored("constant", below="constants"))


@dataclass(frozen=True, slots=True)
class Operation(Stored):
    """The operation of a node.

    Attributes:
        function: Number of the function that computes it.
        reads: What the function reads, in order.
        values: The arrays that it makes, one for each value of the node.
    """

    function: int = field(metadata=stored(below="functions"))
    reads: tuple[Input | Place | Constant, ...]
    values: tuple[ArraySpec, ...]


@dataclass(frozen=True, slots=True)
class PlaceSpec(Stored):
    """An array that a step is given.

    Attributes:
        kind: ``argument``, or ``captured`` for an array that the code refers to.
        name: ``0.layers.w``: the number of the argument, and the path in it.
        spec: Its type and shape.
        below: Its numbers must be below this and not negative. None if no limit is known.
    """

    kind: str = field(metadata=stored(words=("argument", "captured")))
    name: str
    spec: ArraySpec = field(metadata=stored(inline=True))
    below: int | None = None


@dataclass(frozen=True, slots=True)
class Data(Stored):
    """A small array with its data, in row-major order."""

    spec: ArraySpec = field(metadata=stored(inline=True))
    data: bytes


@dataclass(frozen=True, slots=True)
class Result(Stored):
    """A result of a step.

    Attributes:
        kind: ``loss``, ``auxiliary`` or ``gradient``.
        name: For a gradient, that of the argument; otherwise the path in the result.
        array: What it is.
        spec: Its type and shape.
    """

    kind: str = field(metadata=stored(words=("loss", "auxiliary", "gradient")))
    name: str
    array: Value | Place | Constant
    spec: ArraySpec = field(metadata=stored(inline=True))


@dataclass(frozen=True, slots=True)
class Step:
    """A graph of this frontend, with the contents of its documents.

    Attributes:
        graph: The graph.
        operations: The operation of each node.
        functions: The functions, as ``jax.export`` writes them.
        places: The arrays that it is given, in order.
        constants: The constants, by number.
        results: The loss, auxiliary results, gradients.
        device: Kind of device that it was captured for.
        jax: Version of JAX that wrote its functions.
        scans: What became of scans, one of :data:`SCANS`.
    """

    graph: Graph
    operations: tuple[Operation, ...]
    functions: tuple[bytes, ...]
    places: tuple[PlaceSpec, ...]
    constants: tuple[Data, ...]
    results: tuple[Result, ...]
    device: str
    jax: str
    scans: str = AUTO

    def spec_of(self, value: int) -> ArraySpec:
        """The array in a value."""
        node = self.graph.producer[value]
        return self.operations[node].values[value - self.graph.first_value[node]]

    def read_specs(self, node: int) -> tuple[ArraySpec, ...]:
        """The arrays that the operation of a node reads."""
        specs = []
        for read in self.operations[node].reads:
            match read:
                case Input(position):
                    specs.append(self.spec_of(self.graph.nodes[node].inputs[position]))
                case Place(number):
                    specs.append(self.places[number].spec)
                case Constant(number):
                    specs.append(self.constants[number].spec)
        return tuple(specs)


def function_text(function: bytes) -> str:
    """A function as it stands in a document."""
    return base64.b64encode(zlib.compress(function, 9)).decode("ascii")


def difference(ours: Step, theirs: Step) -> str | None:
    """See :func:`remat_cli.frontends.captured.same_graph.first_difference`."""

    def of_places(mine: PlaceSpec, other: PlaceSpec) -> str | None:
        if mine.name != other.name or mine.kind != other.kind:
            return f"{printable(other.name)} there is {printable(mine.name)} here"
        facts = (
            ("type", other.spec.key or other.spec.dtype, mine.spec.key or mine.spec.dtype),
            ("shape", list(other.spec.shape), list(mine.spec.shape)),
        )
        return differing_spec(other.name, facts)

    def of_operations(number: int) -> str | None:
        def facts(step: Step) -> tuple[object, ...]:
            operation = step.operations[number]
            function = step.functions[operation.function]
            return step.graph.nodes[number].inputs, operation.reads, operation.values, function

        return None if facts(ours) == facts(theirs) else "computes something else"

    return first_difference(ours, theirs, "arrays in its arguments", of_places, of_operations)


_LARGEST_FUNCTION = 1 << 28
"""Most bytes of a function that is read: a few bytes of compressed zeros must not fill the memory."""


def read_step(graph: Graph) -> Step:
    """The contents of the payloads and the metadata of ``graph``.

    Raises:
        UsageError: If they hold anything that this frontend does not write, with its place.
    """
    FRONTEND.require(graph)
    reader, metadata = _Reader(graph), graph.metadata
    places = tuple(reader.part(PlaceSpec, item, at) for item, at in reader.listed("places"))
    constants = tuple(reader.part(Data, item, at) for item, at in reader.listed("constants"))
    functions = tuple(reader.function(item, at) for item, at in reader.listed("functions"))
    reader.counts = {"places": len(places), "constants": len(constants), "functions": len(functions)}
    operations = tuple(reader.operation(number) for number in range(len(graph.nodes)))
    listed = reader.listed("results")
    results = tuple(reader.part(Result, item, at) for item, at in listed)
    step = Step(
        graph=graph,
        operations=operations,
        functions=functions,
        places=places,
        constants=constants,
        results=results,
        device=reader.text(metadata.get("device"), "metadata.device", ("cpu", "cuda")),
        jax=reader.text(metadata.get("jax"), "metadata.jax"),
        scans=reader.text(metadata.get("scans", AUTO), "metadata.scans", SCANS),
    )
    for result, (_, at) in zip(results, listed, strict=True):
        reader.require_kept(step, result, at)
    return step


class _Reader(Reader):
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages."""

    item_bytes = ITEM_BYTES
    called = "an array"

    def check(self, part: Stored, at: str) -> None:
        match part:
            case ArraySpec():
                self.require_size(part.bytes, at)
            case Data(spec, data):
                self.require_length(data, spec.bytes, at)

    def function(self, value: Any, at: str) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            function = unpacker.decompress(self.base64(value, at), _LARGEST_FUNCTION)
        except zlib.error as error:
            raise self.wrong(at, str(error)) from None
        if not unpacker.eof:
            raise self.wrong(at, "it ends early, or is longer than any function")
        return function

    def operation(self, number: int) -> Operation:
        node = self.graph.nodes[number]
        at = f"node {node.id}"
        self.counts["inputs"] = len(node.inputs)
        operation = self.part(Operation, node.payload, at, ": ")
        self.require_made(at, len(node.outputs), len(operation.values))
        if {read.position for read in operation.reads if isinstance(read, Input)} != set(range(len(node.inputs))):
            raise self.wrong(at, "its function does not read exactly what the node reads")
        return operation

    def require_kept(self, step: Step, result: Result, at: str) -> None:
        """Check that a result is there at the end, and is what it says."""
        match result.array:
            case Value(number):
                spec = step.spec_of(number)
            case Place(number):
                spec = step.places[number].spec
            case Constant(number):
                spec = step.constants[number].spec
        if spec != result.spec:
            raise self.wrong(at, "it has another type or shape than what it is")
