"""Plans in a folder, found again for the same graph, budget and options instead of another search."""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from remat_cli.control import Ending, Outcome
from remat_cli.errors import InputError, StrategyMismatch, UsageError
from remat_cli.files import cache_folder, write_text
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.io import graph_sha256
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.io import dump_plan, load_plan
from remat_cli.plan.model import Compute, Plan
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solved import Solved
from remat_cli.planning.warm_start import WarmStart
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import SAME_COST
from remat_cli.units import Budget
from remat_cli.version import __version__

_NEAR_FILES, _NEAR_BYTES, _NEAR = 16, 32 << 20, 3
"""Plans at other budgets: the newest files to read, their bytes together, which is about a second's reading, and the
cheapest plans to start from. Untuned."""
_GRAPH_DIGITS = 24
"""Digits of the graph's digest with which a file's name begins."""


def user_folder() -> Path:
    """The folder for plans among the user's caches."""
    return cache_folder("plans")


def _warn(text: str) -> None:
    warnings.warn(f"remat: {text}", stacklevel=2)


@dataclass(frozen=True, slots=True)
class PlanCache:
    """Plans in a folder, one file for each graph, budget and options.

    Attributes:
        folder: The folder; made when the first plan is kept.
        final: Whether a plan once kept is the answer from then on, even if its search was stopped by the time limit,
            or a search for a smaller budget found a cheaper one. So all runs of a training have the same plan.
        note: Receives a line of text if a plan cannot be kept; by default it is a warning of Python.
    """

    folder: Path
    final: bool = False
    note: Callable[[str], None] = _warn

    def recall_or_search(
        self,
        graph: Graph,
        asked: Budget | None,
        options: SolveOptions,
        search: Callable[[Sequence[WarmStart]], Solved],
        *,
        least_peak: bool = False,
    ) -> Solved:
        """The plan that is kept for the same question, replayed; else the one that ``search`` finds, which is kept.

        Unless the cache is ``final``, a plan is the answer only if its search came to its end, and no cheaper plan
        within the budget is kept for a smaller one. A search starts from the cheapest plans that are kept. If the
        options ask for a model or a solver's log, there is a search in any case.

        Raises:
            RematError: What ``search`` raises; and what it would raise of options that make no sense.
        """
        budget_bytes = None if asked is None else asked.bytes_for(no_remat_peak(graph))
        path = self.path(graph, budget_bytes, options, least_peak=least_peak)
        if options.write_model is None and options.solver_log is None:
            job = Job.of(graph, options, None)  # refuses what a search would refuse
            plan = self.find(path, graph, budget_bytes, complete=not self.final)
        else:
            plan = None
        starts = () if least_peak or (plan is not None and self.final) else self.near(graph, budget_bytes, options)
        if plan is not None and not (starts and starts[0].cost < plan.claim.cost * (1 - SAME_COST)):
            return _recalled(plan, asked, budget_bytes, path, job.started_s)
        solved = search(starts)
        try:
            self.keep(path, solved.plan)
        except UsageError as error:  # the next run then searches again
            self.note(f"the plan is not kept: {error.message}")
        return solved

    def path(self, graph: Graph, budget_bytes: int | None, options: SolveOptions, *, least_peak: bool = False) -> Path:
        """The file for a plan. Its name is a hash of all that the plan depends on, the version of remat included."""
        o = options
        how = [o.strategy, o.solver, o.time_limit_s, o.gap, o.threads, o.seed]
        more = ["reorder"] if o.reorder else []
        more += ["least peak"] if least_peak else []
        more += [] if o.split or not graph.splits else ["whole"]
        more += [] if o.host is None else [repr(o.host)]
        start = [] if o.start is None else [s.node for s in o.start.statements if isinstance(s, Compute)]
        text = json.dumps([graph_sha256(graph), budget_bytes, how, more, start, __version__])
        name = hashlib.sha256(text.encode("utf-8")).hexdigest()
        return self.folder / f"{graph_sha256(graph)[:_GRAPH_DIGITS]}-{name}.plan.json"

    def near(self, graph: Graph, budget_bytes: int | None, options: SolveOptions) -> tuple[WarmStart, ...]:
        """The cheapest of the newest plans of ``graph`` that are within a budget; they may be made for any other.

        A search that starts from them finds nothing that costs more than what was found for a smaller budget. With a
        host there are none, and for strategies that start from no plan.
        """
        if options.host is not None or not self.folder.is_dir():
            return ()
        strategy, starts = strategy_from_spec(options.strategy), []
        left = _NEAR_BYTES
        for path, size in self._newest(graph)[:_NEAR_FILES]:
            left -= size
            if left < 0:
                break
            with suppress(InputError, UsageError, StrategyMismatch):  # such a plan is no start here
                start = WarmStart.of(load_plan(str(path))[0], graph, strategy, reorder=options.reorder)
                if budget_bytes is None or start.peak_bytes <= budget_bytes:
                    starts.append(start)
        return tuple(sorted(starts, key=lambda start: (start.cost, start.peak_bytes))[:_NEAR])

    def _newest(self, graph: Graph) -> list[tuple[Path, int]]:
        """The files of plans of ``graph`` with their bytes, the newest first."""
        files = []
        for path in self.folder.glob(f"{graph_sha256(graph)[:_GRAPH_DIGITS]}-*.plan.json"):
            with suppress(OSError):  # another process may have removed it
                state = path.stat()
                files.append((state.st_mtime_ns, path, state.st_size))
        return [(path, size) for _, path, size in sorted(files, reverse=True)]

    def find(self, path: Path, graph: Graph, budget_bytes: int | None, *, complete: bool) -> Plan | None:
        """The plan in ``path``; ``complete`` if the search for it must have come to its end.

        None if there is none, or if it does not replay, is for another graph or over the budget.
        """
        if not path.is_file():
            return None
        try:
            plan, _ = load_plan(str(path))
        except InputError:
            return None
        if graph_sha256(plan.graph.whole) != graph_sha256(graph) or not check(plan, budget_bytes=budget_bytes).ok:
            return None
        return plan if not complete or plan.run.get("outcome") == Outcome.FINISHED.value else None

    def keep(self, path: Path, plan: Plan) -> None:
        """Write ``plan`` to ``path``.

        Raises:
            UsageError: If it cannot be written.
        """
        write_text(str(path), dump_plan(plan))


def _recalled(plan: Plan, asked: Budget | None, budget_bytes: int | None, path: Path, started_s: float) -> Solved:
    """A plan from the file ``path``, with the budget as it is written now."""
    text = None if asked is None else asked.text
    plan = replace(plan, provenance={**plan.provenance, "budget": text})
    report = check(plan, budget_bytes=budget_bytes, budget_text=text or "")
    outcome = plan.run.get("outcome")
    ending = Ending(Outcome(outcome) if outcome in set(Outcome) else Outcome.TIME_LIMIT)
    return Solved(plan, report, ending, time.monotonic() - started_s, path)
