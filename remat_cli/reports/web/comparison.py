"""The page of a comparison: cost over no-remat and peak against budget for every strategy, with the proven bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.plan.comparison import Comparison, Ended, Row
from remat_cli.reports.palette import COLOURS
from remat_cli.reports.web.page import INK, Chart, Page, Section, Table, label, render_page
from remat_cli.reports.words import cost_words, count, exact_bytes, size_column
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
        UsageError: If plotly or Jinja2 is not installed.
    """
    note = (
        "The lines are steps, because a plan remains valid with more memory and budgets in between were not solved. "
        "No plan can lie in the grey area: that is proven. Crosses at the top are budgets without a plan. Click a name "
        "to hide its line, double-click to see it alone."
    )
    words = "Cost over no-remat against budget, a line for each strategy."
    scale = _logarithmic(comparison)
    logarithmic = (_overheads(comparison, scale), _overhead_layout(scale)) if scale.decades else None
    linear = _Scale(())
    charts = (
        Chart(
            "overhead",
            _overheads(comparison, linear),
            _overhead_layout(linear),
            520,
            words,
            logarithmic=logarithmic,
            begins="logarithmic" if len(scale.decades) >= _MANY_DECADES else "linear",
        ),
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
    """Colour, marker and dashes of the k-th strategy, so that strategies never differ by colour alone."""
    colour = COLOURS[k % len(COLOURS)]
    colour = INK if colour == "#000000" else colour
    return {
        "mode": "lines+markers",
        "cliponaxis": False,
        "line": {"color": colour, "shape": "hv", "dash": _DASHES[k // len(COLOURS) % len(_DASHES)], "width": 1.7},
        "marker": {"color": colour, "symbol": _MARKERS[k % len(_MARKERS)], "size": 7},
    }


@dataclass(frozen=True, slots=True)
class _Scale:
    """The positions of overheads on their axis.

    Attributes:
        decades: The powers of ten that a logarithmic axis shows, in percent; none for a linear one.
        cut: Whether overheads just above zero are drawn at zero, because they are too small to distinguish.
    """

    decades: tuple[int, ...]
    cut: bool = False

    @property
    def foot(self) -> float:
        """The position of zero on a logarithmic axis: half a decade below the first."""
        return float(10.0 ** (self.decades[0] - 0.5))

    def place(self, percent: float) -> float:
        """The position of ``percent``."""
        if not self.decades:
            return percent
        return percent if percent >= 10.0 ** self.decades[0] else self.foot

    def above(self, most: float, k: int) -> float:
        """The height of the crosses of the k-th strategy: above ``most``, in rows that do not cover each other."""
        row = k % 6
        if not self.decades:
            return 1.12 * most * (1 + 0.03 * row)
        return float(10.0 ** (math.log10(most) + len(self.decades) * (0.08 + 0.025 * row)))


_DECADES = 7
"""The largest number of powers of ten on a logarithmic axis."""
_MANY_DECADES = 4
"""From this number on, a linear axis would draw most of the lines as one near zero."""


def _logarithmic(comparison: Comparison) -> _Scale:
    """A logarithmic axis for all overheads and bounds; without decades if all of them are zero."""
    base = comparison.graph.total_cost or 1.0
    found = [100 * row.overhead for row in comparison.rows if row.overhead is not None]
    found += [100 * (comparison.bound(amount) / base - 1) for _, amount in comparison.budgets]
    above = [percent for percent in found if percent > 1e-9]  # below that it is rounding
    if not above:
        return _Scale(())
    last = math.ceil(math.log10(max(above)))
    wanted = min(math.floor(math.log10(min(above))), last - 1)
    first = max(wanted, last + 1 - _DECADES)
    return _Scale(tuple(range(first, last + 1)), cut=min(above) < 10.0**first)


def _overheads(comparison: Comparison, scale: _Scale) -> list[dict[str, Any]]:
    base = comparison.graph.total_cost or 1.0
    budgets = [amount for _, amount in comparison.budgets]
    bounds = [max(0.0, 100 * (comparison.bound(amount) / base - 1)) for amount in budgets]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "name": "no plan (proven)",
            "x": budgets,
            "y": [scale.place(bound) for bound in bounds],
            "text": [f"no plan below {bound:.4g}%" for bound in bounds],
            "mode": "lines",
            # A bound for a budget holds for all smaller budgets too, so the step reaches back.
            "line": {"shape": "vh", "width": 1, "color": "#8a9199"},
            "fill": "tozeroy",
            "fillcolor": "rgba(138,145,153,0.35)",
            "hovertemplate": "%{text}<extra>proven</extra>",
        }
    ]
    for k, (strategy, rows) in enumerate(comparison.by_strategy().items()):
        drawn = [row for row in rows if row.overhead is not None]
        traces.append(_line(k, strategy, drawn, [scale.place(100 * (row.overhead or 0.0)) for row in drawn]))
    return traces + _crosses(comparison, scale)


def _crosses(comparison: Comparison, scale: _Scale) -> list[dict[str, Any]]:
    """Budgets at which a strategy that takes the graph has no plan, above all lines."""
    tops = [100 * row.overhead for row in comparison.rows if row.overhead is not None]
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
                    "y": [scale.above(max([1e-3, *tops]), k)] * len(missing),
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
        drawn = [row for row in rows if row.peak_bytes is not None]
        traces.append(_line(k, strategy, drawn, [row.peak_bytes or 0 for row in drawn]))
    return traces


def _line(k: int, strategy: str, rows: Sequence[Row], heights: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": label(strategy),
        "legendgroup": strategy,
        "x": [row.budget_bytes for row in rows],
        "y": list(heights),
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


def _overhead_layout(scale: _Scale) -> dict[str, Any]:
    layout = _layout("cost over no-remat, %")
    if scale.decades:
        powers = [10.0**k for k in scale.decades]
        layout["yaxis"] = {
            "title": layout["yaxis"]["title"],
            "type": "log",
            "tickvals": [scale.foot, *powers],
            "ticktext": [f"below {powers[0]:g}" if scale.cut else "0", *(f"{power:g}" for power in powers)],
        }
    return layout


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
    peaks = iter(size_column([row.peak_bytes or 0 for row in comparison.rows if row.cost is not None]))
    rows = []
    for row in comparison.rows:
        if row.cost is None:
            rows.append((row.strategy, row.budget, _MISSING.get(row.ended, row.ended.value), "", "", ""))
            continue
        over = "" if row.overhead is None else format_percent(row.overhead)
        bound = "" if row.lower_bound is None else f"{cost_words(row.lower_bound, unit)} ({row.scope})"
        proof = "optimal" if row.optimal else bound
        rows.append((row.strategy, row.budget, proof, over, next(peaks), format_duration(row.wall_s)))
    return Table(("strategy", "budget", "proven", "over no-remat", "peak", "time"), rows, numbers=3)
