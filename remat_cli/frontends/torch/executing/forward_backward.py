"""A plan as two functions, forward and backward, as autograd wants them.

The cut is where the tangents come. What the backward half reads of before (parameters, values that live across the cut,
states of the random generator) is returned by the forward half, after its results, and handed to the backward half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.torch.capturing.lower import TANGENTS
from remat_cli.frontends.torch.codec import decode_data
from remat_cli.frontends.torch.executing.program import Writer, defined, resolved
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Compute, Deallocate, Statement

Half = Callable[[list[Any]], list[Any]]
"""A function that takes a list of tensors, empties it, and returns a list."""


@dataclass(frozen=True, slots=True)
class Halves:
    """A plan in two parts.

    Attributes:
        forward: From a tensor for each place that is not a tangent to the forward results and what is saved.
        backward: From what was saved, and the tangents, to a gradient for each place, or None.
        saved: A description of each saved tensor, in order: ``dtype``, ``shape``, ``stride``, ``host`` if it is in
            host memory on any device.
        text: The source of both.
    """

    forward: Half
    backward: Half
    saved: tuple[Mapping[str, Any], ...]
    text: str


@dataclass(slots=True)
class _Cut:
    """What crosses from forward to backward: places, names of variables with their descriptions."""

    places: list[int]
    values: list[int]
    states: list[int]


def halves(graph: Graph, statements: Sequence[Statement], device: str) -> Halves:
    """The two functions for ``statements``, a valid plan of ``graph``.

    Args:
        graph: A graph that this frontend made.
        statements: A valid plan of it.
        device: Where to make what the operators make from nothing.

    Raises:
        ExecutionFailed: If this torch does not have an operator.
    """
    from remat_cli.frontends.torch.executing.program import generator_state

    metadata = graph.metadata
    tangent = next(i for i, node in enumerate(graph.nodes) if node.payload["call"] == TANGENTS)
    at = next(k for k, s in enumerate(statements) if isinstance(s, Compute) and s.node == tangent)
    names = {graph.value_name(value): value for value in range(len(graph.size))}
    results = [(r["kind"], r["of"], resolved(r["tensor"], names)) for r in metadata["results"]]
    left, right = statements[:at], statements[at + 1 :]
    gradients = {of: expression for kind, of, expression in results if kind == "gradient"}
    writer = Writer(graph, device)
    writer.repeats.update(s.node for s in statements if isinstance(s, Compute))
    holds = _write(writer, left, {}, None)
    cut = _Cut(
        places=_places_read(graph, right, list(gradients.values())),
        values=_values_read(graph, right, set(holds.values()), list(gradients.values())),
        states=sorted(i for i, count in writer.repeats.items() if writer.waiting(i) and count > 1),
    )
    updated = {of for kind, of, _ in results if kind == "update"}
    forward_results = [writer.tensor(e, ()) for kind, _, e in results if kind != "gradient"]
    # An updated buffer is written over before the backward half reads it: keep a copy.
    kept = [f"places[{p}].clone()" if p in updated else f"places[{p}]" for p in cut.places]
    variables = _variables(graph, cut)
    writer.line(f"return [{', '.join([*forward_results, *kept, *variables])}]")
    forward_lines, writer.lines = writer.lines, []
    _unpack(writer, cut, variables, graph.values_of(tangent))
    available = {**{f"cut{v}": v for v in cut.values}, **{f"tangent{v}": v for v in graph.values_of(tangent)}}
    names_of = {register: value for register, value in holds.items() if value in cut.values}
    of_tangents = dict(zip(_registers(statements[at]), graph.values_of(tangent), strict=True))
    _write(writer, right, names_of | of_tangents, set(available.values()))
    count = sum(1 for place in metadata["places"] if place["kind"] != "tangent")
    made = [writer.tensor(gradients[p], ()) if p in gradients else "None" for p in range(count)]
    writer.line(f"return [{', '.join(made)}]")
    text = "\n".join(["def forward(args):", "    places = list(args)", "    args.clear()", *forward_lines, ""])
    text += "\n".join(["def backward(args):", *writer.lines, ""])
    get_state, set_state = generator_state(device)
    constants = [decode_data(constant, device) for constant in metadata["constants"]]
    scope = {**writer.names, "constants": constants, "get_state": get_state, "set_state": set_state}
    forward, backward = defined(text, scope, "forward", "backward")
    return Halves(forward, backward, _descriptions(graph, cut, get_state), text)


def _registers(statement: Statement) -> tuple[str, ...]:
    return statement.registers if isinstance(statement, Compute) else ()


def _write(
    writer: Writer, statements: Sequence[Statement], holds: Mapping[str, int], known: set[int] | None
) -> dict[str, int]:
    """Write ``statements``; returns which registers hold which values at the end.

    Args:
        writer: Where to.
        statements: What to do.
        holds: Registers that are live at the start.
        known: Values that are there at the start; None for no frees of others.
    """
    live = dict(holds)
    for statement in statements:
        if isinstance(statement, Compute):
            live |= dict(zip(statement.registers, writer.graph.values_of(statement.node), strict=True))
            writer.compute(statement.node)
        elif isinstance(statement, Deallocate):
            value = live.pop(statement.register, None)
            if value is not None:  # else it was not handed over, because nobody reads it here
                writer.free(value)
    return live


def _places_read(graph: Graph, statements: Sequence[Statement], results: Sequence[Any]) -> list[int]:
    computed = [graph.nodes[s.node].payload for s in statements if isinstance(s, Compute)]
    return sorted(_numbers([*computed, *results], "place"))


def _numbers(tree: Any, key: str) -> set[int]:
    """All numbers that stand under ``key`` anywhere in nested lists and mappings."""
    found: set[int] = set()
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if isinstance(item.get(key), int):
                found.add(item[key])
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return found


def _values_read(graph: Graph, statements: Sequence[Statement], live: set[int], results: Sequence[Any]) -> list[int]:
    """Values of ``live`` whose present instance is read by ``statements`` or by ``results``."""
    here, read = set(live), set()
    for statement in statements:
        if isinstance(statement, Compute):
            read |= here & set(graph.nodes[statement.node].inputs)
            here -= set(graph.values_of(statement.node))
    return sorted(read | (here & _numbers(list(results), "value")))


def _variables(graph: Graph, cut: _Cut) -> list[str]:
    """Names of the variables that cross the cut."""
    return [f"v{v}_{part}" for v in cut.values for part in range(len(_tensors(graph, v)))] + [
        f"s{i}" for i in cut.states
    ]


def _tensors(graph: Graph, value: int) -> list[dict[str, Any]]:
    producer = graph.producer[value]
    found: list[dict[str, Any]] = graph.nodes[producer].payload["values"][value - graph.first_value[producer]]
    return found


def _unpack(writer: Writer, cut: _Cut, variables: Sequence[str], tangents: Sequence[int]) -> None:
    """The first lines of the backward half: everything gets its name, and nobody else holds it."""
    given = ", ".join(f"{place}: args[{k}]" for k, place in enumerate(cut.places))
    writer.line(f"places = {{{given}}}")
    for k, name in enumerate([*variables, *(f"v{value}_0" for value in tangents)], start=len(cut.places)):
        writer.line(f"{name} = args[{k}]")
    writer.line("args.clear()")


def _descriptions(graph: Graph, cut: _Cut, get_state: Callable[[], Any]) -> tuple[Mapping[str, Any], ...]:
    described: list[Mapping[str, Any]] = [graph.metadata["places"][p] for p in cut.places]
    described += [tensor for v in cut.values for tensor in _tensors(graph, v)]
    if cut.states:
        size = int(get_state().numel())
        described += [{"dtype": "uint8", "shape": [size], "stride": [1], "host": True} for _ in cut.states]
    return tuple(described)
