"""What a search minimises: the cost of the computes, or, with collectives or a host, the time of the plan."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.errors import Worded
from remat_cli.graph.model import Graph
from remat_cli.milp.cover_bound import least_peak
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.host import Host
from remat_cli.plan.liveness import cost_of, priced
from remat_cli.plan.model import Copies, Scope, Statement
from remat_cli.plan.replay import Replay, replay
from remat_cli.strategies.base import Bound, Schedule, Task
from remat_cli.tolerances import SAME_COST


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A schedule and its values.

    Attributes:
        schedule: The schedule, without recomputations that nothing reads.
        cost: What the objective minimises, in the graph's cost unit.
        peak_bytes: Peak, fixed memory included.
    """

    schedule: Schedule
    cost: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Objective(ABC):
    """Evaluates and compares schedules of one graph.

    Attributes:
        graph: The graph.
    """

    graph: Graph

    copies: ClassVar[Copies]
    """The copies with which a bound must hold to count."""
    nothing_fits: ClassVar[str] = Worded(
        "no schedule in document order fits",
        fit="no plan that keeps the order of operations fits",
    )
    """The refusal when it is proven that no schedule in document order fits."""
    nothing_found: ClassVar[str] = Worded(
        "no schedule within the budget was found",
        fit="the search found no plan within the budget",
    )
    """The refusal when no schedule was found, and nothing is proven."""

    @property
    def trivial_bound(self) -> Bound:
        """What every plan costs or takes at least."""
        return Bound(self.graph.least_cost, Scope.ANY_ORDER, self.copies, self.graph.overlaps)

    def counts(self, bound: Bound) -> bool:
        """Whether a bound holds for the schedules that this objective compares."""
        return bound.copies is self.copies and bound.overlaps is self.graph.overlaps

    def statements(self, schedule: Schedule) -> tuple[Statement, ...]:
        """The statements of a valid schedule.

        Raises:
            ValueError: If it computes or copies what is not there.
        """
        return derive(self.graph, schedule.computes, schedule.held, schedule.copying)

    @property
    def least_peak_bytes(self) -> int | None:
        """A lower bound on the peak of every schedule in document order; None if only working sets say something."""
        return None

    @abstractmethod
    def cost(self, schedule: Schedule) -> float:
        """The objective value of a valid schedule, in the graph's cost unit."""

    @abstractmethod
    def evaluate(self, schedule: Schedule) -> Evaluation | None:
        """A schedule with its cost and peak; None if it breaks a rule of the graph or of the host."""

    @abstractmethod
    def better(self, one: Evaluation, other: Evaluation) -> bool:
        """Whether ``one`` is better than ``other``."""


@dataclass(frozen=True, slots=True)
class Cost(Objective):
    """The cost of all computes; of equal costs, the lower peak is better."""

    copies: ClassVar[Copies] = Copies.NONE

    @property
    def least_peak_bytes(self) -> int | None:
        """The highest of the lower bounds on the memory during each first computation."""
        return least_peak(self.graph)

    def cost(self, schedule: Schedule) -> float:
        """The sum of the costs, rounded once."""
        return cost_of(self.graph, schedule.computes)

    def evaluate(self, schedule: Schedule) -> Evaluation | None:
        """Cost and peak of the pruned schedule; None if a node runs twice that may run only once.

        Raises:
            ValueError: If a node is computed before one of its inputs ever was.
        """
        pruned = priced(self.graph, schedule.computes)
        if runs_too_often(self.graph, pruned.computes):
            return None
        return Evaluation(Schedule(pruned.computes, schedule.held), pruned.cost, pruned.peak_bytes)

    def better(self, one: Evaluation, other: Evaluation) -> bool:
        """Compare cost, then peak."""
        return (one.cost, one.peak_bytes) < (other.cost, other.peak_bytes)


@dataclass(frozen=True, slots=True)
class Time(Objective):
    """The time of a plan that may copy values to a host; of equal times, fewer copies are better.

    Attributes:
        host: Bandwidths, latency and memory.
    """

    host: Host

    copies: ClassVar[Copies] = Copies.ANY
    nothing_fits: ClassVar[str] = "no schedule in document order fits, with any copies"
    nothing_found: ClassVar[str] = "no schedule with copies within the budget was found"

    def cost(self, schedule: Schedule) -> float:
        """The time until the last statement is done."""
        return _replayed(self.graph, schedule, self.host).time

    def evaluate(self, schedule: Schedule) -> Evaluation | None:
        """Time and peak by a replay of all statements; None if it is invalid or needs too much host memory."""
        graph, host = self.graph, self.host
        try:
            if schedule.copying is None and not schedule.held:
                schedule = Schedule(priced(graph, schedule.computes).computes)
            seen = _replayed(graph, schedule, host)
        except ValueError:
            return None
        most_bytes = math.inf if host.memory_bytes is None else host.memory_bytes
        if not seen.valid or not math.isfinite(seen.time) or seen.host_peak_bytes > most_bytes:
            return None
        return Evaluation(schedule, seen.time, seen.peak_bytes)

    def better(self, one: Evaluation, other: Evaluation) -> bool:
        """Compare time; of times that differ by rounding alone, the number of copies, then the peak."""
        if abs(one.cost - other.cost) > SAME_COST * other.cost:
            return one.cost < other.cost
        return (_copies(one), one.cost, one.peak_bytes) < (_copies(other), other.cost, other.peak_bytes)


@dataclass(frozen=True, slots=True)
class Overlap(Objective):
    """The time of a plan with collectives, without copies; of equal times, the lower cost of all queues is better.

    Attributes:
        budget_bytes: Memory within which what a collective uses is freed late; None for what a schedule needs anyway.
    """

    budget_bytes: int | None = None

    copies: ClassVar[Copies] = Copies.NONE

    @property
    def least_peak_bytes(self) -> int | None:
        """Nothing is known: the bounds of ``Cost`` are for schedules in which no collective comes early."""
        return None

    def statements(self, schedule: Schedule) -> tuple[Statement, ...]:
        """The statements, with late frees within the budget."""
        return derive(self.graph, schedule.computes, schedule.held, within_bytes=self.budget_bytes)

    def cost(self, schedule: Schedule) -> float:
        """The time until the last queue is idle."""
        return replay(self.graph, self.statements(schedule)).time

    def evaluate(self, schedule: Schedule) -> Evaluation | None:
        """Time and peak of the pruned schedule by a replay; None if it breaks a rule of the graph, or copies.

        Raises:
            ValueError: If a node is computed before one of its inputs ever was.
        """
        if schedule.copying is not None:
            return None
        pruned = Schedule(priced(self.graph, schedule.computes).computes, schedule.held)
        seen = replay(self.graph, self.statements(pruned))
        return Evaluation(pruned, seen.time, seen.peak_bytes) if seen.valid else None

    def better(self, one: Evaluation, other: Evaluation) -> bool:
        """Compare time; of times that differ by rounding alone, the cost of all queues, then the peak."""
        if abs(one.cost - other.cost) > SAME_COST * other.cost:
            return one.cost < other.cost
        costs = [cost_of(self.graph, evaluation.schedule.computes) for evaluation in (one, other)]
        return (costs[0], one.peak_bytes) < (costs[1], other.peak_bytes)


def objective_of(graph: Graph, host: Host | None, budget_bytes: int | None = None) -> Objective:
    """Time with a host to copy to or with collectives, and else cost.

    Args:
        graph: The graph.
        host: The host to copy to; None for none.
        budget_bytes: Memory that may be used to free late what collectives use; None for what a schedule needs anyway.
    """
    if host is not None:
        return Time(graph, host)
    return Overlap(graph, budget_bytes) if graph.overlaps else Cost(graph)


def objective_for(task: Task) -> Objective:
    """The objective of a task."""
    return objective_of(task.graph, task.host, task.budget_bytes)


def peak_of(graph: Graph, schedule: Schedule) -> int:
    """Peak bytes of a valid schedule, fixed memory included, with what it holds and copies."""
    if not schedule.held and schedule.copying is None:
        return peak(graph, schedule.computes)
    return _replayed(graph, schedule, None).peak_bytes


def runs_too_often(graph: Graph, computes: Sequence[int]) -> bool:
    """Whether a node runs twice that may run only once."""
    seen: set[int] = set()
    for k in computes:
        if k in seen and not graph.nodes[k].recompute:
            return True
        seen.add(k)
    return False


def _replayed(graph: Graph, schedule: Schedule, host: Host | None) -> Replay:
    return replay(graph, derive(graph, schedule.computes, schedule.held, schedule.copying), host=host)


def _copies(evaluation: Evaluation) -> int:
    copying = evaluation.schedule.copying
    return 0 if copying is None else len(copying.out) + len(copying.back)
