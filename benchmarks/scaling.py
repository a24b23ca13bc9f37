"""Gaps as graphs grow.

Random graphs of three families (`benchmarks/families.py`, seed 0) of 100 to 10,000 nodes. *Layered* graphs are like
those of the Moccasin paper, at 90% of their no-remat peak. *Residual* graphs are training steps of series-parallel
networks, at 60%. *Wild* graphs are random DAGs whose costs and sizes have heavy tails, at 80%. The default strategy is
compared with the paper's MILP (`checkmate-ilp`, same solver) and Moccasin's formulation in CP-SAT, if those can be
built. Gap is (cost - bound) / cost with the bound that the strategy itself proved; "to 5%" and "to 1%" are the seconds
until the gap was that small.
"""

from functools import partial
from pathlib import Path

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.solving import COST, OUTCOME, STRATEGY, graph_of, solved_apart

LIMIT_S = 30.0
_QUICK_LIMIT_S = 5.0
_LATE_S = 90.0
_SIZES = (100, 300, 1000, 3000, 10_000)
_BUDGETS = {"layered": 90, "residual": 60, "wild": 80}
_LARGEST = {"auto": 10_000, "checkmate-ilp": 300, "moccasin": 1000}
"""Strategies, each with the largest number of nodes that it runs on."""

TABLES = (
    Table(
        "scaling",
        "",
        (
            Column("family", "family"),
            *columns("count", nodes="nodes", edges="edges"),
            STRATEGY,
            *COST,
            *OUTCOME[:3],
            *columns("number", gap5_s="to 5%, s", gap1_s="to 1%, s"),
            *OUTCOME[3:],
        ),
        f"One run each with one thread, {LIMIT_S:g} s at most, seed 0. The search stops at a gap of 0.01%.",
        named_by=("family", "nodes", "strategy"),
    ),
)
PICTURES = (
    Picture("time", "Seconds to the first plan against the number of nodes, for each family and strategy."),
    Picture("gap", "Proven gap in percent against the number of nodes, for each family and strategy."),
    Picture("memory", "Peak memory of the process against the number of nodes, for each family and strategy."),
)


def run(session: Session) -> list[Row]:
    limit_s = session.limited(LIMIT_S, _QUICK_LIMIT_S)
    cells = []
    for family in _BUDGETS:
        for n in (40,) if session.quick else _SIZES:
            for strategy, largest in _LARGEST.items():
                if n <= largest and (strategy == "auto" or not session.quick):
                    label = f"{family}, {n} nodes, {strategy}"
                    cells.append(Cell(label, partial(_row, family, n, strategy, limit_s)))
    return rows_of(session, cells)


def _row(family: str, n: int, strategy: str, limit_s: float) -> Row:
    asked = {"spec": f"{family}-{n}", "budget": f"{_BUDGETS[family]}%", "strategy": strategy}
    values = solved_apart(time_limit_s=limit_s, late_s=_LATE_S, **asked)
    # Some families make one node less than requested. The name of a row uses the request, which failed rows have too.
    nodes = values.get("nodes") or len(graph_of(asked["spec"]).nodes)
    return TABLES[0].row({"family": family, "nodes": nodes, "strategy": strategy}, values)


def draw(rows: list[Row], folder: Path) -> None:
    """The pictures, as ``scaling-NAME.svg`` in ``folder``."""
    from benchmarks.plots import Panel, draw_panels

    for key, column, scale, label, floor in (
        ("time", "first_s", 1.0, "time to the first plan, s", 0.01),
        ("gap", "gap", 1.0, "proven gap, %", 1e-4),
        ("memory", "peak_bytes", 1e-9, "peak memory, GB", 0.01),
    ):
        panels = []
        for family, percent in _BUDGETS.items():
            lines: dict[str, list[tuple[float, float]]] = {strategy: [] for strategy in _LARGEST}
            for row in rows:
                if row["family"] == family and row[column] is not None:
                    lines[row["strategy"]].append((row["nodes"], max(floor, scale * row[column])))
            panels.append(Panel(f"{family}, {percent}% of the peak", lines))
        draw_panels(panels, "nodes", label, folder / f"scaling-{key}.svg")
