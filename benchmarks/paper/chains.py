"""Rotor's comparison: Rotor against sequential and revolve on chains of ResNets and DenseNets.

Beaumont et al., Optimal checkpointing for heterogeneous chains, INRIA RR-9302, 2019. The graphs are those of the zoo,
cut into chains of blocks at the nodes that every path passes. `sequential` is PyTorch's method of equal segments.
`revolve-bytes` is the paper's `revolve`: it knows costs and sizes, and keeps only the outputs of blocks. `revolve`
knows neither, and `revolve-hetero` knows costs and counts values. The paper's curves plot throughput on a GPU and print
no numbers. Compare the shapes: at no budget does Rotor cost more than the others. `auto` is not limited to chains of
blocks, and shows the price of that limit. If it has no plan, time was too short for the larger graph.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.frame import Column, Picture, Row, Session, Table
from benchmarks.paper.cells import CELLS, compared, curves, geometric_ratio

_LIMIT_S = 6.0
_PERCENTS = (90.0, 75.0, 60.0, 50.0, 40.0, 30.0)
_NETWORKS = ("resnet50", "resnet101", "densenet121")
_BEST = "rotor"
_STRATEGIES = ("sequential", "revolve", "revolve-hetero", "revolve-bytes", _BEST)

TABLES = (
    Table(
        "cells",
        "Overhead against budget",
        CELLS,
        f"{_LIMIT_S:g} s a cell, one thread.",
        named_by=("graph", "strategy", "percent"),
    ),
)
SHOWN = (
    Table(
        "ratios",
        "Cost over Rotor's, geometric mean over budgets",
        (
            Column("graph", "graph"),
            Column("strategy", "strategy"),
            Column("ratio", "ratio", "number"),
            Column("budgets", "budgets with a plan", "count"),
            Column("alone", "budgets that only Rotor has", "count"),
        ),
    ),
    *TABLES,
)
PICTURES = (Picture("curves", "Overhead against budget on ResNet and DenseNet chains for every strategy."),)


def run(session: Session) -> list[Row]:
    cells: list[Row] = []
    for spec in ("linear{n=10}",) if session.quick else _NETWORKS:
        strategies = _STRATEGIES if session.quick else (*_STRATEGIES, "auto")
        wanted = [strategy for strategy in strategies if session.wants(f"{spec} {strategy}")]
        percents = (75.0, 60.0) if session.quick else _PERCENTS
        if wanted:
            session.say(spec)
            cells += [{"table": "cells", **row} for row in compared(spec, percents, wanted, _LIMIT_S)]
            session.keep(cells)
    return cells


def completed(rows: list[Row]) -> list[Row]:
    """The ratios, then the cells."""
    cells = [row for row in rows if row["table"] == "cells"]
    return [*_ratios(cells), *cells]


def _ratios(cells: list[Row]) -> list[Row]:
    rows: list[Row] = []
    for spec in dict.fromkeys(row["graph"] for row in cells):
        mine = [row for row in cells if row["graph"] == spec]
        served = {row["percent"] for row in mine if row["strategy"] == _BEST and row["overhead"] is not None}
        for strategy in dict.fromkeys(row["strategy"] for row in mine):
            if strategy != _BEST:
                ratio, budgets = geometric_ratio(mine, strategy, _BEST)
                values = {"ratio": ratio, "budgets": budgets, "alone": len(served) - budgets}
                rows.append({"table": "ratios", "graph": spec, "strategy": strategy, **values})
    return rows


def draw(rows: list[Row], folder: Path) -> None:
    """The picture."""
    from benchmarks.paper.plots import draw_curves

    panels = curves(rows, "cells", dict.fromkeys(row["graph"] for row in rows))
    draw_curves(panels, "budget, % of no-remat peak", "overhead, %", folder / "chains-curves.svg", falling=True)
