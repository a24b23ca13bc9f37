"""Reads the payloads and metadata of a captured step, see :mod:`remat_cli.frontends.tensorflow.document`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from remat_cli.frontends.captured.serialiser import LARGEST, Reader, Stored
from remat_cli.frontends.tensorflow.document import (
    FRONTEND,
    ITEM_BYTES,
    KINDS,
    PLURAL,
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
