"""Bounds on the time with collectives, and schedules to start from, by adding up weighted costs.

A plan takes at least as long as its computations, and as its collectives, and so as any weighted mean of the two. A
mean is a sum of costs: what ``auto`` minimises, and bounds, on a graph without queues. That graph lists a collective
that reads only fixed memory right before its first reader, because a plan that issues it earlier holds more
(docs/mathematics.md, "Collectives").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from remat_cli.errors import Interrupted, LimitReached
from remat_cli.graph.model import Graph, Node, NodeQueue, Phase
from remat_cli.graph.order import Reordered, ancestors, descendants, reordered
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Found, Task
from remat_cli.strategies.engine import Engine, pursue
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.overlapping.once import time_once
from remat_cli.strategies.overlapping.sequences import Sequences
from remat_cli.strategies.policies.sharded import one_ahead, unit_of
from remat_cli.tolerances import ROUNDING

_MOST_WEIGHTS = 7
_EXTREME, _LAST = 0.98, 0.999
"""The first weight of the busier queue, and the largest: with 1 the other queue would cost nothing. Untuned."""
_MOST_NODES = 20_000
"""Larger graphs are not divided: the sets of ancestors would take too much memory. Untuned."""
_SHARE, _MOST_S = 0.4, 20.0
"""Limits of the search with one weight."""


def late_order(graph: Graph) -> Reordered:
    """``graph`` with every collective that reads only fixed memory right before its first reader."""
    waiting: dict[int, list[int]] = {}
    for k in range(len(graph.nodes)):
        if graph.moves_freely(k):
            waiting.setdefault(graph.readers[graph.first_value[k]][0], []).append(k)
    moved = {k for of in waiting.values() for k in of}
    order: list[int] = []
    for k in range(len(graph.nodes)):
        if k not in moved:
            order += [*waiting.get(k, ()), k]
    return reordered(replace(graph, splits=(), origin=None), order)


def weighted(graph: Graph, weight: float) -> Graph:
    """``graph`` without queues: computations cost ``weight`` times as much, collectives 1 - ``weight`` times.

    Workspace of collectives that may run at any place is left out: elsewhere there may be room for it.
    """

    def node(k: int, item: Node) -> Node:
        computing = item.queue is NodeQueue.COMPUTE
        cost = item.cost * (weight if computing else 1 - weight)
        workspace = 0 if graph.moves_freely(k) else item.workspace
        return replace(item, cost=cost, queue=NodeQueue.COMPUTE, workspace=workspace)

    return replace(graph, nodes=tuple(node(k, item) for k, item in enumerate(graph.nodes)))


@dataclass(frozen=True, slots=True)
class Middle:
    """The part of a graph in which both queues may be at work.

    Attributes:
        graph: Its nodes up to the last computation that a collective depends on; nothing has to stay at its end. What
            comes before the first computation that waits for a collective costs nothing.
        before: How long the collectives take that have to end before that first computation.
        after: How long those take that have to start after that last computation.
        others: How long all collectives take that are not in ``graph``, each once.
    """

    graph: Graph
    before: float
    after: float
    others: float


def middle_of(graph: Graph) -> Middle | None:
    """The middle of a graph in late order; None if it is all of the graph, or the graph is too large to tell."""
    if len(graph.nodes) > _MOST_NODES:
        return None
    above = ancestors(graph)
    collectives = sum(1 << k for k, node in enumerate(graph.nodes) if node.queue is NodeQueue.COMMUNICATION)
    computations = [k for k in range(len(graph.nodes)) if not collectives >> k & 1]
    below = descendants(graph)
    first = next((k for k in computations if above[k] & collectives), None)
    last = next((k for k in reversed(computations) if below[k] & collectives), None)
    if last is None or (first is not None and first > last):
        return None
    cost = [node.cost for node in graph.nodes]
    before = 0.0 if first is None else _sum(cost, above[first] & collectives)
    nodes = [
        replace(node, cost=0.0) if k < (first or 0) and node.queue is NodeQueue.COMPUTE else node
        for k, node in enumerate(graph.nodes[: last + 1])
    ]
    others = _sum(cost, collectives >> (last + 1) << (last + 1))
    whole = Graph(graph.name, tuple(nodes), (), graph.cost_unit, graph.fixed_memory)
    return Middle(whole, before, _sum(cost, below[last] & collectives), others)


def _sum(costs: Sequence[float], chosen: int) -> float:
    """The costs of the nodes in a bit set, rounded down."""
    return math.fsum(cost for k, cost in enumerate(costs) if chosen >> k & 1) * (1 - ROUNDING)


@dataclass(slots=True)
class Weights(Engine):
    """Minimises and bounds weighted costs, for weights between which the best bound lies.

    The bound is a concave function of the weight, and the costs of a solution say on which side of it the best one is.
    """

    uses_solver: ClassVar[bool] = True

    def work(self) -> bool:
        """Look for the best weight, by halving."""
        incumbent, graph = self.incumbent, self.incumbent.graph
        incumbent.shared(Sequences).follow()
        incumbent.raise_bound(Bound(time_once(graph), Scope.DOCUMENT_ORDER, overlaps=True))
        late = late_order(graph)
        middle = middle_of(late.graph)
        computing = graph.cost_in(NodeQueue.COMPUTE) >= graph.cost_in(NodeQueue.COMMUNICATION)
        low, high, weight = 0.0, 1.0, _EXTREME if computing else 1 - _EXTREME
        for turn in range(_MOST_WEIGHTS):
            before = incumbent.bound.cost
            steps = self._search(late, weight)
            if middle is not None:
                self._search_middle(late, middle, weight)
            if incumbent.over() or steps is None or (turn and incumbent.bound.cost <= before):
                break
            costs = {queue: _cost(late.graph, steps, queue) for queue in NodeQueue}
            low, high = (weight, high) if costs[NodeQueue.COMPUTE] > costs[NodeQueue.COMMUNICATION] else (low, weight)
            # The best weight may be at an end: there the last step is a long one.
            end = _LAST if high == 1.0 else 1 - _LAST if low == 0.0 else None
            if weight == end:
                break
            weight = end if end is not None and weight in (_EXTREME, 1 - _EXTREME) else (low + high) / 2
        return False

    def _search(self, late: Reordered, weight: float) -> Sequence[int] | None:
        """Minimise weighted costs; the cheapest steps, if there are any."""
        inner = self._pursue(weighted(late.graph, weight), late.nodes)
        for bound in inner.bounds.values():
            self._raise(bound.cost * (1 - ROUNDING), bound.scope)
        return inner.computes

    def _search_middle(self, late: Reordered, middle: Middle, weight: float) -> None:
        """Minimise weighted costs of the middle, for a bound that counts what comes before and after it."""
        inner = self._pursue(weighted(middle.graph, weight), late.nodes, late.nodes[len(middle.graph.nodes) :])
        beside = weight * (middle.before + middle.after) + (1 - weight) * middle.others
        for bound in inner.bounds.values():
            scope = Scope.DOCUMENT_ORDER if bound.scope is Scope.ANY_ORDER else bound.scope
            self._raise(bound.cost * (1 - ROUNDING) + beside * (1 - ROUNDING), scope)

    def _pursue(self, graph: Graph, nodes: Sequence[int], rest: Sequence[int] = ()) -> Incumbent:
        """Run the stages of ``auto`` on a graph whose nodes are ``nodes``, behind which ``rest`` runs."""
        from remat_cli.strategies.pipeline import AUTO

        outer, sequences = self.incumbent, self.incumbent.shared(Sequences)
        outer.report("weighing computations and collectives")

        def take(found: Found) -> None:
            sequences.suggest([*(nodes[k] for k in found.schedule.computes), *rest])

        control = outer.context.control.part(_SHARE, _MOST_S)
        control = replace(control, listener=lambda progress: outer.report(progress.activity))
        context = replace(outer.context, control=control, publish=take, write_model=None)
        inner = Incumbent.of(Task(graph, outer.budget_bytes), context)
        with suppress(LimitReached, Interrupted):  # what was published until then counts
            pursue(AUTO, inner, depth=1)
        return inner

    def _raise(self, cost: float, scope: Scope) -> None:
        """Take a bound on the time."""
        if scope in (Scope.ANY_ORDER, Scope.DOCUMENT_ORDER, Scope.FRONTIER):
            self.incumbent.raise_bound(Bound(cost, scope, overlaps=True))


@dataclass(slots=True)
class GatheredAgain(Weights):
    """Minimises recomputation where the parameters of the first layers alone are gathered again.

    Where both queues are busy, neither all nor none of them should be, and no weight leads to anything between: the
    costs of a mixture lie on a line. So the number of layers is given.
    """

    def work(self) -> bool:
        """Look for the number of layers with which a step takes least time, in smaller and smaller steps."""
        incumbent, graph = self.incumbent, self.incumbent.graph
        incumbent.shared(Sequences).follow()
        units: dict[str, list[int]] = {}
        for k, node in enumerate(graph.nodes):
            if graph.moves_freely(k):
                units.setdefault(unit_of(node.id), []).append(k)
        if not units or any(node.phase is None for node in graph.nodes):
            return False
        times: dict[int, float] = {}
        best, step = len(units) // 4, max(1, len(units) // 4)
        while step and not incumbent.over():
            for count in (best, best - step, best + step):
                if 0 <= count <= len(units) and count not in times and not incumbent.over():
                    times[count] = self._time_with({k for unit in list(units.values())[:count] for k in unit})
            best = min(times, key=times.__getitem__, default=best)
            if math.isinf(times.get(best, math.inf)):
                break  # what is in flight one layer ahead does not fit
            step //= 2
        return False

    def _time_with(self, chosen: Collection[int]) -> float:
        """The time of the plan that recomputes least if ``chosen`` gathers run again; infinite for none that fits."""
        again, nodes = _gathered_again(self.incumbent.graph, chosen)
        steps = self._pursue(weighted(again, 0.5), nodes).computes
        walker = self.incumbent.shared(Sequences).walker
        timed = None if steps is None else walker.timed([nodes[k] for k in steps])
        early = None if timed is None else walker.issued_early(timed)
        return math.inf if early is None or early.excess_bytes else early.time


def _gathered_again(graph: Graph, chosen: Collection[int]) -> tuple[Graph, list[int]]:
    """A graph in which ``chosen`` gathers run a second time for the backward pass, and the node that each of its is.

    Gathers run one layer ahead, so that there is room for what is in flight, and are not computed again besides.
    """
    nodes: list[Node] = []
    origin = one_ahead(graph, range(len(graph.nodes)), chosen)
    values: dict[int, int] = {}
    count = 0
    for k in origin:
        node = graph.nodes[k]
        reads = tuple(values[v] for v in node.inputs)
        again = graph.first_value[k] in values
        name = f"{node.id}/again" if again else node.id
        phase = Phase.BACKWARD if again else node.phase
        recompute = node.recompute and not graph.moves_freely(k)
        nodes.append(replace(node, id=name, phase=phase, inputs=reads, recompute=recompute))
        values.update((v, count + at) for at, v in enumerate(graph.values_of(k)))
        count += len(node.outputs)
    outputs = tuple(sorted(values[v] for v in graph.outputs))
    return replace(graph, nodes=tuple(nodes), outputs=outputs, splits=(), origin=None), origin


def _cost(graph: Graph, steps: Sequence[int], queue: NodeQueue) -> float:
    """The cost of the steps of a queue."""
    return math.fsum(node.cost for node in map(graph.nodes.__getitem__, steps) if node.queue is queue)
