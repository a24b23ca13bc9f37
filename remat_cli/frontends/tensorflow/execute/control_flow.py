"""Runs loops, conditions and calls of functions as eager TensorFlow does: their bodies operation by operation.

TensorFlow has kernels for them, which run bodies as graphs. These round elsewhere than eager mode, and they wait for
threads of the pool that they run in, for ever if there is only one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remat_cli.frontends.tensorflow.codec import attributes_of, kernel_attributes
from remat_cli.frontends.tensorflow.operators import CALLS, LEFT_OUT
from remat_cli.frontends.tensorflow.private import Execute, graph_of_function

_Call = tuple[str, list[int], tuple[Any, ...], list[int], list[int]]
"""An operation of a body: its type, the tensors that it reads, its attributes, those it makes, those that die."""


class ControlFlow:
    """Runs the operations of graphs that have functions.

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
    names: dict[str, int] = {}

    class _Numbers(dict[str, int]):
        def __missing__(self, name: str) -> int:
            return names.setdefault(name, len(names))

    attributes = attributes_of(op.node_def, op.op_def, _Numbers())
    return kernel_attributes(op.type, attributes, list(names))
