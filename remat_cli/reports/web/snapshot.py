"""The page of a recording of CUDA memory: what was in memory over time, by line of code, beside what a plan says."""

from typing import Any

from remat_cli.plan.occupancy import Kind
from remat_cli.plan.snapshot import Block, bytes_over, lines_of
from remat_cli.reports.charts import COLOURS, KINDS, highest_moments
from remat_cli.reports.snapshot import Recorded, facts, lines_table, sizes_table
from remat_cli.reports.web.page import INK, Chart, Page, Section, hatching, label, lines
from remat_cli.units import format_bytes

_LINES = 6
"""Lines of code with an area of their own: more colours cannot be told apart. The next of the palette is black."""
_ROWS = 40
_OTHERS = "everything else"


def snapshot_page(shown: Recorded) -> Page:
    """The page of a recording."""
    note = (
        "Bytes asked for and not freed yet, at every event, by the line of code that asked for them. The line above is "
        "what the allocator held from the driver."
    )
    sections = [
        Section("Memory over time", note, (_chart(shown),)),
        Section("At the peak", "The lines of code whose blocks are in memory then.", table=lines_table(shown, _ROWS)),
    ]
    if shown.beside is not None:
        about = (
            "Tensors by size, at the peak of the plan and at the peak of the recording: the sizes with the largest "
            "difference first. Equal sizes do not prove that two tensors are the same; a difference proves that some "
            "are not."
        )
        sections.append(Section("Beside the plan", about, table=sizes_table(shown.beside, _ROWS)))
    failed = bool(shown.snapshot.failed)
    return Page(
        title=shown.snapshot.name,
        facts=facts(shown),
        sections=sections,
        verdict="out of memory" if failed else "",
        good=False if failed else None,
    )


def _chart(shown: Recorded) -> Chart:
    snapshot, peak = shown.snapshot, shown.peak
    moments = [at for _, at in highest_moments(snapshot.allocated())]
    largest = [one.line for one in lines_of(peak.blocks)[:_LINES]]
    colour: dict[str | None, str] = {line: COLOURS[k] for k, line in enumerate(largest)}
    colour[None] = KINDS[Kind.FIXED]
    groups: dict[str | None, list[Block]] = {line: [] for line in colour}
    for block in snapshot.blocks:
        groups[block.line if block.line in colour else None].append(block)
    traces = []
    for line, blocks in groups.items():
        if not blocks:
            continue
        name = _OTHERS if line is None else line or "no line of Python"
        amounts = bytes_over(blocks, snapshot.events)
        traces.append(
            lines(
                label(name),
                moments,
                [amounts[at] for at in moments],
                stackgroup="memory",
                line={"width": 0, "shape": "hv", "color": colour[line]},
                fillcolor=colour[line],
                fillpattern=hatching("/" if line is None else "", colour[line]),
                hovertemplate="%{y:.4s}B<extra>" + label(name) + "</extra>",
            )
        )
    edge = {"width": 1.2, "shape": "hv", "color": INK}
    reserved = [snapshot.reserved[at] for at in moments]
    traces.append(lines("reserved", moments, reserved, line=edge, hovertemplate="%{y:.4s}B<extra>reserved</extra>"))
    if shown.beside is not None:
        level, dash = shown.beside.predicted, {"width": 1.6, "dash": "dash", "color": INK}
        name = f"peak of the plan {format_bytes(level)}"
        traces.append(lines(name, [0, snapshot.events - 1], [level] * 2, line=dash, hoverinfo="skip"))
    words = (
        f"Memory over {snapshot.events - 1:,} events: at most {format_bytes(peak.bytes)} at event {peak.event:,}, of "
        f"{format_bytes(peak.reserved)} reserved. The tables below have the numbers."
    )
    return Chart("recording", traces, _layout(snapshot.events), 460, words)


def _layout(events: int) -> dict[str, Any]:
    return {
        "margin": {"l": 60, "r": 12, "t": 8, "b": 40},
        "hovermode": "x",
        "legend": {"orientation": "h", "traceorder": "normal", "y": -0.14, "yanchor": "top", "x": 0},
        "xaxis": {"title": {"text": "event", "standoff": 4}, "range": [0, max(1, events - 1)]},
        "yaxis": {"title": {"text": "memory"}, "tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"},
    }
