"""What the end of every schedule costs, by what is in memory when it begins: the *cost to go*.

Where the last nodes are the ones that need the most memory, as the backward part of the first blocks of a network, few
values fit, and what is recomputed there is recomputed again and again. Models of bottleneck stages do not see that. But
a search of all states of these nodes alone does, since they are few. ``docs/mathematics.md``, "Cost to go", has the
proof.

The same search, of fewer schedules, finds the cheapest ends of schedules. They replace those of others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.induced import induced
from remat_cli.graph.model import Graph
from remat_cli.graph.standing import coarse, standing
from remat_cli.milp.stage_cuts import CostToGo, derived_values
from remat_cli.mip import Bools, Builder, Floats, Ints, linear
from remat_cli.plan.derive import peak
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context
from remat_cli.strategies.engine import Engine, engine_at
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.states import CoarseStates, Search, coarse_states
from remat_cli.tolerances import ROUNDING

_MOST_NODES = 100
"""Nodes of a tail. Those of `checkmate/ResNet50` are 76: from the first backward node of the first of its stages on."""
_LARGE, _SMALL = 0.095, 0.04
"""Values made in the tail count from these shares of the room on: those of the coarse graph, and of the search that it
guides. With smaller values, the coarse graph of `checkmate/ResNet50` has over 30 million states instead of 2 million.
If the search counts the same values as that, it finds costs to go from 24.0% of C0 on at 1.03 times the least peak,
with smaller ones from 27.6% on; the cheapest end recomputes 27.7%. Tensors of a tenth of the least peak still count at
1.03 times that: there `resnet50` has the bound 31.1% in 120 s, and 28.3 if they do not (by hand)."""
_NEGLIGIBLE = 3e-3
"""Share of the tail's cost that a node costs at most whose value another one stands for, or that ends may recompute.
With 1e-3 some normalisations of `checkmate/ResNet50` count, and its tail has over 4 million coarse states (by hand)."""
_COARSE_SHARE = 0.4
"""Share of the time for coarse states. Untuned."""
_COARSE_BYTES, _MOST_BYTES = 600_000_000, 600_000_000
"""Memory for coarse states and for others: about 4 million each."""
_RANGE, _WIDE = 0.005, 0.1
"""Costs to go are searched up to the least one and so much more, as shares of C0: first of all tails, then of the
longest. `resnet50` at its least peak has plans with costs to go of .23 and of .29: if these are known up to .02 beyond
the least, its bound is 30.7%, and 31.5% with .05 (by hand)."""
_SPARED = 1e-4
"""How much less the weights of an inequality count than its constant, so that they are as small as may be."""
_LONGER = 6.0
"""A longer tail is searched only if so many times what the last one took is left. On both ResNet-50 the next one takes
2.6 to 18 times as long. Tails of 96 and 100 nodes, which end without a result after 16 s, are not begun in 120 s (by
hand)."""
_ENDS_SHARE = 0.3
"""Share of the time for ends. Untuned."""
_MOST_ENDS = 2_000
"""Ends to keep; trying them takes a few seconds."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a schedule, from the first computation of a node on.

    Attributes:
        first: That node; what is in memory during its computation, and used after it, is kept.
        nodes: The nodes whose recomputation counts.
        kept: bool[sets, V], sets of kept values; none contains an earlier one.
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

    @property
    def known(self) -> bool:
        """Whether the costs to go are known up to :data:`_RANGE` beyond the least one."""
        return len(self.costs) > 0 and self.most >= self.costs[0] + _RANGE

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
        while not control.stopping():
            slack = self.costs + self.kept @ spared - value
            worst = int(np.argmin(slack)) if len(slack) else 0
            if not len(slack) or slack[worst] >= -ROUNDING:
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


@dataclass(frozen=True, slots=True)
class End:
    """An end of schedules.

    Attributes:
        kept: The values that it needs when it begins, after the first computation of the tail's first node.
        cost: What it recomputes, in the graph's cost unit.
        computes: The nodes that it computes.
    """

    kept: frozenset[int]
    cost: float
    computes: tuple[int, ...]


@dataclass(slots=True)
class Tails(Engine):
    """Searches the states of the tail of a graph, once, and gives the incumbent a cheaper end.

    Attributes:
        found: The tail, once there is one.
        ends: Its cheapest ends, ascending by cost.
        searched: Whether it was searched.
    """

    found: Tail | None = None
    ends: Sequence[End] = ()
    searched: bool = False

    def work(self, search: bool = True) -> bool:
        """Improve the incumbent; before that, unless it was done or is not to be done, ``search``."""
        if search and not self.searched:
            self.searched = True
            self._search(self.incumbent.context.control)
        computes = self.incumbent.computes
        if computes is not None and (cheaper := self.ended(computes)) is not None:
            self.incumbent.offer(cheaper)
        return False

    def _search(self, control: Control) -> None:
        """Search longer and longer tails, until memory or time is up, and keep the longest; then search its ends."""
        incumbent, longest, clock = self.incumbent, None, control.part(1 - _ENDS_SHARE)
        room = incumbent.budget_bytes - incumbent.graph.fixed_memory
        for first, nodes in tails(incumbent.graph):
            incumbent.report("searching the tail")
            began_s = monotonic()
            part = Part.of(incumbent.graph, first, nodes, room, clock)
            if part is None:
                continue
            wider = part.costs_to_go(clock)
            tail = next(wider)
            if math.isinf(tail.most):
                incumbent.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
                return
            if len(tail.costs):
                self.found, longest = tail, (part, wider)
            remaining_s = clock.remaining_s()
            longer = remaining_s is None or _LONGER * (monotonic() - began_s) < remaining_s
            if not tail.ended or not longer:
                break
        if longest is not None:
            self.found, self.ends = next(longest[1]), longest[0].ends(control)

    def ended(self, computes: Sequence[int]) -> tuple[int, ...] | None:
        """A schedule with a cheaper end, within the budget; None if there is none."""
        graph = self.incumbent.graph
        for end in self.ends:
            whole = self._with(end, computes)
            if self.incumbent.context.control.stopping() or cost_of(graph, whole) >= cost_of(graph, computes):
                break
            if peak(graph, whole) <= self.incumbent.budget_bytes:
                return whole
        return None

    def ended_from(self, kept: frozenset[int], computes: Sequence[int]) -> tuple[int, ...] | None:
        """A schedule with the end that needs the fewest bytes beside ``kept``, what is in memory when the tail begins.

        Of several, it has the cheapest. It may exceed the budget. None if no end is known.
        """
        size = self.incumbent.graph.size
        if not self.ends:
            return None
        return self._with(min(self.ends, key=lambda end: (sum(size[v] for v in end.kept - kept), end.cost)), computes)

    def _with(self, end: End, computes: Sequence[int]) -> tuple[int, ...]:
        """The schedule ``computes`` with another end."""
        assert self.found is not None
        return (*computes[: computes.index(self.found.first) + 1], *end.computes)


def tails_of(incumbent: Incumbent) -> Tails:
    """The engine that works on ``incumbent``, with what it found."""
    engine = engine_at(f"{__name__}:{Tails.__name__}", incumbent)
    assert isinstance(engine, Tails)
    return engine


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


@dataclass(frozen=True, slots=True)
class Part:
    """A tail as a graph of its own.

    Attributes:
        graph: The whole graph.
        first: The first node of the tail.
        nodes: Its nodes.
        room: Bytes without fixed memory.
        part: Their graph; what it reads of other nodes comes from sources.
        values: The number in ``graph`` of each of its values.
        numbers: The number in ``graph`` of each of its nodes, -1 for a source.
        image: The number of each of its values in a coarse graph, -1 where there is none.
        bounds: The states of that; None if they are too many.
    """

    graph: Graph
    first: int
    nodes: frozenset[int]
    room: int
    part: Graph
    values: tuple[int, ...]
    numbers: tuple[int, ...]
    image: Ints
    bounds: CoarseStates | None

    @classmethod
    def of(cls, graph: Graph, first: int, nodes: frozenset[int], room: int, control: Control) -> Part | None:
        """A tail; None if nothing must be recomputed in it."""
        part, values = induced(graph, nodes)
        if no_remat_peak(part) <= room:
            return None
        number = {node.id: i for i, node in enumerate(graph.nodes)}
        numbers = tuple(number.get(node.id, -1) for node in part.nodes)
        made = cls(graph, first, nodes, room, part, values, numbers, np.zeros(0, dtype=np.int64), None)
        other, image = coarse(part, standing(part, made.free(_LARGE), derived_values(part, _NEGLIGIBLE)))
        bounds = coarse_states(
            other, room, control.part(_COARSE_SHARE), least_left=made.least_left, most_bytes=_COARSE_BYTES
        )
        return replace(made, image=np.array(image, dtype=np.int64), bounds=bounds)

    @property
    def early(self) -> list[bool]:
        """Whether each value is made by a node of the tail before its first one."""
        return [i in self.nodes and i < self.first for i in (self.graph.producer[v] for v in self.values)]

    def free(self, share: float) -> list[bool]:
        """Whether each value is made in the tail, or by another node, and smaller than this share of the room."""
        return [not early and size < share * self.room for early, size in zip(self.early, self.part.size, strict=True)]

    @property
    def least_left(self) -> int:
        """Number of nodes up to the first one of the tail."""
        return self.numbers.index(self.first) + 1

    def search(self, graph: Graph, image: Ints) -> Search:
        """The search of the states of ``graph``, whose values have the ``image`` in the coarse graph."""
        return Search.of(
            graph,
            self.room,
            in_order=True,
            ceiling=math.inf,
            most_bytes=_MOST_BYTES,
            coarse=None if self.bounds is None else self.bounds.of(image),
            least_left=self.least_left,
        )

    def costs_to_go(self, control: Control) -> Iterator[Tail]:
        """The costs to go up to :data:`_RANGE`, then those up to :data:`_WIDE`, until memory or time is up."""
        free, early = self.free(_SMALL), self.early
        graph, numbers = coarse(self.part, [None if free[v] else v for v in range(len(free))])
        place = {number: v for v, number in enumerate(numbers) if number >= 0}
        search = self.search(graph, np.array([self.image[place[v]] for v in range(len(graph.size))], dtype=np.int64))
        unit = (self.part.total_cost or 1.0) / (self.graph.total_cost or 1.0)
        nodes = self.nodes.union(self.graph.producer[v] for v in self.values)
        kept = np.zeros((0, self.graph.first_value[self.first]), dtype=np.bool_)
        costs: list[float] = []
        at, cost, most = None, -math.inf, 0.0
        for reach in (_RANGE, _WIDE):
            while cost <= (costs or [math.inf])[0] + reach and (at := search.next(control)) is not None:
                cost = float(search.states.cost[at]) * unit
                chosen = np.zeros((1, kept.shape[1]), dtype=np.bool_)
                chosen[0, [self.values[place[v]] for v in search.values(at) if early[place[v]]]] = True
                if np.any(kept & ~chosen, axis=1).all():  # else a set with fewer values costs no more
                    kept = np.concatenate([kept, chosen])
                    costs.append(cost)
            most = max(most, search.bound * unit if math.isfinite(search.bound) or not costs else cost)
            ended = at is not None or search.exhausted
            yield Tail(self.first, nodes, kept, np.array(costs), most, ended)

    def ends(self, control: Control) -> list[End]:
        """The cheapest ends that recompute no source, and no node but the cheap ones from the first node on."""
        most = _NEGLIGIBLE * self.part.total_cost
        once = [i < 0 or (i >= self.first and self.graph.nodes[i].cost > most) for i in self.numbers]
        pairs = zip(self.part.nodes, once, strict=True)
        nodes = (replace(node, recompute=node.recompute and not one) for node, one in pairs)
        search = self.search(replace(self.part, nodes=tuple(nodes)), self.image)
        found: list[End] = []
        while (at := search.next(control)) is not None and len(found) < _MOST_ENDS:
            kept = frozenset(self.values[v] for v in search.values(at))
            cost = float(search.states.cost[at]) * self.part.total_cost
            found.append(End(kept, cost, tuple(self.numbers[i] for i in search.sequence(at))))
        return found
