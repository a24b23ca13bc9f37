"""Which regions of a graph run in parts, and in how many: the cheapest choice, with a bound over all choices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from remat_cli.control import Ending, Outcome
from remat_cli.errors import Infeasible, Interrupted, LimitReached
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.model import Graph, NodeQueue
from remat_cli.graph.splitting import split
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import Claim, ClaimStatus, Compute, PeakClaim, Plan, Scope
from remat_cli.planning.options import OPTIMAL_GAP, SolveOptions
from remat_cli.planning.refusals import STOPPED
from remat_cli.planning.solved import Solved
from remat_cli.strategies.engine import Pipelined
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import SAME_COST, SETTLED

SolveOne = Callable[[Graph, SolveOptions], Solved]
"""Solves one graph, in which nothing more is to be split."""
_MOST = 64
"""Choices up to which each is looked at; with more, first those with the same number of parts everywhere. Untuned."""
_LEAST_S = 0.5
"""Fewest seconds for the search of one choice. Untuned."""


def cheapest_split(graph: Graph, options: SolveOptions, solve_one: SolveOne) -> Solved:
    """The cheapest plan within a budget, with any regions of ``graph`` in any number of parts that it offers.

    A choice of parts makes another graph, and a choice is left out only if it has no cheaper plan: if computing
    everything once costs more than the best plan so far.

    Args:
        graph: A graph that offers splits.
        options: How to solve; the time limit is for all choices together.
        solve_one: Solves the graph of a choice, within the budget.

    Raises:
        Infeasible: If no choice has a plan.
        LimitReached, Interrupted: If none was found.
    """
    search = _Search(graph, options, solve_one, _by_cost(graph))
    for choice in search.choices:
        if choice.graph.least_cost >= search.cost * (1 - SAME_COST):
            search.note(choice, choice.graph.least_cost, Scope.ANY_ORDER)
        else:
            search.solve(choice)
        if search.stopped:
            break
    search.go_on()
    return search.answer()


def smallest_split(graph: Graph, options: SolveOptions, solve_one: SolveOne) -> Solved:
    """The plan with the least peak, with any regions of ``graph`` in any number of parts that it offers.

    Of plans with the same peak it is the one that costs least. Arguments and errors: see :func:`cheapest_split`.
    """
    choices = sorted(_by_cost(graph), key=lambda choice: choice.needs)
    search = _Search(graph, options, solve_one, choices, peak=True)
    for choice in search.choices:
        if search.best is not None and choice.needs > search.best.report.replay.peak_bytes:
            search.note(choice, choice.needs, Scope.ANY_ORDER)
        else:
            search.solve(choice)
        if search.stopped:
            break
    search.go_on()
    return search.answer()


@dataclass(frozen=True, slots=True)
class _Choice:
    """The number of parts by region, those that are split, and the graph."""

    parts: Mapping[str, int]
    graph: Graph

    @property
    def needs(self) -> int:
        """Bytes that every plan needs."""
        return peak_bound(self.graph).bytes


@dataclass(slots=True)
class _Search:
    """What is known so far.

    Attributes:
        graph: The graph that offers splits.
        options: How to solve.
        solve_one: Solves the graph of a choice.
        peak: Whether the least peak is looked for, and not the least cost.
        choices: The choices to look at.
        best: The best plan.
        bounds: What no plan of a choice is below, and for which plans that holds, by its place among the choices.
        refusals: Why there is no plan of a choice, likewise.
        stopped: Whether the search was interrupted.
        ending: How the search ended.
    """

    graph: Graph
    options: SolveOptions
    solve_one: SolveOne
    choices: Sequence[_Choice]
    peak: bool = False
    best: Solved | None = None
    bounds: dict[int, tuple[float, Scope]] = field(default_factory=dict)
    refusals: dict[int, Infeasible | LimitReached] = field(default_factory=dict)
    stopped: bool = False
    ending: Ending = field(default_factory=lambda: Ending(Outcome.FINISHED))
    began_s: float = field(default_factory=time.monotonic)

    @property
    def cost(self) -> float:
        """Cost of the best plan; infinite if there is none."""
        return math.inf if self.best is None else self.best.report.replay.time

    def note(self, choice: _Choice, bound: float, scope: Scope) -> None:
        """No plan of a choice is better than ``bound``; of two bounds the higher one counts."""
        at = self.choices.index(choice)
        self.bounds[at] = max(self.bounds.get(at, (-math.inf, scope)), (bound, scope), key=lambda known: known[0])

    def solve(self, choice: _Choice) -> None:
        """Search for a plan of a choice, in an equal share of the time that is left."""
        options, now = replace(self.options, start=self._start(choice)), time.monotonic()
        least = float(choice.needs) if self.peak else choice.graph.least_cost
        if options.time_limit_s is not None:
            began_s = self.began_s if options.started_s is None else options.started_s
            left_s = options.time_limit_s - (now - began_s)
            if left_s <= 0:
                self._stopped(choice, least, LimitReached(STOPPED))
                return
            share_s = left_s / max(1, len(self.choices) - len(self.bounds))
            options = replace(options, time_limit_s=min(left_s, max(_LEAST_S, share_s)), started_s=now)
        try:
            solved = self.solve_one(choice.graph, options)
        except Infeasible as error:
            self.refusals[self.choices.index(choice)] = error
            proven = Scope(error.scope or Scope.RESTRICTED)
            self.note(choice, *((least, Scope.ANY_ORDER) if proven is Scope.RESTRICTED else (math.inf, proven)))
        except LimitReached as error:
            self._stopped(choice, least, error)
        except Interrupted:
            if self.best is None:
                raise
            self.stopped, self.ending = True, Ending(Outcome.INTERRUPTED)
        else:
            self._take(choice, solved)

    def _stopped(self, choice: _Choice, least: float, why: LimitReached) -> None:
        """Take note of a choice for whose search there was too little time."""
        self.refusals[self.choices.index(choice)] = why
        self.note(choice, least, Scope.ANY_ORDER)
        self.ending = Ending(Outcome.TIME_LIMIT)

    def _take(self, choice: _Choice, solved: Solved) -> None:
        claim = solved.plan.claim
        if self.peak:
            assert claim.peak is not None  # every search for the least peak has one
            self.note(choice, claim.peak.lower_bound_bytes, claim.peak.scope)
        else:
            self.note(choice, claim.lower_bound, claim.scope)
        if self.best is None or self._rank(solved) < self._rank(self.best):
            self.best = solved
        if solved.outcome is not Outcome.FINISHED:
            self.ending, self.stopped = solved.ending, solved.outcome is Outcome.INTERRUPTED

    def go_on(self) -> None:
        """Search on for plans of the best choice, if its search reached its share of the time and time is left."""
        best, limited = self.best, self.options.time_limit_s is not None
        if best is not None and limited and not self.stopped and best.outcome is Outcome.TIME_LIMIT:
            self.solve(next(choice for choice in self.choices if choice.parts == _parts(best.plan.graph)))

    def _start(self, choice: _Choice) -> Plan | None:
        """A plan to start from: the one asked for, or the best one if the same regions are in parts."""
        asked, best = self.options.start, self.best
        if asked is not None and _parts(asked.graph) == choice.parts:
            return asked
        timed = self.options.host is not None or choice.graph.overlaps  # a plan's time is another for other costs
        if best is None or timed or _parts(best.plan.graph).keys() != choice.parts.keys():
            return None
        if not isinstance(strategy_from_spec(self.options.strategy), Pipelined):
            return None  # it starts from no plan
        computes = [s.node for s in best.plan.statements if isinstance(s, Compute)]
        claim = Claim(ClaimStatus.FEASIBLE, cost_of(choice.graph, computes), 0.0, Scope.ANY_ORDER)
        return replace(best.plan, graph=choice.graph, claim=claim)

    def _rank(self, solved: Solved) -> tuple[float, ...]:
        replay = solved.report.replay
        return (replay.peak_bytes, replay.time) if self.peak else (replay.time, replay.peak_bytes)

    def answer(self) -> Solved:
        """The best plan, with what is proven over all choices.

        Raises:
            Infeasible, LimitReached: If there is none.
        """
        if self.best is None:
            unknown = [at for at, error in self.refusals.items() if isinstance(error, LimitReached)]
            raise self.refusals[min(unknown or self.refusals, key=lambda at: self.choices[at].needs)]
        low, scope = self._bound()
        plan, cost = self.best.plan, self.best.report.replay.time
        claim = plan.claim
        if self.peak:
            peak = PeakClaim(min(math.ceil(low), self.best.report.replay.peak_bytes), scope)
            claim = replace(claim, peak=peak)
        else:
            low = min(low, cost)
            gap = (cost - low) / cost if cost > 0 else 0.0
            optimal = gap <= min(OPTIMAL_GAP, max(self.options.gap, SETTLED))
            status = ClaimStatus.OPTIMAL if optimal else ClaimStatus.FEASIBLE
            claim = replace(claim, status=status, lower_bound=low, scope=scope, any_split=True)
        run = {**plan.run, "outcome": str(self.ending), "wall_s": round(time.monotonic() - self.began_s, 3)}
        plan = replace(plan, claim=claim, run=run)
        report = replace(self.best.report, claim=claim)
        return Solved(plan, report, self.ending, time.monotonic() - self.began_s)

    def _bound(self) -> tuple[float, Scope]:
        """What no plan of any choice is below, and for which plans that holds."""
        bounds = list(self.bounds.values())
        if len(bounds) < math.prod(len(region.parts) + 1 for region in self.graph.splits):
            bounds.append((_least(self.graph, self.peak), Scope.ANY_ORDER))
        low = min(bound for bound, _ in bounds)
        scopes = [scope for bound, scope in bounds if bound <= low or scope is not Scope.ANY_ORDER]
        narrowest = Scope.ANY_ORDER
        for scope in scopes:
            if not scope.contains(narrowest):
                narrowest = scope if narrowest.contains(scope) else Scope.RESTRICTED
        return low, narrowest


def _least(graph: Graph, peak: bool) -> float:
    """What no plan of any choice of parts is below: the cost of computing everything once, or the fixed memory."""
    if peak:
        return float(graph.fixed_memory)
    spared = 0.0
    for region in graph.splits:
        by_parts = zip(*(operation.costs for operation in region.operations), strict=True)
        whole = math.fsum(graph.nodes[i].cost for operation in region.operations for i in operation.nodes)
        spared += max(0.0, whole - min(map(math.fsum, by_parts)))
    if not graph.overlaps:
        return graph.total_cost - spared
    return max(graph.cost_in(NodeQueue.COMPUTE) - spared, graph.cost_in(NodeQueue.COMMUNICATION))


def _parts(graph: Graph) -> Mapping[str, int]:
    """The number of parts of each region of ``graph`` that is in parts."""
    return {} if graph.origin is None else graph.origin.parts


def _by_cost(graph: Graph) -> list[_Choice]:
    """The choices to look at, those first in which computing everything once costs least."""
    offers = [(None, *region.parts) for region in graph.splits]
    if math.prod(map(len, offers)) <= _MOST:
        picked = list(product(*offers))
    else:
        counts = sorted({count for region in graph.splits for count in region.parts})
        picked = [tuple(count if count in offer else None for offer in offers) for count in (None, *counts)]
    names = [region.id for region in graph.splits]
    choices = []
    for taken in dict.fromkeys(picked):
        parts = {name: count for name, count in zip(names, taken, strict=True) if count is not None}
        choices.append(_Choice(parts, split(graph, parts)))
    return sorted(choices, key=lambda choice: choice.graph.least_cost)
