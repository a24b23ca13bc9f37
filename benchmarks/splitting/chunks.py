"""Regions in parts, beside chunks by hand and by PyTorch.

Steps of models whose widest values rule their memory (`benchmarks/splitting/models.py`), on a CPU with one thread.
*Whole* is the least peak that remat finds with whole operations, *parts* that with regions in parts; both plans were
run. Below, all ways to compute the step run in turn in one process: *by hand* is a function with gradients of its own,
*linear_cross_entropy* that of PyTorch, *AutoChunker* a pass of Inductor (`TORCHINDUCTOR_AUTO_CHUNKER=1`), which also
joins operations. A row of remat has the peak of the row in *budget like*, or less. Its
costs are those of operations on this machine. Peaks are those of PyTorch's allocator by its profiler, with parameters
and inputs; time is processor time, the least of all repetitions. No optimizer runs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.measure import call

_NAMES = ("GPT-2-like, 50k words", "GPT-2-like, 128k words", "Llama-like, 32k words", "MLP, 32k tokens", "segmentation")
_TIMES, _SEARCH_S, _MOST_S = 3, 10.0, 3000.0
"""Repetitions, seconds for a plan, and seconds after which the process of a model is killed. Untuned."""
TABLES = (
    Table(
        "least",
        "Least peaks",
        (
            *columns("text", model="model", wide="widest"),
            *columns("bytes", once="no recomputation", whole="whole", parts="parts"),
            Column("less", "times less", "number"),
            Column("regions", "in parts"),
            *columns("bytes", whole_ran="whole, run", parts_ran="parts, run"),
        ),
        named_by=("model",),
    ),
    Table(
        "sides",
        "Side by side",
        (
            *columns("text", model="model", method="method", like="budget like"),
            Column("peak", "peak", "bytes"),
            *columns("number", step_s="step, s", beside="beside eager, %", predicted="predicted, %"),
            *columns("text", regions="in parts", problem="problem"),
        ),
        "",
        named_by=("model", "method", "like"),
    ),
)


def run(session: Session) -> list[Row]:
    """Compare all models that the user chose."""
    times, search_s = (1, 3.0) if session.quick else (_TIMES, _SEARCH_S)
    asked = {"quick": session.quick, "times": times, "search_s": search_s}
    names = ("GPT-2-like, 50k words",) if session.quick else _NAMES
    return rows_of(session, [Cell(name, partial(_rows, name, asked)) for name in names], lanes=lanes_here())


def _rows(name: str, asked: Mapping[str, Any]) -> list[Row]:
    """The rows of one model."""
    called = call("benchmarks.splitting.chunks:compared", limit_s=_MOST_S, name=name, **asked)
    if called.problem:
        return [TABLES[1].row({"model": name, "method": "all", "like": "", "problem": called.problem}, {})]
    return list(called.values)


def compared(name: str, quick: bool, times: int, search_s: float) -> list[Row]:
    """All rows of a model."""
    import torch

    from benchmarks.splitting.models import CASES

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # a graph for each plan
    case = next(case for case in CASES if case.name == name)
    module, batch = case.build(quick)
    return _Comparison(case, module, batch, times, search_s).rows()


class _Comparison:
    """One model in all ways, in one process."""

    def __init__(self, case: Any, module: Any, batch: tuple[Any, ...], times: int, search_s: float) -> None:
        self.case, self.module, self.batch, self.times = case, module, batch, times
        self.search_s = search_s
        tensors = [*module.parameters(), *module.buffers(), *batch]
        self.fixed = sum(tensor.nbytes for tensor in tensors)
        self.found: list[Row] = []
        self.steps: list[Callable[[], float] | None] = []
        self.losses: list[float] = []

    def rows(self) -> list[Row]:
        self.add("eager", lambda owner: owner)
        for parts in self.case.hand:
            self.add(f"by hand, {parts} parts", lambda owner, parts=parts: _way(owner, f"hand:{parts}"))
        for rows in self.case.torch:
            words = "its own choice" if rows == "auto" else f"{rows} rows"
            self.add(f"linear_cross_entropy, {words}", lambda owner, rows=rows: _way(owner, f"torch:{rows}"))
        self.add("AutoChunker", _chunked)
        peers = list(self.found)
        graph, least = self.least()
        for peer in {row["peak"]: row for row in reversed(peers) if row["peak"] is not None}.values():
            self.within(graph, peer)
        self.measure()
        return [least, *self.found]

    def add(self, method: str, prepare: Callable[[Any], Any], **more: Any) -> Row:
        """The row of a method; ``prepare`` makes what is called of a copy of the model."""
        from benchmarks.torch.devices import allocated_peak

        row = TABLES[1].row({"model": self.case.name, "method": method, "like": "", "problem": ""} | more, {})
        self.found.append(row)
        owner = copy.deepcopy(self.module)
        try:
            called = prepare(owner)
            step = partial(_step, owner, called, self.batch)
            self.losses.append(step())
            row["peak"] = self.fixed + allocated_peak(step)
        except Exception as error:  # others fail in many ways, and that is a result
            self.steps.append(None)
            row["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            return row
        self.steps.append(step)
        if abs(self.losses[-1] - self.losses[0]) > 1e-4 * abs(self.losses[0]):
            row["problem"] = f"its loss is {self.losses[-1]:.6g}, and that of eager {self.losses[0]:.6g}"
        return row

    def least(self) -> tuple[Any, Row]:
        """The graph with regions and workspaces, and the row of the least peaks."""
        from remat_cli.api import SolveOptions
        from remat_cli.frontends.torch.train.fitting import fit_module
        from remat_cli.graph.analysis import no_remat_peak
        from remat_cli.plan.replay import replay
        from remat_cli.planning.least_peak import solve_smallest

        plans: list[Any] = []

        def planned(graph: Any) -> Any:
            for split in (False, True):
                options = SolveOptions(time_limit_s=self.search_s, threads=1, split=split)
                plans.append(solve_smallest(graph, options).plan)
            return plans[-1]

        row = self.add(
            "remat, least peak", lambda owner: fit_module(owner, self.batch, planned, split=True, cost="device")
        )
        whole, parts = plans
        row |= {"regions": _regions(parts), "predicted": _predicted(parts)}
        ran = self.add(
            "remat, least peak, whole operations", partial(_by_plan, plan=whole), predicted=_predicted(whole)
        )
        peaks = [replay(plan.graph, plan.statements).peak_bytes for plan in plans]
        case: Row = {"model": self.case.name, "wide": self.case.wide, "once": no_remat_peak(whole.graph)}
        case |= {"whole": peaks[0], "parts": peaks[1], "less": round(peaks[0] / peaks[1], 2)}
        case |= {"regions": _regions(parts), "whole_ran": ran["peak"], "parts_ran": row["peak"]}
        return whole.graph, TABLES[0].row(case, {})

    def within(self, graph: Any, peer: Row) -> None:
        """The row of a plan within the peak of another row."""
        from remat_cli.api import SolveOptions, solve
        from remat_cli.errors import RematError

        like = {"like": peer["method"]}
        try:
            plan = solve(graph, peer["peak"], SolveOptions(time_limit_s=self.search_s, threads=1)).plan
        except RematError as error:
            self.add("remat", partial(_failing, error), **like)
            return
        more = {"regions": _regions(plan), "predicted": _predicted(plan)}
        self.add("remat", partial(_by_plan, plan=plan), **more, **like)

    def measure(self) -> None:
        """Times of all methods, in turn."""
        taken: list[list[float]] = [[] for _ in self.steps]
        for _ in range(self.times):
            for step, seconds in zip(self.steps, taken, strict=True):
                if step is not None:
                    started = time.process_time()
                    step()
                    seconds.append(time.process_time() - started)
        eager = min(taken[0])
        for row, seconds in zip(self.found, taken, strict=True):
            if seconds:
                row["step_s"] = round(min(seconds), 3)
                row["beside"] = round(100 * (min(seconds) / eager - 1), 1)


def _step(owner: Any, called: Any, batch: tuple[Any, ...]) -> float:
    """Run one step; its loss."""
    loss = called(*batch)
    loss.backward()
    owner.zero_grad(set_to_none=True)
    return float(loss.detach())


def _way(owner: Any, way: str) -> Any:
    owner.way = way
    return owner


def _chunked(owner: Any) -> Any:
    """The model compiled by Inductor with the pass, which is chosen while it compiles."""
    import torch
    from torch._inductor import config

    def called(*batch: Any) -> Any:
        with config.patch({"auto_chunker.enable": True}):
            return compiled(*batch)

    compiled = torch.compile(owner)
    return called


def _by_plan(owner: Any, *, plan: Any) -> Any:
    import torch

    from remat_cli.api import remat_backend

    return torch.compile(owner, backend=remat_backend(plan))


def _failing(error: Exception, _owner: Any) -> Any:
    raise error


def _predicted(plan: Any) -> float:
    """Cost beside that of every operation once, in percent."""
    return round(100 * (plan.claim.cost / plan.graph.whole.total_cost - 1), 1)


def _regions(plan: Any) -> str:
    origin = plan.graph.origin
    return "" if origin is None else ", ".join(f"{region}: {parts}" for region, parts in origin.parts.items())
