"""Annealing of the sequence of computes by several workers that share the incumbent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat_cli.plan.liveness import cost_of
from remat_cli.plan.matrices import straightened
from remat_cli.running import usable_cores
from remat_cli.strategies.engine import Engine, engine_at
from remat_cli.strategies.openers.prices import Prices
from remat_cli.tolerances import ROUNDING

if TYPE_CHECKING:  # numba takes 0.3 s to import
    from remat_cli.strategies.annealing.walk import Problem, Walk

# Doubling all constants of this folder makes the gap much larger, halving them smaller (benchmark ``ablation``).
_HEATS = (1.0, 0.5, 2.0, 0.2)
"""First temperatures of consecutive runs, in mean costs of a recomputation."""
_COLD = 0.2
"""The last temperature of a run, relative to the first: most gains come at a third of a mean cost to one."""
_SPROUT_SHARE, _SPROUT_HOT, _SPROUT_COLD = 0.5, 0.3, 0.02
"""Share of a slice's moves for a sprout, and its temperatures in mean costs of a recomputation."""
_PRICE = 3.0
"""The first price of a room of excess during one step, relative to the overhead."""
_RANGE = 100.0
"""Largest factor by which that price changes, over all runs."""
_LONGEST, _LONGEST_WITHOUT_LIMIT = 64, 8
"""Slices of the longest run, with and without a time limit."""
_RUNS_PER_LENGTH = 2
"""Runs after which their length doubles."""
_LEAST_OVERHEAD = 0.03
_GUESS = 20
"""Least overhead, as a share of C0, and least number of recomputations to assume without a schedule."""
_DEFAULT_WORKERS = 2
"""Workers unless threads are set."""


def workers_for(threads: int | None) -> int:
    """Number of workers: the number of threads if it is set; else two, or one if there is one core.

    Not more by default, because every worker keeps a core busy and other programs may need the cores.
    """
    return threads if threads is not None else min(_DEFAULT_WORKERS, usable_cores())


@dataclass(slots=True)
class Annealing(Engine):
    """Anneals in runs, from the incumbent or from where the last run ended.

    In every run each worker walks a number of slices from hot to cold. After each slice a *sprout*, a copy of the walk,
    cools down quickly while the walk itself stays warm: the walk explores, its sprouts find the nearest local optimum.
    Both are offered. Every other run starts from the incumbent; the others continue where the worker ended, so that
    workers do not all stay in one valley. The result depends on the seed and on the number of workers, and on the clock
    only if the clock ends the search.

    Attributes:
        rng: Seeds the runs.
        states: Where each worker's next run starts; None for the incumbent.
        prices: Each worker's price of excess, relative to the overhead, carried from run to run.
        runs: Runs so far.
    """

    rng: random.Random = field(default_factory=random.Random)
    states: list[tuple[int, ...] | None] = field(default_factory=list)
    prices: list[float] = field(default_factory=list)
    runs: int = field(default=0)

    def __post_init__(self) -> None:
        """Set up the workers."""
        self.rng.seed(self.incumbent.context.seed)
        workers = workers_for(self.incumbent.context.threads)
        self.states = [None] * workers
        self.prices = [_PRICE] * workers

    def work(self, rounds: int = 2) -> bool:
        """Anneal for ``rounds`` runs; whether the incumbent got cheaper."""
        before = self.incumbent.cost
        with ThreadPoolExecutor(len(self.states)) as pool:
            for _ in range(rounds):
                if self.incumbent.over():
                    break
                self._run(pool)
        return self.incumbent.cost < before

    def _run(self, pool: ThreadPoolExecutor) -> None:
        """One run of all workers."""
        from remat_cli.strategies.annealing.walk import Problem, Walk, slice_moves

        incumbent, graph = self.incumbent, self.incumbent.graph
        problem = Problem.of(graph, incumbent.budget_bytes - graph.fixed_memory)
        overhead = self._overhead()
        starts = [state or incumbent.computes or tuple(range(len(graph.nodes))) for state in self.states]
        prices = [price * overhead for price in self.prices]
        seeds = [self.rng.getrandbits(31) for _ in starts]
        walks = [Walk.of(problem, *start) for start in zip(starts, seeds, prices, strict=True)]
        moves = slice_moves(len(graph.nodes))
        means = [self._mean(len(start), overhead) for start in starts]
        heats = [_HEATS[(self.runs + worker) % len(_HEATS)] * mean for worker, mean in enumerate(means)]
        slices = self._slices()
        for part in range(slices):
            incumbent.report("annealing")
            hot, cold = _COLD ** (part / slices), _COLD ** ((part + 1) / slices)
            sprouting = [self.rng.getrandbits(31) for _ in walks]
            steps = [
                pool.submit(_advance, problem, walk, moves, (hot * heat, cold * heat), mean, seed)
                for walk, heat, mean, seed in zip(walks, heats, means, sprouting, strict=True)
            ]
            # All results are awaited before any is offered, so that the incumbent does not depend on which worker is
            # the fastest.
            sprouts = [step.result() for step in steps]
            self._offer([*walks, *sprouts])
            if incumbent.pool is not None:
                for sprout in sprouts:
                    incumbent.pool.add(sprout.best or sprout.last)
            if incumbent.over():
                break
        self.runs += 1
        self._go_on_from(walks, overhead)

    def _overhead(self) -> float:
        """The overhead of the incumbent, or an assumed one while there is none; a share of C0."""
        base = self.incumbent.graph.total_cost or 1.0
        if self.incumbent.computes is None:  # assume twice the overhead of the bound
            return max(2 * (self.incumbent.bound.cost / base - 1), _LEAST_OVERHEAD)
        return max(self.incumbent.cost / base - 1, 1e-5)

    def _mean(self, steps: int, overhead: float) -> float:
        """The mean cost of a recomputation, as a share of C0."""
        recomputations = max(_GUESS if self.incumbent.computes is None else 1, steps - len(self.incumbent.graph.nodes))
        return overhead / recomputations

    def _slices(self) -> int:
        # Short runs first: they find the cheap gains soon. Long runs then cool slowly enough for the last ones.
        limited = self.incumbent.context.control.deadline_s is not None
        return min(_LONGEST if limited else _LONGEST_WITHOUT_LIMIT, 2 << min(self.runs // _RUNS_PER_LENGTH, 8))

    def _offer(self, walks: Sequence[Walk]) -> None:
        """Offer what is better than the incumbent, in the order of the workers."""
        incumbent = self.incumbent
        base = incumbent.graph.total_cost or 1.0
        for walk in walks:
            found = walk.best
            if found is not None and walk.best_cost * base < incumbent.cost * (1 - ROUNDING):
                incumbent.offer(found)
                incumbent.offer(straightened(incumbent.graph, found))

    def _go_on_from(self, walks: Sequence[Walk], overhead: float) -> None:
        """Offer the last sequences of the walks, and choose where the next run starts."""
        for worker, walk in enumerate(walks):
            last = walk.last
            self.incumbent.offer(last)
            self.prices[worker] = min(max(walk.price / overhead, _PRICE / _RANGE), _PRICE * _RANGE)
            self.states[worker] = last if self.incumbent.computes is None or self.runs % 2 else None


def _advance(problem: Problem, walk: Walk, moves: int, heats: tuple[float, float], mean: float, seed: int) -> Walk:
    """Walk for ``moves`` moves while the temperature goes from the first of ``heats`` to the second; then sprout.

    Args:
        problem: The problem.
        walk: The walk.
        moves: Moves of the walk.
        heats: Temperatures, as shares of C0.
        mean: Mean cost of a recomputation, as a share of C0.
        seed: Random seed of the sprout.
    """
    walk.advance(moves, *heats)
    sprout = type(walk).of(problem, walk.last, seed, walk.price)
    sprout.advance(max(1, round(moves * _SPROUT_SHARE)), _SPROUT_HOT * mean, _SPROUT_COLD * mean)
    return sprout


PRICES = f"{Prices.__module__}:{Prices.__name__}"
"""The engine whose schedule is polished besides the incumbent."""
_POLISH_MOVES = 10
"""Moves for each step of the schedule."""
_POLISH_WORK = 60_000_000
"""Most moves times steps of the schedule: a few seconds."""
_POLISH_COLD = 1e-6
"""The temperature, relative to the overhead: moves that raise the cost are refused."""


@dataclass(slots=True)
class Polish(Engine):
    """Removes recomputations that are not needed and takes every other move that makes the incumbent cheaper."""

    def work(self) -> bool:
        """One pass over the incumbent, and one over what prices led to: the more expensive one may end cheaper."""
        incumbent = self.incumbent
        prices = engine_at(PRICES, incumbent)
        assert isinstance(prices, Prices)
        incumbent.report("polishing")
        for computes in dict.fromkeys((prices.cheapest, incumbent.computes)):
            if computes is not None and not incumbent.over():
                self._polish(computes)
        return False

    def _polish(self, computes: tuple[int, ...]) -> None:
        """Offer what one pass over a schedule within the budget makes of it."""
        from remat_cli.strategies.annealing.walk import Problem, Walk  # numba takes 0.3 s to import

        incumbent, graph = self.incumbent, self.incumbent.graph
        base, length = graph.total_cost or 1.0, len(computes)
        overhead = max(cost_of(graph, computes) / base - 1, 1e-6)
        problem = Problem.of(graph, incumbent.budget_bytes - graph.fixed_memory)
        walk = Walk.of(problem, computes, incumbent.context.seed, _PRICE * overhead)
        walk.advance(
            min(_POLISH_MOVES * length, _POLISH_WORK // length), _POLISH_COLD * overhead, _POLISH_COLD * overhead
        )
        if walk.best is not None:
            incumbent.offer(walk.best)
            incumbent.offer(straightened(graph, walk.best))
