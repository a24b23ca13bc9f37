"""Checkmate, figure 7: rounding the linear relaxation, at thresholds and at random.

Jain et al., Checkmate, MLSys 2020. S of the relaxation is rounded, and R is the least that S needs. Two-phase rounding
at the threshold 0.5, with ever more of the budget held back, is compared with other thresholds, with random rounding,
and with the optimum at the same budget: 16 GB, as in the paper. The figure has VGG16 and MobileNet and shows costs and
peaks as points of a picture, without numbers; the U-Net comes on top. The relaxation is that of eq. 9.
Costs are times on a V100 by its data sheet.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call
from benchmarks.paper.cells import above, compared, share_of
from benchmarks.paper.published import Ours

_CASES = (
    ("vgg16{fused=true}", "16GB", "checkmate"),
    ("mobilenet-v1", "16GB", "checkmate"),
    ("vgg-unet{fused=true}", "16GB", "checkmate"),
)
"""Graph, budget, and the formulation that is relaxed."""
_QUICK = (("feed-forward{depth=5,batch=512,width=64}", "80%", "retention"),)
_V100 = "roofline:v100"
_EPSILONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
_THRESHOLDS = (0.1, 0.3, 0.7, 0.9)
_BEST = "optimum (auto)"
_LIMIT_S = 25.0
_GRAPH_LIMIT_S = 400.0
"""For all relaxations of one graph: one of MobileNet takes half a minute."""
_DIRECT, _DIRECT_PERCENTS = "vgg16{fused=true}", (25.0, 84.0, 88.0, 92.0, 96.0)
_DIRECT_WAYS = ("checkmate-lp{direct=true}", "checkmate-lp{direct=true,samples=50000}")

TABLES = (
    Table(
        "rounding",
        "Figure 7: two-phase rounding",
        (
            *columns("text", graph="graph", way="rounding", setting="held back, threshold or seed"),
            *columns("number", peak="peak, % of no-remat", overhead="overhead, %", bound="proven least overhead, %"),
            Column("fits", "within the budget"),
        ),
        "The distance is to the bound that `auto` proves at that budget; a rounding that does not fit may be below it.",
        named_by=("graph", "way", "setting"),
    ),
    Table(
        "direct",
        "Section 5.1: direct rounding of R and S in the relaxation of eq. 9",
        (
            Column("graph", "graph"),
            Column("percent", "budget, % of no-remat peak", "number"),
            Column("strategy", "strategy"),
            *columns("number", overhead="overhead, %", wall_s="time, s"),
            Column("ending", "ended"),
        ),
        "The first budget is the paper's quarter; no plan of this VGG16 fits in it. Costs are FLOPs.",
        named_by=("graph", "percent", "strategy"),
    ),
)
SHOWN = (
    replace(
        TABLES[0],
        columns=tuple(
            Column("above", "cost above the proven least, %", "number") if column.key == "bound" else column
            for column in TABLES[0].columns
        ),
    ),
    TABLES[1],
)
PICTURES = (
    Picture(
        "figure7", "Overhead against peak of rounded schedules, by way of rounding, and the optimum, with the budget."
    ),
)


def run(session: Session) -> list[Row]:
    direct, percents = ("linear{n=8}", (60.0,)) if session.quick else (_DIRECT, _DIRECT_PERCENTS)
    cells = [Cell(f"{direct} {way}", partial(_direct_rows, direct, percents, way)) for way in _DIRECT_WAYS]
    for case in _QUICK if session.quick else _CASES:
        cells.append(Cell(f"rounding {case[0]}", partial(_rounded_rows, *case, session.times(20))))
    return rows_of(session, cells)


def _direct_rows(spec: str, percents: tuple[float, ...], way: str) -> list[Row]:
    return [TABLES[1].row(cell, {}) for cell in compared(spec, percents, [way], 2 * _LIMIT_S)]


def _rounded_rows(spec: str, budget: str, formulation: str, samples: int) -> list[Row]:
    """All roundings of a graph, and the optimum at that budget."""
    asked = {"spec": spec, "budget": budget, "formulation": formulation, "samples": samples}
    called = call("benchmarks.paper.rounding:rounded", limit_s=1.2 * _GRAPH_LIMIT_S, **asked)
    rows = [TABLES[0].row({"graph": spec}, row) for row in called.values or [{"way": called.problem, "setting": ""}]]
    for cell in compared(spec, [budget], ["auto"], 4.0, cost=_V100):
        case = {"way": _BEST, "setting": "", "fits": "yes" if cell["peak"] else cell["ending"]}
        rows.append(TABLES[0].row(case, cell))
    return rows


def completed(rows: list[Row]) -> list[Row]:
    """The rows with the distance of each cost to the proven least."""
    least = {row["graph"]: row["bound"] for row in rows if row["table"] == "rounding" and row["way"] == _BEST}
    return [
        row | {"above": above(row["overhead"], least.get(row["graph"]))} if row["table"] == "rounding" else row
        for row in rows
    ]


def ours(rows: list[Row]) -> Ours:
    """What stands beside the published figures: how direct rounding at random ends at each budget with a plan."""
    drawn = [row for row in rows if row["table"] == "direct" and "samples" in row["strategy"]]
    possible = [row for row in drawn if not row["ending"].startswith("no plan fits")]
    fit = [f"{row['percent']:g}%" for row in possible if row["overhead"] is not None]
    none = [f"{row['percent']:g}%" for row in possible if row["overhead"] is None]
    said = f"some fit at {', '.join(fit)} of the peak, none at {', '.join(none)}" if possible else None
    subject = "vgg16, direct rounding at random"
    return {(subject, "samples"): (said, "larger budgets: a quarter of the peak is below the largest working set")}


def rounded(spec: str, budget: str, formulation: str, samples: int) -> list[Row]:
    """All roundings of one graph."""
    import random

    from remat_cli.api import build_graph
    from remat_cli.control import Control
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.plan.liveness import priced
    from remat_cli.solvers.highs import Highs
    from remat_cli.strategies.base import Context
    from remat_cli.strategies.published.checkmate_lp import relaxation
    from remat_cli.units import parse_budget

    graph = build_graph(spec, cost=_V100)
    most = no_remat_peak(graph)
    budget_bytes = parse_budget(budget).bytes_for(most)
    control = Control.within(_GRAPH_LIMIT_S)
    context = Context(control, Highs(), threads=1)
    rows: list[Row] = []

    def add(way: str, setting: str, computes: tuple[int, ...]) -> None:
        found = priced(graph, computes)
        height = found.peak_bytes
        rows.append(
            {
                "way": way,
                "setting": setting,
                "peak": round(100 * height / most, 3),
                "overhead": round(100 * (found.cost / graph.total_cost - 1), 4),
                "fits": "yes" if height <= budget_bytes else "no",
            }
        )

    for epsilon in _EPSILONS:
        relaxed = relaxation(graph, int((1 - epsilon) * budget_bytes), formulation, control)
        values = relaxed.solve(context).values
        if values is None:
            break
        add("two-phase, 0.5", f"epsilon {epsilon:g}", relaxed.rounded(values, 0.5))
        if epsilon == 0:
            for threshold in _THRESHOLDS:
                add("other thresholds", f"{threshold:g}", relaxed.rounded(values, threshold))
            for seed in range(samples):
                add("at random", f"seed {seed}", relaxed.sampled(values, random.Random(seed)))
    return rows


def draw(rows: list[Row], folder: Path) -> None:
    """The picture of figure 7."""
    from benchmarks.paper.plots import Panel, draw_curves
    from remat_cli.api import build_graph

    panels = []
    rows = [row for row in rows if row["table"] == "rounding"]
    for graph, budget, _ in (*_CASES, *_QUICK):
        mine = [row for row in rows if row["graph"] == graph and row["peak"] is not None]
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in mine:
            lines.setdefault(row["way"], []).append((row["peak"], row["overhead"]))
        least = next((row["bound"] for row in mine if row["way"] == _BEST), None)
        if mine:
            whole = share_of(build_graph(graph), budget)
            floor = [] if least is None else [(min(row["peak"] for row in mine), least), (whole, least)]
            panels.append(Panel(graph, lines, floor, marks={budget: whole}, dots=tuple(lines)))
    if panels:
        draw_curves(panels, "peak, % of no-remat", "overhead, %", folder / "rounding-figure7.svg")
