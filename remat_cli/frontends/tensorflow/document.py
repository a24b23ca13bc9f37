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

This module alone writes these documents, and :mod:`remat_cli.frontends.tensorflow.reading` alone reads them. Neither
needs TensorFlow.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.captured.origin import Frontend
from remat_cli.graph.model import Graph

FRONTEND = Frontend(
    "tf", "TensorFlow", "TensorFlow", version=1, forced="operations may be missing or do something else"
)

ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
    **dict.fromkeys(("string", "resource", "variant"), 0),
}
"""Bytes of an element, by the name of its type. 0 marks types whose elements are not numbers in memory of their own."""
OPAQUE = tuple(name for name, size in ITEM_BYTES.items() if size == 0)
"""Types whose bytes are not known."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of its elements; 0 if the type does not tell."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Input:
    """The value that a node reads at this position."""

    position: int


@dataclass(frozen=True, slots=True)
class Made:
    """An output of an operation: of the same node, or of the captured step."""

    op: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A place: the tensor of an input, the handle of a variable."""

    number: int


@dataclass(frozen=True, slots=True)
class Read:
    """What the variable of a place held when the step began."""

    place: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor whose data is in the document."""

    number: int


Ref = Input | Made | Place | Read | Constant
"""The name of a tensor."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an operation.

    Attributes:
        kind: One of :data:`KINDS`.
        value: Text for ``type``, ``text`` and ``float``, a tuple for kinds in the plural and for ``shape``.
    """

    kind: str
    value: Any

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {self.kind: _plain(self.value)}


KINDS = ("type", "int", "float", "bool", "text", "shape", "function")
PLURAL = {f"{kind}s": kind for kind in KINDS}
"""The kinds of lists, with the kind of their items."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation of TensorFlow.

    Attributes:
        op: Its type: ``Conv2D``.
        inputs: The tensors that it reads.
        outputs: Type and shape of the tensors that it makes.
        attributes: Its attributes, those with their default left out.
    """

    op: str
    inputs: tuple[Ref, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {
            "op": self.op,
            "in": [written(ref) for ref in self.inputs],
            "out": [[spec.dtype, *spec.shape] for spec in self.outputs],
        }
        if self.attributes:
            found["attrs"] = {name: attribute.document() for name, attribute in sorted(self.attributes.items())}
        return found


@dataclass(frozen=True, slots=True)
class Operation:
    """The operations of a node.

    Attributes:
        calls: They run in this order.
        values: The tensor that is each value of the node; None for a value that only keeps an order.
    """

    calls: tuple[Call, ...]
    values: tuple[Made | None, ...]

    def document(self) -> dict[str, Any]:
        """The payload."""
        return {
            "ops": [call.document() for call in self.calls],
            "values": [None if ref is None else written(ref) for ref in self.values],
        }

    def spec(self, value: int) -> TensorSpec | None:
        """Type and shape of a value of the node; None for one without a tensor."""
        made = self.values[value]
        return None if made is None else self.calls[made.op].outputs[made.output]


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A tensor or a variable that a step is given.

    Attributes:
        kind: ``input``, ``variable`` or ``captured`` (a tensor that the code refers to).
        name: Its name in the user's code.
        spec: Type and shape; of a variable, those of what it holds.
        trainable: Whether it is a variable that is trained.
        below: Its whole numbers are below this and not negative. None if no limit is known.
        number: What a variable without dimensions holds at the start, as ``float.hex`` writes it; else None.
    """

    kind: str
    name: str
    spec: TensorSpec
    trainable: bool = False
    below: int | None = None
    number: str | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        extra = {
            key: found
            for key, found in (("trainable", self.trainable or None), ("below", self.below), ("number", self.number))
            if found is not None
        }
        return {"kind": self.kind, "name": self.name, **self.spec.document(), **extra}


@dataclass(frozen=True, slots=True)
class Data:
    """A small tensor with its data, in row-major order."""

    spec: TensorSpec
    data: bytes

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.spec.document(), "data": base64.b64encode(self.data).decode("ascii")}


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a step: a tensor of its places and constants, or an alias of a value.

    Attributes:
        value: The value whose memory it is, by number; None if it is none.
        calls: The operations of the alias, in which ``v0`` is the value.
        tensor: The result: ``v0``, or an output of ``calls``.
        spec: Its type and shape.
    """

    value: int | None
    calls: tuple[Call, ...]
    tensor: Ref
    spec: TensorSpec

    def document(self, graph: Graph) -> dict[str, Any]:
        """As JSON; ``graph`` gives the names of values."""
        found: dict[str, Any] = {"tensor": written(self.tensor), **self.spec.document()}
        if self.value is not None:
            found["value"] = graph.value_name(self.value)
        if self.calls:
            found["ops"] = [call.document() for call in self.calls]
        return found


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


def written(ref: Ref) -> str:
    """The name of a tensor as documents have it."""
    match ref:
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


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
