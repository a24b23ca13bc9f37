"""The layout of text reports: width, colours and alphabet, headings, and lists of labelled fields.

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


@dataclass(frozen=True, slots=True)
class Style:
    """How the terminal or file that a report is written to shows text.

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
