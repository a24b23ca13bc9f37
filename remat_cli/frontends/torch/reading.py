"""Reads the payloads and metadata of a captured step, see :mod:`remat_cli.frontends.torch.document`."""

import keyword
import math
from typing import Any

from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.captured.serialiser import Reader, Stored
from remat_cli.frontends.torch.document import (
    FORMS,
    FRONTEND,
    ITEM_BYTES,
    NAMED,
    Argument,
    Complex,
    Constant,
    Data,
    Float,
    Input,
    Named,
    Operation,
    Place,
    Placeholder,
    Result,
    Returned,
    Step,
    TensorSpec,
    Value,
    View,
    tensors_read,
)
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote

_RESULTS = ("result", "update", "gradient", "dropped")
_DEEPEST = 190
"""Deepest nesting of brackets in an argument: Python compiles at most 200 levels, and a call adds some."""


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
