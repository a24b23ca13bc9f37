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

The fields of the classes here are what stands in documents, see :mod:`remat_cli.frontends.captured.serialiser`;
:mod:`remat_cli.frontends.tensorflow.reading` reads them. Neither needs TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.captured.dtypes import ITEM_BYTES as COMMON_BYTES
from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.serialiser import Dtype, Hexadecimal, Stored, stored
from remat_cli.graph.model import Graph

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
