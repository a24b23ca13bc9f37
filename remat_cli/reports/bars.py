"""Drawing with characters: the memory bar, and labels below a drawing that point at its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_cli.plan.check import Report
from remat_cli.reports.style import Style, cells
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Mark:
    """A label for one column of a drawing."""

    column: int
    label: str
    style: str = ""
    leftward: bool = False
    """Whether the label prefers the left side of its column."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The text in columns ``start`` to ``stop`` - 1 of a line, and whether it starts or ends with a corner."""

    start: int
    stop: int
    text: Text
    starts: bool = False
    ends: bool = False


def ruler(marks: Sequence[Mark], width: int, style: Style) -> list[Text]:
    """Lines of ``width`` columns with every label beside a corner that points up at its column.

    Labels stand left or right of their corner, on the first line with room for them, the first marks first; a
    label with no room on either side of its column is shortened.
    """
    from rich.cells import cell_len
    from rich.text import Text

    left, right, stem = style.glyph("╯", "^"), style.glyph("╰", "^"), style.glyph("│", "|")
    lines: list[list[_Piece]] = []
    for mark in marks:
        label = style.short(mark.label, max(mark.column, width - mark.column - 1) - 1)
        size = cell_len(label) + 2
        sides = [
            _Piece(mark.column, mark.column + size, Text(f"{right} {label}", style=mark.style), starts=True),
            _Piece(mark.column - size + 1, mark.column + 1, Text(f"{label} {left}", style=mark.style), ends=True),
        ]
        fitting = [piece for piece in sides if piece.start >= 0 and piece.stop <= width]
        row, piece = _place(fitting[:: -1 if mark.leftward else 1], lines)
        drop = _Piece(mark.column, mark.column + 1, Text(stem, style=mark.style or "dim"), starts=True, ends=True)
        for above in lines[:row]:
            if all(_apart(drop, other) for other in above):
                above.append(drop)
        lines[row].append(piece)
    drawn = []
    for line in lines:
        text, at = Text(), 0
        for piece in sorted(line, key=lambda item: item.start):
            text.append(" " * (piece.start - at)).append_text(piece.text)
            at = piece.stop
        drawn.append(text)
    return drawn


def _place(candidates: Sequence[_Piece], lines: list[list[_Piece]]) -> tuple[int, _Piece]:
    """The first line on which a candidate fits, and that candidate; a new line if none has room."""
    for row, line in enumerate(lines):
        for candidate in candidates:
            if all(_apart(candidate, other) for other in line):
                return row, candidate
    lines.append([])
    return len(lines) - 1, candidates[0]


def _apart(one: _Piece, other: _Piece) -> bool:
    """Whether two pieces have enough space between them; two corners may touch."""
    left, right = (one, other) if one.start < other.start else (other, one)
    return left.stop + (0 if left.ends and right.starts else 2) <= right.start


def memory_bar(report: Report, width: int, style: Style) -> list[Text]:
    """Peak and budget as a bar: fixed memory, the rest of the peak, the unused or missing part, the no-remat peak."""
    fixed, peak, budget = report.graph.fixed_memory, report.replay.peak_bytes, report.budget_bytes
    before = report.no_remat_peak_bytes
    scale = max(fixed, peak, budget or 0, before)
    if budget is not None and budget > 4 * max(peak, before):  # a budget far away would squeeze all the rest
        budget, scale = None, max(fixed, peak, before)
    if scale == 0:
        return []
    limit = peak if budget is None else budget
    kinds = (
        (fixed, style.glyph("▒", "="), "blue"),
        (min(peak, limit), style.glyph("█", "#"), "cyan"),
        (peak, style.glyph("▓", "!"), "red"),
        (limit, style.glyph("░", "."), "dim"),
        (scale, style.glyph("·", " "), "dim"),
    )
    bar = [
        next(
            ((glyph, colour) for upto, glyph, colour in kinds if (2 * column + 1) * scale <= 2 * width * upto),
            (" ", ""),
        )
        for column in range(width)
    ]

    def column_of(amount: int) -> int:
        return min(width - 1, max(0, (2 * width * amount + scale) // (2 * scale) - 1))

    marks = [Mark(column_of(peak), f"peak {format_bytes(peak)}", leftward=budget is not None and budget > peak)]
    if budget is not None:
        at = column_of(budget)
        if budget == peak:
            marks = [Mark(at, f"peak = budget {format_bytes(budget)}", "bold")]
        else:
            marks.append(Mark(at, f"budget {format_bytes(budget)}", "bold", leftward=budget < peak))
        bar[at] = (style.glyph("┃", "|"), "bold")
    if 0 < fixed < peak:
        marks.append(Mark(column_of(fixed), f"fixed {format_bytes(fixed)}", "blue"))
    if before != peak:
        marks.append(Mark(column_of(before), f"no-remat {format_bytes(before)}", "dim", leftward=True))
    return [cells(bar), *ruler(marks, width, style)]
