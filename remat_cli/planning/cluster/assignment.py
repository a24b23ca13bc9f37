"""Which search a free worker gets: for which budget, by which strategy and with which seed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

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
        """The search to start now; None if all workers are busy or no budget is open.

        Args:
            slots: Searches that the cluster runs at a time.
            remaining_s: Seconds left for all; None for no limit.
        """
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

    def busy(self, slots: int) -> float:
        """The share of workers that have a search."""
        return min(1.0, len(self.runs) / slots) if slots else math.nan
