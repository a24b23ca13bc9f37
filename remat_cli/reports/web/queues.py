"""The queues of a plan over time, on its page: what runs at the same time, and what waits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from remat_cli.plan.check import Report
from remat_cli.plan.model import Allocate, Compute, Offload, Plan, Prefetch
from remat_cli.plan.occupancy import Kind, kind_of
from remat_cli.plan.queues import Queue, Span, Timing
from remat_cli.reports.charts import BUDGET, KINDS, PATTERNS
from remat_cli.reports.table import Column, Format, Table, each
from remat_cli.reports.web.page import INK, Chart, Section, hatching, label, lines
from remat_cli.reports.words import cost_words, count, critical_words, queue_words, size_column, stall_words
from remat_cli.units import format_bytes, format_percent, time_scale

_MOST = 1500
"""More bars in a queue are joined with neighbours of the same kind; untuned."""
_ROWS = 30
_WAITS = "waits"
_COPYING = {Queue.OUT: "#D55E00", Queue.IN: KINDS[Kind.FETCHED]}
_COLLECTIVES = {"collective": "#44AA99", "collective again": "#882255"}
"""Colours of collectives: the first time that they run, and again."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """One or more neighbouring spans of a queue."""

    kind: str
    start: float
    end: float
    words: str


def queues_section(report: Report, plan: Plan) -> list[Section]:
    """The section with the chart ``queues``; nothing for a plan without copies and collectives."""
    timing = report.replay.timing
    if timing is None or not (plan.copies or report.graph.overlaps):
        return []
    graph = report.graph
    unit, factor = time_scale(timing.time, graph.cost_unit)
    stalls = stall_words(report)
    others = [*(["collectives"] if graph.overlaps else []), *(["copies"] if report.host is not None else [])]
    host = f" Host memory in use: at most {format_bytes(report.replay.host_peak_bytes)}." if report.host else ""
    note = (
        f"Computations and {' and '.join(others)} run beside each other. Busy: {queue_words(report)}. The longest "
        f"chain of waits: {critical_words(report)}. {stalls[0].upper()}{stalls[1:]}.{host}"
    )
    queues = {2: "Two", 3: "Three", 4: "Four"}[len(report.queues)]
    described = (
        f"{queues} queues over {cost_words(timing.time, graph.cost_unit)}: {queue_words(report)}; {stalls}. "
        f"The table below has the {' and '.join(others)}."
    )
    lanes = {queue: _bars(report, plan, timing, queue) for queue in report.queues}
    chart = Chart(
        "queues",
        [*_memory(report, timing, factor), *_traces(lanes, _waits(report, plan, timing), factor)],
        _layout(timing.time / factor, unit, report.queues),
        420,
        described,
        numbers=_table(report, plan, timing),
        numbers_title=f"The largest {' and '.join(others)} in numbers",
    )
    return [Section("When everything runs", note, (chart,))]


def _bars(report: Report, plan: Plan, timing: Timing, queue: Queue) -> list[_Bar]:
    """The spans of a queue, joined with neighbours of the same kind if there are many."""
    graph = report.graph
    value_of = {s.register: s.value for s in plan.statements if isinstance(s, Allocate)}
    seen: set[int] = set()
    bars: list[_Bar] = []
    for span in timing.spans:
        if span.queue is not queue:
            continue
        statement = plan.statements[span.statement]
        if isinstance(statement, Compute):
            kind = kind_of(graph, statement.node, seen).value
            if queue is Queue.COMMUNICATION:
                kind = list(_COLLECTIVES)[statement.node in seen]
            seen.add(statement.node)
            name = graph.nodes[statement.node].id
        else:
            assert isinstance(statement, Offload | Prefetch)
            kind, value = queue.value, value_of[statement.register]
            name = f"{graph.value_name(value)}, {format_bytes(graph.size[value])}"
        lasts = cost_words(span.end - span.start, graph.cost_unit)
        bars.append(_Bar(kind, span.start, span.end, f"{label(name)}: {lasts} at statement {span.statement:,}"))
    each = -(-len(bars) // _MOST)
    return bars if each <= 1 else _joined(bars, each)


def _joined(bars: Sequence[_Bar], each: int) -> list[_Bar]:
    joined: list[_Bar] = []
    counts: list[int] = []
    for bar in bars:
        last = joined[-1] if joined else None
        if last is not None and last.kind == bar.kind and counts[-1] < 2 * each and bar.start - last.end <= 0:
            counts[-1] += 1
            joined[-1] = _Bar(bar.kind, last.start, bar.end, f"{counts[-1]:,} operations")
        else:
            joined.append(bar)
            counts.append(1)
    return joined


def _waits(report: Report, plan: Plan, timing: Timing) -> list[_Bar]:
    """The stalls of the compute queue: each ends when the copy or collective that it waits for does."""
    ends = {span.statement: span.end for span in timing.spans}
    bars = []
    for stall in timing.stalls:
        end = ends[stall.copy]
        why = "inputs" if isinstance(plan.statements[stall.statement], Compute) else "memory that values leave"
        lasts = cost_words(stall.duration, report.graph.cost_unit)
        bars.append(_Bar(_WAITS, end - stall.duration, end, f"waits {lasts} for {why}"))
    return bars


def _traces(lanes: dict[Queue, list[_Bar]], waits: list[_Bar], factor: float) -> list[dict[str, Any]]:
    colours = {kind.value: colour for kind, colour in KINDS.items()}
    colours |= {queue.value: colour for queue, colour in _COPYING.items()} | _COLLECTIVES | {_WAITS: BUDGET}
    places = _lanes(tuple(lanes))
    shapes = {kind.value: shape for kind, shape in PATTERNS.items() if kind is not Kind.FETCHED}
    shapes |= {Queue.IN.value: PATTERNS[Kind.FETCHED], _WAITS: "-"}
    names = {Queue.OUT.value: "copy to host", Queue.IN.value: "copy from host", _WAITS: "computations wait"}
    traces = []
    rows = [(queue, bar) for queue, bars in lanes.items() for bar in bars] + [(Queue.COMPUTE, bar) for bar in waits]
    for kind in dict.fromkeys(bar.kind for _, bar in rows):
        same_kind = [(queue, bar) for queue, bar in rows if bar.kind == kind]
        traces.append(
            {
                "type": "bar",
                "name": names.get(kind, kind),
                "orientation": "h",
                "base": [bar.start / factor for _, bar in same_kind],
                "x": [(bar.end - bar.start) / factor for _, bar in same_kind],
                "y": [places[queue] for queue, _ in same_kind],
                "width": 0.5 if kind == _WAITS else 0.8,
                "yaxis": "y2",
                "marker": {
                    "color": colours[kind],
                    "line": {"width": 0},
                    "pattern": hatching(shapes.get(kind, ""), colours[kind]),
                },
                "text": [bar.words for _, bar in same_kind],
                "textposition": "none",
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return traces


def _memory(report: Report, timing: Timing, factor: float) -> list[dict[str, Any]]:
    """Device and host memory at the beginning of each computation, in time."""
    spans = [span for span in timing.spans if span.queue is Queue.COMPUTE]
    each = max(1, -(-len(spans) // _MOST))
    groups = [spans[k : k + each] for k in range(0, len(spans), each)]
    traces = []
    profiles = (("device memory", report.replay.profile, "solid"), ("host memory", report.replay.host_profile, "dash"))
    for name, profile, dash in profiles:
        if not profile:
            continue
        most = [max(profile[at] for at in _statements(group)) for group in groups]
        x = [*(group[0].start / factor for group in groups), timing.time / factor]
        look = {"width": 1.4, "shape": "hv", "color": INK, "dash": dash}
        hover = f"{name} %{{y:.4s}}B<extra></extra>"
        traces.append(lines(name, x, [*most, *most[-1:]], line=look, hovertemplate=hover))
    return traces


def _statements(group: Sequence[Any]) -> list[int]:
    """The statements of neighbouring spans, and those between them."""
    between = [at for one, other in pairwise(group) for at in range(one.statement, other.statement)]
    return [*between, group[-1].statement]


def _lanes(queues: Sequence[Queue]) -> dict[Queue, int]:
    """The height of each queue in the chart; the first is on top."""
    return {queue: len(queues) - 1 - k for k, queue in enumerate(queues)}


def _layout(end: float, unit: str, queues: Sequence[Queue]) -> dict[str, Any]:
    return {
        "margin": {"l": 76, "r": 12, "t": 8, "b": 40},
        "barmode": "overlay",
        "hovermode": "closest",
        "legend": {"orientation": "h", "traceorder": "normal", "y": -0.18, "yanchor": "top", "x": 0},
        "xaxis": {"title": {"text": f"time, {unit}", "standoff": 4}, "anchor": "y2", "range": [0, end]},
        "yaxis": {
            "title": {"text": "memory"},
            "tickformat": "~s",
            "ticksuffix": "B",
            "rangemode": "tozero",
            "domain": [0.5, 1],
        },
        "yaxis2": {
            "domain": [0, 0.44],
            "range": [-0.5, len(queues) - 0.5],
            "tickvals": list(_lanes(queues).values()),
            "ticktext": [queue.value for queue in queues],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
        },
    }


def _table(report: Report, plan: Plan, timing: Timing) -> Table[tuple[int, Span] | str]:
    """The largest copies and collectives: what, when, and how long."""
    graph = report.graph
    value_of = {s.register: s.value for s in plan.statements if isinstance(s, Allocate)}
    copies = []
    for span in timing.spans:
        statement = plan.statements[span.statement]
        if isinstance(statement, Offload | Prefetch):
            copies.append((value_of[statement.register], span))
        elif span.queue is Queue.COMMUNICATION and isinstance(statement, Compute):
            moved = [*graph.values_of(statement.node), *graph.nodes[statement.node].inputs]
            if moved:
                copies.append((max(moved, key=graph.size.__getitem__), span))
    largest = sorted(copies, key=lambda copy: (-graph.size[copy[0]], copy[1].start))[:_ROWS]
    rows: list[tuple[int, Span] | str] = [*sorted(largest, key=lambda copy: copy[1].start)]
    if (others := len(copies) - len(largest)) > 0:
        rows.append(f"and {count(others, 'smaller one', 'smaller ones')}")

    def column(title: str, value: Callable[[int, Span], Any], format: Format, *, numeric: bool = True) -> Column[Any]:
        """A column of copies, which is empty in the row that counts the others."""
        return Column(title, lambda row: None if isinstance(row, str) else value(*row), format, numeric)

    written = each(lambda time: cost_words(time, graph.cost_unit))
    columns: list[Column[tuple[int, Span] | str]] = [
        Column("value", lambda row: row if isinstance(row, str) else graph.value_name(row[0]), numeric=False),
        column("way", lambda _, span: span.queue.value, each(str), numeric=False),
        column("size", lambda value, _: graph.size[value], size_column),
        column("begins at", lambda _, span: span.start, written),
        column("takes", lambda _, span: span.end - span.start, written),
        column(
            "of the time",
            lambda _, span: (span.end - span.start) / timing.time if timing.time else 0.0,
            each(format_percent),
        ),
    ]
    return Table(columns, rows)
