"""The papers' optima with the papers' patience: the ILP itself, and what `make paper` leaves open.

Jain et al., Checkmate, MLSys 2020. The paper gives its ILP an hour for each point of figure 5 and table 2, on a larger
machine and with Gurobi; for DenseNet-161 it finds no schedule in a day. `make paper-long` gives every cell `--limit`
seconds, 900 by default, with HiGHS on one thread, and a third of it where the whole would add hours to the night (the
ILP of graphs that take a node for each operation, DenseNet-161, and the batches): the ILP, the published rounding of
its relaxation, and `auto`, on all networks of table 2 in FLOPs, on those of figure 5 in times on a V100 (with 16 GB
for U-Net), and on DenseNet-161. Figure 6 is asked once more for batches between the largest found and the smallest
proven impossible; each batch is a budget for the graph of eight images, as in `remat max-batch`. Every finished cell
is a line in `results/long.rows.jsonl` (`--results`), so a run may be interrupted and goes on where it was. Other
processes of this machine (`--jobs`) or of a Dask cluster (`--dask`) share the cells.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns, dump, load, perform
from benchmarks.machine import ROOT
from benchmarks.paper import batches, budgets
from benchmarks.paper.cells import CELLS, LEAST_NOTE, SHOWN_CELLS, compared, share_of, with_distances
from benchmarks.paper.published import Ours

_LIMIT_S = 900.0
_BEST, _ROUNDED, _ILP = "auto", "checkmate-lp{epsilon=0.1,threshold=0.5}", "checkmate-ilp"
_STRATEGIES = (_BEST, _ROUNDED, _ILP)
_NARROW = (98.0, 94.0, 90.0, 86.0, 84.0)
"""Budgets for VGG, of which nothing fits in less than about 85%."""
_HUGE, _HUGE_PERCENTS = "densenet161", (80.0, 60.0)
_STEPS = 3
"""Batches to ask about between the largest found and the smallest proven impossible: each may take two limits."""
_FOLDER = ROOT / "benchmarks" / "paper"
_SHORTER = 3
"""The limit is divided by this for the strategies that a grid names."""
_UNITS = {"flops": "FLOPs", "roofline:v100": "V100 times"}

TABLES = (
    Table(
        "state",
        "Cells so far",
        (
            *columns("text", graph="graph", cost="costs"),
            *columns("count", cells="cells", measured="measured"),
        ),
        "`make paper-long` measures those that are missing.",
    ),
    Table("cells", "Table 2: overhead against budget in FLOPs", CELLS, LEAST_NOTE),
    Table("times", "Figure 5: overhead against budget in times on a V100", CELLS, LEAST_NOTE),
    Table(
        "batches",
        "Figure 6: batches that the shorter search leaves open",
        (
            Column("graph", "graph"),
            Column("batch", "batch", "count"),
            Column("strategy", "strategy"),
            *columns("number", overhead="overhead, %", bound="proven bound, %", allowed="allowed: one forward pass, %"),
            Column("verdict", "so the batch is"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
        ),
    ),
)
SHOWN = (TABLES[0], replace(TABLES[1], columns=SHOWN_CELLS), replace(TABLES[2], columns=SHOWN_CELLS), TABLES[3])


@dataclass(frozen=True, slots=True)
class _Grid:
    """Cells on one graph.

    Attributes:
        table: The table that they belong to.
        graph: The graph, as the zoo names it.
        cost: Its costs.
        budgets: Percentages, or sizes as text.
        strategies: Strategies.
        batches: By text of the budget: the batch that it stands for; empty in other tables.
        shorter: The strategies whose cells get a third of the limit.
    """

    table: str
    graph: str
    cost: str
    budgets: tuple[float | str, ...]
    strategies: tuple[str, ...] = _STRATEGIES
    batches: tuple[tuple[str, int], ...] = ()
    shorter: tuple[str, ...] = ()


class Nobody:
    """Runs no cells: the rows are those of the results file."""

    def run(self, *_: Any) -> Iterator[Any]:
        """None."""
        yield from ()


@dataclass(frozen=True, slots=True)
class Way:
    """How a run measures: seconds for each cell, who runs them, and where rows are kept."""

    limit_s: float
    executor: Any
    results: Path | None


def _grids(folder: Path) -> Iterator[_Grid]:
    """All cells; those of the batches depend on the result of the shorter search in ``folder``."""
    for spec in budgets.NETWORKS:
        shares: tuple[float | str, ...] = _NARROW if spec.startswith("vgg1") else budgets.PERCENTS
        yield _Grid("cells", spec, "flops", shares, shorter=_slow(spec))
    for spec in budgets.FIGURE:
        shares = _NARROW if spec.startswith("vgg1") else budgets.PERCENTS
        shares = (*shares, "16GB") if spec == budgets.UNET else shares
        yield _Grid("times", spec, "roofline:v100", shares, shorter=_slow(spec))
    yield _Grid("cells", _HUGE, "flops", _HUGE_PERCENTS, shorter=_STRATEGIES)
    path = folder / "results" / "batches.json"
    if path.is_file():
        yield from _open_batches(json.loads(path.read_text(encoding="utf-8"))["rows"])


def _slow(spec: str) -> tuple[str, ...]:
    """The strategies that get a shorter limit on a network of table 2: the ILP, where operations are not fused."""
    return () if "fused" in spec else (_ILP,)


def _open_batches(rows: Sequence[Row]) -> Iterator[_Grid]:
    """The batches that the shorter search leaves open, each as a budget for the graph of eight images."""
    found = [row for row in rows if row["table"] == "batches" and row["batch"] and row["impossible"]]
    for network in dict.fromkeys(row["graph"] for row in found):
        mine = [row for row in found if row["graph"] == network]
        low, high = max(row["batch"] for row in mine), min(row["impossible"] for row in mine)
        if high - low < 2:
            continue
        asked = sorted({low + math.ceil((high - 1 - low) * k / _STEPS) for k in range(1, _STEPS + 1)})
        named = tuple((f"{batches.budget_for(network, batch)}B", batch) for batch in asked)
        sizes, asking = tuple(text for text, _ in named), (_BEST, _ILP)
        yield _Grid("batches", batches.spec_of(network), "flops", sizes, asking, batches=named, shorter=asking)


def run(session: Session, way: Way | None = None, folder: Path = _FOLDER) -> list[Row]:
    """All rows; cells that the results file has are not measured again.

    The results of the shorter search are in ``folder``. Without a ``way``, one process measures, without such a file.
    """
    from remat_cli.planning.executors import LocalExecutor

    way = way or Way(1.0 if session.quick else _LIMIT_S, LocalExecutor(jobs=1), None)
    quick = (_Grid("cells", "linear{n=6}", "flops", (80.0, 60.0), (_BEST, _ILP)),)
    state: list[Row] = []
    rows: list[Row] = []
    executor = way.executor
    for grid in quick if session.quick else _grids(folder):
        wanted = [name for name in grid.strategies if session.wants(f"{grid.table} {grid.graph} {name}")]
        session.say(f"{grid.table}: {grid.graph}, {', '.join(wanted)}")
        cells = _cells(grid, wanted, way, executor)
        if not all(map(_is_measured, cells)):
            executor = Nobody()  # it was interrupted: the other cells are those that the file has
        if way.results is not None:
            cells = _cells(grid, grid.strategies, way, Nobody())
        measured = [cell for cell in cells if _is_measured(cell)]
        counts = {"cells": len(cells), "measured": len(measured)}
        state.append({"table": "state", "graph": grid.graph, "cost": _UNITS[grid.cost], **counts})
        rows += _of_batches(grid, measured) if grid.batches else [{"table": grid.table, **cell} for cell in measured]
    return [*state, *rows]


def _cells(grid: _Grid, strategies: Sequence[str], way: Way, executor: Any) -> list[Row]:
    """The cells of some strategies; none for none."""
    cells: list[Row] = []
    for divisor in (1, _SHORTER):
        names = [name for name in strategies if (name in grid.shorter) == (divisor == _SHORTER)]
        limit_s = way.limit_s / divisor
        if names:
            cells += compared(
                grid.graph, grid.budgets, names, limit_s, cost=grid.cost, executor=executor, results=way.results
            )
    return cells


def _is_measured(cell: Row) -> bool:
    return cell["ending"] != "not run"


def _of_batches(grid: _Grid, cells: Sequence[Row]) -> list[Row]:
    """Cells as answers about batches."""
    from remat_cli.api import build_graph, one_forward

    graph = build_graph(grid.graph)
    allowed = 100 * (one_forward(graph) / graph.total_cost - 1)
    asked = {share_of(graph, text): batch for text, batch in grid.batches}
    made = []
    for cell in cells:
        verdict = "open"
        if cell["overhead"] is not None and cell["overhead"] <= allowed:
            verdict = "possible"
        elif cell["bound"] is not None and cell["bound"] > allowed:
            verdict = "impossible"
        told = {key: cell[key] for key in ("graph", "strategy", "overhead", "bound", "wall_s", "ending")}
        made.append(
            {
                "table": "batches",
                **told,
                "batch": asked[cell["percent"]],
                "allowed": round(allowed, 3),
                "verdict": verdict,
            }
        )
    return made


def completed(rows: Sequence[Row]) -> list[Row]:
    """The cells with their distances to the greatest bound that any strategy proves at their budget."""
    made = [row for row in rows if row["table"] in {"state", "batches"}]
    for table in ("cells", "times"):
        made += with_distances([row for row in rows if row["table"] == table], None)
    return made


def ours(rows: Sequence[Row]) -> Ours:
    """What stands beside the published figure."""
    mine = [row for row in rows if row["table"] == "cells" and (row["graph"], row["strategy"]) == (_HUGE, _ILP)]
    said = "; ".join(dict.fromkeys(row["ending"] for row in mine if row["overhead"] is None))
    return {(_HUGE, "days in which the ILP finds no schedule"): (said, "minutes for each cell here")} if said else {}


def main(arguments: list[str] | None = None) -> int:
    """Measure what is missing, and make the page again."""
    from benchmarks.paper.__main__ import rebuild
    from remat_cli.planning.executors import DaskExecutor, LocalExecutor

    asked = _parser().parse_args(arguments)
    if asked.dask is not None and asked.jobs is not None:
        _parser().error("--jobs is for this machine; with --dask, the cluster's workers decide")
    output: Path | None = asked.output or (None if asked.quick else _FOLDER)
    results = asked.results or (None if output is None else output / "results" / "long.rows.jsonl")
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
    executor = Nobody() if asked.page else DaskExecutor(asked.dask) if asked.dask else LocalExecutor(asked.jobs or 1)
    way = Way(asked.limit, executor, results)
    benchmark = replace(load("paper.long"), name="long", run=lambda session: run(session, way, output or _FOLDER))
    result = perform(benchmark, quick=asked.quick, only=tuple(asked.only), limit_s=asked.limit)
    counts = [row for row in result["rows"] if row["table"] == "state"]
    done, whole = (sum(row[key] for row in counts) for key in ("measured", "cells"))
    print(f"{done} of {whole} cells are measured" + ("" if done == whole else "; the same command goes on"))
    if output is not None:
        path = output / "results" / "long.json"
        old = json.loads(path.read_text(encoding="utf-8")) if asked.page and path.is_file() else {}
        path.write_text(dump({**result, **old, "rows": result["rows"]}), encoding="utf-8")
        rebuild(output)
    return 0 if done == whole or asked.page else 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.long", description="The papers' optima, with long limits for each cell."
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="rows that are done; by default in results/")
    parser.add_argument("--dask", metavar="ADDRESS", help="run the cells on the Dask cluster of this scheduler")
    parser.add_argument("--jobs", type=int, help="cells at a time on this machine; 1 by default")
    parser.add_argument(
        "--limit", type=float, default=_LIMIT_S, metavar="SECONDS", help="for a cell; 900 by default, some get a third"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="cells whose label has one of these in it"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny graph: shows that it works")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing: make the page from the rows that are done"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for page and results; none with --quick")
    return parser


if __name__ == "__main__":
    sys.exit(main())
