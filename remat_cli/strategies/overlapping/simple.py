"""Schedules that treat all gathers alike: made in linear time, so that they are there before any search begins.

A gather is a collective with all that is computed for it alone, such as the conversion of a rank's part, and with what
is as large as its result and made of that alone, such as the copy that puts the parts of all ranks together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from remat_cli.graph.model import Graph, NodeQueue, Phase

_LONGEST = 8
"""Most nodes of a gather up to its collective. Untuned: a conversion and padding are two."""


def simple_schedules(graph: Graph) -> Iterator[list[int]]:
    """Gathers as late as they may be: each once; once more in the backward pass; or anew for each computation."""
    gathers = _gathers(graph)
    if gathers:
        yield _schedule(graph, gathers)
        if any(node.phase is Phase.BACKWARD for node in graph.nodes):
            yield _schedule(graph, gathers, at_backward=True)
        yield _schedule(graph, gathers, at_each=True)


def _gathers(graph: Graph) -> set[int]:
    """The nodes of all gathers."""
    found: set[int] = set()
    for k, node in enumerate(graph.nodes):
        if node.queue is NodeQueue.COMMUNICATION:
            found |= _up_to(graph, k)
        elif node.recompute and node.inputs:
            made_of = {graph.producer[v] for v in node.inputs}
            if made_of <= found and sum(node.outputs) == sum(graph.size[v] for v in node.inputs):
                found.add(k)
    return found


def _up_to(graph: Graph, collective: int) -> set[int]:
    """A collective and what is computed for it alone; nothing if it needs anything else."""
    chain, waiting = {collective}, [collective]
    while waiting and len(chain) <= _LONGEST:
        above = {graph.producer[v] for v in graph.nodes[waiting.pop()].inputs} - chain
        chain |= above
        waiting += above
    beside = (r for i in chain - {collective} for v in graph.values_of(i) for r in graph.readers[v] if r not in chain)
    computed = all(graph.nodes[i].queue is NodeQueue.COMPUTE for i in chain - {collective})
    again = all(graph.nodes[i].recompute for i in chain)
    return chain if not waiting and computed and again and next(beside, None) is None else set()


def _schedule(graph: Graph, gathers: set[int], *, at_backward: bool = False, at_each: bool = False) -> list[int]:
    """Document order; what is gathered is dropped when the backward pass begins, or after each computation."""
    steps: list[int] = []
    there: set[int] = set()
    gathered = {v for k in gathers for v in graph.values_of(k)}

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
            if at_each and k not in gathers:
                drop(node.inputs)
    return steps
