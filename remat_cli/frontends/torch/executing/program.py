"""A plan as a Python function: one line per computation, one ``del`` per deallocation, nothing of the user's code.

Why generated code and not an interpreter: a local variable dies exactly where the plan says so, and a step costs the
dispatch of its operators and little else.
"""

from __future__ import annotations

import contextlib
import keyword
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from remat_cli.errors import ExecutionFailed, UsageError
from remat_cli.frontends.torch.capturing.export import FRONTEND, VERSION
from remat_cli.frontends.torch.capturing.lower import TANGENTS
from remat_cli.frontends.torch.codec import decode, decode_data, operator_named
from remat_cli.frontends.torch.executing.out_of_memory import no_memory, out_of_memory
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.model import Compute, Deallocate, Statement

Tangent = Callable[[int], Any]
"""The gradient that comes from outside for the k-th result; ones, for a loss."""
_FILE = "<remat plan>"


class _Text(str):
    """A piece of generated code among the arguments of an operator."""

    __repr__ = str.__str__


@dataclass(frozen=True, slots=True)
class Program:
    """A plan that can be run.

    Attributes:
        function: ``function(places, tangent)``: results in the order of the graph's metadata.
        text: Its source.
        nodes: For every line of the source the id of the node that it computes, or None.
        device: For which it was written.
    """

    function: Callable[[Sequence[Any], Tangent], list[Any]]
    text: str
    nodes: tuple[str | None, ...]
    device: str

    def run(self, places: Sequence[Any], tangent: Tangent) -> list[Any]:
        """Run one step without autograd.

        Args:
            places: A tensor for each place of the graph that is not a tangent.
            tangent: Makes tangents.

        Returns:
            A tensor for each of the graph's results: losses, gradients, updates.

        Raises:
            OutOfMemory: With the node at which there was none left.
            ExecutionFailed: With the node at which it failed.
        """
        import torch

        try:
            with torch.no_grad():
                return self.function(places, tangent)
        except Exception as error:  # operators raise whatever they like
            if out_of_memory(error):
                raise no_memory(error, self.device, self._place(error)) from error
            raise ExecutionFailed(
                f"{self._place(error)} failed: {words(error)}",
                hint="was the graph exported for another device, or does this need other inputs than random ones?",
            ) from error

    def _place(self, error: Exception) -> str:
        trace = error.__traceback__
        line = 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                line = trace.tb_lineno
            trace = trace.tb_next
        node = self.nodes[line - 1] if 0 < line <= len(self.nodes) else None
        return "the plan" if node is None else f"node {node}"


@dataclass(slots=True)
class Writer:
    """A function under construction. ``names`` are the operators and other objects that the code refers to."""

    graph: Graph
    device: str
    names: dict[str, Any] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    nodes: list[str | None] = field(default_factory=list)
    repeats: Counter[int] = field(default_factory=Counter)
    done: Counter[int] = field(default_factory=Counter)

    def line(self, text: str, node: str | None = None) -> None:
        """One line of the function."""
        self.lines.append(f"    {text}")
        self.nodes.append(node)

    def operator(self, name: str) -> str:
        """The variable that holds an operator."""
        if name not in self.operators:
            self.operators[name] = variable = f"op{len(self.operators)}"
            self.names[variable] = operator_named(name)
        return self.operators[name]

    def call(self, payload: Mapping[str, Any], inputs: Sequence[int]) -> str:
        """The text of a call."""
        arguments = [self.argument(a, inputs) for a in payload["args"]]
        for key, argument in payload["kwargs"].items():
            if not key.isidentifier() or keyword.iskeyword(key):  # or a document could smuggle in code
                raise ValueError(f"{key!r} is not the name of an argument")
            arguments.append(f"{key}={self.argument(argument, inputs)}")
        text = f"{self.operator(payload['call'])}({', '.join(arguments)})"
        return f"{text}[{int(payload['item'])}]" if payload.get("item") is not None else text

    def argument(self, value: Any, inputs: Sequence[int]) -> str:
        """The text of an argument; what has no literal becomes a variable."""
        home = self.graph.metadata.get("device", self.device.partition(":")[0])
        decoded = decode(value, lambda expression: _Text(self.tensor(expression, inputs)), {home: self.device})
        return self.literal(decoded)

    def literal(self, value: Any) -> str:
        """``value`` as text."""
        if isinstance(value, _Text) or value is None or type(value) in {bool, int, str}:
            return repr(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.literal, value))}]"
        variable = f"x{len(self.names)}"
        self.names[variable] = value
        return variable

    def tensor(self, expression: Mapping[str, Any], inputs: Sequence[int]) -> str:
        """The text of a tensor among the arguments."""
        if "call" in expression:
            return self.call(expression, inputs)
        if "place" in expression:
            return f"places[{int(expression['place'])}]"
        if "constant" in expression:
            return f"constants[{int(expression['constant'])}]"
        value = expression["value"] if "value" in expression else inputs[expression["input"]]
        return f"v{int(value)}_{int(expression.get('part', 0))}"

    def compute(self, index: int) -> None:
        """One computation of a node."""
        node = self.graph.nodes[index]
        self.done[index] += 1
        if node.payload["call"] == TANGENTS:
            for k, value in enumerate(self.graph.values_of(index)):
                self.line(f"v{value}_0 = tangent({k})", node.id)
            return
        random = bool(node.payload.get("random")) and self.repeats[index] > 1
        if random:
            self._before_random(index)
        text = self.call(node.payload, node.inputs)
        parts = [
            (f"v{value}_{part}", tensor["item"])
            for value, tensors in zip(self.graph.values_of(index), node.payload["values"], strict=True)
            for part, tensor in enumerate(tensors)
        ]
        if [item for _, item in parts] == [None]:
            self.line(f"{parts[0][0]} = {text}", node.id)
        else:
            self.line(f"t = {text}", node.id)
            for name, item in parts:
                self.line(f"{name} = t[{int(item)}]", node.id)
            self.line("t = None")
        if random and self.done[index] > 1:
            self.line("set_state(now)")
        if random and self.done[index] == self.repeats[index]:
            self.line(f"del s{index}")

    def waiting(self, index: int) -> bool:
        """Whether a random node has been computed and will be again, so that a state is kept for it."""
        random = bool((self.graph.nodes[index].payload or {}).get("random"))
        return random and 0 < self.done[index] < self.repeats[index]

    def _before_random(self, index: int) -> None:
        """Keep the generator's state before the first computation; go back to it before the others."""
        if self.done[index] == 1:
            self.line(f"s{index} = get_state()")
        else:
            self.line("now = get_state()")
            self.line(f"set_state(s{index})")

    def free(self, value: int) -> None:
        """The end of an instance of a value."""
        node = self.graph.producer[value]
        tensors = self.graph.nodes[node].payload["values"][value - self.graph.first_value[node]]
        self.line("del " + ", ".join(f"v{value}_{part}" for part in range(len(tensors))))


def require_torch_graph(graph: Graph) -> dict[str, Any]:
    """The metadata of a graph that this frontend made.

    Raises:
        UsageError: If it comes from elsewhere, or from a newer remat.
    """
    metadata = graph.metadata
    if not isinstance(metadata, dict) or metadata.get("frontend") != FRONTEND:
        raise UsageError(
            f"the graph {graph.name} was not made by the PyTorch frontend, so there is nothing to run",
            hint="make it with remat export torch:FILE.py:NAME",
        )
    if metadata.get("version") != VERSION:
        raise UsageError(f"the graph {graph.name} was made for another version of remat", hint="export it again")
    return metadata


def program(graph: Graph, statements: Sequence[Statement], device: str) -> Program:
    """The function that does what ``statements`` say.

    Args:
        graph: A graph that this frontend made.
        statements: A valid plan of it.
        device: Where to make what the operators make from nothing.

    Raises:
        UsageError: If the graph is not of this frontend.
        ExecutionFailed: If it needs operators that this torch does not have.
    """
    metadata = require_torch_graph(graph)
    with written_by_remat(graph):
        return _program(graph, statements, device, metadata)


_DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, SyntaxError)


@contextlib.contextmanager
def written_by_remat(graph: Graph) -> Iterator[None]:
    """While inside, payloads of ``graph`` are read, and trouble with that is said of the document.

    Raises:
        UsageError: If there is trouble.
    """
    try:
        yield
    except _DAMAGE as error:
        raise UsageError(
            f"the graph {graph.name} holds a payload that remat did not write: {type(error).__name__}: {error}",
            hint="export it again",
        ) from error


def _program(graph: Graph, statements: Sequence[Statement], device: str, metadata: Mapping[str, Any]) -> Program:
    writer = Writer(graph, device)
    writer.repeats.update(s.node for s in statements if isinstance(s, Compute))
    holds: dict[str, int] = {}
    for statement in statements:
        if isinstance(statement, Compute):
            holds |= dict(zip(statement.registers, graph.values_of(statement.node), strict=True))
            writer.compute(statement.node)
        elif isinstance(statement, Deallocate):
            writer.free(holds.pop(statement.register))
    values = {graph.value_name(value): value for value in range(len(graph.size))}
    results = [resolved(result["tensor"], values) for result in metadata["results"]]
    writer.line(f"return [{', '.join(writer.tensor(result, ()) for result in results)}]")
    return _compiled(writer, [decode_data(constant, device) for constant in metadata["constants"]])


def resolved(expression: Any, values: Mapping[str, int]) -> Any:
    """An expression of the metadata with indices for the names of values."""
    if isinstance(expression, list):
        return [resolved(item, values) for item in expression]
    if not isinstance(expression, dict):
        return expression
    return {key: values[item] if key == "value" else resolved(item, values) for key, item in expression.items()}


def defined(text: str, scope: dict[str, Any], *names: str) -> list[Any]:
    """The functions ``names`` that ``text`` defines.

    They are taken out of ``scope``, which holds what they refer to: a function in its own scope is a cycle, and lives
    with all its tensors until the garbage collector comes by.
    """
    exec(compile(text, _FILE, "exec"), scope)
    return [scope.pop(name) for name in names]


def _compiled(writer: Writer, constants: list[Any]) -> Program:
    get_state, set_state = generator_state(writer.device)
    scope = {**writer.names, "constants": constants, "get_state": get_state, "set_state": set_state}
    text = "\n".join(["def step(places, tangent):", *writer.lines]) + "\n"
    [step] = defined(text, scope, "step")
    return Program(step, text, (None, *writer.nodes), writer.device)


def call_function(
    graph: Graph,
    index: int,
    device: str,
    places: Mapping[int, Any],
    constants: Mapping[int, Any],
    values: Mapping[int, Sequence[Any]],
) -> Callable[[], Any]:
    """A function that makes the call of one node and returns what it returns.

    Args:
        graph: A graph that this frontend made.
        index: The node; not that of the tangents.
        device: Where to make what the operator makes from nothing.
        places: Tensors for the places that it reads.
        constants: Tensors for the constants that it reads.
        values: Tensors in each value that it reads.

    Raises:
        ExecutionFailed: If this torch does not have the operator.
        UsageError: If the payload is damaged.
    """
    writer = Writer(graph, device)
    node = graph.nodes[index]
    with written_by_remat(graph):
        text = f"def call():\n    return {writer.call(node.payload, node.inputs)}\n"
        scope = {**writer.names, "places": places, "constants": constants}
        scope |= {f"v{value}_{part}": t for value, tensors in values.items() for part, t in enumerate(tensors)}
        [function] = defined(text, scope, "call")
        return cast("Callable[[], Any]", function)


def generator_state(device: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How to read and set the state of the random generator of ``device``, such as ``cpu``, ``cuda``, ``cuda:1``."""
    import torch

    if device.startswith("cuda"):
        return partial(torch.cuda.get_rng_state, device), partial(torch.cuda.set_rng_state, device=device)
    return torch.get_rng_state, torch.set_rng_state


def random_nodes(graph: Graph) -> list[Node]:
    """The nodes that draw random numbers."""
    return [node for node in graph.nodes if isinstance(node.payload, dict) and node.payload.get("random")]


def words(error: Exception) -> str:
    """What an operator's error says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."
