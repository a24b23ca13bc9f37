"""Annealing of the sequence of computes by one worker or several that exchange the best schedule."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat_cli.plan.matrices import straightened
from remat_cli.strategies.engine import Engine
from remat_cli.tolerances import ROUNDING

if TYPE_CHECKING:  # numba takes 0.3 s to import
    from remat_cli.strategies.annealing.walk import Problem, Walk

_HEATS = (1.0, 0.5, 2.0, 0.2)
"""Temperatures to start from, in turn, in mean costs of a recomputation."""
_COLD = 0.2
"""The last temperature of a run, relative to the first. Most is found while it is warm: at a third to one mean cost."""
_SPROUT_SHARE, _SPROUT_HOT, _SPROUT_COLD = 0.5, 0.3, 0.02
"""A sprout takes so many moves of a slice, between these temperatures, in mean costs of a recomputation."""
_PRICE = 3.0
"""What one room of excess over one step costs at first, relative to the overhead."""
_RANGE = 100.0
"""By how much that may change from run to run."""
_LONGEST, _LONGEST_WITHOUT_LIMIT = 64, 8
"""Most slices of a run, with and without a time limit; runs grow up to that."""
_RUNS_PER_LENGTH = 2
_LEAST_OVERHEAD = 0.03
_GUESS = 20
"""Overhead, at least, and number of recomputations to reckon with while there is no schedule."""
_DEFAULT_WORKERS = 2


def workers_for(threads: int | None) -> int:
    """How many workers anneal: as many as threads were asked for; else two, or one on a machine with one core.

    Not more by default, because every worker runs for as long as all others, and other work may want the cores.
    """
    return threads if threads is not None else min(_DEFAULT_WORKERS, os.cpu_count() or 1)


@dataclass(slots=True)
class Annealing(Engine):
    """Anneals the best schedule, or whatever is nearest to one, run after run.

    Every run, each worker walks a number of slices from hot to cold. After every slice a *sprout* cools down from where
    the walk is, which itself stays warm; what both found is offered. Every
    other run starts from the best schedule of all; the others go on from where the worker was. What is found depends on
    the seed and on the number of workers, not on the clock, unless the clock ends it.

    Attributes:
        rng: Seeds the runs.
        states: Where each worker's next run starts; None for the best schedule.
        prices: What excess costs for each worker, relative to the overhead, carried from run to run.
        runs: Runs so far.
    """

    rng: random.Random = field(default_factory=random.Random)
    states: list[tuple[int, ...] | None] = field(default_factory=list)
    prices: list[float] = field(default_factory=list)
    runs: int = field(default=0)

    def __post_init__(self) -> None:
        """Set the workers up."""
        self.rng.seed(self.incumbent.context.seed)
        workers = workers_for(self.incumbent.context.threads)
        self.states = [None] * workers
        self.prices = [_PRICE] * workers

    def work(self, rounds: int = 2) -> bool:
        """Try ``rounds`` runs; whether one of them helped."""
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
        """The overhead at hand, or what to reckon with while there is no schedule; a share of C0."""
        base = self.incumbent.graph.total_cost or 1.0
        if self.incumbent.computes is None:
            return max(2 * (self.incumbent.bound.cost / base - 1), _LEAST_OVERHEAD)
        return max(self.incumbent.cost / base - 1, 1e-5)

    def _mean(self, steps: int, overhead: float) -> float:
        """The mean cost of a recomputation, as a share of C0."""
        recomputations = max(_GUESS if self.incumbent.computes is None else 1, steps - len(self.incumbent.graph.nodes))
        return overhead / recomputations

    def _slices(self) -> int:
        limited = self.incumbent.context.control.deadline_s is not None
        return min(_LONGEST if limited else _LONGEST_WITHOUT_LIMIT, 2 << min(self.runs // _RUNS_PER_LENGTH, 8))

    def _offer(self, walks: Sequence[Walk]) -> None:
        """Offer what is better than the best schedule, in the order of the workers."""
        incumbent = self.incumbent
        base = incumbent.graph.total_cost or 1.0
        for walk in walks:
            found = walk.best
            if found is not None and walk.best_cost * base < incumbent.cost * (1 - ROUNDING):
                incumbent.offer(found)
                incumbent.offer(straightened(incumbent.graph, found))

    def _go_on_from(self, walks: Sequence[Walk], overhead: float) -> None:
        """Offer where the walks ended, and choose where the next run starts."""
        for worker, walk in enumerate(walks):
            last = walk.last
            self.incumbent.offer(last)
            self.prices[worker] = min(max(walk.price / overhead, _PRICE / _RANGE), _PRICE * _RANGE)
            self.states[worker] = last if self.incumbent.computes is None or self.runs % 2 else None


def _advance(problem: Problem, walk: Walk, moves: int, heats: tuple[float, float], mean: float, seed: int) -> Walk:
    """Walk on for ``moves`` moves while the temperature goes from the first of ``heats`` to the second; a sprout.

    Args:
        problem: The problem.
        walk: The walk.
        moves: Moves of it.
        heats: Shares of C0.
        mean: Mean cost of a recomputation, as a share of C0.
        seed: For the sprout.
    """
    walk.advance(moves, *heats)
    sprout = type(walk).of(problem, walk.last, seed, walk.price)
    sprout.advance(max(1, round(moves * _SPROUT_SHARE)), _SPROUT_HOT * mean, _SPROUT_COLD * mean)
    return sprout
