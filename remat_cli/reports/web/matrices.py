"""The matrices R and S of a plan, as charts."""

from __future__ import annotations

from typing import Any

from remat_cli.plan.model import Plan
from remat_cli.plan.occupancy import Kind
from remat_cli.plan.raster import AGAIN, Raster, raster
from remat_cli.reports.palette import KINDS
from remat_cli.reports.web.page import PAPER, Chart, Section, label


def matrices(plan: Plan) -> Section:
    """R and S side by side; a sentence for a plan without stages."""
    title = "The matrices R and S"
    drawn = raster(plan)
    if drawn is None:
        return Section(title, "This plan has no stages: its first computations are not in the order of its graph.")
    note = (
        "The plan as the literature writes it, with a row for each stage, which ends with the first computation of one "
        "node: R shows the nodes that are computed in a stage, S those whose values are kept from the stage before."
    )
    if drawn.each > 1:
        note += f" Each cell stands for {drawn.each} nodes in {drawn.each} stages, and is filled if any of them is."
    again, kept = int((drawn.computed == AGAIN).sum()), int(drawn.kept.sum())
    rows, columns = drawn.computed.shape
    size = f"{rows} stages by {columns} columns of nodes"
    charts = tuple(
        Chart(f"matrix-{which.lower()}", [_heatmap(plan, drawn, which)], _matrix_layout(name, drawn), 470, words, True)
        for which, name, words in (
            ("R", "R: computed", f"Matrix R, {size}: {again:,} cells are computed again."),
            ("S", "S: kept", f"Matrix S, {size}: {kept:,} cells are kept."),
        )
    )
    return Section(title, note, charts)


def _heatmap(plan: Plan, drawn: Raster, which: str) -> dict[str, Any]:
    cells = drawn.computed if which == "R" else drawn.kept
    first, again, kept = KINDS[Kind.FORWARD], KINDS[Kind.RECOMPUTED], KINDS[Kind.UPDATE]
    colours = [PAPER, first, again] if which == "R" else [PAPER, kept]
    words = ["not", "first time", "again"] if which == "R" else ["not", "kept"]
    number = len(colours)
    rows, columns = cells.shape
    return {
        "type": "heatmap",
        "z": cells,
        # Names instead of numbers, so that pointing at a cell shows them; the layout sets the ticks.
        "x": [_cell_name(plan, k, drawn.each) for k in range(columns)],
        "y": [_cell_name(plan, k, drawn.each, "stage ") for k in range(rows)],
        "zmin": -0.5,
        "zmax": number - 0.5,
        "colorscale": [[(k + end) / number, colours[k]] for k in range(number) for end in (0, 1)],
        "colorbar": {
            "tickvals": list(range(number)),
            "ticktext": words,
            "orientation": "h",
            "thickness": 10,
            "len": 0.6 if which == "R" else 0.4,
            "y": 1.01,
            "yanchor": "bottom",
            "outlinewidth": 0,
        },
        "hovertemplate": "%{x}<br>%{y}<extra></extra>",
    }


def _cell_name(plan: Plan, k: int, each: int, what: str = "") -> str:
    """The name of the k-th column or row of ``each`` nodes; begins with its number, so that names are unique."""
    nodes = plan.graph.nodes
    first, last = k * each, min((k + 1) * each, len(nodes)) - 1
    if first >= len(nodes):
        return f"{what}{first}: the end"
    if first == last:
        return f"{what}{first}: {label(nodes[first].id)}"
    return f"{what}{first} to {last}: {label(nodes[first].id, 30)} to {label(nodes[last].id, 30)}"


def _matrix_layout(title: str, drawn: Raster) -> dict[str, Any]:
    rows = drawn.computed.shape[0]
    step = next(k * 10**power for power in range(9) for k in (1, 2, 5) if rows <= 8 * k * 10**power)
    marks = list(range(0, rows, step))
    ticks = {
        "type": "category",
        "tickmode": "array",
        "tickvals": marks,
        "ticktext": [str(k * drawn.each) for k in marks],
    }
    return {
        "margin": {"l": 50, "r": 8, "t": 60, "b": 40},
        "xaxis": {"title": {"text": f"{title} (node)"}, **ticks, "showgrid": False, "constrain": "domain"},
        "yaxis": {
            **ticks,
            "title": {"text": "stage"},
            "autorange": "reversed",
            "showgrid": False,
            "scaleanchor": "x",
            "constrain": "domain",
        },
    }
