"""``fit``: a PyTorch module that trains within a memory budget, in one call. Plans are kept in a folder."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.api.options import SolveOptions
from remat_cli.api.solving import solve
from remat_cli.errors import InputError, UsageError
from remat_cli.files import write_text
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.io import dump_document, graph_sha256
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.io import load_plan, plan_to_document
from remat_cli.plan.model import Plan
from remat_cli.units import Budget, parse_budget, parse_size
from remat_cli.version import __version__

if TYPE_CHECKING:
    from remat_cli.frontends.torch.fitting import Unknown

TIME_LIMIT_S = 60.0
"""How long ``fit`` looks for the plan of one graph, unless told otherwise."""


def fit(
    module: Any,
    batch: Any,
    budget: str | int,
    *,
    options: SolveOptions | None = None,
    cost: str = "flops",
    reserve: str | int = 0,
    cache: str | Path | None = None,
    unknown: Unknown = "plan",
) -> Any:
    """``module``, compiled so that a training step stays within ``budget``; results are the same bit for bit.

    Loop, loss, optimizer, autocast, clipping and accumulation of gradients stay as they are. What happens outside the
    module is not planned: put the loss inside to have its memory counted, and call this under ``torch.autocast`` if
    training runs there.

    Args:
        module: The module, on its device and in the mode in which it trains. It is not changed, and shares its
            parameters with what is returned.
        batch: Its inputs: a tensor, a tuple, or a mapping of keyword arguments.
        budget: ``"8GB"``, ``"80%"`` of what is needed without recomputation, or bytes; for parameters, inputs,
            gradients and everything in between.
        options: How to solve; by default ``auto``, for at most ``TIME_LIMIT_S`` seconds per graph.
        cost: What to spare when something has to be recomputed: ``flops``, or time by ``roofline:a100``.
        reserve: Memory to leave for what is not in the graph: the optimizer's state, gradients that are accumulated.
        cache: Folder for plans, made when needed; None for the user's cache folder, ``""`` for none.
        unknown: What to do with other graphs that come later (new shapes, another mode): ``plan`` them too, and run
            them as they are with a warning if there is no plan; ``warn``; or ``error``.

    Raises:
        Infeasible: If no plan of the module with this batch fits.
        LimitReached, Interrupted: If there is no plan yet when it has to stop.
        CaptureFailed, FrameworkUnavailable, UsageError: As their names say.
    """
    options = options or SolveOptions(time_limit_s=TIME_LIMIT_S)
    if options.reorder:
        raise UsageError("fit keeps the order of operations", hint="another order draws other random numbers")
    asked = parse_budget(str(budget))
    from remat_cli.frontends.torch.installed import require_torch

    require_torch()
    from remat_cli.frontends.torch.fitting import fit_module

    planner = CachedPlanner(asked, options, plan_folder(cache))
    return fit_module(module, batch, planner, cost=cost, reserve_bytes=parse_size(str(reserve)), unknown=unknown)


def plan_folder(cache: str | Path | None) -> Path | None:
    """The folder for plans that ``cache`` stands for; None for no folder."""
    if cache is None:
        from platformdirs import user_cache_path

        return user_cache_path("remat", appauthor=False) / "plans"
    return Path(cache) if str(cache) else None


@dataclass(frozen=True, slots=True)
class CachedPlanner:
    """Solves graphs, and keeps their plans in files.

    Attributes:
        budget: For every graph.
        options: How to solve.
        folder: Where plans are; None for nowhere.
    """

    budget: Budget
    options: SolveOptions
    folder: Path | None

    def __call__(self, graph: Graph) -> Plan:
        """A plan of ``graph``: a kept one that replays within the budget, or a new one.

        Raises:
            RematError: As :func:`remat_cli.api.solve`.
        """
        path = None if self.folder is None else self.folder / f"{self.key(graph)}.plan.json"
        kept = None if path is None else self.kept(path, graph)
        if kept is not None:
            return kept
        plan = solve(graph, self.budget, self.options).plan
        if path is not None:
            _keep(path, plan)
        return plan

    def key(self, graph: Graph) -> str:
        """What a plan depends on, as 64 hexadecimal digits: graph, budget, options, version of remat."""
        o = self.options
        how = [o.strategy, o.solver, o.time_limit_s, o.gap, o.threads, o.seed]
        text = json.dumps([graph_sha256(graph), self._bytes(graph), how, __version__])
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def kept(self, path: Path, graph: Graph) -> Plan | None:
        """The plan in ``path``; None if there is none, or one that is not this graph's or does not replay."""
        if not path.is_file():
            return None
        try:
            plan, _ = load_plan(str(path))
        except InputError:
            return None
        if graph_sha256(plan.graph) != graph_sha256(graph) or plan.provenance.get("reorder"):
            return None
        return plan if check(plan, budget_bytes=self._bytes(graph)).ok else None

    def _bytes(self, graph: Graph) -> int:
        return self.budget.bytes_for(no_remat_peak(graph))


def _keep(path: Path, plan: Plan) -> None:
    """Write ``plan`` to ``path``; a folder that cannot be written costs the next run time, and is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(str(path), dump_document(plan_to_document(plan)))
    except (OSError, UsageError) as error:
        warnings.warn(f"remat: the plan is not kept: {error}", stacklevel=2)
