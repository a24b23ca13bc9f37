"""Checkmate, figure 5 and table 2: overhead against budget, and geometric-mean ratios to the optimum.

Jain et al., Checkmate, MLSys 2020. Table 2 has VGG16, VGG19, MobileNet, ResNet-50 and U-Net, and costs in FLOPs; figure
5 has VGG16, MobileNet and U-Net, and costs measured on a V100. So there are two tables of cells here: with FLOPs, and
with times on a V100 by its data sheet. Section 6.4 of the paper has the resolutions, 224x224 and for the U-Net 416x608,
and section 6.3 its batch of 32; batches of the others stand nowhere in the texts, so those of the zoo are our own. The
U-Net is the one on VGG16 that the experiments published with the paper run, with padding as layers; VGG and it have a
ReLU inside convolutions, as Keras counts layers. One gradient of such a VGG16's first layers takes most of the peak, so
no plan of it takes less than 84.4%; figure 5 also has the zoo's `vgg16` with a ReLU as a layer of its own, whose plans
go down to 46.9%. `auto` replaces the paper's ILP; its proven bound limits its distance to the optimum.
`checkmate-ilp` is the paper's ILP with HiGHS on one thread. The paper's two-phase rounding is `checkmate-lp` with its
epsilon and threshold on eq. 9. The row on the smaller retention model searches for both numbers and is stronger.
`revolve` stands at the column of Griewank and Walther; on U-Net and ResNet-50, where the paper has a dash, it runs on
chains of blocks. Table 2 and figure 5 take the cheaper of two measurements of a cell: with the short limits of `make
paper`, and with those of `make paper-long`, which has a section of its own below. Compare shapes and order, not digits:
the paper states neither the budgets over which table 2 averages nor the measured times of figure 5.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.paper.cells import (
    CELLS,
    LEAST_NOTE,
    SHOWN_CELLS,
    cells_of,
    distance,
    geometric_ratio,
    with_distances,
)
from benchmarks.paper.published import FIGURES, Ours, published

_LIMIT_S = 4.0
PERCENTS = (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0)
_NARROW = (98.0, 96.0, 94.0, 92.0, 90.0, 88.0, 86.0, 84.0, 82.0, 80.0)
"""For VGG: one gradient of its first layers takes most of the peak, so no plan fits in much less."""
_LAYERED_PERCENTS = (98.0, 90.0, 80.0, 70.0, 60.0, 55.0, 50.0, 47.0)
_NARROWEST = 84.5
"""The whole range of VGG16: the least is 84.4%, and 46.9% where a ReLU is a layer of its own."""
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
_LAYERED = "vgg16"
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
_LARGEST = "cost of rounding over the optimum's, largest mean (times)"
_NOT_DRAWN = ("checkmate-lp{formulation=retention}",)
"""In figure 5: not a method of the paper."""
_ON_TOP = (_ROUNDED, _ILP, _BEST)
_DATA_SHEET = "times of a data sheet"
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
        f"{_LIMIT_S:g} s a cell, one thread; ILP and published rounding stand with the long run, but for `{_LAYERED}`, "
        "where they have the limits of the cells in FLOPs. The points of the paper's figure are a picture: the ILP is "
        "below all others at every budget and goes on to budgets at which they have no schedule. " + LEAST_NOTE,
        named_by=("graph", "strategy", "percent"),
    ),
)
SHOWN = (
    Table(
        "ratios",
        "Table 2: cost over the optimum's, geometric mean over budgets",
        (
            *columns("text", graph="graph", strategy="strategy"),
            *columns("number", ratio="ratio, ours", at_most="over the proven least", published="ratio, published"),
            Column("budgets", "budgets with a plan", "count"),
            Column("best_gap", "optimum known within, %", "number"),
            Column("why", "most likely why they differ"),
        ),
        "The paper's column of Chen stands at both generalisations, since it does not say which it used; they agree on "
        "linear networks. The ratio is to the cheapest plan that any of them found, which is the optimum within the "
        "percentage beside it; so the true ratio is at most that over the proven least. A cell of the short and of the "
        "long run counts with the cheaper plan.",
    ),
    Table(
        "at16",
        "Figure 5, caption: U-Net with 32 images in 16 GB",
        (
            Column("strategy", "strategy"),
            *columns("number", overhead="overhead, %", published_overhead="published, below"),
            *columns("number", speedup="cost over auto's, times", published_speedup="cost over the ILP's, published"),
            *columns("number", above="cost above the proven least, %"),
            Column("ending", "ended"),
        ),
        "It takes 21.2 GB without recomputation here, and 23 GB in the paper.",
    ),
    *(replace(table, columns=SHOWN_CELLS) for table in TABLES),
)
PICTURES = (
    Picture(
        "figure5",
        "Overhead against budget in GB on VGG16, MobileNet and U-Net, in times on a V100: on the left up to 60%, "
        "on the right close to the optimum. The grey area is proven to be impossible; what is published is black.",
    ),
)


def run(session: Session) -> list[Row]:
    def shares(spec: str) -> tuple[float, ...]:
        return (80.0, 60.0) if session.quick else _NARROW if spec in {_VGG16, _VGG19} else PERCENTS

    strategies = ("ap-sqrt", _BEST) if session.quick else _STRATEGIES
    cells: list[Cell] = []
    for spec in _QUICK if session.quick else NETWORKS:
        cells += cells_of("cells", spec, shares(spec), strategies, _LIMIT_S)
        cells += cells_of("cells", spec, shares(spec), (_ROUNDED,), _ROUNDED_LIMIT_S)
        if spec in _SMALL:
            cells += cells_of("cells", spec, shares(spec), (_ILP,), _ILP_LIMIT_S)
    for spec in _QUICK_TIMED if session.quick else FIGURE:
        more: dict[str, tuple[float | str, ...]] = {UNET: (_MEMORY,), _VGG16: (_NARROWEST,)}
        cells += cells_of("times", spec, (*shares(spec), *more.get(spec, ())), strategies, _LIMIT_S, cost=_V100)
    if not session.quick:
        for names, limit_s in ((strategies, _LIMIT_S), ((_ROUNDED,), _ROUNDED_LIMIT_S), ((_ILP,), _ILP_LIMIT_S)):
            cells += cells_of("times", _LAYERED, _LAYERED_PERCENTS, names, limit_s, cost=_V100)
    return rows_of(session, cells)


BESIDE = ("long",)
"""Parts whose rows :func:`completed` takes as well."""


def completed(rows: list[Row], longer: Sequence[Row] = ()) -> list[Row]:
    """Table 2 and the caption of figure 5, then the cells, those of the long run too, with distances to the least."""
    cells, times = (
        with_distances(_cheaper([row for row in (*rows, *longer) if row["table"] == table.key]), None)
        for table in TABLES
    )
    cells = [row for row in cells if row["graph"] in NETWORKS] or cells
    return [*ratios(cells), *at_16([row for row in times if row["graph"] == UNET]), *cells, *times]


def _cheaper(cells: Sequence[Row]) -> list[Row]:
    """The cells, each once: of two measurements the one with the cheaper plan, and the greater bound of both."""
    best: dict[tuple[str, str, float], Row] = {}
    for cell in cells:
        at = cell["graph"], cell["strategy"], cell["percent"]
        known = best.setdefault(at, cell)
        bound = max((row["bound"] for row in (known, cell) if row["bound"] is not None), default=None)
        better = min(known, cell, key=lambda row: math.inf if row["overhead"] is None else row["overhead"])
        best[at] = better | {"bound": bound}
    return list(best.values())


def ours(rows: Sequence[Row], part: str = "budgets") -> Ours:
    """What stands beside the published figures."""
    told: Ours = {}
    names = {name: spec for spec, name in _NAMES.items()}
    for figure in FIGURES:
        if figure.part == part and figure.quantity.startswith("cost over the optimum's, "):
            mine = [
                row
                for row in rows
                if row["table"] == "ratios" and row["graph"] in {figure.subject, names.get(figure.subject)}
                if _COLUMNS.get(row["strategy"]) == figure.quantity.rpartition(", ")[2] and row["ratio"] is not None
            ]
            several = len({row["ratio"] for row in mine}) > 1
            texts = [f"{row['ratio']:.4g} ({row['strategy']})" if several else f"{row['ratio']:.4g}" for row in mine]
            why = _why(mine[0]["strategy"], mine[0]["ratio"], figure.value) if mine else ""
            told[figure.subject, figure.quantity] = ", ".join(dict.fromkeys(texts)) or "no plan in time", why
    if part == "budgets":
        told["all", _LARGEST] = _largest_of_rounding(rows), "one budget for ResNet-50; times have another optimum"
    for row in rows:
        if row["table"] == "at16" and row["graph"] in {UNET, "unet"}:
            if row["strategy"] == _BEST and row["overhead"] is not None:
                told["unet", "overhead at 16 GB, batch 32, below (%)"] = row["overhead"], _DATA_SHEET
            method = f"unet, over {_METHODS.get(row['strategy'])}"
            if row["strategy"] in _METHODS and row["speedup"] is not None:
                told[method, "speed-up at 16 GB (times)"] = row["speedup"], _DATA_SHEET
    return told


def _largest_of_rounding(rows: Sequence[Row]) -> str | None:
    """The largest mean over budgets of the cost of the published rounding over the optimum, for both kinds of costs."""
    found = []
    for table, unit in (("cells", "FLOPs"), ("times", "V100 times")):
        ratios_of = []
        for graph in dict.fromkeys(row["graph"] for row in rows if row["table"] == table):
            mine = [row for row in rows if row["table"] == table and row["graph"] == graph]
            ratio, budgets = geometric_ratio([*mine, *_cheapest(mine)], _ROUNDED, _FOUND)
            if ratio is not None:
                ratios_of.append((ratio, f"{ratio:.4g} in {unit} ({graph}, {budgets} budgets)"))
        found += [max(ratios_of)[1]] if ratios_of else []
    return ", ".join(found) or None


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
    from remat_cli.api import build_graph
    from remat_cli.graph.analysis import no_remat_peak

    times = [row for row in rows if row["table"] == "times"]
    wholes = {graph: no_remat_peak(build_graph(graph)) for graph in dict.fromkeys(row["graph"] for row in times)}
    draw_figure_5(times, wholes, folder / "budgets-figure5.svg", {UNET: _PUBLISHED_POINTS})


_PUBLISHED_POINTS = (
    ("published, ILP: below", "unet", "overhead at 16 GB, batch 32, below (%)", None),
    ("published, linearized-greedy: times auto", "unet, over linearized greedy", "speed-up at 16 GB (times)", _BEST),
    ("published, linearized-sqrt: times auto", "unet, over linearized sqrt(n)", "speed-up at 16 GB (times)", _BEST),
)
"""Points at 16 GB: name, subject and quantity of the figure, and the strategy whose cost it multiplies."""


def draw_figure_5(
    times: Sequence[Row],
    wholes: Mapping[str, int],
    path: Path,
    told: Mapping[str, Sequence[tuple[str, str, str, str | None]]],
) -> None:
    """Overhead against budget in GB, a row for each graph: on the left up to 60%, on the right close to the optimum.

    Args:
        times: The cells, with distances.
        wholes: The peak without recomputation of every graph, in bytes.
        path: The file.
        told: By graph the published points at 16 GB, see ``_PUBLISHED_POINTS``.
    """
    from benchmarks.paper.plots import Panel, draw_curves

    panels = []
    for graph in dict.fromkeys(row["graph"] for row in times):
        mine = [r for r in times if r["graph"] == graph and r["strategy"] not in _NOT_DRAWN]
        unit = wholes[graph] / 100 / 1e9
        order = sorted({row["strategy"] for row in mine}, key=lambda name: (name in _ON_TOP, name))
        lines = {
            name: [(row["percent"] * unit, row["overhead"]) for row in mine if row["strategy"] == name and row["peak"]]
            for name in order
        }
        best = {row["percent"]: row["overhead"] for row in mine if row["strategy"] == _BEST and row["peak"]}
        floor = sorted({(row["percent"] * unit, row["least"]) for row in mine if row["percent"] in best})
        points = {}
        for name, subject, quantity, base in told.get(graph, ()):
            value = published("budgets", subject, quantity)
            at16 = [over for percent, over in best.items() if abs(percent * unit - 16) < 0.01]
            if value is not None and (base is None or at16):
                points[name] = [(16.0, value if base is None else value * (100 + at16[0]) - 100)]
        marks = {"16 GB": 16.0} if min(best, default=100.0) * unit < 16 < 100 * unit else {}
        title = "vgg16 with fused layers" if graph == _VGG16 else graph.partition("{")[0]
        near = 1.25 * max((least for _, least in floor), default=0.0)
        panels.append(Panel(title, lines, floor, points, marks, top=_TOP, steps=True))
        close = f"{title}, from below"
        panels.append(Panel(close, lines, floor, {}, marks, top=max(near, 0.1), steps=True))
    draw_curves(panels, "budget, GB", "overhead, %", path, falling=True, columns=2)
