"""The pages with cost and peak against budget: of comparisons, of a curve, and of what memory and links are worth."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Comparison, Ended, Linked, Row, Worth
from remat_cli.plan.model import Copies, Scope
from remat_cli.reports.charts import (
    COLOURS,
    NO_PLAN,
    Line,
    Scale,
    bound_percents,
    chart_lines,
    logarithmic_scale,
    overhead_percent,
    recommended,
)
from remat_cli.reports.curve import CurveRow
from remat_cli.reports.table import Column, Table, each, text_columns
from remat_cli.reports.web.page import INK, Chart, Page, Section, label, lines
from remat_cli.reports.words import AMONG, cost_words, count, exact_bytes, maker, percent_over, size_column
from remat_cli.reports.worth import links_table, memory_table
from remat_cli.tolerances import SAME_COST
from remat_cli.units import format_bytes, format_duration, format_percent

_MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star", "cross", "hexagon")
_DASHES = ("solid", "dash", "dot", "dashdot")
MISSING = {
    Ended.NONE: "no plan fits",
    Ended.LIMIT: "no plan within the time limit",
    Ended.REFUSED: "does not take this graph",
    Ended.FAILED: "failed",
    Ended.INTERRUPTED: "interrupted",
}


def comparison_page(comparison: Comparison) -> Page:
    """The page of ``comparison``."""
    first = recommended(comparison)
    note = (
        "The lines are steps, because a plan remains valid with more memory and budgets in between were not solved. "
        "Where lines coincide, those below are wider"
        + (f", and {first}, which is recommended, is on top. " if first else ". ")
        + "No plan can lie in the grey area: that is proven. Crosses at the top are budgets without a plan. Click a "
        "name to hide its line, double-click to see it alone."
    )
    return Page(
        title=f"Strategies on {comparison.graph.name or 'graph'}",
        verdict="interrupted" if comparison.interrupted else "",
        facts=comparison_facts(comparison),
        sections=[
            Section("Overhead against budget", note, (overhead_chart(comparison, "overhead", 520),)),
            Section("Peak against budget", "How much of its budget each plan uses.", (peak_chart(comparison),)),
            Section("All plans", TABLE_NOTE, table=plans_table(comparison)),
        ],
        problems=comparison.contradictions(),
    )


def overhead_chart(comparison: Comparison, id: str, height: int) -> Chart:
    """The chart of cost over no-remat against budget."""
    scale, linear = logarithmic_scale(comparison), Scale(())
    return Chart(
        id,
        _overheads(comparison, linear),
        _overhead_layout(linear),
        height,
        f"Cost over no-remat against budget: {_size(comparison)}. The table below has the numbers.",
        logarithmic=(_overheads(comparison, scale), _overhead_layout(scale)) if scale.decades else None,
        begins="logarithmic" if scale.first_shown else "linear",
        numbers=_numbers(comparison, lambda row: None if row.overhead is None else format_percent(row.overhead)),
        numbers_title="Overheads in numbers",
    )


def peak_chart(comparison: Comparison) -> Chart:
    """The chart of the peaks of plans against budget."""
    return Chart(
        "peak",
        _peaks(comparison),
        budget_layout("peak of the plan", size=True),
        380,
        f"Peak against budget: {_size(comparison)}. The table below has the numbers.",
        numbers=_numbers(comparison, lambda row: None if row.peak_bytes is None else format_bytes(row.peak_bytes)),
        numbers_title="Peaks in numbers",
    )


def _size(comparison: Comparison) -> str:
    return f"{count(len(comparison.strategies), 'line')}, {count(len(comparison.budgets), 'budget')}"


def _numbers(comparison: Comparison, amount: Callable[[Row], str | None]) -> Table[Sequence[str]]:
    """A row for each strategy, a column for each budget."""
    rows = [
        (strategy, *(amount(row) or MISSING.get(row.ended, row.ended.value) for row in results))
        for strategy, results in comparison.by_strategy().items()
    ]
    return Table(text_columns("strategy", *(text for text, _ in comparison.budgets)), rows)


def comparison_facts(comparison: Comparison) -> list[tuple[str, str]]:
    """The graph, and how every cell was solved."""
    named = {name.removesuffix("_s").replace("_", " "): value for name, value in comparison.limits.items()}
    if (seconds := comparison.limits.get("time_limit_s")) is not None:
        named["time limit"] = format_duration(seconds)
    limits = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    return [*graph_facts(comparison), ("each cell", limits)]


def graph_facts(comparison: Comparison) -> list[tuple[str, str]]:
    """The graph, and what it takes without recomputation."""
    base = cost_words(comparison.graph.no_remat_cost, comparison.graph.cost_unit)
    return [
        ("graph", count(len(comparison.graph.nodes), "node")),
        ("no-remat", f"{base}, peak {exact_bytes(comparison.no_remat_peak_bytes)}"),
    ]


def _look(line: Line) -> dict[str, Any]:
    """Colour, marker and dashes, so that strategies never differ by colour alone; what lies below others is wider."""
    colour = _colour(line.index)
    symbol = _MARKERS[line.index % len(_MARKERS)]
    return {
        "mode": "lines+markers",
        "cliponaxis": False,
        "line": {
            "color": colour,
            "shape": "hv",
            "dash": _DASHES[line.index // len(COLOURS) % len(_DASHES)],
            "width": 2 + 1.7 * line.covered,
        },
        "marker": {
            "color": colour,
            "symbol": f"{symbol}-open" if line.covered else symbol,
            "size": 7 + 2.5 * line.covered,
            "line": {"width": 1.5, "color": colour},
        },
    }


def _colour(k: int) -> str:
    colour = COLOURS[k % len(COLOURS)]
    return INK if colour == "#000000" else colour


def _overheads(comparison: Comparison, scale: Scale) -> list[dict[str, Any]]:
    budgets = [amount for _, amount in comparison.budgets]
    bounds = bound_percents(comparison)
    traces: list[dict[str, Any]] = [
        lines(
            "no plan (proven)",
            budgets,
            [scale.place(bound) for bound in bounds],
            text=[f"no plan below {bound:.4g}%" for bound in bounds],
            # A bound for a budget holds for all smaller budgets too, so the step reaches back.
            line={"shape": "vh", "width": 1, "color": "#8a9199"},
            fill="tozeroy",
            fillcolor="rgba(138,145,153,0.35)",
            hovertemplate="%{text}<extra>proven</extra>",
            legendrank=1,
        )
    ]
    traces += [
        _line(line, [scale.place(overhead_percent(row) or 0.0) for row in line.rows])
        for line in chart_lines(comparison, overhead_percent)
    ]
    return traces + _crosses(comparison, scale)


def _crosses(comparison: Comparison, scale: Scale) -> list[dict[str, Any]]:
    """Budgets at which a strategy that takes the graph has no plan, above all lines.

    A strategy without any plan has no line, and the legend names its crosses instead.
    """
    tops = [100 * row.overhead for row in comparison.rows if row.overhead is not None]
    traces = []
    for k, (strategy, rows) in enumerate(comparison.by_strategy().items()):
        if missing := [row for row in rows if row.ended in NO_PLAN]:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": label(strategy),
                    "legendgroup": strategy,
                    "legendrank": 2 + k,
                    "showlegend": all(row.cost is None for row in rows),
                    "x": [row.budget_bytes for row in missing],
                    "y": [scale.above(max([1e-3, *tops]), k)] * len(missing),
                    "marker": {"symbol": "x-thin-open", "size": 8, "color": _colour(k)},
                    "text": [f"{row.budget}: {MISSING[row.ended]}" for row in missing],
                    "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
                }
            )
    return traces


def _peaks(comparison: Comparison) -> list[dict[str, Any]]:
    budgets = [amount for _, amount in comparison.budgets]
    level = {"color": "#8a9199", "dash": "dot", "width": 1.4}
    traces = [lines("budget", budgets, budgets, line=level, hoverinfo="skip")]
    drawn = chart_lines(comparison, lambda row: row.peak_bytes)
    return traces + [_line(line, [row.peak_bytes or 0 for row in line.rows]) for line in drawn]


def _line(line: Line, heights: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": label(line.strategy),
        "legendgroup": line.strategy,
        "legendrank": 2 + line.index,
        "x": [row.budget_bytes for row in line.rows],
        "y": list(heights),
        "text": [_hover(row) for row in line.rows],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        **_look(line),
    }


def _hover(row: Row) -> str:
    over = "" if row.overhead is None else f"{format_percent(row.overhead)} over no-remat"
    proof = f"<br>{row.proof.value}" + (f" ({row.scope})" if row.scope else "") if row.optimal else ""
    facts = [] if row.peak_bytes is None else [f"peak {format_bytes(row.peak_bytes)}"]
    facts += [format_duration(row.wall_s)] if row.wall_s else []
    return f"budget {row.budget}: {over}{proof}" + (f"<br>{', '.join(facts)}" if facts else "")


def _overhead_layout(scale: Scale) -> dict[str, Any]:
    layout = budget_layout("cost over no-remat, %")
    if scale.decades:
        places, texts = zip(*scale.ticks(), strict=True)
        layout["yaxis"] = {
            "title": layout["yaxis"]["title"],
            "type": "log",
            "tickvals": list(places),
            "ticktext": list(texts),
        }
    return layout


def budget_layout(title: str, *, size: bool = False) -> dict[str, Any]:
    """The layout of a chart over budgets; ``size``: of bytes."""
    amounts = {"tickformat": "~s", "ticksuffix": "B"}
    return {
        "margin": {"l": 60, "r": 12, "t": 8, "b": 45},
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": -0.18, "yanchor": "top", "x": 0},
        "xaxis": {"title": {"text": "memory budget, fixed memory included", "standoff": 4}, **amounts},
        "yaxis": {"title": {"text": title}, **(amounts if size else {"rangemode": "tozero"})},
    }


TABLE_NOTE = (
    "Optimal: no plan among those in the last column costs less. Within the gap: none costs less by more than the "
    "accepted gap. The bound is what no plan among those can cost less than, over no-remat as well."
)


R = TypeVar("R")


def bound_columns(base: float, result: Callable[[R], Row]) -> list[Column[R]]:
    """The bound on the cost of a plan over ``base``, and the plans for which it holds."""

    def proven(row: Row) -> float | None:
        """The lower bound; None for one that follows from ``base`` alone."""
        bound = row.lower_bound
        return bound if bound is not None and (row.optimal or bound > base * (1 + SAME_COST)) else None

    def words(row: Row) -> str | None:
        bound = proven(row)
        if row.cost is None or bound is None:
            return None if row.cost is None else "none"
        return percent_over(bound / base - 1) if base else cost_words(bound, "")

    def among(row: Row) -> str | None:
        return None if row.scope is None or proven(row) is None else AMONG[Scope(row.scope)]

    return [
        Column("proven bound", lambda line: words(result(line)), numeric=False),
        Column("bound holds among", lambda line: among(result(line)), numeric=False),
    ]


def plans_table(comparison: Comparison) -> Table[Row]:
    """A row for each strategy and budget, the numbers first, so that a narrow window shows them."""
    columns: list[Column[Row]] = [
        Column("strategy", attrgetter("strategy"), numeric=False),
        Column("budget", attrgetter("budget"), numeric=False),
        Column("over no-remat", attrgetter("overhead"), each(percent_over)),
        Column("peak", attrgetter("peak_bytes"), size_column),
        Column("time", lambda row: None if row.cost is None else row.wall_s, each(format_duration)),
        Column(
            "result",
            lambda row: MISSING.get(row.ended, row.ended.value) if row.cost is None else row.proof.value,
            numeric=False,
        ),
        *bound_columns(comparison.graph.no_remat_cost, lambda row: row),
    ]
    return Table(columns, comparison.rows)


def linked_page(linked: Linked) -> Page:
    """The page of ``linked``."""
    sections: list[Section] = []
    pairs = list(zip(linked.links, linked.comparisons, strict=True))
    for k, ((name, host), comparison) in enumerate(pairs):
        note = f"{host.words}. No plan can lie in the grey area: that is proven."
        sections.append(Section(f"Time against budget: {name}", note, (overhead_chart(comparison, f"link{k}", 400),)))
    for (name, _), comparison in pairs:
        sections.append(Section(f"All plans: {name}", TABLE_NOTE, table=plans_table(comparison)))
    first = linked.comparisons[0]
    facts = [fact for fact in comparison_facts(first) if fact[0] != "each cell"]
    limits = {name: value for name, value in first.limits.items() if name != "host" and value is not None}
    facts.append(("each cell", ", ".join(f"{name.removesuffix('_s')} {value}" for name, value in limits.items())))
    return Page(
        title=f"Links to a host on {first.graph.name or 'graph'}",
        verdict="interrupted" if linked.interrupted else "",
        facts=facts,
        sections=sections,
        problems=[problem for one in linked.comparisons for problem in one.contradictions()],
    )


_LINE = "cheapest plan found"
_ENDED = {"infeasible": Ended.NONE, "unknown": Ended.LIMIT}


def curve_page(graph: Graph, rows: Sequence[CurveRow]) -> Page:
    """The page of plans for several budgets."""
    comparison = _comparison_of(graph, rows)
    note = (
        "The line has steps, because a plan remains valid with more memory, and budgets in between were not solved. No "
        "plan can lie in the grey area: that is proven. Crosses at the top are budgets without a plan."
    )
    solved = sum(row.report is not None for row in rows)
    return Page(
        title=f"Memory budgets for {graph.name or 'graph'}",
        verdict=f"a plan for {solved} of {count(len(rows), 'budget')}",
        good=solved == len(rows) or (None if solved else False),
        facts=graph_facts(comparison),
        sections=[
            Section("Overhead against budget", note, (overhead_chart(comparison, "overhead", 460),)),
            Section("Peak against budget", "How much of its budget each plan uses.", (peak_chart(comparison),)),
            Section("All budgets", TABLE_NOTE, table=_budgets_table(comparison, rows)),
            *_reasons(rows),
        ],
        problems=comparison.contradictions(),
    )


def _reasons(rows: Sequence[CurveRow]) -> list[Section]:
    """Why the largest budget without a plan has none; that covers the smaller budgets too."""
    missing = [row for row in rows if row.report is None]
    return [Section(f"No plan for {missing[-1].asked}", missing[-1].reason)] if missing else []


def _comparison_of(graph: Graph, rows: Sequence[CurveRow]) -> Comparison:
    """The curve as a comparison of a single strategy, so that the charts of comparisons show it."""
    budgets = tuple((row.asked, row.budget_bytes) for row in rows)
    return Comparison(graph, no_remat_peak(graph), (_LINE,), budgets, {}, tuple(map(_result, rows)))


def _result(row: CurveRow) -> Row:
    report = row.report
    if report is None:
        return Row(_LINE, row.asked, row.budget_bytes, _ENDED[row.status], message=row.reason)
    # A bound that holds only without copies is none for plans with copies.
    holds = report.host is None or report.claim.copies is Copies.ANY
    return Row(
        _LINE,
        row.asked,
        row.budget_bytes,
        Ended.PLAN,
        peak_bytes=report.replay.peak_bytes,
        cost=report.replay.time,
        overhead=report.overhead,
        computes=sum(report.replay.times),
        lower_bound=report.claim.lower_bound if holds else None,
        scope=report.claim.scope.value if holds else None,
        optimal=row.status == "optimal",
    )


def _budgets_table(comparison: Comparison, rows: Sequence[CurveRow]) -> Table[tuple[CurveRow, Row]]:
    """Every budget with its plan; the rows of ``comparison`` are those of ``rows``."""
    columns: list[Column[tuple[CurveRow, Row]]] = [
        Column("budget", lambda pair: pair[0].asked, numeric=False),
        Column("in bytes", lambda pair: pair[0].budget_bytes, size_column),
        Column("over no-remat", lambda pair: pair[1].overhead, each(percent_over)),
        Column("peak", lambda pair: pair[1].peak_bytes, size_column),
        Column("result", lambda pair: MISSING.get(pair[1].ended, pair[1].proof.value), numeric=False),
        *bound_columns(comparison.graph.no_remat_cost, lambda pair: pair[1]),
        Column("made by", lambda pair: None if pair[0].report is None else maker(pair[0].report), numeric=False),
    ]
    return Table(columns, list(zip(rows, comparison.rows, strict=True)))


_WAYS = ("both", "recompute", "copy")


def worth_page(worth: Worth) -> Page:
    """The page of ``worth``."""
    comparisons = [_offers_of(worth, at) for at in range(len(worth.links))]
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
    return Page(
        title=f"What memory is worth for {worth.graph.name or 'graph'}",
        verdict="interrupted" if worth.interrupted else "",
        facts=graph_facts(comparisons[0]),
        sections=sections,
        problems=[problem for one in comparisons for problem in one.contradictions()],
    )


def _offers_of(worth: Worth, link: int) -> Comparison:
    """The offers of one link as a comparison of three strategies, so that the chart of comparisons shows them."""
    rows = []
    base = worth.graph.no_remat_cost
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
                "line": {"color": _colour(at), "width": 2, "shape": "hv"},
                "text": [label(text) for _, text, _ in points],
                "hovertemplate": "budget %{text}: %{y:.4g}<extra>%{fullData.name}</extra>",
            }
        )
    words = f"Time that a GB more spares: {count(len(worth.links), 'link')}. The tables below have the numbers."
    return Chart("slopes", traces, budget_layout(f"spared for each GB, {worth.graph.cost_unit}"), 380, words)
