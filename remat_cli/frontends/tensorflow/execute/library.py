"""Checks the operations of a graph before anything of it runs, and makes its functions known to TensorFlow.

A document may come from a stranger. Graphs hold operations that compute tensors, read and write variables and draw
random numbers; everything that reaches files, networks or Python is refused, in functions as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.tensorflow.document import Step
from remat_cli.frontends.tensorflow.operators import LEFT_OUT, REACHES_OUT, STATEFUL
from remat_cli.frontends.tensorflow.private import add_function, op_def
from remat_cli.graph.quoting import quote


def require_known(step: Step) -> None:
    """Check that graphs may hold all operations of a step.

    Raises:
        ExecutionFailed: If they may not hold one, or this TensorFlow does not have it, with its place.
    """
    for node, operation in zip(step.graph.nodes, step.operations, strict=True):
        for call in operation.calls:
            _require(call.op, f"node {node.id}")
    for number, result in enumerate(step.results):
        for call in result.calls:
            _require(call.op, f"metadata.results[{number}]")


def _require(op: str, where: str, *, inside: bool = False) -> None:
    definition = op_def(op)
    if definition is None:
        raise ExecutionFailed(
            f"{where} is {quote(op)}, an operation that this TensorFlow does not have",
            hint="it may belong to another version: export the graph again, here",
        )
    allowed = op in STATEFUL or (inside and op in LEFT_OUT)
    if op in REACHES_OUT or (definition.is_stateful and not allowed):
        raise ExecutionFailed(
            f"{where} is {quote(op)}, which does more than compute tensors, and no graph of remat holds it",
            hint="do not trust this document: export the graph again",
        )


def add_functions(step: Step) -> dict[str, Any]:
    """Make the functions of a step known to TensorFlow; the FunctionDefs by their names here, in the step's order.

    Names hold a digest of all functions of the step, so that those of different graphs do not meet.

    Raises:
        ExecutionFailed: If one cannot be read, or holds what no graph holds.
    """
    if not step.functions:
        return {}
    digest = hashlib.sha256(b"".join(step.functions)).hexdigest()[:16]
    definitions = [_definition(data, number) for number, data in enumerate(step.functions)]
    names = {f"remat_{number}": f"remat_{digest}_{number}" for number in range(len(definitions))}
    for definition in reversed(definitions):
        for func in _names(definition):
            if func.name not in names:
                raise ExecutionFailed(f"a function of the graph calls {quote(func.name)}, which is not in the graph")
            func.name = names[func.name]
        definition.signature.name = names[definition.signature.name]
    for definition in reversed(definitions):
        add_function(definition)
    return {definition.signature.name: definition for definition in definitions}


def _definition(data: bytes, number: int) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import function_pb2

    definition = function_pb2.FunctionDef()
    where = f"metadata.functions[{number}]"
    try:
        definition.ParseFromString(data)
    except DecodeError as error:
        raise ExecutionFailed(f"{where} is not a function", hint="export the graph again") from error
    if definition.signature.name != f"remat_{number}":
        raise ExecutionFailed(f"{where} has another name", hint="export the graph again")
    for node in definition.node_def:
        _require(node.op, where, inside=True)
    return definition


def _names(definition: Any) -> Iterator[Any]:
    for node in definition.node_def:
        for attribute in node.attr.values():
            if attribute.HasField("func"):
                yield attribute.func
            yield from attribute.list.func


def same_functions(first: Sequence[bytes], second: Sequence[bytes]) -> bool:
    """Whether functions do the same: they may differ in names, which are made anew in each process."""
    if len(first) != len(second):
        return False
    pairs = zip(first, second, strict=True)
    return all(_shape(_definition(a, k)) == _shape(_definition(b, k)) for k, (a, b) in enumerate(pairs))


def _shape(definition: Any) -> list[Any]:
    number = {node.name: k for k, node in enumerate(definition.node_def)}
    number |= {arg.name: -1 - k for k, arg in enumerate(definition.signature.input_arg)}

    def source(text: str) -> Any:
        name, _, rest = text.removeprefix("^").partition(":")
        return number.get(name, name), rest

    return [
        (node.op, [source(i) for i in node.input], sorted((k, str(v)) for k, v in node.attr.items()))
        for node in definition.node_def
    ]
