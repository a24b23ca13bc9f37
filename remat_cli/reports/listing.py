"""Lists of strategies, solvers and architectures, each with its description and options, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.reports.style import Style, render

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
