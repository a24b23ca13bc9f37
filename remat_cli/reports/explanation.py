"""What a plan does with a node and its values, and what a change would cost, as text and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remat_cli.graph.metadata import line_of
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote
from remat_cli.plan.check import Report
from remat_cli.plan.explanation import Change, Explanation
from remat_cli.reports.style import Style, fields, render, title
from remat_cli.reports.words import cost_words, count, exact_bytes, share_words, tensor_size
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN_EVENTS = 30
_SHOWN_NAMES = 4


def explanation_text(explanation: Explanation, style: Style) -> str:
    """The facts about the node, its events statement by statement, and the alternatives."""
    from rich.text import Text

    report, graph = explanation.report, explanation.report.graph
    node = graph.nodes[explanation.node]
    kind = ", ".join(part for part in (node.op, node.phase.value if node.phase else None) if part)
    times = f"computed {count(len(explanation.computed), 'time')}"
    head = f"{node.id}{f' ({kind})' if kind else ''}"
    parts: list[RenderableType] = [Text.assemble((style.clean(head), "bold"), f": {times}"), ""]
    parts.append(fields(_facts(explanation, style), style))
    if not report.valid:
        words = "This plan is invalid (see remat check). The events below are as it says; no change was tried."
        parts += ["", Text(words, style="red")]
    total, peak = len(report.replay.profile), report.replay.peak_statement
    at_peak = "" if peak is None else f"; the peak is at {peak:,}"
    parts.append(title("By statement", f", 0 to {total - 1:,}{at_peak}"))
    parts.append(fields(_events(explanation, style), style))
    if explanation.keep:
        parts.append(title("If it were kept", " instead of recomputed"))
        parts.append(fields([_kept(change, explanation, style) for change in explanation.keep], style))
    if explanation.drop:
        parts.append(title("If it were dropped", " between two uses and recomputed"))
        parts.append(fields([_dropped(change, explanation, style) for change in explanation.drop], style))
    if report.valid and any(life.fetched or life.sent for life in explanation.lives):
        parts.append(Text("  No change was tried: the copies of the plan would have to change with it."))
    if explanation.skipped:
        parts.append(Text(f"  shorter intervals not tried: {explanation.skipped:,}"))
    return render(style, *parts)


def _facts(explanation: Explanation, style: Style) -> list[tuple[str, str]]:
    """The facts of the graph about the node."""
    report, graph, index = explanation.report, explanation.report.graph, explanation.node
    node, values = graph.nodes[index], graph.values_of(index)
    rows = [("cost", f"{cost_words(node.cost, graph.cost_unit)} each time")]
    if extra := (len(explanation.computed) - 1) * node.cost:
        spent = sum(r.extra_cost for r in report.recomputed)
        rows[0] = ("cost", f"{rows[0][1]}; {share_words(extra, spent)} of the cost of all recomputation")
    if line := line_of(graph, node.id):
        rows.append(("line", line))
    rows.append(("makes", _named([f"{graph.value_name(v)} ({tensor_size(graph, v)})" for v in values])))
    rows.append(("reads", _named([graph.value_name(v) for v in node.inputs])))
    readers = sorted({reader for v in values for reader in graph.readers[v]})
    rows.append(("read by", _named([graph.nodes[r].id for r in readers])))
    if node.workspace:
        rows.append(("workspace", exact_bytes(node.workspace)))
    if not node.recompute:
        rows.append(("note", "it may be computed only once (recompute: false), so its values are never dropped"))
    if outputs := [graph.value_name(v) for v in values if v in graph.outputs]:
        rows.append(("note", f"{_named(outputs)} must be in memory at the end: an output of the graph"))
    return [(label, style.clean(text)) for label, text in rows]


def _named(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {rest:,} more" if rest > 0 else "")


def _events(explanation: Explanation, style: Style) -> list[tuple[str, str]]:
    """All events of the node and its values, by statement."""
    last = len(explanation.report.replay.profile)
    events: list[tuple[int, int, str]] = []
    for k, (at, stage) in enumerate(explanation.computed):
        place = "after the last stage" if stage is None else f"in the stage of {stage}"
        when = _when(explanation.report, at)
        events.append((at, 0, (f"recomputed {place}" if k else "computed for the first time") + when))
        events += _waits(explanation.report, at)
    for life in explanation.lives:
        events += [(at, 1, f"{life.value} copied to the host") for at in life.sent]
        if life.fetched:
            events.append((life.computed, 0, f"{life.value} copied back from the host"))
        for k, (at, reader) in enumerate(life.reads):
            latest = k == len(life.reads) - 1 and life.freed is not None
            events.append((at, 1, f"{life.value} read {'for the last time ' if latest else ''}by {reader}"))
        until = last if life.freed is None else life.freed
        stretch = f"{count(until - life.allocated, 'statement')} in memory ({format_bytes(life.size_bytes)})"
        if life.freed is None:
            events.append((last - 1, 2, f"{life.value} stays to the end, after {stretch}"))
        else:
            why = "" if life.reads else ", never read"
            events.append((life.freed, 2, f"{life.value} dropped after {stretch}{why}"))
    events.sort()
    rows = [(f"{at:,}", style.clean(words)) for at, _, words in events]
    width = max((len(label) for label, _ in rows), default=0) + 2
    shown = [(label.rjust(width), words) for label, words in rows[:_SHOWN_EVENTS]]
    if len(rows) > _SHOWN_EVENTS:
        shown.append(("", f"and {len(rows) - _SHOWN_EVENTS:,} more"))
    return shown or [("", "nothing happens to it")]


def _when(report: Report, statement: int) -> str:
    """When a computation runs, and where, if there are collectives."""
    timing, unit = report.replay.timing, report.graph.cost_unit
    if timing is None or not report.graph.overlaps:
        return ""
    span = next(span for span in timing.spans if span.statement == statement)
    return f": {cost_words(span.start, unit)} to {cost_words(span.end, unit)}, {span.queue.value} queue"


def _waits(report: Report, statement: int) -> list[tuple[int, int, str]]:
    """The waits of computations for a collective, as events."""
    timing = report.replay.timing
    if timing is None or not report.graph.overlaps:
        return []
    unit = report.graph.cost_unit
    return [
        (stall.statement, 0, f"computations wait {cost_words(stall.duration, unit)} for it")
        for stall in timing.stalls
        if stall.copy == statement
    ]


def _kept(change: Change, explanation: Explanation, style: Style) -> tuple[str, str]:
    graph = explanation.report.graph
    saved = "costs the same"
    if change.cost_change < 0:
        saved = f"saves {cost_words(-change.cost_change, graph.cost_unit)}"
    if change.others:
        saved += f"; {_named(change.others)} would be computed less often too"
    return _row(change, explanation, saved, style)


def _dropped(change: Change, explanation: Explanation, style: Style) -> tuple[str, str]:
    graph = explanation.report.graph
    paid = f"costs {cost_words(change.cost_change, graph.cost_unit)} more"
    if change.others:
        paid += f"; {_named(change.others)} would have to be recomputed too"
    return _row(change, explanation, paid, style)


def _row(change: Change, explanation: Explanation, price: str, style: Style) -> tuple[str, str]:
    """The range of statements, and the peak and cost after the change."""
    report = explanation.report
    before, after, budget = report.replay.peak_bytes, change.peak_bytes, report.budget_bytes
    more = "more" if after > before else "less"
    difference = "as now" if after == before else f"{format_bytes(abs(after - before))} {more}"
    peak = f"peak {format_bytes(after)}, {difference}"
    if budget is not None:
        peak += ": fits" if change.fits else f": {format_bytes(after - budget)} over the budget"
    label = f"  {change.start:,} to {change.stop:,}"
    return label, style.clean(f"{format_bytes(change.size_bytes)}; {peak}; {price}")


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """The ``remat-explanation/1`` document (schemas/explanation-v1.json)."""
    report = explanation.report
    return {
        "schema": "remat-explanation/1",
        "node": report.graph.nodes[explanation.node].id,
        "valid": report.valid,
        "peak_memory": report.replay.peak_bytes,
        "budget": report.budget_bytes,
        "computed": [{"statement": at, "stage": stage} for at, stage in explanation.computed],
        "lives": [
            {
                "value": life.value,
                "bytes": life.size_bytes,
                "allocated": life.allocated,
                "computed": life.computed,
                "reads": [{"statement": at, "node": reader} for at, reader in life.reads],
                "freed": life.freed,
                "fetched": life.fetched,
                "sent": list(life.sent),
            }
            for life in explanation.lives
        ],
        "keep": [_change_document(change) for change in explanation.keep],
        "drop": [_change_document(change) for change in explanation.drop],
        "skipped": explanation.skipped,
    }


def _change_document(change: Change) -> dict[str, Any]:
    return {
        "start": change.start,
        "stop": change.stop,
        "bytes": change.size_bytes,
        "peak_memory": change.peak_bytes,
        "cost_change": change.cost_change,
        "others": list(change.others),
        "fits": change.fits,
    }


def no_such_node(name: str, graph: Graph) -> tuple[str, str]:
    """The message and the hint for a node that is not in the graph: the closest names, or where to find them."""
    import difflib

    ids = [node.id for node in graph.nodes]
    # A prefix first: conv1 is rather conv1_1 than conv5_1, although both differ from it by two characters.
    close = [i for i in ids if i.startswith(name)][:3] if name else []
    close = close or difflib.get_close_matches(name, ids, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "the ids of nodes are in the plan under graph.nodes"
    return f"there is no node {quote(name)} in the graph of this plan", hint
