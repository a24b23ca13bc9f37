"""Schedules that treat all gathers alike: made in linear time, so that they are there before any search begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from remat_cli.graph.gathers import gathers
from remat_cli.graph.model import Graph, Phase


def simple_schedules(graph: Graph) -> Iterator[list[int]]:
    """Gathers as late as they may be: each once; once more in the backward pass; or anew for each computation."""
    found = gathers(graph)
    if found:
        yield _schedule(graph, found)
        if any(node.phase is Phase.BACKWARD for node in graph.nodes):
            yield _schedule(graph, found, at_backward=True)
        yield _schedule(graph, found, at_each=True)


def _schedule(graph: Graph, found: set[int], *, at_backward: bool = False, at_each: bool = False) -> list[int]:
    """Document order; what is gathered is dropped when the backward pass begins, or after each computation."""
    steps: list[int] = []
    there: set[int] = set()
    gathered = {v for k in found for v in graph.values_of(k)}

    def run(k: int) -> None:
        for v in graph.nodes[k].inputs:
            if v not in there:
                run(graph.producer[v])
        steps.append(k)
        there.update(graph.values_of(k))

    def drop(values: Iterable[int]) -> None:
        for v in gathered.intersection(values):
            there.discard(v)
            drop(graph.nodes[graph.producer[v]].inputs)

    before = None
    for k, node in enumerate(graph.nodes):
        if at_backward and node.phase is Phase.BACKWARD and before is not Phase.BACKWARD:
            there -= gathered
        before = node.phase
        if not graph.moves_freely(k):
            run(k)
            if at_each and k not in found:
                drop(node.inputs)
    return steps
