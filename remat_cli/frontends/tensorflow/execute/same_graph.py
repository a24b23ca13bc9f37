"""Checks whether a plan is for a graph: for the same operations, on tensors of the same types and shapes.

Names do not matter: Keras counts its layers anew in each process.
"""

import operator
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from remat_cli.frontends.captured.origin import differing_spec
from remat_cli.frontends.tensorflow.document import Constant, Ref, Step
from remat_cli.frontends.tensorflow.execute.functions import same_functions
from remat_cli.printable import printable

_LONG = 12
"""Calls in one operation of a graph from which on messages name only the first that differ."""


def difference(compiled: Step, planned: Step) -> str | None:
    """Why a plan of ``planned`` is not a plan of ``compiled``, in a few words; None if it is."""
    return _places(compiled, planned) or _operations(compiled, planned) or _rest(compiled, planned)


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


def _places(compiled: Step, planned: Step) -> str | None:
    ours, theirs = compiled.places, planned.places
    if len(ours) != len(theirs):
        return f"it has {len(theirs)} inputs and variables, and this has {len(ours)}"
    for mine, other in zip(ours, theirs, strict=True):
        facts = (
            ("kind", other.kind, mine.kind),
            ("type", other.spec.dtype, mine.spec.dtype),
            ("shape", list(other.spec.shape), list(mine.spec.shape)),
        )
        if (words := differing_spec(other.name, facts)) is not None:
            return words
    return None


def _operations(compiled: Step, planned: Step) -> str | None:
    ours, theirs = compiled.graph.nodes, planned.graph.nodes
    for k, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        here, there = compiled.operations[k], planned.operations[k]
        if (here, mine.inputs, mine.recompute) != (there, other.inputs, other.recompute):
            kinds = [[call.op for call in step.calls] for step in (there, here)]
            if kinds[0] == kinds[1]:
                return f"its operation {printable(other.id)} has other arguments"
            there_words, here_words = _kinds(*kinds)
            return f"its operation {printable(other.id)} is {there_words} there and {here_words} here"
    if len(ours) != len(theirs):
        return f"it has {len(theirs)} operations, and this has {len(ours)}"
    return None


def _kinds(there: Sequence[str], here: Sequence[str]) -> list[str]:
    """Both in words; of long ones, such as all that updates a model, the first that differ."""
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(there, here, strict=False)))
    return [
        "+".join(kinds)
        if len(kinds) <= _LONG
        else f"{len(kinds)} calls, of which the next after {at} is {kinds[at] if at < len(kinds) else 'none'},"
        for kinds in (there, here)
    ]


def _rest(compiled: Step, planned: Step) -> str | None:
    if compiled.constants != planned.constants:
        return "constants in the code have other values"
    if not same_functions(compiled.functions, planned.functions):
        return "functions inside it do something else"
    return None if compiled.results == planned.results else "it returns something else"
