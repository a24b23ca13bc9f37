"""From a graph with regions that may run in parts to the graph in which some of them do."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph, Node, Operation, Phase, Split


@dataclass(frozen=True, slots=True)
class _Step:
    """A node of the new graph.

    Attributes:
        nodes: Nodes that it stands for, ascending.
        repeats: Nodes that it computes for itself, ascending.
        operation: The operation, with the index of its number of parts; None for a node that stays as it is.
    """

    nodes: tuple[int, ...]
    repeats: tuple[int, ...] = ()
    operation: tuple[Operation, int, int] | None = None

    @property
    def ahead_of(self) -> tuple[int, ...]:
        """Nodes for whose values it does not wait."""
        return () if self.operation is None else self.operation[0].ahead_of

    def reads(self, graph: Graph, completed: Mapping[int, Sequence[int]]) -> list[int]:
        """The values that come from outside, in the order in which they are first read.

        ``completed``: what completes values that are made ahead, which is read together with them.
        """
        own, without = {*self.nodes, *self.repeats}, {*self.nodes, *self.repeats, *self.ahead_of}
        inputs = chain.from_iterable(graph.nodes[i].inputs for i in sorted(own))
        read = [v for v in inputs if graph.producer[v] not in without]
        return list(dict.fromkeys([*read, *chain.from_iterable(completed.get(v, ()) for v in read)]))


def split(graph: Graph, parts: Mapping[str, int]) -> Graph:
    """``graph`` with some of its regions in parts.

    An operation becomes one node. It reads what its nodes read from outside, and makes those of their values that other
    nodes read or that are outputs of the graph. It takes the place of the last of its nodes, or comes as early
    after that as its inputs allow. All other nodes stay in order.

    Args:
        graph: A graph in which nothing is split.
        parts: The number of parts, by the ids of the regions to split; none for the graph itself.

    Raises:
        ValueError: If the graph offers no such region or number, or if operations would wait for each other.
    """
    if not parts:
        return graph
    steps = _steps(graph, parts)
    completed = {v: by for step in steps for v, by in made_ahead(graph, step.nodes, step.ahead_of).items()}
    order = _ordered(graph, steps, completed)
    wanted = {v for step in steps for v in step.reads(graph, completed)} | set(graph.outputs)
    number: dict[int, int] = {}
    nodes = []
    for step in order:
        made = [v for i in step.nodes for v in graph.values_of(i) if step.operation is None or v in wanted]
        inputs = tuple(number[v] for v in step.reads(graph, completed))
        number |= {v: len(number) + k for k, v in enumerate(made)}
        nodes.append(_node(graph, step, inputs, made))
    return Graph(
        graph.name,
        tuple(nodes),
        tuple(sorted(number[v] for v in graph.outputs)),
        graph.cost_unit,
        graph.fixed_memory,
        graph.metadata,
        origin=Split(graph, dict(parts), tuple(number)),
    )


def made_ahead(graph: Graph, nodes: Sequence[int], ahead_of: Sequence[int]) -> dict[int, list[int]]:
    """The values that an operation of ``nodes`` makes ahead of ``ahead_of``, and what completes each: their values."""
    values = [v for i in ahead_of for v in graph.values_of(i)]
    late = set(values)
    for i in nodes:
        if not late.isdisjoint(graph.nodes[i].inputs):
            late.update(graph.values_of(i))
    return dict.fromkeys(late.difference(values), values)


def parts_words(graph: Graph) -> str:
    """What is in parts: ``loss in 8 parts of the tokens``, or ``whole operations``."""
    if graph.origin is None:
        return "whole operations"
    along = {region.id: f" of the {region.along}" if region.along else "" for region in graph.whole.splits}
    return ", ".join(f"{region} in {parts} parts{along[region]}" for region, parts in graph.origin.parts.items())


def least_in_parts(graph: Graph) -> Graph:
    """``graph`` with every region in the number of parts, or whole, in which its own operations need least memory.

    What an operation needs does not depend on other regions, so no choice of parts has a smaller largest working set.
    """
    parts = {}
    for region in graph.splits:
        counts: dict[int, int] = {}
        for count in region.parts:
            alone = split(replace(graph, splits=(region,)), {region.id: count})
            ids = {operation.id for operation in region.operations}
            counts[count] = max(working_set(alone, i) for i, node in enumerate(alone.nodes) if node.id in ids)
        least = min(counts, key=lambda count: (counts[count], count))
        whole = max(working_set(graph, i) for operation in region.operations for i in operation.nodes)
        if counts[least] < whole:
            parts[region.id] = least
    return split(graph, parts)


def waits_in_a_circle(graph: Graph) -> bool:
    """Whether operations would wait for each other if every region were split; if not, none would if some are."""
    try:
        split(graph, {region.id: region.parts[0] for region in graph.splits})
    except ValueError:
        return True
    return False


def _steps(graph: Graph, parts: Mapping[str, int]) -> list[_Step]:
    """All nodes of the new graph, in the order of the last nodes that they stand for."""
    regions = {region.id: region for region in graph.splits}
    steps = []
    for name, count in parts.items():
        region = regions.get(name)
        if region is None or count not in region.parts:
            raise ValueError(f"the graph does not offer {name} in {count} parts")
        at = region.parts.index(count)
        steps += [_Step(o.nodes, o.repeats, (o, at, count)) for o in region.operations]
    taken = {i for step in steps for i in step.nodes}
    steps += [_Step((i,)) for i in range(len(graph.nodes)) if i not in taken]
    return sorted(steps, key=lambda step: step.nodes[-1])


def _ordered(graph: Graph, steps: Sequence[_Step], completed: Mapping[int, Sequence[int]]) -> Iterator[_Step]:
    """The steps, each after those that make what it reads, and else in their order.

    Raises:
        ValueError: If steps wait for each other.
    """
    maker = {v: k for k, step in enumerate(steps) for i in step.nodes for v in graph.values_of(i)}
    before = [{maker[v] for v in step.reads(graph, completed)} for step in steps]
    after: list[list[int]] = [[] for _ in steps]
    for k, makers in enumerate(before):
        for one in makers:
            after[one].append(k)
    waiting = [len(makers) for makers in before]
    ready = [k for k, count in enumerate(waiting) if not count]
    order = []
    while ready:
        order.append(steps[k := heapq.heappop(ready)])
        for reader in after[k]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(steps):
        raise ValueError("operations in parts would wait for each other")
    return iter(order)


def _node(graph: Graph, step: _Step, inputs: tuple[int, ...], made: Sequence[int]) -> Node:
    nodes = [graph.nodes[i] for i in step.nodes]
    sizes = tuple(graph.size[v] for v in made)
    if step.operation is None:
        return replace(nodes[0], inputs=inputs)
    operation, at, count = step.operation
    late = made_ahead(graph, step.nodes, step.ahead_of)
    offload = tuple(graph.may_offload(v) and v not in late for v in made)
    phases = {node.phase for node in nodes}
    return Node(
        operation.id,
        operation.costs[at],
        inputs,
        sizes,
        operation.workspaces[at],
        all(node.recompute for node in nodes) and not step.ahead_of,
        offload[0] if len(set(offload)) == 1 else offload or True,
        f"split in {count}",
        phases.pop() if len(phases) == 1 else None if None in phases else Phase.LOSS,
    )
