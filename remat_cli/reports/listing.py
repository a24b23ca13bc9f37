"""Lists of named things: strategies, solvers, architectures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.reports.style import Style, render


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a list.

    Attributes:
        name: Its name, as typed.
        summary: What it is, in one line.
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
    for entry in entries:
        first = Text.assemble((f"{entry.mark}: ", "yellow") if entry.mark else "", style.clean(entry.summary))
        grid.add_row(style.clean(entry.name), first)
        for note in entry.notes:
            grid.add_row("", Text(style.clean(note), style="dim"))
        for name, default, text in entry.options:
            words = f"{name}={default or '...'}" + (f"  {text}" if text else "")
            grid.add_row("", Text(style.clean(words), style="dim"))
    return render(style, grid)
