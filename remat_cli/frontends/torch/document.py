"""Documents that describe the operations and tensors of a captured step: payloads of nodes, and the graph's metadata.

A node's payload rebuilds its operation without the user's code::

    {"call": "aten.addmm.default", "args": [...], "kwargs": {...}, "values": [[{"item": null, "shape": ...}]]}

``values`` lists the returned tensors in each value of the node. ``item`` is the position in the returned tuple, or null
for a single tensor. ``"random": true`` marks an operation that draws random numbers. Among the arguments, None,
booleans, integers, text and lists are plain JSON. Every other argument is an object:

=======================================  ======================================================
``{"float": "0x1.8p+1"}``                a number; ``complex`` has two of these
``{"dtype": "float32"}``                 likewise ``layout``, ``memory_format`` and ``device``
``{"input": k, "part": j}``              the j-th tensor of the k-th value that the node reads
``{"place": p}``, ``{"constant": c}``    the p-th placeholder, the c-th constant
``{"call": ..., "args": ...}``           a view of such; ``item`` if it is one of several
=======================================  ======================================================

The metadata holds ``places`` (the placeholders), ``constants`` and ``results``: losses, gradients, and updates of
inputs, each with an expression as above, in which ``{"value": "id:0", "part": j}`` stands for values.

The fields of the classes here are what stands in documents, see :mod:`remat_cli.frontends.captured.serialiser`, and
``read_step`` reads them. Nothing here needs torch.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.same_graph import differing_spec, first_difference
from remat_cli.frontends.captured.serialiser import ITEM_BYTES as COMMON_BYTES
from remat_cli.frontends.captured.serialiser import Dtype, Hexadecimal, Reader, Stored, stored
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote
from remat_cli.graph.splitting import made_ahead
from remat_cli.printable import printable

FRONTEND = Frontend("torch", "PyTorch", "torch", 1, "operators may be missing or do something else", divides=True)


@dataclass(frozen=True, slots=True)
class Float(Stored):
    """A floating-point number, as ``float.hex`` writes it: exact, including infinities and NaN."""

    text: Hexadecimal = field(metadata=stored("float"))


@dataclass(frozen=True, slots=True)
class Complex(Stored):
    """A complex number, both parts as ``float.hex`` writes them."""

    real: str
    imag: str

    def document(self, name_of: Callable[[int], str] | None = None) -> dict[str, list[str]]:
        """As JSON."""
        return {"complex": [self.real, self.imag]}


@dataclass(frozen=True, slots=True)
class Named(Stored):
    """A named object of PyTorch; ``kind`` is ``dtype``, ``layout``, ``memory_format`` or ``device``."""

    kind: str
    name: str

    def document(self, name_of: Callable[[int], str] | None = None) -> dict[str, str]:
        """As JSON."""
        return {self.kind: self.name}


NAMED = ("dtype", "layout", "memory_format", "device")

ITEM_BYTES = {
    **COMMON_BYTES,
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    "complex32": 4,
}
"""Bytes of an element, by the name of its type. Documents hold tensors of no other type; quantised ones have hidden
parameters."""
FORMS = {
    "layout": ("strided",),
    "memory_format": ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
}
"""The other names of these kinds that documents hold."""
_RESULTS = ("result", "update", "gradient", "dropped")
COMMUNICATING = ("_c10d_functional.", "_dtensor.")
"""How the names of operators begin that communicate."""
_DEEPEST = 190
"""Deepest nesting of brackets in an argument: Python compiles at most 200 levels, and a call adds some."""


@dataclass(frozen=True, slots=True)
class Input(Stored):
    """The ``part``-th tensor of the ``position``-th value that a node reads."""

    position: int = field(metadata=stored("input", below="inputs"))
    part: int = 0


@dataclass(frozen=True, slots=True)
class Value(Stored):
    """The ``part``-th tensor of a value of the graph, by the value's number."""

    number: int = field(metadata=stored("value", names=True))
    part: int = 0


@dataclass(frozen=True, slots=True)
class Place(Stored):
    """The tensor of a placeholder."""

    number: int = field(metadata=stored("place", below="places"))


@dataclass(frozen=True, slots=True)
class Constant(Stored):
    """A tensor whose data is in the document."""

    number: int = field(metadata=stored("constant", below="constants"))


@dataclass(frozen=True, slots=True)
class View(Stored):
    """A view, rebuilt by each of its readers: item ``item`` of the result of ``call``."""

    call: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    item: int | None = None


Tensor = Input | Value | Place | Constant | View
"""An expression for a tensor."""
Argument = None | bool | int | str | Float | Complex | Named | Tensor | tuple["Argument", ...]
"""An argument of an operator."""


@dataclass(frozen=True, slots=True)
class TensorSpec(Stored):
    """Type and layout of a tensor.

    Attributes:
        dtype: ``float32``.
        shape: Its shape.
        stride: Its strides, in elements.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the memory from its first element to its last."""
        if 0 in self.shape:
            return 0
        return (1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))) * self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Returned(Stored):
    """A tensor that an operation returns; ``item`` is its position, None for a single one."""

    item: int | None
    spec: TensorSpec = field(metadata=stored(inline=True))


@dataclass(frozen=True, slots=True)
class Operation(Stored):
    """The operation of a node.

    Attributes:
        call: The operator, ``aten.addmm.default``; ``remat.tangents`` for the node that makes the tangents.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        values: The tensors in each of the node's values.
        random: Whether it draws random numbers.
    """

    call: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    values: tuple[tuple[Returned, ...], ...]
    random: bool = False


@dataclass(frozen=True, slots=True)
class Placeholder(Stored):
    """A tensor that a step is given.

    Attributes:
        kind: ``parameter``, ``buffer``, ``input``, ``captured`` (a tensor that the code refers to) or ``tangent``.
        name: ``conv1.weight``; ``0`` or ``mask`` for an input by position or keyword.
        spec: Its type and layout.
        storage_bytes: Bytes of the memory it lies in.
        below: Its numbers must be below this and not negative. None if no limit is known.
    """

    kind: str = field(metadata=stored(words=("parameter", "buffer", "input", "captured", "tangent")))
    name: str
    spec: TensorSpec = field(metadata=stored(inline=True))
    storage_bytes: int = field(metadata=stored("bytes"))
    below: int | None = None


@dataclass(frozen=True, slots=True)
class Data(Stored):
    """A small tensor with its data, in row-major order."""

    dtype: Dtype
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Result(Stored):
    """A result of a step.

    Attributes:
        kind: ``result``, ``update`` (of a placeholder) or ``gradient``; ``dropped`` for a result that the caller lets
            go before the backward pass, so that it need not be there at the end.
        of: For a result its number, or ``1.base`` for memory that results are views of; else the placeholder's number.
        tensor: The expression for it.
    """

    kind: str
    of: int | str
    tensor: Argument


IN_PARTS = "remat.parts"
"""The operator of a node that runs others in parts. Documents name none: a plan says which regions are in parts."""
ROWS = "splitting"
"""The field of the metadata with the number of rows that each operation divides, by the operation's id."""


@dataclass(frozen=True, slots=True)
class InParts:
    """A node that runs others in parts.

    Attributes:
        nodes: The nodes of the step with whole operations.
        repeats: Other nodes, which it computes again.
        rows: The number of rows that are divided.
        parts: The number of parts.
        ahead_of: Nodes for whose values it does not wait.
    """

    nodes: tuple[int, ...]
    repeats: tuple[int, ...]
    rows: int
    parts: int
    ahead_of: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A graph of this frontend, with the contents of its documents.

    Attributes:
        graph: The graph.
        operations: The operation of each node.
        places: The placeholders, in the order of the compiler; tangents are the last.
        constants: The constants, by number.
        results: In the order of the compiler: those of the forward pass, then gradients.
        tangents: The node that makes the tangents.
        device: Kind of device that it was captured for; None if unknown.
        parts: The nodes that run others in parts.
        whole: The step with whole operations, if there are such.
        ahead: The values that nodes in parts make for tangents of one, and that the tangents are multiplied into.
    """

    graph: Graph
    operations: tuple[Operation, ...]
    places: tuple[Placeholder, ...]
    constants: tuple[Data, ...]
    results: tuple[Result, ...]
    tangents: int = 0
    device: str | None = None
    parts: Mapping[int, InParts] = field(default_factory=dict)
    whole: Step | None = None
    ahead: tuple[int, ...] = ()

    def tensors(self, value: int) -> tuple[Returned, ...]:
        """The tensors in a value."""
        node = self.graph.producer[value]
        return self.operations[node].values[value - self.graph.first_value[node]]

    def in_dimensions(self, node: int) -> Operation:
        """The operation of a node, with dimensions of meshes in place of process groups, which ranks name otherwise."""
        operation, groups = self.operations[node], self.graph.metadata.get("groups")
        if not operation.call.startswith(COMMUNICATING) or not isinstance(groups, dict):
            return operation
        args = tuple(groups.get(one, one) if isinstance(one, str) else one for one in operation.args)
        return replace(operation, args=args)

    @property
    def given(self) -> tuple[Placeholder, ...]:
        """The placeholders that are not tangents."""
        return tuple(place for place in self.places if place.kind != "tangent")


def tensors_read(arguments: Iterable[Argument]) -> Iterator[Tensor]:
    """All expressions for tensors in ``arguments`` except views, in order; also those inside lists and views."""
    for argument in arguments:
        if isinstance(argument, View):
            yield from tensors_read((*argument.args, *argument.kwargs.values()))
        elif isinstance(argument, tuple):
            yield from tensors_read(argument)
        elif isinstance(argument, Input | Value | Place | Constant):
            yield argument


def read_padding(graph: Graph) -> int:
    """Bytes that profiling has added to the graph's fixed memory, because an allocator rounds sizes up; 0 before it.

    Raises:
        UsageError: If the metadata states anything else.
    """
    reader = _Reader(graph)
    profile = graph.metadata.get("profile")
    if profile is None:
        return 0
    if not isinstance(profile, dict):
        raise reader.wrong("metadata.profile", "it is not an object")
    padding = reader.number(profile.get("fixed_padding", 0), "metadata.profile.fixed_padding")
    if padding > graph.fixed_memory:
        raise reader.wrong("metadata.profile.fixed_padding", f"{padding} is more than the fixed memory")
    return padding


def read_step(graph: Graph) -> Step:
    """The contents of the payloads and the metadata of ``graph``.

    Raises:
        UsageError: If they hold anything that this frontend does not write, with its place.
    """
    if graph.origin is not None:
        return _with_parts(read_step(graph.origin.graph), graph)
    reader = _Reader(graph)
    given, data, made = (reader.listed(key) for key in ("places", "constants", "results"))
    places = tuple(reader.part(Placeholder, item, at) for item, at in given)
    constants = tuple(reader.part(Data, item, at) for item, at in data)
    before = sum(place.kind != "tangent" for place in places)
    reader.counts = {"places": before, "constants": len(constants)}
    if any(place.kind == "tangent" for place in places[:before]):
        raise reader.wrong("metadata.places", "tangents are not the last of them")
    operations = tuple(reader.operation(number) for number in range(len(graph.nodes)))
    reader.require_parts(operations)
    results = tuple(reader.result(item, at) for item, at in made)
    tangents, (_, device) = reader.tangents(operations, places), FRONTEND.made_with(graph)
    step = Step(graph, operations, places, constants, results, tangents, device)
    for k, result in enumerate(results):
        for tensor in tensors_read([result.tensor]):
            if isinstance(tensor, Value) and result.kind != "dropped":
                reader.require_kept(step, tensor, f"metadata.results[{k}].tensor")
    return step


def _with_parts(whole: Step, graph: Graph) -> Step:
    """The step of ``graph``, in which some regions of that of ``whole`` are in parts."""
    origin = graph.origin
    assert origin is not None
    reader, stated = _Reader(whole.graph), whole.graph.metadata.get(ROWS)
    in_parts = {}
    for region in whole.graph.splits:
        for operation in region.operations if region.id in origin.parts else ():
            at = f"metadata.{ROWS}.{operation.id}"
            rows = reader.number(stated.get(operation.id) if isinstance(stated, dict) else None, at)
            in_parts[operation.id] = InParts(
                operation.nodes, operation.repeats, rows, origin.parts[region.id], operation.ahead_of
            )
    number = {node.id: k for k, node in enumerate(whole.graph.nodes)}
    old, new = origin.values, {value: k for k, value in enumerate(origin.values)}
    parts = {k: in_parts[node.id] for k, node in enumerate(graph.nodes) if node.id in in_parts}
    operations = []
    for k, node in enumerate(graph.nodes):
        if k not in parts:
            operations.append(whole.operations[number[node.id]])
            continue
        values = tuple(whole.tensors(old[value]) for value in graph.values_of(k))
        reads = {old[value]: position for position, value in enumerate(node.inputs)}
        operations.append(Operation(IN_PARTS, tuple(_outside(whole, parts[k], reads)), {}, values))
    results = tuple(
        Result(r.kind, r.of, r.tensor if r.kind == "dropped" else _renumbered(r.tensor, new)) for r in whole.results
    )
    tangents = next(k for k, operation in enumerate(operations) if operation.call == TANGENTS)
    late = [v for one in parts.values() for v in made_ahead(whole.graph, one.nodes, one.ahead_of) if v in new]
    return replace(
        whole,
        graph=graph,
        operations=tuple(operations),
        results=results,
        tangents=tangents,
        parts=parts,
        whole=whole,
        ahead=tuple(sorted(new[v] for v in late)),
    )


def _outside(step: Step, parts: InParts, reads: Mapping[int, int]) -> Iterator[Tensor]:
    """The tensors that nodes in parts read from outside; ``reads`` has the position of each value."""
    seen = set()
    for node in sorted({*parts.nodes, *parts.repeats}):
        operation, inputs = step.operations[node], step.graph.nodes[node].inputs
        for tensor in tensors_read((*operation.args, *operation.kwargs.values())):
            if isinstance(tensor, Input):
                position = reads.get(inputs[tensor.position])
                if position is None:
                    continue  # it is made inside
                tensor = Input(position, tensor.part)
            if tensor not in seen:
                seen.add(tensor)
                yield tensor


def _renumbered(argument: Argument, new: Mapping[int, int]) -> Argument:
    """An argument with other numbers of values."""
    match argument:
        case Value(number, part):
            return Value(new[number], part)
        case View(call, args, kwargs, item):
            named = {key: _renumbered(value, new) for key, value in kwargs.items()}
            return View(call, tuple(_renumbered(value, new) for value in args), named, item)
        case tuple():
            return tuple(_renumbered(value, new) for value in argument)
    return argument


class _Reader(Reader):
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages."""

    item_bytes = ITEM_BYTES

    def check(self, part: Stored, at: str) -> None:
        match part:
            case TensorSpec(_, shape, stride):
                if len(shape) != len(stride):
                    raise self.wrong(at, f"it has {len(shape)} sizes and {len(stride)} strides")
                self.require_size(part.bytes, at)
            case Placeholder():
                reach, size = part.spec.bytes, part.storage_bytes
                if reach > size:
                    raise self.wrong(
                        f"{at}.bytes", f"its sizes and strides reach over {reach} bytes, and it has {size}"
                    )
            case Data(dtype, shape, data):
                self.require_length(data, math.prod(shape) * ITEM_BYTES[dtype], at)

    def result(self, value: Any, at: str) -> Result:
        found = self.fields(value, at, ("kind", "of", "tensor"))
        kind, of = self.text(found["kind"], f"{at}.kind", _RESULTS), found["of"]
        own = kind in {"result", "dropped"}
        if not own or not isinstance(of, str):
            of = self.number(of, f"{at}.of", None if own else self.counts["places"])
        return Result(kind, of, self.argument(found["tensor"], f"{at}.tensor", None))

    def operation(self, number: int) -> Operation:
        node = self.graph.nodes[number]
        at = f"node {node.id}"
        found = self.fields(node.payload, at, ("call", "args", "kwargs", "values"), ("random",))
        values = tuple(
            tuple(self.part(Returned, tensor, place) for tensor, place in self.items(tensors, whole))
            for tensors, whole in self.items(found["values"], f"{at}: values")
        )
        if [bool(tensors) for tensors in values] != [True] * len(node.outputs):
            raise self.wrong(at, f"it makes {len(node.outputs)} values, and tells of {sum(map(bool, values))}")
        items = [tensor.item for tensors in values for tensor in tensors]
        if None in items and len(items) > 1:
            raise self.wrong(at, "one of its tensors is on its own, and there are others")
        random = self.flag(found.get("random", False), f"{at}: random")
        args, kwargs = self.arguments(found, f"{at}: ", number, 0)
        return Operation(self.text(found["call"], f"{at}: call"), args, kwargs, values, random)

    def require_parts(self, operations: tuple[Operation, ...]) -> None:
        """Check that values have the parts that operations read."""
        parts = [len(tensors) for operation in operations for tensors in operation.values]
        for node, operation in zip(self.graph.nodes, operations, strict=True):
            for tensor in tensors_read((*operation.args, *operation.kwargs.values())):
                if isinstance(tensor, Input):
                    self.number(tensor.part, f"node {node.id}: part", parts[node.inputs[tensor.position]])

    def tangents(self, operations: tuple[Operation, ...], places: tuple[Placeholder, ...]) -> int:
        """The node that makes the tangents, one for each of those places."""
        found = [number for number, operation in enumerate(operations) if operation.call == TANGENTS]
        if len(found) != 1:
            raise self.wrong("nodes", f"{len(found)} of them make the tangents, and one has to")
        made = [tuple(tensor.spec for tensor in tensors) for tensors in operations[found[0]].values]
        if made != [(place.spec,) for place in places[self.counts["places"] :]]:
            at = f"node {self.graph.nodes[found[0]].id}: values"
            raise self.wrong(at, "they are not the tangents among the places")
        return found[0]

    def require_kept(self, step: Step, value: Value, at: str) -> None:
        """Check that a tensor is there at the end."""
        self.require_output(value.number, at)
        self.number(value.part, f"{at}.part", len(step.tensors(value.number)))

    def arguments(
        self, call: dict[str, Any], at: str, node: int | None, depth: int
    ) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        """Arguments of a call by position, and by name."""
        args = tuple(self.argument(item, place, node, depth) for item, place in self.items(call["args"], f"{at}args"))
        if not isinstance(call["kwargs"], dict):
            raise self.wrong(f"{at}kwargs", "it is not an object")
        for key in call["kwargs"]:
            if not key.isidentifier() or keyword.iskeyword(key):  # keys go into generated code
                raise self.wrong(f"{at}kwargs", f"{quote(key)} is not the name of an argument")
        return args, {k: self.argument(item, f"{at}{k}", node, depth) for k, item in call["kwargs"].items()}

    def argument(self, value: Any, at: str, node: int | None, depth: int = 0) -> Argument:
        """An argument of ``node``, which names values by position; if ``node`` is None, by their names in the graph."""
        if depth > _DEEPEST:
            raise self.wrong(at[:80], f"it has more than {_DEEPEST} brackets in brackets")
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if isinstance(value, list):
            return tuple(self.argument(item, f"{at}[{k}]", node, depth + 1) for k, item in enumerate(value))
        if not isinstance(value, dict):
            raise self.wrong(at, f"{quote(value)} is nothing that remat writes")
        if "call" in value:
            found = self.fields(value, at, ("call", "args", "kwargs"), ("item",))
            args, kwargs = self.arguments(found, f"{at}.", node, depth + 1)
            item = self.number(found["item"], f"{at}.item") if "item" in found else None
            return View(self.text(found["call"], f"{at}.call"), args, kwargs, item)
        return self.leaf(value, at, node)

    def leaf(self, value: dict[str, Any], at: str, node: int | None) -> Argument:
        """An argument that is an object, but not a view."""
        key = next((key for key in value if key != "part"), None)
        if key in NAMED or key == "complex":
            found = self.fields(value, at, (str(key),))[key]
        match key:
            case "float":
                return self.part(Float, value, at, None)
            case "complex" if isinstance(found, list) and len(found) == 2:
                return Complex(*(self.hexadecimal(item, at) for item in found))
            case "input" if node is not None:
                self.counts["inputs"] = len(self.graph.nodes[node].inputs)
                return self.part(Input, value, at, None)
            case "value" if node is None and isinstance(value[key], str) and value[key] in self.values:
                return self.part(Value, value, at, None)
            case "place":
                return self.part(Place, value, at, None)
            case "constant":
                return self.part(Constant, value, at, None)
            case "dtype":
                return Named(key, self.dtype(found, at))
            case str() if key in NAMED:
                return Named(key, self.text(found, at, FORMS.get(key, ())))
        raise self.wrong(at, f"{quote(value)} is nothing that remat writes")

    def value_named(self, name: Any, at: str) -> int:
        """The number of a value, which need not be there at the end if it is of a dropped result."""
        return self.values[name]


def difference(compiled: Step, planned: Step) -> str | None:
    """See :func:`remat_cli.frontends.captured.same_graph.first_difference`."""
    here, there = (len(step.places) - len(step.given) for step in (compiled, planned))
    if here != there and len(compiled.given) == len(planned.given):
        return (
            f"{there} of its results {'takes' if there == 1 else 'take'} a gradient, and {here} of this: compile what "
            "returns the same, the loss alone if there is one"
        )

    def of_operations(number: int) -> str | None:
        mine, other = compiled.graph.nodes[number], planned.graph.nodes[number]
        here, there = compiled.in_dimensions(number), planned.in_dimensions(number)
        if (here, mine.inputs, len(mine.outputs)) == (there, other.inputs, len(other.outputs)):
            return None
        if there.call == here.call:
            return f"({printable(there.call)}) has other arguments"
        return f"is {printable(there.call)} there and {here.call} here"

    return first_difference(compiled, planned, "parameters, buffers and inputs", _of_places, of_operations)


def _of_places(mine: Placeholder, other: Placeholder) -> str | None:
    if (mine.kind == "tangent") != (other.kind == "tangent"):
        return f"{printable(other.name)} is {other.kind} there and {mine.kind} here"
    facts = (
        ("type", other.spec.dtype, mine.spec.dtype),
        ("shape", list(other.spec.shape), list(mine.spec.shape)),
        ("stride", list(other.spec.stride), list(mine.spec.stride)),
    )
    return differing_spec(other.name, facts)
