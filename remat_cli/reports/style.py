"""The style of text reports: width, colour, alphabet, and the few pieces of layout that all of them share.

rich does the layout and is imported only when something is rendered. Text from documents never reaches rich as
markup, and never reaches a terminal raw: see :meth:`Style.clean`.
"""

from __future__ import annotations

import io
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

_INDENT = 2
_SHORTEST_NAME = 12


@dataclass(frozen=True, slots=True)
class Style:
    """The abilities of the terminal or file to which a report goes.

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


def columns(rows: Sequence[tuple[str, ...]], style: Style, *, shares: Sequence[float] | None = None) -> Table:
    """A table without lines: the first column is names, shortened to fit; the others are numbers, right-aligned.

    If there is no space for all numbers, the last columns are left out.

    Args:
        rows: Cells of every row, the same number each; names from documents may be in the first.
        style: Where it goes.
        shares: Numbers of 0..1, drawn as bars at the right if there is space.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    names = [style.clean(row[0]) for row in rows]
    numbers = [[style.short(cell, style.columns // 3) for cell in row[1:]] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*numbers, strict=True)]
    while widths and style.columns - _INDENT - sum(width + 2 for width in widths) < _SHORTEST_NAME:
        widths.pop()
    room = style.columns - _INDENT - sum(width + 2 for width in widths)
    wanted = max((cell_len(name) for name in names), default=0)
    bar = min(24, max(0, room - wanted - 2)) if shares is not None else 0
    if shares is not None and bar < 8:  # a short bar says more than the middle of a long name
        bar = 8 if room >= 30 else 0
    room -= bar + 2 if bar else 0
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True)
    for width in widths:
        grid.add_column(justify="right", no_wrap=True, min_width=width)
    for i, name in enumerate(names):
        cells = [Text(" " * _INDENT + style.short(name, room)), *map(Text, numbers[i][: len(widths)])]
        if bar and shares is not None:
            cells.append(Text(share_bar(shares[i], bar, style), style="cyan"))
        grid.add_row(*cells)
    return grid


def share_bar(share: float, width: int, style: Style) -> str:
    """A horizontal bar for ``share`` of 0..1, at most ``width`` columns; in eighths of a column with Unicode."""
    amount = min(1.0, max(0.0, share)) * width
    if not style.unicode:
        return "#" * round(amount)
    eighths = round(amount * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
