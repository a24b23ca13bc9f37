"""The page of a comparison: cost over no-remat and peak against budget for every strategy, with the proven bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_cli.plan.comparison import Comparison, Ended, Row
from remat_cli.reports.palette import COLOURS
from remat_cli.reports.web.page import INK, Chart, Page, Section, Table, label, render_page
from remat_cli.reports.words import cost_words, count, exact_bytes
from remat_cli.units import format_bytes, format_duration, format_percent

_MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star", "cross", "hexagon")
_DASHES = ("solid", "dash", "dot", "dashdot")
_MISSING = {
    Ended.NONE: "no plan fits",
    Ended.LIMIT: "no plan within the time limit",
    Ended.REFUSED: "does not take this graph",
    Ended.FAILED: "failed",
    Ended.INTERRUPTED: "interrupted",
}
_DRAWN_MISSING = (Ended.NONE, Ended.LIMIT)


def comparison_page(comparison: Comparison, command: str) -> str:
    """The page of ``comparison`` as HTML.

    Args:
        comparison: The comparison.
        command: The command that makes the page.

    Raises:
        UsageError: If what draws the page is not installed.
    """
    note = (
        "A plan stays a plan with more memory, and nothing is known in between: steps, not slopes. No plan can lie in "
        "the grey area: that is proven. Crosses at the top are budgets without a plan. Click a name to hide its line, "
        "double-click to see it alone."
    )
    words = "Cost over no-remat against budget, a line for each strategy."
    charts = (
        Chart("overhead", _overheads(comparison), _layout("cost over no-remat, %"), 520, words),
        Chart("peak", _peaks(comparison), _layout("peak of the plan", size=True), 380, "Peak against budget."),
    )
    return render_page(
        Page(
            title=f"Strategies on {comparison.graph.name or 'graph'}",
            verdict="interrupted" if comparison.interrupted else "",
            good=None,
            facts=_facts(comparison),
            sections=[
                Section("Overhead against budget", note, charts[:1]),
                Section("Peak against budget", "How much of its budget each plan uses.", charts[1:]),
                Section("All plans", table=_table(comparison)),
            ],
            command=command,
            problems=comparison.contradictions(),
        )
    )


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    named = {name.removesuffix("_s").replace("_", " "): value for name, value in comparison.limits.items()}
    if (seconds := comparison.limits.get("time_limit_s")) is not None:
        named["time limit"] = format_duration(seconds)
    limits = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    return [
        ("graph", count(len(comparison.graph.nodes), "node")),
        (
            "no-remat",
            f"{cost_words(comparison.graph.total_cost, comparison.graph.cost_unit)}, "
            f"peak {exact_bytes(comparison.no_remat_peak_bytes)}",
        ),
        ("each cell", limits),
    ]


def _look(k: int) -> dict[str, Any]:
    """Colour, marker and dashes of the k-th strategy: never told apart by colour alone."""
    colour = COLOURS[k % len(COLOURS)]
    colour = INK if colour == "#000000" else colour
    return {
        "mode": "lines+markers",
        "cliponaxis": False,
        "line": {"color": colour, "shape": "hv", "dash": _DASHES[k // len(COLOURS) % len(_DASHES)], "width": 1.7},
        "marker": {"color": colour, "symbol": _MARKERS[k % len(_MARKERS)], "size": 7},
    }


def _overheads(comparison: Comparison) -> list[dict[str, Any]]:
    base = comparison.graph.total_cost or 1.0
    budgets = [amount for _, amount in comparison.budgets]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "name": "no plan (proven)",
            "x": budgets,
            "y": [100 * (comparison.bound(amount) / base - 1) for amount in budgets],
            "mode": "lines",
            # What holds for a budget holds for all smaller ones: the step reaches back.
            "line": {"shape": "vh", "width": 1, "color": "#8a9199"},
            "fill": "tozeroy",
            "fillcolor": "rgba(138,145,153,0.35)",
            "hovertemplate": "no plan below %{y:.4g}%<extra>proven</extra>",
        }
    ]
    for k, (strategy, rows) in enumerate(comparison.by_strategy().items()):
        traces.append(_line(k, strategy, [row for row in rows if row.overhead is not None], overhead=True))
    return traces + _crosses(comparison)


def _crosses(comparison: Comparison) -> list[dict[str, Any]]:
    """Budgets at which a strategy that takes the graph has no plan, above all lines."""
    tops = [100 * row.overhead for row in comparison.rows if row.overhead is not None]
    edge = 1.12 * max([1e-3, *tops])
    traces = []
    for k, (strategy, rows) in enumerate(comparison.by_strategy().items()):
        if missing := [row for row in rows if row.ended in _DRAWN_MISSING]:
            look = _look(k)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": label(strategy),
                    "legendgroup": strategy,
                    "showlegend": False,
                    "x": [row.budget_bytes for row in missing],
                    "y": [edge * (1 + 0.03 * (k % 6))] * len(missing),
                    "marker": {"symbol": "x-thin-open", "size": 8, "color": look["marker"]["color"]},
                    "text": [f"{row.budget}: {_MISSING[row.ended]}" for row in missing],
                    "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
                }
            )
    return traces


def _peaks(comparison: Comparison) -> list[dict[str, Any]]:
    budgets = [amount for _, amount in comparison.budgets]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "name": "budget",
            "x": budgets,
            "y": budgets,
            "mode": "lines",
            "line": {"color": "#8a9199", "dash": "dot", "width": 1.4},
            "hoverinfo": "skip",
        }
    ]
    for k, (strategy, rows) in enumerate(comparison.by_strategy().items()):
        traces.append(_line(k, strategy, [row for row in rows if row.peak_bytes is not None], overhead=False))
    return traces


def _line(k: int, strategy: str, rows: Sequence[Row], *, overhead: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": label(strategy),
        "legendgroup": strategy,
        "x": [row.budget_bytes for row in rows],
        "y": [100 * (row.overhead or 0.0) if overhead else row.peak_bytes for row in rows],
        "text": [_hover(row) for row in rows],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        **_look(k),
    }


def _hover(row: Row) -> str:
    more = "" if row.overhead is None else f"{format_percent(row.overhead)} over no-remat"
    sure = "<br>proven optimal" + (f" ({row.scope})" if row.scope else "") if row.optimal else ""
    return (
        f"budget {row.budget}: {more}{sure}<br>peak {format_bytes(row.peak_bytes or 0)}, {format_duration(row.wall_s)}"
    )


def _layout(title: str, *, size: bool = False) -> dict[str, Any]:
    amounts = {"tickformat": "~s", "ticksuffix": "B"}
    return {
        "margin": {"l": 60, "r": 12, "t": 8, "b": 45},
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": -0.18, "yanchor": "top", "x": 0},
        "xaxis": {"title": {"text": "memory budget, fixed memory included", "standoff": 4}, **amounts},
        "yaxis": {"title": {"text": title}, **(amounts if size else {"rangemode": "tozero"})},
    }


def _table(comparison: Comparison) -> Table:
    unit = comparison.graph.cost_unit
    rows = []
    for row in comparison.rows:
        if row.cost is None:
            rows.append((row.strategy, row.budget, _MISSING.get(row.ended, row.ended.value), "", "", ""))
            continue
        over = "" if row.overhead is None else format_percent(row.overhead)
        bound = "" if row.lower_bound is None else f"{cost_words(row.lower_bound, unit)} ({row.scope})"
        proof = "optimal" if row.optimal else bound
        rows.append(
            (row.strategy, row.budget, proof, over, format_bytes(row.peak_bytes or 0), format_duration(row.wall_s))
        )
    return Table(("strategy", "budget", "proven", "over no-remat", "peak", "time"), rows, numbers=3)
