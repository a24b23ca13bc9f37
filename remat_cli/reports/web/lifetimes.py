"""The lifetimes of values on the page of a plan: a band for every instance in memory, which can be pinned."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report
from remat_cli.plan.model import Plan
from remat_cli.plan.occupancy import Band, Bands, Kind, Lifetime, bands
from remat_cli.reports.charts import KINDS, PATTERNS, highest_moments
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.web.graph import node_documents
from remat_cli.reports.web.page import PAPER, Chart, Section, hatching, label
from remat_cli.reports.words import count, size_column, tensor_size

_ROWS = 40
_THINNEST = 110
"""A band below this part of the peak, or of the statements, is less than about three pixels high, or wide in a narrow
window (of 420 pixels, which leave 330): its edges would hide its colour."""
_ANEW = {Kind.RECOMPUTED: "recomputed", Kind.FETCHED: "from the host"}
"""Words for instances that are not the first of their value."""


def lifetimes_section(report: Report, plan: Plan) -> tuple[Section, list[dict[str, Any]]]:
    """The section with the chart ``bands``, and the nodes with their lifetimes for its script."""
    graph, stack = report.graph, bands(report.graph, plan.statements)
    note = (
        "Each band is one value in memory, from the statement that allocates it to the one that frees it; its height "
        "is its size. When a band ends, those above it sink. Click a band, search, or click a name in a table to pin "
        "it."
    )
    if others := len(stack.lifetimes) - len(stack.drawn):
        note += f" The {len(stack.drawn):,} largest have bands; {count(others, 'other')} are in layers on top."
    words = (
        f"{count(len(stack.lifetimes), 'lifetime')} of {count(len(graph.size), 'value')} over "
        f"{count(len(plan.statements), 'statement')}; the table below has the largest."
    )
    chart = Chart(
        "bands",
        list(_traces(report, stack)),
        _layout(len(plan.statements)),
        460,
        words,
        numbers=_table(graph, stack),
        numbers_title="The largest lifetimes in numbers",
        moves_with="statements",
    )
    documents = node_documents(graph)
    for document in documents:
        document["values"] = []
    by_value: dict[int, list[Lifetime]] = {}
    for life in stack.lifetimes:
        by_value.setdefault(life.value, []).append(life)
    for value, node in enumerate(graph.producer):
        intervals = [(life.first, life.end, _ANEW.get(life.kind, "")) for life in by_value.get(value, [])]
        documents[node]["values"].append((graph.value_name(value), tensor_size(graph, value), intervals))
    search = "Find a value or an operation"
    return Section("Lifetimes of values", note, (chart,), search=search), documents


def _traces(report: Report, stack: Bands) -> Iterator[dict[str, Any]]:
    graph, profile = report.graph, report.replay.profile
    end = len(profile)
    if graph.fixed_memory:
        yield {
            **_area([0, end], [graph.fixed_memory] * 2, Kind.FIXED),
            "name": Kind.FIXED.value,
            "fill": "tozeroy",
            "legendgroup": Kind.FIXED.value,
        }
    for kind in dict.fromkeys(band.lifetime.kind for band in stack.drawn):
        # The legend entry of all bands of its kind.
        yield {**_area([None], [None], kind), "name": kind.value, "legendgroup": kind.value, "fill": "toself"}
    for band in stack.drawn:
        life = band.lifetime
        low = graph.size[life.value] * _THINNEST < report.replay.peak_bytes
        narrow = (life.end - life.first) * _THINNEST < end
        yield _polygon(graph, band, 0.0 if low or narrow else 0.6)
    yield from _rest(report, stack)


def _rest(report: Report, stack: Bands) -> Iterator[dict[str, Any]]:
    """The values without a band, by kind, and workspace, on top of the bands."""
    profile = report.replay.profile
    moments = highest_moments(profile)
    statements = [at for _, at in moments]
    x = [*(first for first, _ in moments), len(profile)]
    level = [stack.tops[at] for at in statements]
    layers = [(kind, [amounts[at] for at in statements]) for kind, amounts in stack.rest.items()]
    small = [sum(amounts[k] for _, amounts in layers) for k in range(len(statements))]
    layers.append((Kind.WORKSPACE, [profile[at] - level[k] - small[k] for k, at in enumerate(statements)]))
    banded = {band.lifetime.kind for band in stack.drawn}
    base = {"type": "scatter", "mode": "lines", "x": x, "hoverinfo": "skip", "legendgroup": "rest"}
    line = {"width": 0, "shape": "hv"}
    yield {**base, "y": [*level, *level[-1:]], "line": line, "showlegend": False}
    for kind, amounts in layers:
        level = [low + amount for low, amount in zip(level, amounts, strict=True)]
        if any(amounts):
            fill = {**_area(x, [*level, *level[-1:]], kind), "fill": "tonexty", "name": kind.value}
            # One swatch for each kind: bands of it already have one.
            yield {**base, **fill, "line": {**line, "color": KINDS[kind]}, "showlegend": kind not in banded}


def _area(x: list[Any], y: list[Any], kind: Kind, edge: float = 0.6) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": x,
        "y": y,
        "mode": "lines",
        "line": {"width": edge, "color": PAPER},
        "fillcolor": KINDS[kind],
        "hoverinfo": "skip",
        "fillpattern": hatching(PATTERNS.get(kind, ""), KINDS[kind]),
    }


def _polygon(graph: Graph, band: Band, edge: float) -> dict[str, Any]:
    life, size = band.lifetime, graph.size[band.lifetime.value]
    x: list[int] = []
    floor: list[int] = []
    for (at, low), (until, _) in zip(band.steps, (*band.steps[1:], (life.end, 0)), strict=True):
        x += [at, until]
        floor += [low, low]
    name = label(graph.value_name(life.value))
    again = f" ({_ANEW[life.kind]})" if life.kind in _ANEW else ""
    return {
        **_area(
            [*x, *reversed(x), x[0]], [*floor, *(low + size for low in reversed(floor)), floor[0]], life.kind, edge
        ),
        "name": name,
        "legendgroup": life.kind.value,
        "showlegend": False,
        "fill": "toself",
        "hoveron": "fills",
        "hoverinfo": "text",
        "text": f"<b>{name}</b>{again}<br>{tensor_size(graph, life.value)}; statements {life.first:,} to {life.end:,}",
        "meta": graph.producer[life.value],
    }


def _layout(end: int) -> dict[str, Any]:
    return {
        "margin": {"l": 60, "r": 12, "t": 8, "b": 40},
        "hovermode": "closest",
        "legend": {"orientation": "h", "traceorder": "normal", "y": -0.16, "yanchor": "top", "x": 0},
        "xaxis": {"title": {"text": "statement", "standoff": 4}, "range": [0, end]},
        "yaxis": {
            "title": {"text": "memory in use"},
            "tickformat": "~s",
            "ticksuffix": "B",
            "rangemode": "tozero",
        },
    }


def _table(graph: Graph, stack: Bands) -> Table[Lifetime]:
    """The largest lifetimes, by allocation."""
    largest = sorted(stack.lifetimes, key=lambda life: (-graph.size[life.value], life.first - life.end))[:_ROWS]
    columns: list[Column[Lifetime]] = [
        Column("value", lambda life: graph.value_name(life.value), numeric=False),
        Column("kind", lambda life: life.kind.value, numeric=False),
        Column("size", lambda life: graph.size[life.value], size_column),
        Column("from statement", attrgetter("first"), each("{:,}".format)),
        Column("to", attrgetter("end"), each("{:,}".format)),
    ]
    rows = sorted(largest, key=lambda life: (life.first, life.end))
    return Table(columns, rows, pin=lambda life: graph.producer[life.value])
