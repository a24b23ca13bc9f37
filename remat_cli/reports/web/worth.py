"""The page of the time that more memory and faster links save: times against budgets for each link, and slopes."""

from __future__ import annotations

from typing import Any

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.comparison import Comparison, Ended, Row
from remat_cli.plan.model import Scope
from remat_cli.plan.sensitivity import Worth
from remat_cli.reports.palette import COLOURS
from remat_cli.reports.web.comparison import budget_layout, graph_facts, overhead_chart
from remat_cli.reports.web.page import INK, Chart, Page, Section, label, render_page
from remat_cli.reports.words import count
from remat_cli.reports.worth import links_table, memory_table

_WAYS = ("both", "recompute", "copy")


def worth_page(worth: Worth, command: str, *, cdn: bool = False) -> str:
    """The page of ``worth`` as HTML.

    Args:
        worth: The times of plans for every link and budget.
        command: The command that makes the page.
        cdn: Whether plotly.js comes from its own network instead of from the file.
    """
    comparisons = [_as_comparison(worth, at) for at in range(len(worth.links))]
    sections = []
    if len(worth.budgets) > 1:
        note = (
            "How much less time a step takes with one GB more, from each budget up to the next. A point is what the "
            "plans found say, and the bar is between what is proven."
        )
        sections.append(Section("The next GB of memory", note, (_slopes(worth),)))
    for at, (name, host) in enumerate(worth.links):
        note = (
            f"{host.words}. Plans that only recompute, that only copy, and that do both, by time over no-remat. No "
            "plan can lie in the grey area: that is proven."
        )
        chart = overhead_chart(comparisons[at], f"link{at}", 400)
        sections.append(Section(f"Link {name}", note, (chart,), memory_table(worth, at)))
    if len(worth.links) > 1:
        note = "What a faster link spares, for each GB/s more in both directions."
        sections.append(Section("A faster link", note, table=links_table(worth)))
    return render_page(
        Page(
            title=f"What memory is worth for {worth.graph.name or 'graph'}",
            verdict="interrupted" if worth.interrupted else "",
            good=None,
            facts=graph_facts(comparisons[0]),
            sections=sections,
            command=command,
            problems=[problem for one in comparisons for problem in one.contradictions()],
        ),
        cdn=cdn,
    )


def _as_comparison(worth: Worth, link: int) -> Comparison:
    """The offers of one link as a comparison of three strategies, so that the chart of comparisons shows them."""
    rows = []
    base = worth.graph.total_cost
    for way in _WAYS:
        for place in range(len(worth.budgets)):
            offer = worth.offer(link, place)
            time: float | None = getattr(offer, way)
            over = None if time is None or base <= 0 else time / base - 1
            bound, scope = (None, None) if time is None else (offer.bound, Scope.DOCUMENT_ORDER.value)
            ended = Ended.NONE if time is None else Ended.PLAN
            plan: dict[str, Any] = {"cost": time, "overhead": over, "lower_bound": bound, "scope": scope}
            rows.append(Row(way, offer.budget, offer.budget_bytes, ended, **plan))
    return Comparison(worth.graph, no_remat_peak(worth.graph), _WAYS, worth.budgets, {}, tuple(rows))


def _slopes(worth: Worth) -> Chart:
    traces = []
    for at, (name, _) in enumerate(worth.links):
        points = [
            (amount, text, slope)
            for place, (text, amount) in enumerate(worth.budgets)
            if (slope := worth.memory(at, place)) is not None
        ]
        colour = COLOURS[at % len(COLOURS)]
        traces.append(
            {
                "type": "scatter",
                "name": label(name),
                "mode": "lines+markers",
                "x": [amount for amount, _, _ in points],
                "y": [slope.found for _, _, slope in points],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [max(0.0, slope.most - slope.found) for _, _, slope in points],
                    "arrayminus": [max(0.0, slope.found - slope.least) for _, _, slope in points],
                },
                "line": {"color": INK if colour == "#000000" else colour, "width": 2, "shape": "hv"},
                "text": [label(text) for _, text, _ in points],
                "hovertemplate": "budget %{text}: %{y:.4g}<extra>%{fullData.name}</extra>",
            }
        )
    words = f"Time that a GB more spares: {count(len(worth.links), 'link')}. The tables below have the numbers."
    return Chart("slopes", traces, budget_layout(f"spared for each GB, {worth.graph.cost_unit}"), 380, words)
