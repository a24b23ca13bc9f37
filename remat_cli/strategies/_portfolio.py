"""Two searches that hand schedules back and forth: windows of the retention MILP, and annealing of the sequence."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field

import numpy as np

from remat_cli.control import Control
from remat_cli.mip import Bools
from remat_cli.plan.matrices import straightened
from remat_cli.strategies._best import Best
from remat_cli.strategies._retention import Retention

_WINDOW_S = 5.0
_SHARE = 1 / 6
_NARROWEST = 8
_GUIDED = 0.15
"""Share of windows that the linear relaxation chooses."""
_MOVES = 40_000_000
"""Moves of one run of annealing, times its steps, on large graphs: about two seconds."""
_MOVES_PER_STEP = 5_000
"""The same on small ones, which need no more."""
_HEATS = (0.1, 0.02, 0.3)
"""Temperatures to start from, in turn, as shares of the overhead at hand."""
_COLD = 0.02
_COMPILING_S = 10.0
"""Time that must be left for a first run, which may have to compile the kernel."""
_PRICE = 3.0
_DEARER, _CHEAPER = 1.5, 0.85


@dataclass(slots=True)
class Windows:
    """Frees a part of the best schedule and solves for it, again and again.

    Attributes:
        best: The schedule to improve.
        model: The model to take windows of.
        rng: Chooses them.
        share: Width of a window, as a share of all nodes; adapts to what the solver can do in the time for one.
    """

    best: Best
    model: Retention
    rng: random.Random
    share: float = _SHARE

    def run(self, rounds: int) -> bool:
        """Try ``rounds`` windows; whether one of them helped."""
        before = self.best.advancing_cost
        for _ in range(rounds):
            if self.best.over() or self.best.advancing is None:
                break
            self.best.report("searching windows")
            self.model = self.model.holding_best()
            width = max(_NARROWEST, round(self.share * len(self.best.graph.nodes)))
            control = self.best.step(_WINDOW_S, 0.5)
            better = self.model.improve(self._window(width), control)
            if control.out_of_time():
                self.share = max(_SHARE / 8, self.share * 0.7)
            elif not better:
                self.share = min(0.5, self.share * 1.2)
        return self.best.advancing_cost < before

    def _window(self, width: int) -> Bools:
        """Columns to free: where the relaxation differs, or a run of stages or of nodes with all that happens to it."""
        if self.rng.random() < _GUIDED and (undecided := self.model.undecided()) is not None:
            return undecided
        stated, columns = self.model.stated, self.model.compiled.column_of
        first = self.rng.randrange(max(1, len(stated.graph.nodes) - width))
        inside = range(first, first + width)
        by_stage = self.rng.random() < 0.5
        free = np.zeros(self.model.model.columns, dtype=np.bool_)
        for (t, i), var in stated.R.items():
            if (t if by_stage else i) in inside:
                free[columns[id(var)]] = True
        for v, gaps in enumerate(stated.gaps):
            maker = stated.graph.producer[v] in inside
            for k, var in enumerate(gaps.kept):
                touched = gaps.events[k] < inside.stop and gaps.events[k + 1] >= inside.start
                if touched if by_stage else maker:
                    free[columns[id(var)]] = True
        return free


def ready(control: Control) -> bool:
    """Whether there is time to anneal: the first run after an installation compiles the kernel for some seconds."""
    remaining = control.remaining_s()
    if remaining is None or remaining >= _COMPILING_S:
        return True
    kernel = sys.modules.get("remat_cli.strategies._kernel")
    return kernel is not None and bool(kernel.run.signatures)


@dataclass(slots=True)
class Annealing:
    """Anneals the best schedule, or whatever is nearest to one, run after run.

    Attributes:
        best: The schedule to improve.
        rng: Seeds the runs.
        state: Where the next run starts; None for the best schedule.
        price: What excess memory costs, relative to the overhead at hand; adapts from run to run.
        runs: Runs so far.
    """

    best: Best
    rng: random.Random
    state: tuple[int, ...] | None = None
    price: float = _PRICE
    runs: int = field(default=0)

    def run(self, rounds: int) -> bool:
        """Try ``rounds`` runs; whether one of them helped."""
        if not ready(self.best.context.control):
            return False
        from remat_cli.strategies._sequence import Cooling, Problem, anneal  # numba takes 0.3 s to import

        best, graph = self.best, self.best.graph
        problem = Problem.of(graph, best.budget_bytes - graph.fixed_memory)
        before = best.cost
        for _ in range(rounds):
            if best.over():
                break
            best.report("annealing")
            base = graph.total_cost or 1.0
            target = best.cost if best.computes is not None else 2 * best.bound.cost - base
            overhead = max(target / base - 1, 1e-5)
            heat = _HEATS[self.runs % len(_HEATS)] * overhead
            start = self.state or best.computes or tuple(range(len(graph.nodes)))
            moves = max(20_000, min(_MOVES_PER_STEP * len(start), _MOVES // len(start)))
            result = anneal(
                problem, start, Cooling(moves, heat, _COLD * heat, self.price * overhead), self.rng.getrandbits(31)
            )
            self.runs += 1
            if result.computes is not None:
                best.offer(result.computes)
                best.offer(straightened(graph, result.computes))
            best.offer(result.last)
            self.price *= _DEARER if result.excess > 0 else _CHEAPER
            # Go on from the last state while there is nothing better; later every other run starts from the best.
            self.state = result.last if best.computes is None or self.runs % 2 else None
        return best.cost < before
