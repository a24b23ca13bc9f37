"""Reads the payloads and metadata of a captured step, see :mod:`remat_cli.frontends.jax.document`."""

from __future__ import annotations

import zlib
from typing import Any

from remat_cli.frontends.captured.serialiser import Reader, Stored
from remat_cli.frontends.jax.document import (
    AUTO,
    FRONTEND,
    ITEM_BYTES,
    SCANS,
    ArraySpec,
    Constant,
    Data,
    Input,
    Operation,
    Place,
    PlaceSpec,
    Result,
    Step,
    Value,
)
from remat_cli.graph.model import Graph

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
