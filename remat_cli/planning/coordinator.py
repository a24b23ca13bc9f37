"""Coordinates the searches on a cluster: which one a free worker gets, and what each learns of the others.

A schedule within a budget is within every larger one, and a bound for a budget holds for every smaller one. So each
search receives the cheapest schedule that any search found within its budget, and every bound that holds for it. A
search ends when its plan is proven within the gap, wherever the proof comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from remat_cli.control import Outcome, Progress
from remat_cli.planning.solution_pool import PooledRuns
from remat_cli.strategies.base import Found, Known, NotFound
from remat_cli.tolerances import NOTHING_LEFT

_OTHERS = ("search", "anneal", "lns")
"""Strategies of the helpers of a search by ``auto``, in turn: exact stages would only be repeated. Untuned."""


@dataclass(frozen=True, slots=True)
class Run:
    """One search.

    Attributes:
        number: Its number; searches are counted from 0.
        budget_bytes: The budget.
        leading: Whether it is the search that was asked for; helpers run at the same time, with other seeds.
        strategy: Strategy with options.
        seed: Its seed.
        most_s: Seconds that it may take; None for no limit.
    """

    number: int
    budget_bytes: int
    leading: bool
    strategy: str
    seed: int
    most_s: float | None


@dataclass(slots=True)
class _Budget:
    """The searches for a budget.

    Attributes:
        led: Leading searches that ran.
        leader: The leading search that runs now.
        helpers: Numbers of the helpers that run now.
        helped: Helpers that were started.
        lost: Searches whose workers were lost.
    """

    led: int = 0
    leader: int | None = None
    helpers: set[int] = field(default_factory=set)
    helped: int = 0
    lost: int = 0


@dataclass(slots=True)
class Assignment:
    """The searches that run, and the budgets that are open.

    A free worker gets an open budget for which nothing runs yet; the smallest first, since those take longest. If there
    is none, it helps where fewest workers are: with another strategy if the one asked for is ``auto``, and with another
    seed.

    Attributes:
        strategy: The strategy asked for.
        seed: The seed asked for.
        budgets: The open budgets, by bytes.
        runs: The searches that run.
        started: Number of searches started.
    """

    strategy: str
    seed: int
    budgets: dict[int, _Budget]
    runs: dict[int, Run] = field(default_factory=dict)
    started: int = 0

    @classmethod
    def of(cls, budgets: Iterable[int], strategy: str, seed: int) -> Assignment:
        """All budgets open, and nothing running."""
        return cls(strategy, seed, {budget: _Budget() for budget in sorted(budgets)})

    def next(self, slots: int, remaining_s: float | None) -> Run | None:
        """The search to start now, of at most ``slots``; None if all workers are busy or no budget is open."""
        if len(self.runs) >= slots or not self.budgets:
            return None
        waiting = [b for b, state in self.budgets.items() if state.leader is None]
        if waiting:
            budget = min(waiting, key=lambda b: (self.budgets[b].led, b))
            share = min(1.0, 2 * slots / (len(waiting) + slots))
            run = self._run(budget, leading=True, most_s=None if remaining_s is None else share * remaining_s)
            self.budgets[budget].leader = run.number
        else:
            budget = min(self.budgets, key=lambda b: (len(self.budgets[b].helpers), self.budgets[b].helped, b))
            run = self._run(budget, leading=False, most_s=remaining_s)
            self.budgets[budget].helpers.add(run.number)
            self.budgets[budget].helped += 1
        self.runs[run.number] = run
        self.started += 1
        return run

    def _run(self, budget: int, *, leading: bool, most_s: float | None) -> Run:
        strategy, seed = self.strategy, self.seed
        if not leading:
            helped = self.budgets[budget].helped
            seed += 1 + helped
            strategy = _OTHERS[helped % len(_OTHERS)] if self.strategy == "auto" else self.strategy
        return Run(self.started, budget, leading, strategy, seed, most_s)

    def ended(self, run: Run) -> None:
        """A search has ended."""
        self.runs.pop(run.number, None)
        state = self.budgets.get(run.budget_bytes)
        if state is None:
            return
        state.helpers.discard(run.number)
        if state.leader == run.number:
            state.leader = None
            state.led += 1

    def lost(self, run: Run) -> int:
        """The workers of a search were lost; how many searches for its budget were lost that way so far."""
        self.ended(run)
        state = self.budgets.get(run.budget_bytes)
        if state is None:
            return 0
        state.lost += 1
        return state.lost

    def close(self, budget: int) -> None:
        """No further search for a budget; those that run end by themselves."""
        self.budgets.pop(budget, None)


_LOSSES = 3
"""Searches for a budget whose workers were lost, after which it gets none any more. Untuned."""
_LAST_ANSWERS_S = 3.0
"""Seconds that searches get to answer after the time limit or Ctrl-C. What they sent before counts. Untuned."""
_RESERVE_S = 1.0
"""Seconds before the end of the time at which no search starts any more. Untuned."""


@dataclass(frozen=True, slots=True)
class Update:
    """What is sent to the searches for a budget.

    Attributes:
        found: The cheapest schedule within the budget, with all bounds that hold for it; None for no schedule.
        closed: Whether they shall end.
    """

    found: Found | None
    closed: bool


@dataclass(frozen=True, slots=True)
class Improved:
    """A search has found a schedule, or raised the bound on it."""

    run: Run
    found: Found


@dataclass(frozen=True, slots=True)
class Ended:
    """A search has ended; how, and after how many seconds of work."""

    run: Run
    answer: Found | NotFound
    outcome: Outcome
    worked_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """A search has ended without an answer; why."""

    run: Run
    message: str


Event = Improved | Ended | Lost


class Cluster(Protocol):
    """Runs searches elsewhere."""

    def slots(self) -> int:
        """Searches that it can run at a time, now."""
        ...

    def start(self, run: Run, known: Known | None) -> None:
        """Start a search, or have it wait for a worker."""
        ...

    def send(self, budget_bytes: int, update: Update) -> None:
        """Send ``update`` to the searches for a budget, those that start later included."""
        ...

    def events(self) -> list[Event]:
        """What happened since the last call; waits a moment if nothing did."""
        ...


@dataclass(slots=True)
class Coordinator:
    """One command on a cluster.

    Attributes:
        runs: What all searches share; what they find goes to its pool.
        cluster: Runs them.
        assignment: Which search comes next.
        listener: Receives the progress.
        outcomes: How the leading search for each budget ended.
        updates: What was sent last to the searches for each budget.
        ended: The searches that gave an answer.
    """

    runs: PooledRuns
    cluster: Cluster
    assignment: Assignment
    listener: Callable[[Progress], None] | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    updates: dict[int, Update] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        runs: PooledRuns,
        cluster: Cluster,
        budgets: Iterable[int],
        listener: Callable[[Progress], None] | None = None,
    ) -> Coordinator:
        """A coordinator for ``budgets``, in bytes."""
        options = runs.job.options
        return cls(runs, cluster, Assignment.of(budgets, options.strategy, options.seed), listener)

    def run(self) -> dict[int, Outcome]:
        """Run searches until every budget is closed or the time is over; how those for each budget ended."""
        control = self.runs.control
        self._send_all()
        while self.assignment.budgets and not control.stopping():
            self._assign()
            for event in self.cluster.events():
                self._take(event)
            self._send_all()
        self._end()
        return self.outcomes

    def _assign(self) -> None:
        """Start searches for the workers that are free."""
        remaining = self.runs.control.remaining_s()
        if remaining is not None and remaining < _RESERVE_S:
            return
        slots = self.cluster.slots()
        while (run := self.assignment.next(slots, remaining)) is not None:
            known = self.runs.pool.known_at(run.budget_bytes)
            if run.leading and run.budget_bytes not in self.outcomes and known is not None:
                # As in ``curve``: the plan for a smaller budget makes models larger. It is sent later.
                known = Known(bounds=known.bounds) if known.bounds else None
            self.cluster.start(run, known)

    def _take(self, event: Event) -> None:
        run, pool = event.run, self.runs.pool
        if isinstance(event, Improved):
            pool.add_published(run.budget_bytes, event.found)
            self._report(f"{len(self.assignment.runs)} searches at work")
            return
        if isinstance(event, Lost):
            if self.assignment.lost(run) >= _LOSSES:
                pool.add_answer(run.budget_bytes, NotFound(f"its searches were lost: {event.message}"))
                self._close(run.budget_bytes, Outcome.SOLVER_FAILED)
            return
        self.ended.append(event)
        self.assignment.ended(run)
        answer, outcome = event.answer, event.outcome
        if isinstance(answer, Found) or run.leading:
            pool.add_answer(run.budget_bytes, answer)
        if run.leading and run.budget_bytes in self.assignment.budgets:
            if isinstance(answer, NotFound) and (answer.scope is not None or run.most_s is None):
                outcome = Outcome.FINISHED
            self.outcomes[run.budget_bytes] = outcome
            if outcome is not Outcome.TIME_LIMIT:
                self._close(run.budget_bytes, outcome)

    def _send_all(self) -> None:
        """Send to the searches for every open budget what is new for them, and close those that are proven."""
        for budget in tuple(self.assignment.budgets):
            self._send(budget)
            if self.runs.pool.proven_within(budget, max(NOTHING_LEFT, self.runs.job.context.gap)):
                self._close(budget, Outcome.FINISHED)

    def _send(self, budget: int, *, closed: bool = False) -> None:
        entry = self.runs.pool.within(budget)
        found = None if entry is None else replace(entry.found, bounds=self.runs.pool.bounds_at(budget))
        update = Update(found, closed)
        if update != self.updates.get(budget):
            self.updates[budget] = update
            self.cluster.send(budget, update)

    def _close(self, budget: int, outcome: Outcome) -> None:
        self.outcomes[budget] = outcome
        self.assignment.close(budget)
        self._send(budget, closed=True)
        self._report(f"{len(self.assignment.budgets)} budgets open")

    def _end(self) -> None:
        """End the searches for budgets that are still open, and take their last answers."""
        if not self.assignment.budgets:
            return
        stopped = self.runs.control.stopped_by()
        for budget in tuple(self.assignment.budgets):
            self._close(budget, self.outcomes.get(budget, stopped))
        grace = replace(self.runs.control, deadline_s=None).part(most_s=_LAST_ANSWERS_S)
        while self.assignment.runs and not grace.out_of_time():
            for event in self.cluster.events():
                self._take(event)

    def _report(self, activity: str) -> None:
        if self.listener is not None:
            self.listener(Progress(activity))
