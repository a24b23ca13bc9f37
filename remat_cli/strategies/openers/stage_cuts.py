"""Schedules and bounds from a model of the stages that need the most memory alone (see ``milp/stage_cuts``).

The first model has one bottleneck stage, that of the no-remat peak. If its schedule exceeds the budget at another
stage, the next model has that stage too. If it exceeds the budget only at a recomputation, the next model looks into
the stage of that, and then at the recomputation itself. Every round raises the bound; a schedule that fits is as cheap
as the bound. Training steps often fit after one or two rounds; at tight budgets it takes some twenty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_profile, working_set, working_sets
from remat_cli.graph.model import Graph
from remat_cli.milp import stage_cuts
from remat_cli.mip import Floats
from remat_cli.plan.liveness import heights
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.engine import Engine, engine_at
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.openers.tails import Tail, tails_of
from remat_cli.strategies.retention.proof import confirmed
from remat_cli.tolerances import CUTS_GAP

# Halving and doubling all constants of this folder both make the gap larger (benchmark ``ablation``).
_MOST_CUTS = 120
"""Cuts in one model."""
_LONG_S, _PLACES, _APART = 2.0, 3, 4
"""Where memory is tight, on a large graph and after a solve of so many seconds, a schedule is corrected in so many
places at once, so many stages apart or more. On `segnet` at 1.1 times its least peak, three places have a bound of 38%
in 6 s, and one 36%; `resnet50` has its 15% in 2 s instead of 3 (single runs, not kept)."""
_RAISED = 1.03
"""By what factor rows for spans must raise the relaxation, after a solve of :data:`_LONG_S`. They make a model several
times as large. `checkmate/ResNet50` at its least peak (factor 1.5) has the bound 28.4% with them after 42 s, and 27.6%
without; `moccasin/G2` at 80% (1.04) 5.94% after 6 s instead of 5.68% after 60 s. `gpt2` at 1.03 times its least peak
(1.01) gets no better bound. Seconds are of the processor, in single runs that are not kept."""
_ASKED_SHARE = 0.1
"""How much of the gap that was asked for a solve may leave. Untuned."""
_BEYOND_S = 0.1
"""Once that gap is reached, most seconds of a solve that makes it smaller: `resnet34` at 40% of its no-remat peak is
within .01% after .04 s, and not at the optimum after 1.4 s (by hand)."""
_LOOSE_GAP, _LOOSE_SHARE = 0.1, 0.5
"""Gap of a solve after one that took longer, while its schedule shows something new: most, and as a share of the gap
that is open."""
_FEW = 90
"""Nodes of a small graph. There every recomputation in a stage that is looked into is seen: on `checkmate/unet` (83)
that takes a third of the rounds, and its least budget is closed in half the time. Beyond, rows for nodes that hardly
matter make each round slower than it saves rounds: on `unet` (103) the bound was 2% lower (single runs, not kept)."""
_TIGHT_SHARE, _TIGHT_STAGES = 0.5, 2
"""Memory is tight where so many working sets, or more, take this share of the room: the stages with the least room left
then decide what must be recomputed. `checkmate/ResNet50` at its least peak has the bound 26% after 10 s if the largest
working sets come first, and 8% if the largest excess does. Elsewhere it is the other way round: a layered graph of 500
nodes at 90% is proven after 2 s instead of 12 s (single runs, not kept)."""
_MOST_VARIABLES = 60_000
"""Variables of the largest model to state."""
_WORTH = 10.0
"""Derived values are left out while the gap is so many times what their nodes cost together."""
_FAR = 1e-4
"""By how much a solution may underrate its tail, as a share of C0, before that counts. Untuned."""
_TAIL_SHARE = 0.65
"""Cuts begin anew if costs to go are known and the least one is this share of what the bound recomputes, or more. Both
ResNet-50 up to 1.03 times their least peaks have .9 to 1.1, and their bounds rise by 1% and more. At 1.1 times, with .7
and .8, one falls by .2% and the other rises by .7. At 1.25 times that of `resnet50`, with .56, would fall by 1%. Those
of `segnet`, which has .1, and of `inception-v3`, whose costs to go are not known, would fall by .5% (by hand)."""
_SHARES = (0.97, 0.93, 0.88, 0.8)
"""Shares of the room to try where the model sees all and its schedule still exceeds the budget."""


@dataclass(slots=True)
class StageCuts(Engine):
    """Solves one model after the other, each with one more bottleneck stage.

    Attributes:
        cuts: The cuts of the next model, ascending; empty when there is nothing left to try.
        room: Bytes to use at them.
        shares: Remaining shares of the room, for when the model sees every step that exceeds the budget.
        small: Whether the graph is small.
        tight: Whether some stages have little room beside their working sets.
        seen: Nodes whose recomputation the model sees inside a stage: on a small graph all, on others those that a
            schedule recomputed in a step over the budget, and those next to them.
        took_s: Seconds that the last solve took; :data:`_LONG_S` at least if it did not end.
        added: The round in which each cut was added.
        spanned: Whether models have rows for spans.
        exact: Whether the next solve goes on to the optimum even if it takes long.
        derived: Values that a model may leave out (see ``milp/stage_cuts``); none on a small graph, and none once a
            model without them has nothing more to show.
        tail: The tail whose costs to go count.
        to_go: What the models know of them.
        underrated: Whether the last solution underrated its tail.
    """

    uses_solver: ClassVar[bool] = True

    cuts: list[stage_cuts.Cut] = field(default_factory=list)
    room: int = 0
    shares: Iterator[float] = field(default_factory=lambda: iter(_SHARES))
    small: bool = False
    tight: bool = False
    seen: set[int] = field(default_factory=set)
    took_s: float = 0.0
    added: dict[stage_cuts.Cut, int] = field(default_factory=dict)
    spanned: bool = False
    exact: bool = False
    derived: frozenset[int] = frozenset()
    tail: Tail | None = None
    to_go: list[stage_cuts.CostToGo] = field(default_factory=list)
    underrated: bool = False

    def __post_init__(self) -> None:
        """Start with the stage of the no-remat peak."""
        n = len(self.incumbent.graph.nodes)
        self.small = n <= _FEW
        if self.small:
            self.seen.update(range(n))
        else:
            self.derived = stage_cuts.derived_values(self.incumbent.graph)
        self.cuts = self._first_cuts()
        self.room = self.incumbent.budget_bytes - self.incumbent.graph.fixed_memory
        large = [size for size in working_sets(self.incumbent.graph) if size >= _TIGHT_SHARE * self.room]
        self.tight = len(large) >= _TIGHT_STAGES

    def _first_cuts(self) -> list[stage_cuts.Cut]:
        """The stage of the no-remat peak."""
        profile = no_remat_profile(self.incumbent.graph)
        highest = profile.index(max(profile))
        return [(highest, highest)]

    def work(self) -> bool:
        """Solve until a schedule fits, or nothing is left to try."""
        incumbent = self.incumbent
        control = incumbent.context.control
        while not incumbent.over():
            clock = control if incumbent.verdict < Verdict.GAP else control.part(most_s=_BEYOND_S)
            if self.run(clock) is None:
                break
        return bool(self.cuts)

    def run(self, control: Control) -> tuple[int, ...] | None:
        """Solve once, offer the schedule, and choose the next stage; with the whole room, raise the bound too.

        Returns:
            The schedule, within the budget or not; None if there is none, the solver did not finish, or nothing is
            left to try.
        """
        incumbent, graph = self.incumbent, self.incumbent.graph
        if not self.cuts or len(self.cuts) > _MOST_CUTS or self._size() > _MOST_VARIABLES:
            return None
        incumbent.report("cutting")
        tail = tails_of(incumbent).found
        if tail is not None and tail is not self.tail:
            self._begin_before(tail)
        whole = incumbent.budget_bytes - graph.fixed_memory
        needed = max(working_set(graph, t) for t, i in self.cuts if t == i)
        if needed > self.room:
            if needed > whole:
                incumbent.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
            self.cuts = []
            return None
        exact = self.exact or self.small or self.took_s < _LONG_S
        derived = self.derived if self._gap_is_wide() else frozenset()
        gap = self._exact_gap() if exact else self._loose_gap()
        computes = self._solved(control, gap, derived, bounding=self.room == whole)
        if computes is None:
            return None
        if self.underrated and self.took_s < _LONG_S:
            return computes
        over = self._over(computes)
        # Of the tail the costs to go say more than further cuts would.
        before_tail = [step for step in over if tail is not None and step[1] <= tail.first]
        if self._see(before_tail or over):
            self.exact = False
        elif not exact:
            self.exact = True
        elif derived:
            self.derived = frozenset()
        elif not over:
            self.cuts = []
        # Less room at the cuts leaves space for what the model does not see.
        elif (share := next(self.shares, None)) is not None:
            self.room = round(share * whole)
        else:
            self.cuts = []
        return computes

    def _begin_before(self, tail: Tail) -> None:
        """Make the beginning of the tail a cut; begin anew with it if its costs to go say about as much as all cuts."""
        total, self.tail = self.incumbent.graph.total_cost, tail
        enough = tail.known and tail.costs[0] * total >= _TAIL_SHARE * (self.incumbent.bound.cost - total)
        kept = [cut for cut in self._first_cuts() if cut[0] < tail.first] if enough else self.cuts
        self.cuts = sorted({*kept, (tail.first, tail.first)})

    def _see(self, over: Sequence[tuple[int, int, int]]) -> bool:
        """Choose cuts and nodes for the next model so that it sees the steps ``over`` the budget (see :meth:`_over`).

        Returns:
            Whether there are any that this model lacked.
        """
        places = _PLACES if self.tight and not (self.small and self.took_s < _LONG_S) else 1
        more: list[stage_cuts.Cut] = []
        stages: list[int] = []
        before = set(self.seen)
        for _, t, i in over:
            if t >= len(self.incumbent.graph.nodes) or len(stages) >= places:
                continue
            if all(abs(t - other) >= _APART for other in stages):
                found = [cut for cut in stage_cuts.missing_cuts(self.cuts, t, i) if cut not in more]
                fresh = i < t and i not in self.seen
                if fresh:  # the stage is looked into once more before it gets a cut at a recomputation
                    found = [cut for cut in found if cut[0] == cut[1]]
                    self.seen.update(_beside(self.incumbent.graph, i))
                more += found
                stages += [t] if found or fresh else []
        self.cuts = sorted({*self.cuts, *more})
        return bool(more) or self.seen != before

    def _over(self, computes: Sequence[int]) -> list[tuple[int, int, int]]:
        """The steps over the budget as (urgency, stage, node), the most urgent first.

        First computations come before others. Of these, those that use the most memory come first; where memory is
        tight on a larger graph, those with the largest working sets.
        """
        graph, stage = self.incumbent.graph, 0
        by_own = self.tight and not self.small
        found: list[tuple[int, int, int]] = []
        for node, in_use in zip(computes, heights(graph, computes), strict=True):
            if in_use > self.incumbent.budget_bytes:
                found.append((working_set(graph, node) if by_own else in_use, stage, node))
            stage += node == stage
        return sorted(found, key=lambda step: (step[1] == step[2], step), reverse=True)

    def _size(self) -> int:
        """Number of variables."""
        return sum(t + self.incumbent.graph.first_value[t] for t, _ in self.cuts)

    def _stated(self, control: Control, derived: frozenset[int]) -> stage_cuts.CutModel:
        """The model of the cuts; with rows for spans if the last solve was long and these raise the relaxation."""
        last = max(self.added.values(), default=-1) + 1
        for cut in self.cuts:
            self.added.setdefault(cut, last)

        def build(rounds: Sequence[int] = ()) -> stage_cuts.CutModel:
            graph, clock = self.incumbent.graph, self.incumbent.context.control
            return stage_cuts.build(
                graph,
                self.cuts,
                self.room,
                clock,
                seen=self.seen,
                derived=derived,
                rounds=rounds,
                to_go=self.to_go,
            )

        def relaxed(stated: stage_cuts.CutModel) -> float:
            context = self.incumbent.context
            outcome = context.solver.solve(context.request(stated.model.relaxed(), control, gap=CUTS_GAP))
            return 0.0 if outcome.objective is None else outcome.objective

        if self.seen or (not self.spanned and self.took_s < _LONG_S):
            return build()
        spanned = build([self.added[cut] for cut in self.cuts])
        if not self.spanned:
            plain = build()
            if relaxed(spanned) <= _RAISED * relaxed(plain):
                return plain
            self.spanned = True
        return spanned

    def _see_tail(self, stated: stage_cuts.CutModel, values: Floats, control: Control) -> tuple[int, ...] | None:
        """Add an inequality for the next model if a solution pays less for the tail than it must.

        Returns:
            The schedule of the solution with the cheapest end known instead of its own.
        """
        tails = tails_of(self.incumbent)
        if (tail := tails.found) is None:
            return None
        first = stated.cuts.index((tail.first, tail.first))
        columns = [stated.column(first, v) for v in range(tail.kept.shape[1])]
        kept = np.array([0.0 if column is None else values[column] for column in columns])
        self.underrated = stated.paid_to_go(values) < tail.cost(kept) - _FAR
        if self.underrated:
            self.to_go.append(tail.inequality(kept, self.incumbent.context, control))
        there = frozenset(np.flatnonzero(kept > 0.5).tolist()).union(self.incumbent.graph.values_of(tail.first))
        return tails.ended_from(there, stated.computes(values))

    def _gap_is_wide(self) -> bool:
        """Whether what the bound loses without derived values does not matter yet."""
        graph = self.incumbent.graph
        lost = math.fsum(graph.nodes[graph.producer[v]].cost for v in self.derived)
        return self.incumbent.cost - self.incumbent.bound.cost > _WORTH * lost

    def _exact_gap(self) -> float:
        """The gap of a solve, relative to what is recomputed, that leaves a small part of the one asked for."""
        total = self.incumbent.graph.total_cost
        recomputed = self.incumbent.bound.cost - total
        asked = _ASKED_SHARE * self.incumbent.context.gap * total
        return max(CUTS_GAP, min(_LOOSE_GAP, asked / recomputed)) if recomputed > 0 else CUTS_GAP

    def _loose_gap(self) -> float:
        """A gap with which a solve still raises the bound."""
        cost, bound = self.incumbent.cost, self.incumbent.bound.cost
        return min(_LOOSE_GAP, max(CUTS_GAP, _LOOSE_SHARE * (1 - bound / cost))) if cost > 0 else CUTS_GAP

    def _solved(
        self, control: Control, gap: float, derived: frozenset[int], *, bounding: bool
    ) -> tuple[int, ...] | None:
        graph, context = self.incumbent.graph, self.incumbent.context
        stated = self._stated(control, derived)
        outcome = context.solver.solve(context.request(stated.model, control, gap=gap))
        finished = outcome.termination in (Termination.OPTIMAL, Termination.INFEASIBLE)
        self.took_s = outcome.wall_s if finished else max(outcome.wall_s, _LONG_S)
        if bounding and outcome.termination is Termination.INFEASIBLE:
            outcome = confirmed(outcome, stated.model, self.incumbent)
        if bounding and outcome.termination is Termination.INFEASIBLE:
            self.incumbent.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
        elif bounding and outcome.bound is not None:
            total = graph.total_cost + max(0.0, outcome.bound) * (graph.total_cost or 1.0)
            self.incumbent.raise_bound(Bound(safe_bound(graph, total), Scope.DOCUMENT_ORDER))
        if outcome.values is None:
            return None
        if (ended := self._see_tail(stated, outcome.values, control)) is not None:
            self.incumbent.propose(ended)
        computes = stated.computes(outcome.values)
        self.incumbent.propose(computes)
        return computes if outcome.termination is Termination.OPTIMAL else None


def stage_cuts_of(incumbent: Incumbent) -> StageCuts:
    """The engine that works on ``incumbent`` in all stages of a search: it goes on where it stopped."""
    engine = engine_at(f"{__name__}:{StageCuts.__name__}", incumbent)
    assert isinstance(engine, StageCuts)
    return engine


def _beside(graph: Graph, i: int) -> set[int]:
    """Node i, the nodes that make what it reads and those that read what it makes."""
    readers = {j for v in graph.values_of(i) for j in graph.readers[v]}
    return {i, *(graph.producer[v] for v in graph.nodes[i].inputs), *readers}
