"""Chooses for each unit of a sharded step a plan, and whether it is resharded: the least cost within one budget.

The choice is that of a dynamic programme (``planning/unit_programme``) from plans of each graph for several limits on
what is held between its passes and on its peak. The search for one starts from all that are known, and ends where its
bound says that none is cheaper. These bounds of single graphs add up to one for the step (``UnitPlanner.least_cost``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remat_cli.control import Control, Progress
from remat_cli.errors import Infeasible
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.passes import StageGraph
from remat_cli.plan.derive import derive
from remat_cli.plan.sharded_units import Choice, ShardedStep, Storage, UnitRun
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.stage_choice import Limits, StageSearch
from remat_cli.planning.unit_programme import Known, cheapest
from remat_cli.running import interruptible
from remat_cli.tolerances import SAME_COST
from remat_cli.units import format_bytes

_HELD_LEVELS, _PEAK_LEVELS = 8, 4
"""Limits of what a unit holds, and of its peak, for which plans are sought. Untuned."""
_MOST_STEPS = 16
"""Searches for each graph after those, where its bound may step up between two of the limits. Untuned."""
_MOST_SUMS = 200
"""Sums for which the bound on the cost of the first units is kept; of more, the least in each of so many ranges.
Untuned.
"""


@dataclass(frozen=True, slots=True)
class _LeastCosts:
    """For some sums that the first units hold, ascending, the least sum of the bounds on what they cost."""

    held: NDArray[np.int64]
    cost: NDArray[np.float64]

    def behind(self, room: int, bounds: Sequence[tuple[int, int, float]], least: float, most: int) -> _LeastCosts:
        """The same with one more unit, for the ranges of what it may hold in which its bound is the same.

        Args:
            room: What its passes and the units before it may take together.
            bounds: Bounds for plans that hold at most, and take at most, so many bytes; from the most that is held.
            least: A bound for all plans.
            most: The most that may be held.
        """
        fitting = self.held <= room
        before, cost = self.held[fitting], self.cost[fitting]
        peak, bound = room - before, np.full(len(before), least)
        end = peak.copy()
        helds, costs = list[NDArray[np.int64]](), list[NDArray[np.float64]]()
        for held, wider, other in bounds:
            applies = (other > bound) & (wider >= peak)
            within = applies & (held >= 0) & (held < end)
            helds.append(before[within] + held + 1)
            costs.append(cost[within] + bound[within])
            end[within] = held
            bound[applies & (held >= end)] = other
        return _undominated(np.concatenate([*helds, before]), np.concatenate([*costs, cost + bound]), most)


def _undominated(held: NDArray[np.int64], cost: NDArray[np.float64], most: int) -> _LeastCosts:
    """The sums for which no smaller one has as small a bound; of many, the least of both in each range."""
    order = np.lexsort((cost, held))
    held, cost = held[order], cost[order]
    smaller = cost < np.minimum.accumulate(np.concatenate(([np.inf], cost[:-1])))
    held, cost = held[smaller], cost[smaller]
    if len(held) > _MOST_SUMS:
        ranges = held * _MOST_SUMS // max(1, most)
        first = np.flatnonzero(np.concatenate(([True], ranges[1:] != ranges[:-1])))
        held, cost = held[first], cost[np.append(first[1:], len(cost)) - 1]
    return _LeastCosts(held, cost)


def _undominated_bounds(search: StageSearch) -> list[tuple[int, int, float]]:
    """What is held at most, what is taken at most, and the bound on the cost, from the most that is held.

    Bounds that say no more than others for wider limits, or than the cost of computing everything once, are left out.
    """
    kept: list[tuple[int, int, float]] = []
    for limits, bound in sorted(search.proven, key=lambda one: (-one[1], -one[0].held[0], -one[0].peak)):
        held = limits.held[0]
        wider = any(more >= held and most >= limits.peak for more, most, _ in kept)
        if bound > search.stage.graph.total_cost and not wider:
            kept.append((held, limits.peak, bound))
    return sorted(kept, key=lambda one: -one[0])


@dataclass(slots=True)
class UnitPlanner:
    """The search for the choices of one step.

    Attributes:
        step: The step.
        options: How to solve.
        listener: Receives the progress.
        searches: For each graph, the plans so far.
        runs: What they take.
        known: What units take by them.
    """

    step: ShardedStep
    options: SolveOptions
    listener: Callable[[Progress], None] | None = None
    searches: list[StageSearch] = field(init=False)
    runs: list[dict[tuple[int, ...], UnitRun]] = field(init=False)
    known: Known = field(default_factory=dict)

    def __post_init__(self) -> None:
        stages = [StageGraph(unit.graph, (unit.cut,)) for unit in self.step.graphs]
        self.searches = [StageSearch(stage, self.options) for stage in stages]
        self.runs = [{} for _ in stages]
        self._take_over()

    def keep_all(self) -> list[Choice]:
        """The choices without recomputation, with the units as they are set."""
        each = [min(runs.values(), key=lambda run: len(run.computes)) for runs in self.runs]
        return [Choice(each[call.kind], call.reshards) for call in self.step.calls]

    def least_bound(self) -> int:
        """No choices take less than this."""
        needs = (
            call.memory.gathered + peak_bound(self.step.graphs[call.kind].graph).bytes - graph.fixed_memory
            for call in self.step.calls
            for graph in [self.step.graphs[call.kind].graph]
        )
        return self.step.fixed_bytes + self.step.root.gathered + max(needs)

    def least_cost(self, budget_bytes: int) -> float:
        """No plans of the units that fit a budget together cost less; infinity if none fit.

        Let the units before one hold ``s`` bytes that only they can hold, and itself ``h``. Then its passes take at
        most what the budget leaves beside ``s`` and its gathered parameters, and between them its graph holds at most
        ``h`` and its results. Every search whose limits allow that bounds its cost. So a dynamic programme over the
        units keeps for each ``s`` the least sum of these bounds, where ``h`` is taken as the least of a range for the
        sum, and as the most for the bound. Inputs that the backward pass of any plan reads count beside that. It is a
        relaxation: the time of gathers is left out, and so is other memory that units share.
        """
        room = budget_bytes - self.step.fixed_bytes - self.step.root.gathered
        sums, needed = _LeastCosts(np.zeros(1, dtype=np.int64), np.zeros(1)), dict[Storage, int]()
        proven = [_undominated_bounds(search) for search in self.searches]
        for at, call in enumerate(self.step.calls):
            unit = self.step.graphs[call.kind]
            ending = {*call.results, *unit.graph.nodes[unit.cut].inputs}  # what may be there between the passes only
            results = sum(unit.graph.size[value] for value in ending)
            bounds = [(held - results, peak - results, bound) for held, peak, bound in proven[call.kind]]
            needed |= {key: call.inputs[key] for key in call.needed(unit) if key in call.inputs}
            left = room - call.memory.gathered - self.step.least_beside(at) - sum(needed.values())
            sums = sums.behind(left, bounds, unit.graph.total_cost, room)
        left = room - self.step.least_end(needed)
        return float(min(sums.cost[sums.held <= left], default=math.inf))

    def within(self, budget_bytes: int) -> list[Choice]:
        """The cheapest choices found within a budget.

        Raises:
            Infeasible: If none were found.
            Interrupted: If the search has to stop before.
        """
        control = Control.within(self.options.time_limit_s)
        with interruptible(control):
            best = self._best(budget_bytes)
            for seconds, number, limits in self._asked(control, budget_bytes):
                if best is not None and self._is_closed(best, budget_bytes):
                    break
                if control.stopping():
                    break
                clock = Control.within(seconds)
                clock.cancelled = control.cancelled
                self.searches[number].solve(limits, clock, self.options.gap)
                if self._take_over():
                    best = self._best(budget_bytes) or best
        if best is None:
            least = self._least_found(budget_bytes)
            raise Infeasible(
                f"no plans of the {len(self.step.calls)} units were found that fit a budget of "
                f"{format_bytes(budget_bytes)} together",
                hint=f"{format_bytes(least)} ({least} bytes) is the least that was found",
            )
        return best

    def _is_closed(self, best: Sequence[Choice], budget_bytes: int) -> bool:
        cost = self.step.cost(best)
        return cost - self.least_cost(budget_bytes) <= max(self.options.gap, SAME_COST) * cost

    def _best(self, budget_bytes: int) -> list[Choice] | None:
        return cheapest(self.step, [list(runs.values()) for runs in self.runs], budget_bytes, self.known)

    def _take_over(self) -> bool:
        """Take what the searches have found; whether there is more than before."""
        before = sum(map(len, self.runs))
        for unit, search, runs in zip(self.step.graphs, self.searches, self.runs, strict=True):
            for candidate in search.candidates:
                if candidate.computes not in runs:
                    runs[candidate.computes] = UnitRun.of(unit, derive(unit.graph, candidate.computes))
        return sum(map(len, self.runs)) > before

    def _asked(self, control: Control, budget_bytes: int) -> Iterator[tuple[float, int, Limits]]:
        """Seconds for a search, the number of a graph, and limits of its plans; first, only the budget limits peaks."""
        asked: list[tuple[int, Limits]] = []
        ranges = []
        for search in self.searches:
            runs = [candidate.run for candidate in search.candidates]
            graph = search.stage.graph
            least = peak_bound(graph).bytes - graph.fixed_memory
            between = [run.held[0] for run in runs]
            ranges.append((min(between), max(between), least, max(max(run.peaks) for run in runs)))
        for row in range(_PEAK_LEVELS):
            for column in range(_HELD_LEVELS):
                for number, (least_held, most_held, least, most) in enumerate(ranges):
                    peak = most - (most - least) * row // _PEAK_LEVELS if row else max(most, budget_bytes)
                    held = least_held + (most_held - least_held) * column // _HELD_LEVELS
                    asked.append((number, Limits(peak, (min(held, peak),))))
        for done, (number, limits) in enumerate(asked):
            remaining = control.remaining_s()
            # A search takes a quarter of the time that it sees, and half of all time is for what is asked at first.
            yield 4.0 if remaining is None else 2 * remaining / (len(asked) - done), number, limits
        for _ in range(_MOST_STEPS * len(ranges)):
            peaks = [max(most, budget_bytes) for *_, most in ranges]
            steps = [
                (gain, (number, wanted))
                for number, peak in enumerate(peaks)
                for gain, wanted in self._steps(number, peak)
                if (number, wanted) not in asked
            ]
            if not steps:
                return
            number, limits = max(steps, key=lambda step: step[0])[1]
            asked.append((number, limits))
            remaining = control.remaining_s()
            yield 4.0 if remaining is None else remaining, number, limits

    def _steps(self, number: int, peak: int) -> Iterator[tuple[float, Limits]]:
        """Where the bound of a graph may step up: by how much times how many bytes that would be for, and limits.

        What may be held is just below the least that is held by the known plans that cost no more than the bound there.
        """
        search = self.searches[number]
        bounds = {limits.held[0]: bound for limits, bound in search.proven if limits.peak >= peak}
        bounds[max(one.run.held[0] for one in search.candidates) + 1] = search.stage.graph.total_cost
        for below, limit in pairwise(sorted(bounds)):
            most = bounds[limit] * (1 + max(self.options.gap, SAME_COST))
            held = [one.run.held[0] for one in search.candidates if one.run.cost <= most]
            least = min(held, default=limit + 1) - 1
            if below < least < limit and bounds[below] > bounds[limit]:
                gain = min(bounds[below], 2 * bounds[limit]) - bounds[limit]  # a bound may be infinite
                yield gain * (limit - below), Limits(peak, (least,))

    def _least_found(self, budget_bytes: int) -> int:
        """The least budget within which choices are known."""
        low, high = budget_bytes, budget_bytes
        while (found := self._best(high)) is None:
            high += max(1, high)
        high = self.step.peak_bytes(found)
        while high - low > 1:
            middle = (low + high) // 2
            found = self._best(middle)
            low, high = (middle, high) if found is None else (low, self.step.peak_bytes(found))
        return high
