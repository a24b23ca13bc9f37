"""A recording of CUDA memory as text and as a document, ``remat-snapshot/1``, alone or beside a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from remat_cli.plan.check import Report
from remat_cli.plan.snapshot import Beside, Line, Peak, Size, Snapshot, beside, lines_of, peak_of
from remat_cli.reports.style import Style, fields, render, title
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.words import count, exact_bytes, percent_change, share_column, size_column
from remat_cli.units import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_LINES, SHOWN_SIZES = 12, 12
"""Rows of the tables in text; the others are summed up."""
LISTED = 100
"""Rows in the document."""
_NO_LINE = "(no line of Python)"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What reports show.

    Attributes:
        snapshot: The recording.
        peak: Its peak.
        beside: The recording beside a plan; None without one.
        plan_name: What the plan is called; empty without one.
    """

    snapshot: Snapshot
    peak: Peak
    beside: Beside | None
    plan_name: str


def recorded(snapshot: Snapshot, report: Report | None = None, plan_name: str = "") -> Recorded:
    """What reports show of a recording, beside the plan of ``report`` if there is one."""
    peak = peak_of(snapshot)
    return Recorded(snapshot, peak, None if report is None else beside(peak, report), plan_name)


def snapshot_text(shown: Recorded, style: Style) -> str:
    """The output of ``remat show SNAPSHOT``: the peak, who asked for it, and what a plan says about it."""
    parts: list[RenderableType] = [fields([(name, style.clean(text)) for name, text in facts(shown)], style)]
    at = f": event {shown.peak.event:,} of {shown.snapshot.events - 1:,}, {count(len(shown.peak.blocks), 'block')}"
    parts += [title("At the peak", at), lines_table(shown, SHOWN_LINES).text(style)]
    if shown.beside is not None:
        parts += [
            title("Beside the plan", ", by the size of a tensor"),
            sizes_table(shown.beside, SHOWN_SIZES).text(style),
        ]
    return render(style, *parts)


def facts(shown: Recorded) -> list[tuple[str, str]]:
    """The numbers of a recording, with names."""
    snapshot, peak = shown.snapshot, shown.peak
    time = "" if snapshot.seconds is None else f" in {format_duration(snapshot.seconds)}"
    device = f"device {snapshot.device}"
    if snapshot.devices > 1:
        device += f", the one of {snapshot.devices} with the highest peak"
    rows = [
        ("recording", f"{snapshot.name}: {device}; {count(snapshot.events - 1, 'event')}{time}"),
        ("peak", f"{exact_bytes(peak.bytes)} allocated, of {format_bytes(peak.reserved)} reserved"),
    ]
    before = sum(block.size for block in snapshot.blocks if block.first == 0)
    if before:
        rows.append(("before", f"{format_bytes(before)} were there when the recording began"))
    if snapshot.events == 1:
        rows.append(("events", "none were recorded, so this is what was there at the end, and no peak"))
    for failure in snapshot.failed[:3]:
        asked, free = format_bytes(failure.asked), format_bytes(failure.free)
        rows.append(("out of memory", f"at event {failure.event:,}: {asked} asked for, {free} free on the device"))
    if shown.beside is not None:
        found = shown.beside
        change = percent_change(found.predicted / found.recorded - 1) if found.recorded else ""
        said = f"{exact_bytes(found.predicted)} predicted at its peak by {shown.plan_name}"
        rows.append(
            ("plan", f"{said}: {change} against the recording" if change not in {"", "="} else f"{said}, as recorded")
        )
        if found.undivided:
            rows.append(
                ("not divided", f"{format_bytes(found.undivided)} of fixed memory, which the graph does not list")
            )
    return rows


def lines_table(shown: Recorded, most: int) -> Table[Line]:
    """The lines of code whose blocks are in memory at the peak, the others as one row."""
    peak = shown.peak.bytes
    columns: list[Column[Line]] = [
        Column("asked for by", lambda row: row.line or _NO_LINE, numeric=False),
        Column("blocks", attrgetter("blocks"), each("{:,}".format)),
        Column("size", attrgetter("bytes"), size_column),
        Column("of the peak", attrgetter("bytes"), lambda sizes: share_column(sizes, peak)),
    ]
    rows = _shortened(lines_of(shown.peak.blocks), most, _other_lines)
    return Table(columns, rows, share=lambda row: row.bytes / peak if peak else 0.0)


def _other_lines(rest: Sequence[Line]) -> Line:
    return Line(f"and {count(len(rest), 'more line')}", sum(r.blocks for r in rest), sum(r.bytes for r in rest))


def sizes_table(found: Beside, most: int) -> Table[Size]:
    """Tensors by size, in the plan and in the recording; the largest differences first."""
    columns: list[Column[Size]] = [
        Column("size of one", lambda row: format_bytes(row.bytes), numeric=False),
        Column("planned", attrgetter("planned"), each("{:,}".format)),
        Column("recorded", attrgetter("recorded"), each("{:,}".format)),
        Column("difference", attrgetter("difference"), each(_signed)),
        Column("what", _what, numeric=False, wraps=True),
    ]
    return Table(columns, found.sizes[:most])


def _what(row: Size) -> str:
    """What tensors of a size are in the plan; the lines that asked for them where the plan has none."""
    names = row.names or [f"from {line}" for line in row.lines] or ["without a line of Python"]
    return names[0] + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")


def _signed(amount: int) -> str:
    return "=" if amount == 0 else f"{'+' if amount > 0 else '-'}{format_bytes(abs(amount))}"


def _shortened(rows: list[Any], most: int, other: Callable[[Sequence[Any]], Any]) -> list[Any]:
    """The first ``most`` rows, and the others as one."""
    return rows if len(rows) <= most + 1 else [*rows[:most], other(rows[most:])]


def snapshot_document(shown: Recorded) -> dict[str, Any]:
    """The report as JSON values, ``remat-snapshot/1`` (schemas/snapshot-v1.json)."""
    snapshot, peak, found = shown.snapshot, shown.peak, shown.beside
    lines = lines_of(peak.blocks)
    return {
        "schema": "remat-snapshot/1",
        "device": snapshot.device,
        "devices": snapshot.devices,
        "events": snapshot.events - 1,
        "seconds": snapshot.seconds,
        "peak_memory": peak.bytes,
        "peak_event": peak.event,
        "peak_reserved": peak.reserved,
        "peak_blocks": len(peak.blocks),
        "peak_lines": [{"line": row.line, "blocks": row.blocks, "bytes": row.bytes} for row in lines[:LISTED]],
        "peak_line_count": len(lines),
        "out_of_memory": [{"event": one.event, "asked": one.asked, "free": one.free} for one in snapshot.failed],
        "plan": None if found is None else _beside_document(found),
    }


def _beside_document(found: Beside) -> dict[str, Any]:
    return {
        "peak_memory": found.predicted,
        "undivided": found.undivided,
        "sizes": [
            {
                "bytes": one.bytes,
                "planned": one.planned,
                "recorded": one.recorded,
                "names": list(one.names[:LISTED]),
                "lines": list(one.lines[:LISTED]),
            }
            for one in found.sizes[:LISTED]
        ],
        "size_count": len(found.sizes),
    }
