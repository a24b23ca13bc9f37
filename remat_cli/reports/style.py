"""The layout of text reports: width, colours and alphabet, headings, labelled fields, listings, labels below drawings.

rich does the layout and is imported only when something is rendered. Text from documents never reaches rich as
markup, and never reaches a terminal raw: see :meth:`Style.clean`.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from remat_cli.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

NARROWEST = 40
"""Columns below which no report is laid out."""


@dataclass(frozen=True, slots=True)
class Style:
    """The width, the colours and the alphabet of the terminal or file that a report is written to.

    Attributes:
        width: Columns; values below 40 count as 40. No line is longer.
        color: Whether to use ANSI colours.
        unicode: Whether to use more than ASCII, for drawing and for text from documents.
    """

    width: int
    color: bool
    unicode: bool

    @property
    def columns(self) -> int:
        """Columns for which reports are laid out."""
        return max(self.width, NARROWEST)

    def glyph(self, drawn: str, ascii_only: str) -> str:
        """``drawn`` if the style has Unicode, else ``ascii_only``."""
        return drawn if self.unicode else ascii_only

    def verdict(self, good: bool) -> str:
        """The mark before a verdict."""
        return self.glyph("✓", "ok:") if good else self.glyph("✗", "no:")

    def clean(self, text: str) -> str:
        """``text`` from a document, safe for a terminal: unprintable (or non-ASCII) characters are escaped."""
        return printable(text, ascii_only=not self.unicode)

    def short(self, text: str, columns: int) -> str:
        """``text`` cleaned and, if it is wider than ``columns``, cut in the middle: both ends of an id matter."""
        from rich.cells import cell_len, set_cell_size

        text = self.clean(text)
        if cell_len(text) <= columns:
            return text
        dots = self.glyph("…", "..")
        room = max(0, columns - len(dots))
        head = set_cell_size(text, room - room // 2).rstrip()
        tail = text
        while cell_len(tail) > room // 2:
            tail = tail[max(1, (len(tail) - room // 2) // 2) :]
        return set_cell_size(head + dots + tail.lstrip(), columns).rstrip()


def render(style: Style, *renderables: RenderableType) -> str:
    """``renderables`` one below the other; every line ends with a newline, and none is wider than the style."""
    from rich.console import Console

    encoding = "utf-8" if style.unicode else "ascii"  # rich draws boxes with the characters of this encoding
    raw = io.BytesIO()
    console = Console(
        file=io.TextIOWrapper(raw, encoding, errors="backslashreplace", newline="\n", write_through=True),
        width=style.columns,
        height=100,
        force_terminal=style.color,
        force_jupyter=False,  # in a notebook rich would show the text, and write nothing
        color_system="standard" if style.color else None,
        no_color=not style.color,
        force_interactive=False,
        legacy_windows=False,
        safe_box=not style.unicode,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},  # nothing but the style decides
    )
    for item in renderables:
        console.print(item)
    console.file.flush()
    lines = raw.getvalue().decode(encoding).split("\n")
    return "\n".join(line.rstrip() for line in lines)


def cells(drawn: Iterable[tuple[str, str]]) -> Text:
    """One line from ``(character, colour)`` pairs, with as few colour codes as possible and none for blanks."""
    from rich.text import Text

    line = Text()
    for colour, run in groupby(drawn, key=lambda cell: cell[1] if cell[0] != " " else ""):
        line.append("".join(character for character, _ in run), style=colour)
    return line


def title(words: str, rest: str = "") -> Text:
    """Heading of a section: a blank line, ``words`` in bold, ``rest`` after it."""
    from rich.text import Text

    return Text.assemble("\n", (words, "bold"), rest)


def fields(rows: Sequence[tuple[str, str]], style: Style) -> Table:
    """Labels on the left, wrapped text on the right. A row without a label continues the row above."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(width=max((len(label) for label, _ in rows), default=0), style="dim", no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    for label, value in rows:
        grid.add_row(Text(label), Text(style.clean(value)))
    return grid


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


_NARROW = 24
"""Below this width, text is not indented: the space is worth more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a list.

    Attributes:
        name: Its name, as typed.
        summary: Its description, in one line.
        notes: Further lines.
        options: ``(name, default, help)`` of every option.
        mark: A word in front of the summary, such as ``missing``; empty for none.
    """

    name: str
    summary: str
    notes: Sequence[str] = ()
    options: Sequence[tuple[str, str, str]] = ()
    mark: str = ""


def listing_text(entries: Sequence[Entry], style: Style) -> str:
    """``entries`` with their names on the left, in one block each."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(ratio=1, overflow="fold")
    room = style.width - 2 - max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        first = Text.assemble((f"{entry.mark}: ", "yellow") if entry.mark else "", style.clean(entry.summary))
        grid.add_row(style.clean(entry.name), first)
        for note in entry.notes:
            grid.add_row("", Text(style.clean(note), style="dim"))
        for name, default, text in entry.options:
            words = f"{name}={default or '...'}" + (f"  {text}" if text else "")
            grid.add_row("", Text(_hanging(style.clean(words), room), style="dim"))
    return render(style, grid)


def _hanging(text: str, width: int) -> str:
    """``text`` in lines, all but the first indented, so that the next entry stands out."""
    if width < _NARROW:
        return text
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
