"""States the free-cut MILP: the least recomputation after the first computation of one node, in any order.

Its optimum is a lower bound on the cost of recomputation of all schedules.

Consider the first computation of one node t, in any order. The nodes computed before it are a set D that has the inputs
of all its nodes, all ancestors of t, and neither t nor any descendant of it. The model chooses D:

* z_i = 1 if i is in D; z_i <= z_j if i reads j. It is fixed for ancestors and descendants of t.
* k_v = 1 if value v, made by D and not read by t, is in memory while t runs. These values and the working set of t fit.
* r_i = 1 if node i of D is computed again after that.

A value of D that some node outside D and other than t reads, or that is a graph output, is in memory or made again:
k_v + r_i >= z_i - z_j for every reader j of v, where i is its node. A node that is computed again needs its inputs:
k_v + r_i >= r_j for every input v of j. What t reads is in memory, so there are no such rows for it. The cost of the
recomputations is the sum of c_i r_i.

The relaxation in which r may be fractional is a bound too. It chooses between sets D as a minimum cut does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph, closed
from remat_cli.graph.order import always_waiting, ancestors, descendants
from remat_cli.mip import Builder, LinearModel, Row


@dataclass(frozen=True, slots=True)
class FreeCuts:
    """The cuts of a graph.

    Attributes:
        graph: The graph with its closing node.
        room_bytes: The budget without fixed memory.
        before: The ancestors of every node, as bit sets.
        after: The descendants of every node, as bit sets.
        load: Bytes of what is in memory, or made again later, at every node in every order, with its working set.
    """

    graph: Graph
    room_bytes: int
    before: list[int]
    after: list[int]
    load: list[int]

    @classmethod
    def of(cls, graph: Graph, budget_bytes: int) -> FreeCuts:
        """The cuts of ``graph`` at a budget in bytes, fixed memory included."""
        whole = closed(graph)
        waiting = always_waiting(whole)
        load = [working_set(whole, t) + sum(whole.size[v] for v in values) for t, values in enumerate(waiting)]
        return cls(whole, budget_bytes - graph.fixed_memory, ancestors(whole), descendants(whole), load)

    def model(self, t: int, *, integral: bool) -> LinearModel:
        """The model of the cut at node ``t``, in units of C0.

        If ``integral``, nodes are computed again as a whole.
        """
        return _Model(self, t).build(integral=integral)


class _Model:
    """The model under construction.

    Attributes:
        graph: The graph.
        made: Nodes that may be in D.
        model: Columns and rows.
        chosen: The column z of every node for which D is not fixed.
        again: The column r of every node that may be computed again.
        kept: The column k of every value that may be kept.
    """

    def __init__(self, cuts: FreeCuts, t: int) -> None:
        self.cuts, self.t, self.graph, self.model = cuts, t, cuts.graph, Builder()
        nodes = range(len(self.graph.nodes))
        self.made = [i for i in nodes if i != t and not cuts.after[t] >> i & 1]
        free = [i for i in self.made if not cuts.before[t] >> i & 1]
        self.chosen = dict(zip(free, self._shares(len(free)), strict=True))
        own = set(self.graph.nodes[t].inputs)
        values = [v for i in self.made for v in self.graph.values_of(i) if v not in own]
        self.kept = dict(zip(values, self._shares(len(values)), strict=True))
        self.again: dict[int, int] = {}

    def _shares(self, number: int) -> range:
        """Columns from 0 to 1."""
        columns = self.model.amounts([0.0] * number)
        for column in columns:
            self.model.upper[column] = 1.0
        return columns

    def build(self, *, integral: bool) -> LinearModel:
        """See :meth:`FreeCuts.model`."""
        scale = self.graph.total_cost or 1.0
        able = [i for i in self.made if self.graph.nodes[i].recompute]
        costs = [self.graph.nodes[i].cost / scale for i in able]
        columns = self.model.binaries(costs) if integral else self.model.amounts(costs)
        self.again = dict(zip(able, columns, strict=True))
        for i in self.made:
            self._inputs(i)
        for v in self.kept:
            self._waits(v)
        room = self.cuts.room_bytes - working_set(self.graph, self.t)
        sizes = [self.graph.size[v] / self.cuts.room_bytes for v in self.kept]
        self.model.rows.append(Row(list(self.kept.values()), sizes, -math.inf, room / self.cuts.room_bytes))
        return self.model.build()

    def _inputs(self, i: int) -> None:
        """What node ``i`` needs to be in D, and to be computed again."""
        for v in self.graph.nodes[i].inputs:
            maker = self.graph.producer[v]
            if i in self.chosen and maker in self.chosen:
                self.model.rows.append(Row([self.chosen[i], self.chosen[maker]], [1.0, -1.0], -math.inf, 0.0))
            if v in self.kept and i in self.again:
                self._there(v, [self.again[i]], [-1.0], 0.0)

    def _waits(self, v: int) -> None:
        """Value ``v`` is in memory or made again if it is in D and still needed."""
        maker, later = self.graph.producer[v], self.cuts.after[self.t]
        columns, coefficients, least = [], [], 1.0
        if maker in self.chosen:
            columns, coefficients, least = [self.chosen[maker]], [-1.0], 0.0
        if v in self.graph.outputs or any(later >> j & 1 for j in self.graph.readers[v]):
            self._there(v, columns, coefficients, least)
            return
        for j in self.graph.readers[v]:
            if j in self.chosen:
                self._there(v, [*columns, self.chosen[j]], [*coefficients, 1.0], least)

    def _there(self, v: int, columns: list[int], coefficients: list[float], least: float) -> None:
        """k_v + r_i, with further terms, is at least ``least``; i is the node of v."""
        own = [self.kept[v]]
        if self.graph.producer[v] in self.again:
            own.append(self.again[self.graph.producer[v]])
        self.model.rows.append(Row([*own, *columns], [1.0] * len(own) + coefficients, least, math.inf))
