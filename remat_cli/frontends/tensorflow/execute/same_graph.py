"""Checks whether a plan is for a graph: for the same operations, on tensors of the same types and shapes.

Names do not matter: Keras counts its layers anew in each process.
"""

import operator
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from remat_cli.frontends.captured.same_graph import differing_spec, first_difference
from remat_cli.frontends.tensorflow.document import Constant, Placeholder, Ref, Step
from remat_cli.frontends.tensorflow.execute.functions import same_functions

_LONG = 12
"""Calls in one operation of a graph from which on messages name only the first that differ."""


def difference(compiled: Step, planned: Step) -> str | None:
    """See :func:`remat_cli.frontends.captured.same_graph.first_difference`."""

    def of_places(mine: Placeholder, other: Placeholder) -> str | None:
        ours, theirs = ((place.kind, place.spec.dtype, list(place.spec.shape)) for place in (mine, other))
        return differing_spec(other.name, list(zip(("kind", "type", "shape"), theirs, ours, strict=True)))

    def of_operations(number: int) -> str | None:
        mine, other = compiled.graph.nodes[number], planned.graph.nodes[number]
        here, there = compiled.operations[number], planned.operations[number]
        if (here, mine.inputs, mine.recompute) == (there, other.inputs, other.recompute):
            return None
        kinds = [[call.op for call in operation.calls] for operation in (there, here)]
        if kinds[0] == kinds[1]:
            return "has other arguments"
        there_words, here_words = _kinds(*kinds)
        return f"is {there_words} there and {here_words} here"

    words = first_difference(compiled, planned, "inputs and variables", of_places, of_operations)
    if words is None and not same_functions(compiled.functions, planned.functions):
        return "functions inside it do something else"
    return words


def resized(compiled: Step, planned: Step) -> bool:
    """Whether ``compiled`` is ``planned`` with smaller inputs, such as a smaller batch, so that its plan fits too."""
    pairs = list(zip(compiled.places, planned.places, strict=False))
    inputs = [(mine.spec.shape, other.spec.shape) for mine, other in pairs if mine.kind == other.kind == "input"]
    graphs = (compiled.graph, planned.graph)
    return (
        len(compiled.places) == len(planned.places)
        and all(mine.kind == other.kind and mine.spec.dtype == other.spec.dtype for mine, other in pairs)
        and all(mine.spec == other.spec for mine, other in pairs if mine.kind == "variable")
        and all(len(a) == len(b) and all(map(operator.le, a, b)) for a, b in inputs)
        and _skeleton(compiled) == _skeleton(planned)
        and all(map(operator.le, graphs[0].size, graphs[1].size))
        and all(a.workspace <= b.workspace for a, b in zip(graphs[0].nodes, graphs[1].nodes, strict=True))
    )


def _skeleton(step: Step) -> Any:
    """What a step computes, without sizes and constants."""

    def bare(ref: Ref) -> Ref | None:
        return None if isinstance(ref, Constant) else ref

    return [
        (
            node.inputs,
            node.recompute,
            operation.values,
            [(call.op, [*map(bare, call.inputs)]) for call in operation.calls],
        )
        for node, operation in zip(step.graph.nodes, step.operations, strict=True)
    ]


def _kinds(there: Sequence[str], here: Sequence[str]) -> list[str]:
    """Both in words; of long ones, such as all that updates a model, the first that differ."""
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(there, here, strict=False)))
    return [
        "+".join(kinds)
        if len(kinds) <= _LONG
        else f"{len(kinds)} calls, of which the next after {at} is {kinds[at] if at < len(kinds) else 'none'},"
        for kinds in (there, here)
    ]
