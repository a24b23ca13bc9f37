"""What the end of every schedule costs, by what is in memory when it begins: the *cost to go*.

Where the last nodes are the ones that need the most memory, as the backward part of the first blocks of a network, few
values fit, and what is recomputed there is recomputed again and again. Models of bottleneck stages do not see that. But
a search of all states of these nodes alone does, since they are few. ``docs/mathematics.md``, "Cost to go", has the
proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.induced import induced
from remat_cli.graph.model import Graph
from remat_cli.graph.standing import coarse, derived
from remat_cli.milp.stage_cuts import CostToGo
from remat_cli.kernels.compiling import wait
from remat_cli.mip import Bools, Builder, Floats, linear
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context
from remat_cli.strategies.engine import Once, engine_at
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.states import Search, coarse_states
from remat_cli.tolerances import ROUNDING

_MOST_NODES = 100
"""Nodes of a tail. Those of `checkmate/ResNet50` are 76: from the first backward node of the first of its stages on."""
_SMALL = 0.1
"""Values made in the tail count from this share of the room on. With all of them, `checkmate/ResNet50` has ten times as
many coarse states, and the same bound (by hand)."""
_COARSE_SHARE = 0.4
"""Share of the time for coarse states. Untuned."""
_COARSE_BYTES, _MOST_BYTES = 600_000_000, 600_000_000
"""Memory for coarse states and for others: about 3 and 4 million."""
_RANGE = 0.03
"""Costs to go are searched up to the least one and so much more, as a share of C0. Untuned."""
_SPARED = 1e-4
"""How much less the weights of an inequality count than its constant, so that they are as small as may be."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a schedule, from the first computation of a node on.

    Attributes:
        first: That node; what is in memory during its computation, and used after it, is kept.
        nodes: The nodes whose recomputation counts.
        kept: bool[sets, V], sets of kept values.
        costs: float64[sets], what is recomputed at least after ``first`` if such a set, or more of these values, is
            kept, in units of C0; ascending.
        most: What is recomputed at least if no such set is kept.
        ended: Whether neither memory nor time ended the search.
    """

    first: int
    nodes: frozenset[int]
    kept: Bools
    costs: Floats
    most: float
    ended: bool

    def cost(self, kept: Floats) -> float:
        """What is recomputed at least with the values ``kept: float64[V]``, 0 or 1."""
        enough = ~np.any(self.kept & (kept < 0.5), axis=1)
        return float(self.costs[np.argmax(enough)]) if enough.any() else self.most

    def inequality(self, kept: Floats, context: Context, control: Control) -> CostToGo:
        """The valid inequality that says the most of the values ``kept: float64[V]``, from 0 to 1.

        Its weights come from a linear programme, to which the violated sets are added one by one; its constant is then
        computed anew, from all sets.
        """
        builder = Builder()
        (constant,) = builder.amounts([-1.0])
        builder.upper[constant] = self.most
        weights = builder.amounts((kept + _SPARED).tolist())
        spared = np.zeros(len(kept))
        value = self.most
        while True:
            slack = self.costs + self.kept @ spared - value
            worst = int(np.argmin(slack)) if len(slack) else 0
            if not len(slack) or slack[worst] >= -ROUNDING or control.stopping():
                break
            terms = [(1.0, constant), *((-1.0, weights[v]) for v in np.flatnonzero(self.kept[worst]))]
            builder.rows.append(linear(-math.inf, terms, float(self.costs[worst])))
            outcome = context.solver.solve(context.request(builder.build(), control))
            if outcome.values is None:
                break
            value, spared = float(outcome.values[constant]), np.maximum(outcome.values[weights.start :], 0.0)
        least = min(self.most, float(np.min(self.costs + self.kept @ spared, initial=math.inf)))
        weighted = {int(v): float(spared[v]) for v in np.flatnonzero(spared)}
        return CostToGo(self.first, self.nodes, least * (1 - ROUNDING), weighted)


class Tails(Once):
    """Searches the states of the tail of a graph.

    Attributes:
        found: The tail, once there is one.
    """

    found: Tail | None = None

    def attempt(self) -> None:
        """Search longer and longer tails, until memory or time is up; keep the longest with costs to go."""
        incumbent, control = self.incumbent, self.incumbent.context.control
        room = incumbent.budget_bytes - incumbent.graph.fixed_memory
        if not wait("states", control):
            return
        for first, nodes in tails(incumbent.graph):
            incumbent.report("searching the tail")
            tail = costs_to_go(incumbent.graph, first, nodes, room, control)
            if tail is not None and math.isinf(tail.most):
                incumbent.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
                return
            self.found = tail if tail is not None and len(tail.costs) else self.found
            if tail is not None and not tail.ended:
                return


def tails_of(incumbent: Incumbent) -> Tail | None:
    """The tail that was found for ``incumbent``."""
    engine = engine_at(f"{__name__}:{Tails.__name__}", incumbent)
    assert isinstance(engine, Tails)
    return engine.found


def tails(graph: Graph) -> list[tuple[int, frozenset[int]]]:
    """The first node of each tail of at most :data:`_MOST_NODES` nodes, and its nodes; shorter ones first.

    A tail has the last nodes, and the ancestors of what these, except the first, read of earlier ones. Of tails with
    consecutive first nodes only the longest counts.
    """
    n, found = len(graph.nodes), list[tuple[int, frozenset[int]]]()
    for t in range(n - 2, max(0, n - _MOST_NODES), -1):
        read = {v for j in range(t + 1, n) for v in graph.nodes[j].inputs}.union(graph.outputs)
        nodes = set(range(t, n))
        todo = [graph.producer[v] for v in read if graph.producer[v] < t]
        while todo and len(nodes) <= _MOST_NODES:
            i = todo.pop()
            if i not in nodes:
                nodes.add(i)
                todo += [graph.producer[v] for v in graph.nodes[i].inputs]
        if len(nodes) <= _MOST_NODES:
            if found and found[-1][0] == t + 1:
                found.pop()
            found.append((t, frozenset(nodes)))
    return found


def costs_to_go(graph: Graph, first: int, nodes: frozenset[int], room: int, control: Control) -> Tail | None:
    """Search the states of a tail, until memory or time is up; None if nothing must be recomputed there.

    Args:
        graph: The graph.
        first: The first node of the tail.
        nodes: Its nodes.
        room: Bytes without fixed memory.
        control: Stops the search.
    """
    part, values = induced(graph, nodes)
    if no_remat_peak(part) <= room:
        return None
    place = next(i for i, node in enumerate(part.nodes) if node.id == graph.nodes[first].id)
    own = [v for v, number in enumerate(values) if graph.producer[number] in nodes]
    early = {v for v in own if graph.producer[values[v]] < first}
    free = [v not in early and size < _SMALL * room for v, size in enumerate(part.size)]
    searched, images = coarse(part, [None if free[v] else v for v in range(len(values))])
    by = derived(part, free)
    coarser, coarse_images = coarse(part, by)
    image = np.full(len(searched.size), -1, dtype=np.int64)
    for v, number in enumerate(images):
        if number >= 0:
            image[number] = coarse_images[v]
    least_left = place + 1
    bounds = coarse_states(
        coarser, image, room, control.part(_COARSE_SHARE), least_left=least_left, most_bytes=_COARSE_BYTES
    )
    search = Search.of(
        searched, room, in_order=True, ceiling=math.inf, most_bytes=_MOST_BYTES, coarse=bounds, least_left=least_left
    )
    unit = part.total_cost / (graph.total_cost or 1.0)
    number_of = {number: values[v] for v, number in enumerate(images) if number >= 0 and v in early}
    sets: list[frozenset[int]] = []
    costs: list[float] = []
    while (at := search.next(control)) is not None:
        sets.append(frozenset(number_of[v] for v in search.values(at) if v in number_of))
        costs.append(float(search.states.cost[at]) * unit)
        if costs[-1] > costs[0] + _RANGE:
            break
    kept = np.zeros((len(sets), graph.first_value[first]), dtype=np.bool_)
    for row, chosen in enumerate(sets):
        kept[row, sorted(chosen)] = True
    most = search.bound * unit if math.isfinite(search.bound) or not costs else costs[-1]
    return Tail(first, nodes, kept, np.array(costs), most, ended=at is not None or search.exhausted)
