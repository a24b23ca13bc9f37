"""``fit``: a PyTorch module that trains within a memory budget, in one call. Plans are cached in a folder."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.api.arguments import as_path, as_text, options_of
from remat_cli.errors import Infeasible, LimitReached, UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Plan, Statement
from remat_cli.planning.cache import PlanCache, user_folder
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve
from remat_cli.units import Budget, as_budget, as_size

if TYPE_CHECKING:
    from remat_cli.frontends.torch.training.fitting import Unknown

TIME_LIMIT_S = 60.0
"""Seconds that ``fit`` searches for each plan by default. Untuned."""
_TRIES = 6
"""Most plans to make, each with a smaller budget than the one before, until one fits with its gaps. Untuned."""


def fit(
    module: Any,
    batch: Any,
    budget: Budget | str | float,
    *,
    options: SolveOptions | None = None,
    cost: str = "device",
    reserve: str | float = 0,
    cache: str | Path | None = None,
    unknown: Unknown = "plan",
) -> Any:
    """``module`` itself, compiled in place: a training step stays within ``budget``, with the same results bit for bit.

    Class, signature, parameters, ``state_dict`` and methods of the module stay its own. Without gradients (evaluation,
    ``generate``) it runs as it is. Copies and pickles of it are not fitted. A module that is fitted already gets new
    plans; ``unfit`` takes them away.

    Loop, loss, optimizer, autocast, clipping and accumulation of gradients do not change. Only the module is planned:
    put the loss inside it to have its memory counted. If training runs under ``torch.autocast``, call this under it
    too.

    Args:
        module: The module, on its device and in the mode in which it trains. Only its call changes.
        batch: Its inputs: a tensor, a tuple, or a mapping of keyword arguments.
        budget: ``"8GB"``, ``"80%"`` of the peak without recomputation, or bytes; for parameters, inputs, gradients and
            everything in between. On CUDA it limits all memory that PyTorch's allocator takes from the device,
            including the gaps between its blocks and the memory that cuBLAS keeps.
        options: How to solve; by default ``auto``, for at most ``TIME_LIMIT_S`` seconds per plan. One plan is made for
            each graph; on CUDA up to six, until one fits with its gaps.
        cost: What recomputation should spare. ``device``: time on the module's device, by rates that are measured once,
            in two seconds, and kept in the user's cache folder; the file that ``REMAT_RATES`` names replaces them.
            ``measured``: time of every operation, measured now. ``flops``, or time by the model ``roofline:a100``. Only
            ``measured`` counts the workspace of operations, so take it for a budget on CUDA that must not be exceeded.
        reserve: Memory to leave for things outside the graph, such as the optimizer's state or accumulated gradients.
        cache: Folder for plans, made if missing; None for the user's cache folder, ``""`` for none. Plans for measured
            costs are not cached.
        unknown: What to do with other graphs that come later (new shapes, another mode): ``plan`` them too, and if
            there is no plan run them unplanned with a warning; ``warn``; or ``error``.

    Raises:
        Infeasible: If no plan of the module with this batch fits.
        LimitReached, Interrupted: If the search has to stop before it has found a plan.
        CaptureFailed, FrameworkUnavailable, UsageError: As their names say.
    """
    options = options_of(options, SolveOptions(time_limit_s=TIME_LIMIT_S))
    if options.reorder:
        raise UsageError("fit keeps the order of operations", hint="another order draws other random numbers")
    asked, kept = as_budget(budget), as_size(reserve, "reserve")
    as_text(cost, "cost")
    from remat_cli.frontends.torch.installed import require_torch

    require_torch()
    from remat_cli.frontends.torch.training.fitting import MEASURED, fit_module

    folder = None if cost == MEASURED else plan_folder(cache)  # no two measurements are the same
    planner = CachedPlanner(asked, options, folder, kept)
    return fit_module(module, batch, planner, cost=cost, reserve_bytes=kept, unknown=unknown)


def unfit(module: Any) -> Any:
    """``module`` itself, which runs again as it did before ``fit``.

    Raises:
        UsageError: If it is not fitted.
        FrameworkUnavailable: If PyTorch is missing.
    """
    from remat_cli.frontends.torch.installed import require_torch

    require_torch()
    from remat_cli.frontends.torch.training import in_place

    return in_place.unfit(module)


def plan_folder(cache: str | Path | None) -> Path | None:
    """The folder for plans that ``cache`` names; None for no folder."""
    if cache is None:
        return user_folder()
    return Path(as_path(cache, "cache")) if str(cache) else None


@dataclass(frozen=True, slots=True)
class CachedPlanner:
    """Solves graphs, and caches their plans in files.

    Attributes:
        budget: The budget of every graph.
        options: How to solve.
        folder: Folder of the plans; None for no cache.
        state_bytes: Bytes of the graphs' fixed memory that are allocated only after the first step.
    """

    budget: Budget
    options: SolveOptions
    folder: Path | None
    state_bytes: int = 0

    def __call__(self, graph: Graph) -> Plan:
        """A plan of ``graph``: a cached one that replays within the budget, or a new one.

        On CUDA the budget limits the memory that PyTorch's allocator takes, cuBLAS included; a percentage is of what it
        takes without recomputation. If the peak of a plan is within the budget but its allocations are not, because of
        the gaps that they leave, another plan is made for a smaller budget.

        Raises:
            RematError: As :func:`remat_cli.api.solve`.
        """
        if graph.metadata.get("device") == "cuda":
            return self._with_gaps(graph)
        return self.planned(graph, self.budget.bytes_for(no_remat_peak(graph)))

    def _with_gaps(self, graph: Graph) -> Plan:
        """A plan whose allocations PyTorch's CUDA allocator can serve within the budget."""
        from remat_cli.frontends.torch.measuring.allocator import least_limit

        def taken(statements: Sequence[Statement]) -> int:
            return least_limit(graph, statements, state_bytes=self.state_bytes)

        whole = taken(derive(graph, range(len(graph.nodes)))) if self.budget.relative else 0
        wanted = room = self.budget.bytes_for(whole)
        for _ in range(_TRIES):
            try:
                plan = self.planned(graph, wanted)
            except Infeasible as error:
                if wanted == room:
                    raise
                raise Infeasible(
                    f"plans fit a budget of {self.budget.text}, but not with the gaps that PyTorch's allocator leaves",
                    hint="take a larger budget",
                ) from error
            need = taken(plan.statements)
            if need <= room:
                return plan
            wanted = int(wanted * room / need)  # assumes that gaps are proportional to the budget
        raise LimitReached(
            f"{_TRIES} plans were made, and none fits {self.budget.text} with the gaps that PyTorch's allocator leaves",
            hint="take a larger budget",
        )

    def planned(self, graph: Graph, budget_bytes: int) -> Plan:
        """A plan of ``graph`` that peaks at ``budget_bytes`` at most: a cached one, or a new one."""
        if self.folder is None:
            return solve(graph, budget_bytes, self.options).plan
        cache = PlanCache(self.folder)
        path = cache.path(graph, budget_bytes, self.options)
        kept = cache.find(path, graph, budget_bytes, complete=False)
        if kept is not None:
            return kept
        plan = solve(graph, budget_bytes, self.options).plan
        try:
            cache.keep(path, plan)
        except UsageError as error:  # the next run then solves again
            warnings.warn(f"remat: the plan is not kept: {error}", stacklevel=2)
        return plan
