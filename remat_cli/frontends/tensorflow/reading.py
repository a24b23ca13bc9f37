"""Reads the payloads and metadata of a captured step, see :mod:`remat_cli.frontends.tensorflow.document`.

A document may come from a stranger, so reading is strict: everything that remat would not write is refused, with its
place.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.tensorflow.document import (
    FRONTEND,
    ITEM_BYTES,
    KINDS,
    PLURAL,
    VERSION,
    Attribute,
    Call,
    Constant,
    Data,
    Input,
    Made,
    Operation,
    Place,
    Placeholder,
    Read,
    Ref,
    Result,
    Step,
    TensorSpec,
)
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote
from remat_cli.printable import printable

_LARGEST = (1 << 63) - 1
_REF = re.compile(r"([vprc])(\d{1,9})|t(\d{1,9})\.(\d{1,9})")
_OP = re.compile(r"[A-Za-z][A-Za-z0-9_>]*")
_PLACES = ("input", "variable", "captured")


def require_tensorflow_graph(graph: Graph) -> None:
    """Check that this frontend made a graph.

    Raises:
        UsageError: If it did not, or another version of remat made it.
    """
    metadata = graph.metadata
    if not isinstance(metadata, dict) or metadata.get("frontend") != FRONTEND:
        raise UsageError(
            f"the graph {printable(graph.name)} was not made by the TensorFlow frontend, so there is nothing to run",
            hint="make it with remat export tf:FILE.py:NAME",
        )
    if metadata.get("version") != VERSION:
        raise UsageError(
            f"the graph {printable(graph.name)} was made for another version of remat", hint="export it again"
        )


def damaged(graph: Graph, at: str, message: str) -> UsageError:
    """The error for a payload or metadata that this frontend does not write; ``at`` is the place."""
    return UsageError(
        f"the graph {printable(graph.name)} holds a payload that remat did not write: {printable(at)}: {message}",
        hint="export it again",
    )


def read_origin(graph: Graph) -> tuple[str | None, str | None]:
    """Version of TensorFlow that a graph was exported with, and the device; None where it does not say.

    Raises:
        UsageError: If the metadata states anything but text.
    """
    metadata = graph.metadata if isinstance(graph.metadata, dict) else {}
    for key in ("tensorflow", "device"):
        if metadata.get(key) is not None:
            _Reader(graph).text(metadata[key], f"metadata.{key}")
    return metadata.get("tensorflow"), metadata.get("device")


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
    found = reader.items(profile.get("workspaces") if isinstance(profile, dict) else None, at)
    if len(found) != len(graph.nodes):
        raise reader.wrong(at, "it has another length than the list of nodes")
    return tuple(reader.number(item, place) for item, place in found)


def read_groups(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The captured operations in each node but the update, by their number in the step.

    Raises:
        UsageError: If the metadata states anything else.
    """
    reader = _Reader(graph)
    return tuple(
        tuple(reader.number(item, place) for item, place in reader.items(found, at))
        for found, at in reader.listed(graph.metadata, "groups")
    )


def read_step(graph: Graph) -> Step:
    """The contents of the payloads and the metadata of ``graph``.

    Raises:
        UsageError: If they hold anything that this frontend does not write, with its place.
    """
    require_tensorflow_graph(graph)
    return _Reader(graph).step()


class _Reader:
    """Reads the documents of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.places: tuple[Placeholder, ...] = ()
        self.constants = 0
        self.functions = 0
        self.values: dict[str, int] = {}

    def step(self) -> Step:
        metadata = self.graph.metadata
        self.places = tuple(self.placeholder(item, at) for item, at in self.listed(metadata, "places"))
        constants = tuple(self.data(item, at) for item, at in self.listed(metadata, "constants"))
        functions = tuple(self.base64(item, at) for item, at in self.listed(metadata, "functions"))
        self.constants, self.functions = len(constants), len(functions)
        self.values = {self.graph.value_name(v): v for v in range(len(self.graph.size))}
        operations = tuple(self.operation(number) for number in range(len(self.graph.nodes)))
        step = Step(self.graph, operations, self.places, constants, functions, (), self.update(metadata))
        results = tuple(self.result(step, item, at) for item, at in self.listed(metadata, "results"))
        return Step(self.graph, operations, self.places, constants, functions, results, step.update)

    # What follows reads one thing each, and refuses everything else.

    def wrong(self, at: str, message: str) -> UsageError:
        return damaged(self.graph, at, message)

    def listed(self, metadata: dict[str, Any], key: str) -> list[tuple[Any, str]]:
        return self.items(metadata.get(key), f"metadata.{key}")

    def items(self, value: Any, at: str) -> list[tuple[Any, str]]:
        if not isinstance(value, list):
            raise self.wrong(at, "it is not a list")
        return [(item, f"{at}[{k}]") for k, item in enumerate(value)]

    def fields(self, value: Any, at: str, wanted: tuple[str, ...], others: tuple[str, ...] = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(at, "it is not an object")
        for key in wanted:
            if key not in value:
                raise self.wrong(at, f"it has no {key}")
        for key in value:
            if key not in wanted and key not in others:
                raise self.wrong(at, f"{quote(key)} is nothing that remat writes")
        return value

    def text(self, value: Any, at: str, among: tuple[str, ...] = ()) -> str:
        if not isinstance(value, str) or (among and value not in among):
            raise self.wrong(at, f"{quote(value)} is {'none of ' + ', '.join(among) if among else 'not text'}")
        return value

    def number(self, value: Any, at: str, below: int | None = None) -> int:
        limit = _LARGEST if below is None else below
        if type(value) is not int or not 0 <= value < limit:
            raise self.wrong(at, f"{quote(value)} is not a whole number from 0 to {limit - 1}")
        return value

    def whole(self, value: Any, at: str) -> int:
        if type(value) is not int or abs(value) > _LARGEST:
            raise self.wrong(at, f"{quote(value)} is not a whole number of 64 bits")
        return value

    def hexadecimal(self, value: Any, at: str) -> str:
        try:
            float.fromhex(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(at, f"{quote(value)} is not a number as remat writes it") from None
        return str(value)

    def base64(self, value: Any, at: str) -> bytes:
        try:
            return base64.b64decode(self.text(value, at), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(at, str(error)) from None

    def spec(self, dtype: Any, shape: Any, at: str) -> TensorSpec:
        if self.text(dtype, at) not in ITEM_BYTES:
            raise self.wrong(at, f"{quote(dtype)} is not a type that graphs have")
        spec = TensorSpec(dtype, tuple(self.number(n, place) for n, place in self.items(shape, f"{at}.shape")))
        if spec.bytes > _LARGEST:
            raise self.wrong(at, "it has more bytes than a tensor can have")
        return spec

    def placeholder(self, value: Any, at: str) -> Placeholder:
        found = self.fields(value, at, ("kind", "name", "dtype", "shape"), ("trainable", "below", "number"))
        if type(found.get("trainable", False)) is not bool:
            raise self.wrong(f"{at}.trainable", "it is neither true nor false")
        return Placeholder(
            kind=self.text(found["kind"], f"{at}.kind", _PLACES),
            name=self.text(found["name"], f"{at}.name"),
            spec=self.spec(found["dtype"], found["shape"], at),
            trainable=found.get("trainable", False),
            below=self.number(found["below"], f"{at}.below") if "below" in found else None,
            number=self.hexadecimal(found["number"], f"{at}.number") if "number" in found else None,
        )

    def data(self, value: Any, at: str) -> Data:
        found = self.fields(value, at, ("dtype", "shape", "data"))
        spec, data = self.spec(found["dtype"], found["shape"], at), self.base64(found["data"], f"{at}.data")
        if spec.bytes != len(data):
            raise self.wrong(f"{at}.data", f"it has another size, {len(data)} bytes, than its shape")
        return Data(spec, data)

    def update(self, metadata: dict[str, Any]) -> int | None:
        if metadata.get("update") is None:
            return None
        name = self.text(metadata["update"], "metadata.update")
        if not self.graph.nodes or self.graph.nodes[-1].id != name or self.graph.nodes[-1].recompute:
            raise self.wrong("metadata.update", "it is not the last node, computed once")
        return len(self.graph.nodes) - 1

    def operation(self, number: int) -> Operation:
        node = self.graph.nodes[number]
        at = f"node {node.id}"
        found = self.fields(node.payload, at, ("ops", "values"))
        calls = self.calls(found["ops"], f"{at}: ops", len(node.inputs))
        values = tuple(
            None if item is None else self.made(item, place, calls)
            for item, place in self.items(found["values"], f"{at}: values")
        )
        if len(values) != len(node.outputs):
            raise self.wrong(at, f"it makes {len(node.outputs)} values, and tells of {len(values)}")
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
        return self.spec(value[0], value[1:], at)

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
                return self.text(value, at, tuple(ITEM_BYTES))
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
                return self.number(value, at, self.functions)
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
                return Constant(self.number(number, at, self.constants))
            case "p":
                return Place(self.number(number, at, len(self.places)))
        if self.places[self.number(number, at, len(self.places))].kind != "variable":
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
            number = self.values.get(self.text(found["value"], f"{at}.value"))
            if number is None or number not in self.graph.outputs or step.spec(number) is None:
                raise self.wrong(f"{at}.value", f"{quote(found['value'])} is not an output of the graph")
        inputs = 0 if number is None else 1
        calls = self.calls(found.get("ops", []), f"{at}.ops", inputs)
        tensor = self.ref(found["tensor"], f"{at}.tensor", inputs, calls)
        return Result(number, calls, tensor, self.spec(found["dtype"], found["shape"], at))
