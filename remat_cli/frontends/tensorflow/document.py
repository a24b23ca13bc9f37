"""Documents that describe the operations and tensors of a captured step: payloads of nodes, and the graph's metadata.

A node stands for one or several operations of TensorFlow, which run one after another. Its payload rebuilds them
without the user's code::

    {"ops": [{"op": "Conv2D", "in": ["v0", "r3"], "attrs": {...}}, {"op": "BiasAdd", "in": ["t0.0", "r4"]}],
     "values": ["t1.0"]}

``values`` names the tensor that is each value of the node; null stands for a value without a tensor, which only keeps
operations in order. Tensors are named like this:

=========  =========================================================================
``v2``     the value that the node reads third
``t1.0``   the first output of the second operation of the node
``p3``     the fourth place: an input, or the handle of a variable
``r3``     the number that the variable of that place had when the step began
``c5``     the sixth constant
=========  =========================================================================

Operations that only alias the memory of another tensor (Reshape) belong to each node that reads them.

An attribute is an object with one entry, whose key is its kind: ``{"type": "float32"}``, ``{"ints": [1, 1]}``,
``{"float": "0x1.8p+1"}``, ``{"function": 0}``. Attributes with their default are left out.

The metadata holds ``places``, ``constants``, ``functions`` (of control flow, as serialised FunctionDefs) and
``results``, which are named likewise, with ``{"value": "id:0", "ops": [...], "tensor": "t0.0"}`` for aliases of values.

The fields of the classes here are what stands in documents, see :mod:`remat_cli.frontends.captured.serialiser`.
This module also reads them, without TensorFlow.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.serialiser import ITEM_BYTES as COMMON_BYTES
from remat_cli.frontends.captured.serialiser import LARGEST, Dtype, Hexadecimal, Reader, Stored, stored
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote

FRONTEND = Frontend(
    "tf", "TensorFlow", "TensorFlow", version=1, forced="operations may be missing or do something else"
)

ITEM_BYTES = {
    **COMMON_BYTES,
    **dict.fromkeys(("qint8", "quint8"), 1),
    **dict.fromkeys(("string", "resource", "variant"), 0),
}
"""Bytes of an element, by the name of its type. 0 marks types whose elements are not numbers in memory of their own."""
OPAQUE = tuple(name for name, size in ITEM_BYTES.items() if size == 0)
"""Types whose bytes are not known."""


@dataclass(frozen=True, slots=True)
class TensorSpec(Stored):
    """Type and shape of a tensor."""

    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of its elements; 0 if the type does not tell."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class _Ref(Stored):
    """The name of a tensor; see the table above."""

    __slots__ = ()

    def document(self, name_of: Callable[[int], str] | None = None) -> str:
        """The name as documents have it."""
        match self:
            case Input(position):
                return f"v{position}"
            case Made(op, output):
                return f"t{op}.{output}"
            case Place(number):
                return f"p{number}"
            case Read(place):
                return f"r{place}"
            case Constant(number):
                return f"c{number}"
        raise AssertionError(f"{self} is no tensor")


@dataclass(frozen=True, slots=True)
class Input(_Ref):
    """The value that a node reads at this position."""

    position: int


@dataclass(frozen=True, slots=True)
class Made(_Ref):
    """An output of an operation: of the same node, or of the captured step."""

    op: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class Place(_Ref):
    """A place: the tensor of an input, the handle of a variable."""

    number: int


@dataclass(frozen=True, slots=True)
class Read(_Ref):
    """What the variable of a place held when the step began."""

    place: int


@dataclass(frozen=True, slots=True)
class Constant(_Ref):
    """A tensor whose data is in the document."""

    number: int


Ref = Input | Made | Place | Read | Constant
"""The name of a tensor."""


@dataclass(frozen=True, slots=True)
class Attribute(Stored):
    """An attribute of an operation.

    Attributes:
        kind: One of :data:`KINDS`.
        value: Text for ``type``, ``text`` and ``float``, a tuple for kinds in the plural and for ``shape``.
    """

    kind: str
    value: Any

    def document(self, name_of: Callable[[int], str] | None = None) -> dict[str, Any]:
        """As JSON."""
        return {self.kind: _plain(self.value)}


KINDS = ("type", "int", "float", "bool", "text", "shape", "function")
PLURAL = {f"{kind}s": kind for kind in KINDS}
"""The kinds of lists, with the kind of their items."""


@dataclass(frozen=True, slots=True)
class Call(Stored):
    """An operation of TensorFlow.

    Attributes:
        op: Its type: ``Conv2D``.
        inputs: The tensors that it reads.
        outputs: Type and shape of the tensors that it makes; a list in documents: ``["float32", 8, 16]``.
        attributes: Its attributes, those with their default left out.
    """

    op: str
    inputs: tuple[Ref, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def document(self, name_of: Callable[[int], str] | None = None) -> dict[str, Any]:
        """As JSON."""
        written: dict[str, Any] = {
            "op": self.op,
            "in": [ref.document() for ref in self.inputs],
            "out": [[spec.dtype, *spec.shape] for spec in self.outputs],
        }
        if self.attributes:
            written["attrs"] = {name: attribute.document() for name, attribute in sorted(self.attributes.items())}
        return written


@dataclass(frozen=True, slots=True)
class Operation(Stored):
    """The operations of a node.

    Attributes:
        calls: They run in this order.
        values: The tensor that is each value of the node; None for a value that only keeps an order.
    """

    calls: tuple[Call, ...] = field(metadata=stored("ops"))
    values: tuple[Made | None, ...]

    def spec(self, value: int) -> TensorSpec | None:
        """Type and shape of a value of the node; None for one without a tensor."""
        made = self.values[value]
        return None if made is None else self.calls[made.op].outputs[made.output]


@dataclass(frozen=True, slots=True)
class Placeholder(Stored):
    """A tensor or a variable that a step is given.

    Attributes:
        kind: ``input``, ``variable`` or ``captured`` (a tensor that the code refers to).
        name: Its name in the user's code.
        spec: Type and shape; of a variable, those of what it holds.
        trainable: Whether it is a variable that is trained.
        below: Its whole numbers are below this and not negative. None if no limit is known.
        number: What a variable without dimensions holds at the start; else None.
    """

    kind: str = field(metadata=stored(words=("input", "variable", "captured")))
    name: str
    spec: TensorSpec = field(metadata=stored(inline=True))
    trainable: bool = False
    below: int | None = None
    number: Hexadecimal | None = None


@dataclass(frozen=True, slots=True)
class Data(Stored):
    """A small tensor with its data, in row-major order."""

    spec: TensorSpec = field(metadata=stored(inline=True))
    data: bytes


@dataclass(frozen=True, slots=True)
class Result(Stored):
    """A result of a step: a tensor of its places and constants, or an alias of a value.

    Attributes:
        tensor: The result: ``v0``, or an output of ``calls``.
        spec: Its type and shape.
        value: The value whose memory it is, by number; None if it is none.
        calls: The operations of the alias, in which ``v0`` is the value.
    """

    tensor: Ref
    spec: TensorSpec = field(metadata=stored(inline=True))
    value: int | None = field(default=None, metadata=stored(names=True))
    calls: tuple[Call, ...] = field(default=(), metadata=stored("ops"))


@dataclass(frozen=True, slots=True)
class Step:
    """A graph of this frontend, with the contents of its documents.

    Attributes:
        graph: The graph.
        operations: The operations of each node.
        places: What the step is given: inputs first, then what it captured.
        constants: The constants, by number.
        functions: Serialised FunctionDefs, by number.
        results: What the step returns.
        update: The node that assigns to variables; None if there is none. Nothing may run after it.
    """

    graph: Graph
    operations: tuple[Operation, ...]
    places: tuple[Placeholder, ...]
    constants: tuple[Data, ...]
    functions: tuple[bytes, ...]
    results: tuple[Result, ...]
    update: int | None = None

    def spec(self, value: int) -> TensorSpec | None:
        """Type and shape of a value of the graph."""
        node = self.graph.producer[value]
        return self.operations[node].spec(value - self.graph.first_value[node])


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


_REF = re.compile(r"([vprc])(\d{1,9})|t(\d{1,9})\.(\d{1,9})")
_OP = re.compile(r"[A-Za-z][A-Za-z0-9_>]*")


def read_workspaces(graph: Graph) -> tuple[int, ...]:
    """Bytes of values inside each node, without what kernels need besides, which profiling adds to its workspace.

    Raises:
        UsageError: If the metadata states anything else.
    """
    profile = graph.metadata.get("profile")
    if profile is None:
        return tuple(node.workspace for node in graph.nodes)
    reader = _Reader(graph)
    at = "metadata.profile.workspaces"
    sizes = reader.items(profile.get("workspaces") if isinstance(profile, dict) else None, at)
    if len(sizes) != len(graph.nodes):
        raise reader.wrong(at, "it has another length than the list of nodes")
    return tuple(reader.number(item, place) for item, place in sizes)


def read_groups(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The captured operations in each node but the update, by their number in the step.

    Raises:
        UsageError: If the metadata states anything else.
    """
    reader = _Reader(graph)
    return tuple(
        tuple(reader.number(item, place) for item, place in reader.items(found, at))
        for found, at in reader.listed("groups")
    )


def read_step(graph: Graph) -> Step:
    """The contents of the payloads and the metadata of ``graph``.

    Raises:
        UsageError: If they hold anything that this frontend does not write, with its place.
    """
    FRONTEND.require(graph)
    return _Reader(graph).step()


class _Reader(Reader):
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages."""

    item_bytes = ITEM_BYTES

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.given: tuple[Placeholder, ...] = ()

    def check(self, part: Stored, at: str) -> None:
        match part:
            case TensorSpec():
                self.require_size(part.bytes, at)
            case Data(spec, data):
                self.require_length(data, spec.bytes, at)

    def step(self) -> Step:
        self.given = tuple(self.part(Placeholder, item, at) for item, at in self.listed("places"))
        constants = tuple(self.part(Data, item, at) for item, at in self.listed("constants"))
        functions = tuple(self.base64(item, at) for item, at in self.listed("functions"))
        self.counts = {"places": len(self.given), "constants": len(constants), "functions": len(functions)}
        operations = tuple(self.operation(number) for number in range(len(self.graph.nodes)))
        step = Step(self.graph, operations, self.given, constants, functions, (), self.update())
        return replace(step, results=tuple(self.result(step, item, at) for item, at in self.listed("results")))

    def whole(self, value: Any, at: str) -> int:
        if type(value) is not int or abs(value) > LARGEST:
            raise self.wrong(at, f"{quote(value)} is not a whole number of 64 bits")
        return value

    def update(self) -> int | None:
        metadata: Any = self.graph.metadata
        if metadata.get("update") is None:
            return None
        name = self.text(metadata["update"], "metadata.update")
        if not self.graph.nodes or self.graph.nodes[-1].id != name or self.graph.nodes[-1].recompute:
            raise self.wrong("metadata.update", "it is not the last node, computed once")
        return len(self.graph.nodes) - 1

    def operation(self, number: int) -> Operation:
        node = self.graph.nodes[number]
        at = f"node {node.id}"
        payload = self.fields(node.payload, at, ("ops", "values"))
        calls = self.calls(payload["ops"], f"{at}: ops", len(node.inputs))
        values = tuple(
            None if item is None else self.made(item, place, calls)
            for item, place in self.items(payload["values"], f"{at}: values")
        )
        self.require_made(at, len(node.outputs), len(values))
        return Operation(calls, values)

    def calls(self, value: Any, at: str, inputs: int) -> tuple[Call, ...]:
        calls: list[Call] = []
        for item, place in self.items(value, at):
            found = self.fields(item, place, ("op", "in", "out"), ("attrs",))
            name = self.text(found["op"], place)
            if not _OP.fullmatch(name):
                raise self.wrong(place, f"{quote(name)} is not the name of an operation")
            attributes = found.get("attrs", {})
            if not isinstance(attributes, dict):
                raise self.wrong(place, "its attributes are not an object")
            calls.append(
                Call(
                    name,
                    tuple(self.ref(ref, where, inputs, calls) for ref, where in self.items(found["in"], f"{place}.in")),
                    tuple(self.listed_spec(spec, where) for spec, where in self.items(found["out"], f"{place}.out")),
                    {key: self.attribute(attributes[key], f"{place}.{key}") for key in sorted(attributes)},
                )
            )
        return tuple(calls)

    def listed_spec(self, value: Any, at: str) -> TensorSpec:
        if not isinstance(value, list) or not value:
            raise self.wrong(at, "it is not a type and a shape")
        return self.part(TensorSpec, {"dtype": value[0], "shape": value[1:]}, at, None)

    def attribute(self, value: Any, at: str) -> Attribute:
        if not isinstance(value, dict) or len(value) != 1:
            raise self.wrong(at, "it is not an object with one entry")
        [(kind, found)] = value.items()
        if kind in PLURAL:
            return Attribute(
                kind, tuple(self.single(PLURAL[kind], item, where) for item, where in self.items(found, at))
            )
        return Attribute(self.text(kind, at, KINDS), self.single(kind, found, at))

    def single(self, kind: str, value: Any, at: str) -> Any:
        match kind:
            case "type":
                return self.dtype(value, at)
            case "int":
                return self.whole(value, at)
            case "float":
                return self.hexadecimal(value, at)
            case "bool" if type(value) is bool:
                return value
            case "text":
                return self.text(value, at)
            case "shape" if value is None:
                return None
            case "shape":
                return tuple(-1 if n == -1 else self.number(n, where) for n, where in self.items(value, at))
            case "function":
                return self.number(value, at, self.counts["functions"])
        raise self.wrong(at, f"{quote(value)} is not {kind}")

    def ref(self, value: Any, at: str, inputs: int, calls: list[Call] | tuple[Call, ...]) -> Ref:
        match = _REF.fullmatch(self.text(value, at))
        if match is None:
            raise self.wrong(at, f"{quote(value)} is not the name of a tensor")
        if match[1] is None:
            return self.made(value, at, calls)
        number = int(match[2])
        match match[1]:
            case "v":
                return Input(self.number(number, at, inputs))
            case "c":
                return Constant(self.number(number, at, self.counts["constants"]))
            case "p":
                return Place(self.number(number, at, self.counts["places"]))
        if self.given[self.number(number, at, self.counts["places"])].kind != "variable":
            raise self.wrong(at, "it is not a variable")
        return Read(number)

    def made(self, value: Any, at: str, calls: list[Call] | tuple[Call, ...]) -> Made:
        match = _REF.fullmatch(self.text(value, at))
        if match is None or match[3] is None:
            raise self.wrong(at, f"{quote(value)} is not an output of an operation")
        op = self.number(int(match[3]), at, len(calls))
        return Made(op, self.number(int(match[4]), at, len(calls[op].outputs)))

    def result(self, step: Step, value: Any, at: str) -> Result:
        found = self.fields(value, at, ("tensor", "dtype", "shape"), ("value", "ops"))
        number = None
        if "value" in found:
            number = self.value_named(found["value"], f"{at}.value")
            if step.spec(number) is None:
                raise self.wrong(f"{at}.value", f"{quote(found['value'])} holds no tensor")
        inputs = 0 if number is None else 1
        calls = self.calls(found.get("ops", []), f"{at}.ops", inputs)
        tensor = self.ref(found["tensor"], f"{at}.tensor", inputs, calls)
        spec = self.part(TensorSpec, {"dtype": found["dtype"], "shape": found["shape"]}, at)
        return Result(tensor, spec, number, calls)
