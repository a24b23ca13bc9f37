"""Checkmate, figure 7: rounding the linear relaxation, at thresholds and at random.

Jain et al., Checkmate, MLSys 2020. S of the relaxation is rounded, and R is the least that S needs. Two-phase rounding
at the threshold 0.5, with ever more of the budget held back, is compared with other thresholds, with random rounding,
and with the optimum at the same budget. The paper shows costs and peaks as points of a picture, without numbers. The
relaxation is that of the retention model, which is nearly integral at moderate budgets, so most random roundings
coincide here. Costs are FLOPs, not measured times.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.frame import Column, Picture, Row, Session, Table
from benchmarks.measure import call
from benchmarks.paper.cells import compared

_CASES = (("vgg16", 60), ("unet", 60), ("mobilenet-v1", 50))
_EPSILONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
_THRESHOLDS = (0.1, 0.3, 0.7, 0.9)
_LIMIT_S = 25.0
_DIRECT, _DIRECT_PERCENTS = "vgg16", (50.0, 60.0, 75.0, 90.0)
_DIRECT_WAYS = ("checkmate-lp{direct=true}", "checkmate-lp{direct=true,samples=50000}")

TABLES = (
    Table(
        "rounding",
        "Figure 7: two-phase rounding",
        (
            Column("graph", "graph"),
            Column("way", "rounding"),
            Column("setting", "held back, threshold or seed"),
            Column("peak", "peak, % of no-remat", "number"),
            Column("overhead", "overhead, %", "number"),
            Column("fits", "within the budget"),
        ),
        "Budgets: " + ", ".join(f"{spec} {percent}%" for spec, percent in _CASES) + " of the no-remat peak.",
        named_by=("graph", "way", "setting"),
    ),
    Table(
        "direct",
        "Section 5.1: direct rounding of R and S in the relaxation of eq. 9",
        (
            Column("graph", "graph"),
            Column("percent", "budget, % of no-remat peak", "number"),
            Column("strategy", "strategy"),
            Column("overhead", "overhead, %", "number"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
        ),
        "No plan of this VGG16 fits in less than 46.9% of its peak, so the paper's quarter cannot be asked for. In "
        "costs of FLOPs the relaxation is nearly integral at large budgets, where roundings can be schedules.",
        named_by=("graph", "percent", "strategy"),
    ),
)
PICTURES = (Picture("figure7", "Overhead against peak of rounded schedules, by way of rounding, and the optimum."),)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    for spec, percents in (("linear{n=8}", (60.0,)),) if session.quick else ((_DIRECT, _DIRECT_PERCENTS),):
        wanted = [way for way in _DIRECT_WAYS if session.wants(f"{spec} {way}")]
        session.say(f"{spec}, {', '.join(wanted)}")
        for cell in compared(spec, percents, wanted, 2 * _LIMIT_S) if wanted else ():
            rows.append({"table": "direct"} | {c.key: cell[c.key] for c in TABLES[1].columns})
        session.keep(rows)
    for spec, percent in (("linear{n=8}", 60),) if session.quick else _CASES:
        if not session.wants(spec):
            continue
        session.say(spec)
        samples = session.times(20)
        called = call(
            "benchmarks.paper.rounding:rounded", limit_s=4 * _LIMIT_S, spec=spec, percent=percent, samples=samples
        )
        fallen = [{"way": called.problem, "setting": "", **dict.fromkeys(("peak", "overhead", "fits"))}]
        rows += [{"table": "rounding", "graph": spec, **row} for row in called.values or fallen]
        for cell in compared(spec, [percent], ["auto"], 4.0):
            values = {
                "peak": cell["peak"],
                "overhead": cell["overhead"],
                "fits": "yes" if cell["peak"] else cell["ending"],
            }
            rows.append({"table": "rounding", "graph": spec, "way": "optimum (auto)", "setting": "", **values})
        session.keep(rows)
    return rows


def rounded(spec: str, percent: int, samples: int) -> list[Row]:
    """All roundings of one graph."""
    import random

    from remat_cli.api import build_graph
    from remat_cli.control import Control
    from remat_cli.graph.analysis import no_remat_peak, peak_bound
    from remat_cli.plan.liveness import priced
    from remat_cli.solvers.highs import Highs
    from remat_cli.strategies.base import Context
    from remat_cli.strategies.published.rounding import relaxation

    graph = build_graph(spec)
    most = no_remat_peak(graph)
    budget = most * percent // 100
    control = Control.within(_LIMIT_S)
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
                "fits": "yes" if height <= budget else "no",
            }
        )

    for epsilon in _EPSILONS:
        less = int((1 - epsilon) * budget)
        if less < peak_bound(graph).bytes:
            break
        relaxed = relaxation(graph, less, "retention", control)
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

    panels = []
    rows = [row for row in rows if row["table"] == "rounding"]
    for graph in dict.fromkeys(row["graph"] for row in rows):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row["graph"] == graph and row["peak"] is not None:
                lines.setdefault(row["way"], []).append((row["peak"], row["overhead"]))
        panels.append(Panel(graph, lines))
    draw_curves(panels, "peak, % of no-remat", "overhead, %", folder / "rounding-figure7.svg", scatter=True)
