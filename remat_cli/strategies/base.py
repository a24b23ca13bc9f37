"""The contract of a strategy: a graph and a budget in, a sequence of computes out.

A strategy is a frozen dataclass whose fields are its options. It never says that its plan is valid: whoever calls
it derives the statements and has them replayed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.mip import Floats, LinearModel
from remat_cli.plan.copying import Copying
from remat_cli.plan.host import Host
from remat_cli.plan.model import Copies, Scope
from remat_cli.solvers.base import Request, Solver, SolverProgress
from remat_cli.tolerances import GAP

IGNORABLE = ("costs", "sizes", "budget")
"""What a strategy may ignore, in the order in which it is reported."""


class Needs(StrEnum):
    """The kind of graph that a strategy accepts."""

    ANY = "any DAG"
    PHASES = "phases"
    """Every node says whether it is forward, loss, backward or update."""
    CHAIN = "chain"
    HOST = "a host"
    """The task has a host to copy to."""
    COLLECTIVES = "collectives"
    """Some node runs in the communication queue."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A sequence of computes.

    Attributes:
        computes: Nodes by index, in the order in which they run.
        held: Values whose last instance stays to the end of the plan though nothing reads it any more. Only
            strategies that keep on principle use it (``checkpoint-all{to_end=true}``); it is empty otherwise.
        copying: Copies to the host and back; None for none.
    """

    computes: tuple[int, ...]
    held: frozenset[int] = frozenset()
    copying: Copying | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """No schedule of ``scope`` within the budget costs less than ``cost``; infinity when there is none at all.

    Attributes:
        cost: The bound; on the time, if there is a host or a collective.
        scope: The schedules for which it holds.
        copies: The copies with which it holds.
        overlaps: Whether it is on the time with collectives, and not on the sum of costs.
    """

    cost: float
    scope: Scope
    copies: Copies = Copies.NONE
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """Results of earlier work on the same task.

    Attributes:
        schedules: Schedules to start from, within the budget or not, the most promising first.
        bounds: Lower bounds on the cost.
        searched: Whether a search by the same strategy found the schedules, so that its first stages are not needed.
        opened: Whether the caller ran the methods with which searches begin, so that a search need not run them.
    """

    schedules: tuple[Schedule, ...] = ()
    bounds: tuple[Bound, ...] = ()
    searched: bool = True
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """The problem: find the cheapest schedule of ``graph`` whose peak is at most ``budget_bytes``.

    Attributes:
        graph: The graph.
        budget_bytes: Bytes, fixed memory included; None for no limit.
        known: Schedules and bounds from earlier work; None for none.
        host: The memory beside the device; None for none. With a host the time counts, and else the cost.
        news: Returns what other searches for the same task found since the last call: schedules within the budget,
            with bounds that hold for it. None for no such searches.
    """

    graph: Graph
    budget_bytes: int | None
    known: Known | None = None
    host: Host | None = None
    news: Callable[[], Iterable[Found]] | None = None


@dataclass(slots=True)
class StageRecord:
    """The record of one stage of a search.

    Attributes:
        name: Name of the stage.
        depth: 0 for a stage of the whole search, 1 for a part of such a stage, and so on.
        cost_before: Cost of the incumbent when the stage began; infinite if there was none.
        bound_before: The strongest bound when the stage began.
        cost: Cost of the incumbent when it ended.
        bound: The strongest bound when it ended; not a number while it runs.
        seconds: Its duration; None while it runs, and for good if the search was abandoned in it.
        note: Why it ended early, if it did.
    """

    name: str
    depth: int
    cost_before: float
    bound_before: float
    cost: float = math.inf
    bound: float = math.nan
    seconds: float | None = None
    note: str = ""

    @property
    def gained(self) -> float | None:
        """By how much it made the incumbent cheaper; None if it did not, or found the first one."""
        gained = self.cost_before - self.cost
        return gained if math.isfinite(gained) and gained > 0 else None

    def close(self, seconds: float, cost: float, bound: float) -> None:
        """Record how it ended."""
        self.seconds, self.cost, self.bound = seconds, cost, bound


@dataclass(frozen=True, slots=True)
class Context:
    """What a strategy may use.

    Attributes:
        control: Deadline, interruption, progress.
        solver: The MIP solver to use, for strategies that need one.
        gap: Relative gap at which to stop.
        threads: Threads to use; None for the solver's own choice.
        seed: Random seed.
        publish: Takes a schedule found on the way; if the strategy does not stop in time, the best published one is
            the answer.
        write_model: File that gets the model, for strategies that build one; ``.lp`` or ``.mps``.
        solver_log: File that gets the solver's log.
        trace: Gets a record of every stage.
    """

    control: Control
    solver: Solver
    gap: float = GAP
    threads: int | None = None
    seed: int = 0
    publish: Callable[[Found], None] = field(default=lambda found: None)
    write_model: Path | None = None
    solver_log: Path | None = None
    trace: list[StageRecord] = field(default_factory=list)

    def request(
        self,
        model: LinearModel,
        control: Control,
        *,
        gap: float | None = None,
        start: Floats | None = None,
        on_progress: Callable[[SolverProgress], None] | None = None,
    ) -> Request:
        """A request to the solver for ``model``; the only place where these options become a request.

        Args:
            model: The model to minimise.
            control: Clock of this solve, which may be shorter than the strategy's.
            gap: Relative gap at which to stop; None for the requested one.
            start: A solution to start from, for solvers that accept one.
            on_progress: Called with the solver's progress.
        """
        return Request(
            model=model,
            control=control,
            gap=self.gap if gap is None else gap,
            threads=self.threads,
            seed=self.seed,
            start=start if self.solver.warm_start else None,
            on_progress=on_progress,
            log_path=self.solver_log,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule and what is known about it.

    Attributes:
        schedule: The schedule.
        bounds: Lower bounds on the cost, each for some set of schedules.
        exhausted: Whether the search ended by itself rather than at a limit.
        used_solver: Whether a MIP solver contributed to it.
        maker: Text form of the strategy that made it, if that is not the one that was called (``auto``).
        order: How its order of first computations was found; empty for the order of the document.
    """

    schedule: Schedule
    bounds: tuple[Bound, ...] = ()
    exhausted: bool = True
    used_solver: bool = False
    maker: str = ""
    order: str = ""


@dataclass(frozen=True, slots=True)
class NotFound:
    """No schedule, and why.

    Attributes:
        reason: Why, in one sentence without a final stop.
        scope: Proven: no schedule of this set fits. None when nothing is proven (a limit was reached).
        best: The schedule with the smallest peak found, if any; its peak is a budget that works.
        peak_bound_bytes: Proven: no schedule of ``scope`` has a smaller peak; None if unknown.
        bounds: Lower bounds on the cost, each for some set of schedules.
        hint: What the user can do about it, unless that is simply to give more time.
    """

    reason: str
    scope: Scope | None = None
    best: Schedule | None = None
    peak_bound_bytes: int | None = None
    bounds: tuple[Bound, ...] = ()
    hint: str = ""


class Strategy(ABC):
    """A way to make schedules. Subclasses are frozen dataclasses; their fields are options."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for ``remat strategies``."""
    reference: ClassVar[str]
    """The paper, or an empty string."""
    needs: ClassVar[Needs] = Needs.ANY
    minds_budget: ClassVar[bool] = True
    """Whether it takes the budget into account."""
    ignores: ClassVar[frozenset[str]] = frozenset()
    """What it ignores, of ``IGNORABLE``; ``budget`` is among them exactly if ``minds_budget`` is false."""
    uses_solver: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    """Whether its plans may copy values to a host, if the task has one."""
    overlaps: ClassVar[bool] = False
    """Whether it takes graphs with collectives, whose plans differ in time and not in the sum of costs."""

    @abstractmethod
    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Look for the cheapest schedule within the budget.

        Raises:
            StrategyMismatch: If the graph is not what the strategy needs.
            LimitReached, Interrupted: If it has to stop and has no schedule.
            SolverUnavailable, SolverFailed: From the solver.
        """
