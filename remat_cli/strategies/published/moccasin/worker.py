"""The work of the strategy ``moccasin``, in a process of its own.

Not for speed: the libraries of ortools and highspy both contain a HiGHS under the same name, of different versions, and
the second one in a process cannot be loaded (google/or-tools#5246). A process of its own keeps them apart, and a crash
of CP-SAT costs only one answer. The process reads a pickled :class:`Job` and prints a line of JSON, ``[kind, value]``,
for every result at once; so it may be killed at any time.
"""

from __future__ import annotations

import json
import math
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import peak, prune
from remat_cli.plan.liveness import cost_of
from remat_cli.tolerances import GAP, SUM_ROUNDING

if TYPE_CHECKING:
    from remat_cli.strategies.published.moccasin.intervals import End, IntervalModel

_EXPLAIN_S = 30.0
"""Most seconds to find the smallest budget that works, once the requested one is proven too small. Untuned."""

Tell = Callable[[str, Any], None]
"""Gets a kind and a value: ``activity`` (text), ``computes`` (a schedule), ``bound`` (on the cost of the schedules of
the model), ``empty`` (none of them fits; their least peak in bytes, or None), ``log`` (a line), ``end`` (None: it was
not cut short) and ``error`` (``[unavailable or failed, text]``)."""


@dataclass(frozen=True, slots=True)
class Job:
    """The task of the process.

    Attributes:
        graph: The graph.
        budget_bytes: Fixed memory included.
        instances: Most computations of a node.
        hint: Whether to look for a schedule that fits first, and to start from it.
        known: Schedules to start from.
        gap: Relative gap at which to stop.
        bound: A lower bound on the cost that is known already.
        deadline_s: Point of ``time.time()`` at which to stop; None for no limit.
        threads: None for CP-SAT's own choice.
        seed: Random seed.
        log: Whether to send the log.
    """

    graph: Graph
    budget_bytes: int
    instances: int = 2
    hint: bool = True
    known: tuple[tuple[int, ...], ...] = ()
    gap: float = GAP
    bound: float = 0.0
    deadline_s: float | None = None
    threads: int | None = None
    seed: int = 0
    log: bool = False


def main() -> None:
    """Run the job in the file that the first argument names, and print its results."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    lock = threading.Lock()

    def tell(kind: str, value: Any) -> None:
        with lock:
            sys.stdout.write(f"{json.dumps([kind, value])}\n")
            sys.stdout.flush()

    job: Job = pickle.loads(Path(sys.argv[1]).read_bytes())
    try:
        import ortools.sat.python.cp_model  # noqa: F401 - to tell a broken installation from a failure
    except ImportError as error:
        tell("error", ["unavailable", str(error)])
        return
    try:
        work(job, tell)
    except ValueError as error:
        tell("error", ["failed", str(error)])


def work(job: Job, tell: Tell) -> None:
    """Run ``job``, and ``tell`` its results.

    Raises:
        ValueError: If CP-SAT rejects the model.
    """
    from remat_cli.strategies.published.moccasin.intervals import IntervalModel

    tell("activity", "building the model")
    graph = job.graph
    model = IntervalModel.build(graph, job.budget_bytes, max(job.budget_bytes, no_remat_peak(graph)), job.instances)
    run = _Run(job, tell, model, tuple(range(len(graph.nodes))))
    for computes in job.known:
        run.consider(computes)
    nothing_fits = job.hint and not run.fits and run.lower_peak()
    if not nothing_fits and not run.out_of_time():
        run.lower_cost()
    if nothing_fits or not run.out_of_time():
        tell("end", None)


def _exceeds(bound: float, room: int) -> bool:
    """Whether ``bound``, as CP-SAT tells it, proves that more than ``room`` units are needed."""
    return bound > -math.inf and _reached(bound) > room


def _reached(bound: float) -> int:
    """The largest whole number that a bound surely reaches: CP-SAT tells its whole bounds as floats, to the nearest."""
    return math.ceil(bound - 0.5) if abs(bound) < 2**53 else int(math.nextafter(bound, -math.inf))


@dataclass(slots=True)
class _Run:
    """One solve of the model by CP-SAT.

    Attributes:
        job: The task.
        tell: Called with every result.
        model: The model.
        start: The schedule to start from, one that the model holds: the cheapest within the budget, or else the one
            with the lowest peak.
        patience_ends_s: When to stop the search for a budget that works; set once the requested one proves too small.
    """

    job: Job
    tell: Tell
    model: IntervalModel
    start: tuple[int, ...]
    patience_ends_s: float = math.inf

    def consider(self, computes: Sequence[int]) -> None:
        """Consider a schedule as the start."""
        pruned = prune(self.job.graph, computes)
        if self.model.holds(pruned) and self._rank(pruned) < self._rank(self.start):
            self.start = pruned

    def _rank(self, computes: tuple[int, ...]) -> tuple[int, float]:
        """Bytes over the budget, and then the cost."""
        return max(0, peak(self.job.graph, computes) - self.job.budget_bytes), cost_of(self.job.graph, computes)

    @property
    def fits(self) -> bool:
        """Whether the schedule to start from is within the budget."""
        return self._rank(self.start)[0] == 0

    def out_of_time(self) -> bool:
        """Whether the deadline has passed."""
        return self.job.deadline_s is not None and time.time() >= self.job.deadline_s

    def lower_peak(self) -> bool:
        """Phase one: the lowest peak, but no lower than the budget. Whether it is proven that nothing fits."""
        model = self.model
        model.lower_peak()
        end = self._solve("CP-SAT: lowering the peak", self._hear_of_peak, self._low_enough, gap=0.0, hint=True)
        if self.fits or not _exceeds(end.bound, model.room):
            return False
        self.tell("empty", self.job.graph.fixed_memory + _reached(end.bound) * model.unit_bytes)
        return True

    def _hear_of_peak(self, bound: float) -> None:
        if _exceeds(bound, self.model.room):
            self.patience_ends_s = min(self.patience_ends_s, time.monotonic() + _EXPLAIN_S)

    def _low_enough(self) -> bool:
        return self.fits or time.monotonic() >= self.patience_ends_s

    def lower_cost(self) -> None:
        """Phase two: the lowest cost within the budget."""
        job, model = self.job, self.model
        model.lower_cost()
        gap = job.gap * job.graph.total_cost / model.scale.unit
        end = self._solve("CP-SAT", self._hear_of_cost, self._cheap_enough, gap=gap, hint=job.hint and self.fits)
        if end.infeasible:
            self.tell("empty", None)
        elif end.bound > -math.inf:
            self._hear_of_cost(end.bound)

    def _cheap_enough(self) -> bool:
        cost = cost_of(self.job.graph, self.start)
        return self.fits and cost - self.job.bound <= self.job.gap * cost

    def _hear_of_cost(self, bound: float) -> None:
        """A bound of CP-SAT, which counts in whole units, converted to the graph's cost unit."""
        total, scale = self.job.graph.total_cost, self.model.scale
        cost = total + max(0, _reached(bound)) * scale.unit
        self.tell("bound", cost if scale.exact else max(total, cost * (1 - SUM_ROUNDING)))

    def _solve(
        self, activity: str, on_bound: Callable[[float], None], enough: Callable[[], bool], *, gap: float, hint: bool
    ) -> End:
        """Run CP-SAT on the model as it is."""
        from remat_cli.strategies.published.moccasin.intervals import Limits, Listener, minimise

        job, model, tell = self.job, self.model, self.tell

        def hear(value: Callable[[Any], int]) -> None:
            computes = prune(job.graph, model.computes(value))
            self.consider(computes)
            tell("computes", computes)

        model.forget_hint()
        if hint:
            model.hint(self.start, peak(job.graph, self.start))
        tell("activity", activity)
        log = (lambda line: tell("log", line)) if job.log else None
        limits = Limits(job.deadline_s, job.threads, job.seed, gap)
        return minimise(model.model, limits, Listener(hear, on_bound, log, enough))
