"""Gather again, recompute, or keep: sharded steps.

Steps of a Llama with 32 blocks on one rank of 8 to 256, with links of 25 to 900 GB/s (`benchmarks/sharded/step.py`:
sizes and times from arithmetic), planned at shares of their no-remat peaks. All methods have the same memory. A cell is
the predicted time of a step over that of every node once with memory without limit; it is empty where a method does not
fit. *Reshard* gathers again in the backward pass (`fsdp`), *keep* does not; *blocks* recomputes every block. *Min-cut*
is the method of torch.compile's partitioner, at the limit that is quickest. *Joint* is `auto`. The bound holds for all
plans in document order; the gap is that between bound and *joint*. No step was run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call

_METHODS = {
    "reshard": "fsdp",
    "keep": "fsdp{reshard=false}",
    "reshard_blocks": "fsdp{checkpoint=true}",
    "keep_blocks": "fsdp{reshard=false,checkpoint=true}",
    "min_cut": "min-cut",
    "joint": "auto",
}
_RANKS_AND_LINKS = ((8, 900), (64, 200), (128, 50), (256, 25))
_SHARES = (20, 40, 60, 80)
_LAYERS = 32
_LIMIT_S, _MOST_S = 40.0, 300.0
"""Seconds of the search for a joint plan, and those after which the process of a cell is killed. Untuned."""

TABLES = (
    Table(
        "plans",
        "",
        (
            *columns("count", ranks="ranks", link="GB/s"),
            Column("budget", "budget, %", "number"),
            *columns(
                "number",
                reshard="reshard, %",
                keep="keep, %",
                reshard_blocks="reshard, blocks, %",
                keep_blocks="keep, blocks, %",
                min_cut="min-cut, %",
                joint="joint, %",
                bound="bound, %",
                gap="gap, %",
                processor_s="processor seconds",
            ),
        ),
        f"At most {_LIMIT_S:g} s for the joint plan, one thread.",
        named_by=("ranks", "link", "budget"),
    ),
)


def run(session: Session) -> list[Row]:
    """Plan every step at every budget."""
    layers, limit_s = (3, 2.0) if session.quick else (_LAYERS, _LIMIT_S)
    cells = [
        Cell(f"{ranks} ranks, {link} GB/s at {share}%", partial(_rows, ranks, link, share, layers, limit_s))
        for ranks, link in (_RANKS_AND_LINKS[2:3] if session.quick else _RANKS_AND_LINKS)
        for share in (_SHARES[2:3] if session.quick else _SHARES)
    ]
    return rows_of(session, cells)


def _rows(ranks: int, link: int, share: int, layers: int, limit_s: float) -> list[Row]:
    """The row of one cell."""
    asked = {"ranks": ranks, "link": link, "share": share, "layers": layers, "search_s": limit_s}
    called = call("benchmarks.sharded.plans:planned", limit_s=_MOST_S, **asked)
    case: Row = {"ranks": ranks, "link": link, "budget": share}
    return [TABLES[0].row(case, called.values or {})]


def planned(ranks: int, link: int, share: int, layers: int, search_s: float) -> Row:
    """Overheads of all methods in percent, None where there is no plan."""
    import time

    import remat_cli as remat
    from benchmarks.sharded.step import Llama, step
    from remat_cli.graph.analysis import no_remat_peak

    graph = step(Llama(layers=layers, ranks=ranks, link_bytes_per_s=link * 1e9))
    budget = no_remat_peak(graph) * share // 100
    values: dict[str, Any] = {}
    for method, strategy in _METHODS.items():
        began_s = time.process_time()
        try:
            options = remat.SolveOptions(strategy=strategy, time_limit_s=search_s, threads=1)
            solved = remat.solve(graph, budget, options)
        except (remat.Infeasible, remat.LimitReached):
            values[method] = None
            continue
        values[method] = _over(solved.plan.claim.cost, graph.no_remat_cost)
        if method == "joint":
            values["bound"] = _over(solved.plan.claim.lower_bound, graph.no_remat_cost)
            values["gap"] = round(100 * solved.report.gap, 2)
            values["processor_s"] = round(time.process_time() - began_s)
    return values


def _over(time: float, base: float) -> float:
    """The overhead of a time in percent; rounding has no sign."""
    return round(100 * (time / base - 1), 2) + 0.0
