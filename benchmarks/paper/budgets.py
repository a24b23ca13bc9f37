"""Checkmate, figure 5 and table 2: overhead against budget, and geometric-mean ratios to the optimum.

Jain et al., Checkmate, MLSys 2020. Table 2 has VGG16 (batch 256, 224x224), VGG19, MobileNet (512, 224x224), ResNet-50
and U-Net (32, 416x608), and costs in FLOPs; figure 5 has VGG16, MobileNet and U-Net, and costs measured on a V100. So
there are two tables of cells here: with FLOPs, and with times on a V100 by its data sheet. The U-Net is the one on
VGG16 that the experiments published with the paper run, with padding as layers; VGG and it have a ReLU inside
convolutions, as Keras counts layers. `auto` replaces the paper's ILP; its proven bound limits its distance to the
optimum.
`checkmate-ilp` is the paper's ILP with HiGHS on one thread. The paper's two-phase rounding is `checkmate-lp` with its
epsilon and threshold on eq. 9. The row on the smaller retention model searches for both numbers and is stronger.
`revolve` stands at the column of Griewank and Walther; on U-Net and ResNet-50, where the paper has a dash, it runs on
chains of blocks. Compare shapes and order, not digits: the paper states neither the budgets over which table 2 averages
nor the measured times of figure 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.frame import Column, Picture, Row, Session, Table
from benchmarks.paper.cells import (
    CELLS,
    LEAST_NOTE,
    SHOWN_CELLS,
    compared,
    curves,
    distance,
    geometric_ratio,
    with_distances,
)
from benchmarks.paper.published import published

_LIMIT_S = 4.0
PERCENTS = (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0)
_NARROW = (98.0, 96.0, 94.0, 92.0, 90.0, 88.0, 86.0, 84.0, 82.0, 80.0)
"""For VGG: one gradient of its first layers takes most of the peak, so no plan fits in much less."""
_TOP = 60.0
_ROUNDED_LIMIT_S = 60.0
"""For the published rounding: the relaxation of eq. 9 is large."""
_ILP_LIMIT_S = 30.0
_FOUND = "the cheapest plan"
_BEST, _ROUNDED, _ILP = "auto", "checkmate-lp{epsilon=0.1,threshold=0.5}", "checkmate-ilp"
_STRATEGIES = (
    "ap-sqrt",
    "ap-greedy",
    "linearized-sqrt",
    "linearized-greedy",
    "revolve",
    "checkmate-lp{formulation=retention}",
    _BEST,
)
_VGG16, _VGG19, UNET = "vgg16{fused=true}", "vgg19{fused=true}", "vgg-unet{fused=true}"
_MOBILENET, _RESNET = "mobilenet-v1", "resnet50"
NETWORKS = (_MOBILENET, _VGG16, _VGG19, UNET, _RESNET)
_NAMES = {_MOBILENET: "mobilenet-v1", _VGG16: "vgg16", _VGG19: "vgg19", UNET: "unet", _RESNET: "resnet50"}
"""What the published figures call the networks."""
_SMALL = (_VGG16, _VGG19, UNET)
"""Those small enough for the ILP with HiGHS on one thread."""
FIGURE = (_VGG16, _MOBILENET, UNET)
_MEMORY = "16GB"
_V100 = "roofline:v100"
_QUICK = ("linear{n=6}",)
_QUICK_TIMED = ("feed-forward{depth=5,batch=512,width=64}",)
_COLUMNS = {
    "ap-sqrt": "Chen sqrt(n)",
    "linearized-sqrt": "Chen sqrt(n)",
    "ap-greedy": "Chen greedy",
    "linearized-greedy": "Chen greedy",
    "revolve": "Griewank log n",
    _ROUNDED: "two-phase LP rounding",
}
"""The column of the paper's table 2 at which a strategy stands."""
_METHODS = {"linearized-greedy": "linearized greedy", "linearized-sqrt": "linearized sqrt(n)"}
"""What the caption of figure 5 calls a strategy."""

TABLES = (
    Table(
        "cells",
        "Overhead against budget in FLOPs",
        CELLS,
        f"{_LIMIT_S:g} s a cell, {_ROUNDED_LIMIT_S:g} s for {_ROUNDED} and {_ILP_LIMIT_S:g} s for {_ILP}; one thread. "
        + LEAST_NOTE,
        named_by=("graph", "strategy", "percent"),
    ),
    Table(
        "times",
        "Figure 5: overhead against budget in times on a V100",
        CELLS,
        f"{_LIMIT_S:g} s a cell, one thread. The points of the paper's figure are a picture: the ILP is below all "
        "others at every budget and goes on to budgets at which they have no schedule. " + LEAST_NOTE,
        named_by=("graph", "strategy", "percent"),
    ),
)
SHOWN = (
    Table(
        "ratios",
        "Table 2: cost over the optimum's, geometric mean over budgets",
        (
            Column("graph", "graph"),
            Column("strategy", "strategy"),
            Column("ratio", "ratio, ours", "number"),
            Column("at_most", "over the proven least", "number"),
            Column("published", "ratio, published", "number"),
            Column("budgets", "budgets with a plan", "count"),
            Column("best_gap", "optimum known within, %", "number"),
            Column("why", "most likely why they differ"),
        ),
        "The paper's column of Chen stands at both generalisations, since it does not say which it used; they agree on "
        "linear networks. The ratio is to the cheapest plan that any of them found, which is the optimum within the "
        "percentage beside it; so the true ratio is at most that over the proven least.",
    ),
    Table(
        "at16",
        "Figure 5, caption: U-Net with 32 images in 16 GB",
        (
            Column("strategy", "strategy"),
            Column("overhead", "overhead, %", "number"),
            Column("published_overhead", "published, below", "number"),
            Column("speedup", "cost over auto's, times", "number"),
            Column("published_speedup", "cost over the ILP's, published", "number"),
            Column("above", "cost above the proven least, %", "number"),
            Column("ending", "ended"),
        ),
        "It takes 21.2 GB without recomputation here, and 23 GB in the paper.",
    ),
    *(replace(table, columns=SHOWN_CELLS) for table in TABLES),
)
PICTURES = (
    Picture(
        "figure5",
        "Overhead up to 60% against budget for every strategy on VGG16, MobileNet and U-Net, in times on a V100.",
    ),
)


def run(session: Session) -> list[Row]:
    cells: list[Row] = []

    def measure(
        table: str, spec: str, budgets: Sequence[float | str], strategies: Sequence[str], limit_s: float, cost: str
    ) -> None:
        wanted = [strategy for strategy in strategies if session.wants(f"{table} {spec} {strategy}")]
        if wanted:
            session.say(f"{table}: {spec}, {', '.join(wanted)}")
            made = compared(spec, budgets, wanted, limit_s, cost=cost)
            cells.extend({"table": table, **row} for row in made)
            session.keep(cells)

    def shares(spec: str) -> tuple[float, ...]:
        return (80.0, 60.0) if session.quick else _NARROW if spec in {_VGG16, _VGG19} else PERCENTS

    strategies = ("ap-sqrt", _BEST) if session.quick else _STRATEGIES
    for spec in _QUICK if session.quick else NETWORKS:
        percents = shares(spec)
        measure("cells", spec, percents, strategies, _LIMIT_S, "flops")
        measure("cells", spec, percents, (_ROUNDED,), _ROUNDED_LIMIT_S, "flops")
        if spec in _SMALL:
            measure("cells", spec, percents, (_ILP,), _ILP_LIMIT_S, "flops")
    for spec in _QUICK_TIMED if session.quick else FIGURE:
        budgets: tuple[float | str, ...] = (*shares(spec), _MEMORY) if spec == UNET else shares(spec)
        measure("times", spec, budgets, strategies, _LIMIT_S, _V100)
    return cells


def completed(rows: list[Row]) -> list[Row]:
    """Table 2 and the caption of figure 5, then the cells with their distances to the proven least."""
    cells, times = (with_distances([row for row in rows if row["table"] == table.key], _BEST) for table in TABLES)
    return [*ratios(cells), *at_16([row for row in times if row["graph"] == UNET]), *cells, *times]


def at_16(times: list[Row], part: str = "budgets") -> list[Row]:
    """The rows in 16 GB, whose budget is no round percentage, with the figures that ``part`` quotes of U-Net."""
    rows = [row for row in times if row["percent"] not in PERCENTS]
    made = []
    for row in rows:
        name = _NAMES.get(row["graph"], row["graph"])
        same = (other for other in rows if other["graph"] == row["graph"] and other["strategy"] == _BEST)
        best = next((other["overhead"] for other in same), None)
        known = best is not None and row["overhead"] is not None
        speedup = round((100 + row["overhead"]) / (100 + best), 3) if known and best is not None else None
        most = published(part, name, "overhead at 16 GB, batch 32, below (%)") if row["strategy"] == _BEST else None
        told = published(part, f"{name}, over {_METHODS.get(row['strategy'])}", "speed-up at 16 GB (times)")
        made.append({**row, "table": "at16", "published_overhead": most, "speedup": speedup, "published_speedup": told})
    return made


def ratios(cells: list[Row], part: str = "budgets") -> list[Row]:
    """Table 2 from the cells of figure 5, with the figures that ``part`` quotes."""
    rows: list[Row] = []
    for spec in dict.fromkeys(row["graph"] for row in cells):
        mine = [row for row in cells if row["graph"] == spec]
        best = _cheapest(mine)
        gaps = [row["above"] for row in best if row["above"] is not None]
        for strategy in dict.fromkeys(row["strategy"] for row in mine):
            ratio, budgets = geometric_ratio([*mine, *best], strategy, _FOUND)
            told = published(part, _NAMES.get(spec, spec), f"cost over the optimum's, {_COLUMNS.get(strategy)}")
            rows.append(
                {
                    "table": "ratios",
                    "graph": spec,
                    "strategy": strategy,
                    "ratio": ratio,
                    "at_most": distance(mine, strategy),
                    "published": told,
                    "budgets": budgets,
                    "best_gap": round(max(gaps), 3) if gaps else None,
                    "why": _why(strategy, ratio, told),
                }
            )
    return rows


def _cheapest(cells: list[Row]) -> list[Row]:
    """The cheapest cell at every budget, as those of a strategy of its own."""
    found: dict[float, Row] = {}
    for row in sorted((row for row in cells if row["overhead"] is not None), key=lambda row: float(row["overhead"])):
        found.setdefault(row["percent"], row)
    return [row | {"strategy": _FOUND} for row in found.values()]


def _why(strategy: str, ratio: float | None, told: float | None) -> str:
    """The most likely reason why a ratio differs from the published one by more than 0.03."""
    if ratio is None:
        return "no plan within any of the budgets by the time limit"
    if told is None or abs(ratio - told) <= 0.03:
        return ""
    if strategy == "revolve":
        return "other budgets; the paper does not say how it chose the number of stored states"
    if strategy.endswith("sqrt"):
        return "one schedule whatever the budget: the budgets averaged over make the ratio"
    return "other budgets: the paper does not state those over which it averages"


def draw(rows: list[Row], folder: Path) -> None:
    """The picture of figure 5."""
    from benchmarks.paper.plots import draw_curves

    graphs = dict.fromkeys(row["graph"] for row in rows if row["table"] == "times")
    ordered = [row for row in rows if row["table"] == "times"]
    ordered.sort(key=lambda row: row["percent"], reverse=True)
    panels = curves(ordered, "times", graphs)
    path = folder / "budgets-figure5.svg"
    draw_curves(panels, "budget, % of no-remat peak", "overhead, %", path, falling=True, top=_TOP)
