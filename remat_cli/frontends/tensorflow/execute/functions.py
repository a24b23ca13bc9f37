"""Checks the operations of a graph before anything of it runs; makes its functions known to TensorFlow, and runs them.

A document may come from a stranger. Graphs hold operations that compute tensors, read and write variables and draw
random numbers; everything that reaches files, networks or Python is refused, in functions as well.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.tensorflow.codec import attributes_of, called_functions, kernel_attributes
from remat_cli.frontends.tensorflow.compat import Execute, add_function, graph_of_function, op_def
from remat_cli.frontends.tensorflow.document import Step
from remat_cli.frontends.tensorflow.operators import CALLS, LEFT_OUT, REACHES_OUT, STATEFUL
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
        for func in (func for node in definition.node_def for func in called_functions(node)):
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


_Call = tuple[str, list[int], tuple[Any, ...], list[int], list[int]]
"""An operation of a body: its type, the tensors that it reads, its attributes, those it makes, those that die."""


class ControlFlow:
    """Runs loops, conditions and calls of functions as eager TensorFlow does: their bodies operation by operation.

    TensorFlow has kernels for them, which run bodies as graphs. These round elsewhere than eager mode, and they wait
    for threads of the pool that they run in, for ever if there is only one.

    Args:
        functions: FunctionDefs by name.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._bodies: dict[str, _Body] = {}

    def over(self, execute: Execute) -> Execute:
        """A function that runs any operation; single kernels by ``execute``."""

        def run(op: str, inputs: list[Any], attributes: tuple[Any, ...], outputs: int) -> list[Any]:
            if op not in CALLS:
                return execute(op, inputs, attributes, outputs)
            named = dict(zip(attributes[::2], attributes[1::2], strict=True))
            if op in {"While", "StatelessWhile"}:
                return self._loop(named, inputs, run)
            if op in {"PartitionedCall", "StatefulPartitionedCall"}:
                return self._body(named["f"])(inputs, run)
            return self._body(_branch(op, named, inputs[0]))(inputs[1:], run)

        return run

    def _loop(self, attributes: Mapping[str, Any], state: list[Any], run: Execute) -> list[Any]:
        condition, body = self._body(attributes["cond"]), self._body(attributes["body"])
        while bool(condition(state, run)[0]):
            state = body(state, run)
        return state

    def _body(self, name: bytes) -> _Body:
        text = name.decode()
        if text not in self._bodies:
            self._bodies[text] = _Body(self._functions[text])
        return self._bodies[text]


def _branch(op: str, attributes: Mapping[str, Any], chosen: Any) -> bytes:
    if op in {"If", "StatelessIf"}:
        branch: bytes = attributes["then_branch" if bool(chosen) else "else_branch"]
        return branch
    branches: Sequence[bytes] = attributes["branches"]
    number = int(chosen)
    return branches[number if 0 <= number < len(branches) else -1]


class _Body:
    """A function, as operations that run one after another."""

    def __init__(self, definition: Any) -> None:
        graph = graph_of_function(definition)
        number: dict[str, int] = {tensor.name: k for k, tensor in enumerate(graph.inputs)}
        self._calls: list[_Call] = []
        self._constants: dict[int, Any] = {}
        for op in graph.get_operations():
            if op.type in {"Placeholder", "NoOp"} | LEFT_OUT:
                continue
            if op.type == "Const":
                self._constants[number.setdefault(op.outputs[0].name, len(number))] = _constant(op)
                continue
            makes = [number.setdefault(tensor.name, len(number)) for tensor in op.outputs]
            read = [number[tensor.name] for tensor in op.inputs]
            self._calls.append((op.type, read, _attributes(op), makes, []))
        self._results = [number[tensor.name] for tensor in graph.outputs]
        last: dict[int, int] = {}
        for k, (_, read, _, makes, _) in enumerate(self._calls):
            last.update(dict.fromkeys((*makes, *read), k))
        for tensor, k in last.items():
            if tensor not in self._results and tensor not in self._constants:
                self._calls[k][4].append(tensor)

    def __call__(self, inputs: Sequence[Any], run: Execute) -> list[Any]:
        held = {**self._constants, **dict(enumerate(inputs))}
        for op, read, attributes, made, dead in self._calls:
            results = run(op, [held[tensor] for tensor in read], attributes, len(made))
            held.update(zip(made, results, strict=True))
            del results
            for tensor in dead:
                del held[tensor]
        return [held[tensor] for tensor in self._results]


def _constant(op: Any) -> Any:
    import tensorflow as tf

    return tf.constant(tf.make_ndarray(op.get_attr("value")), op.outputs[0].dtype)


def _attributes(op: Any) -> tuple[Any, ...]:
    names: defaultdict[str, int] = defaultdict(lambda: len(names))
    attributes = attributes_of(op.node_def, op.op_def, names)
    return kernel_attributes(op.type, attributes, list(names))
