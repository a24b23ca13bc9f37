"""Tables of reports: stated once as columns and rows, and rendered as text, CSV, JSON rows, HTML or Markdown.

Rows are objects of any class. A column says which value it takes from a row, and how all its values are written. The
template of pages renders HTML from :attr:`Table.columns`, :meth:`Table.cells`, :meth:`Table.shares` and
:meth:`Table.pins`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from remat_cli.printable import printable
from remat_cli.reports.style import Style

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Row = TypeVar("Row")
Format = Callable[[Sequence[Any]], Sequence[str]]
"""Writes all values of a column, so that they may share a unit."""

_INDENT, _GAP = 2, 2
_SHORTEST_NAME = 12
"""The last columns of a text are left out if names would get less space, in characters."""
_SHORTEST_BAR, _LONGEST_BAR = 8, 24


def each(write: Callable[[Any], str]) -> Format:
    """The format that writes every value for itself."""
    return lambda values: [write(value) for value in values]


def _as_text(values: Sequence[Any]) -> list[str]:
    return [str(value) for value in values]


def _no_look(_: object) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        title: Its heading, and its name in CSV and JSON. In text, a line break in it begins another line.
        value: The value of a row: a text, a number, or None where there is none.
        format: How people see the values, those that are None left out. Programs see the values themselves.
        numeric: Whether it is aligned to the right; a column of words is aligned to the left.
        missing: How people see None.
        unit: A word after every value in a text without headings.
        least_width: The least width in a text, in characters.
        wraps: Whether a long cell of a text continues in the next line. Only the last column may.
        look: The colour and weight of a row's cell in a text, in rich's words; empty for plain.
    """

    title: str
    value: Callable[[Row], Any]
    format: Format = _as_text
    numeric: bool = True
    missing: str = ""
    unit: str = ""
    least_width: int = 0
    wraps: bool = False
    look: Callable[[Row], str] = _no_look

    def texts(self, rows: Sequence[Row], *, units: bool = False) -> list[str]:
        """The cells of ``rows`` as people see them, with their units if asked for."""
        values = [self.value(row) for row in rows]
        unit = f" {self.unit}" if units and self.unit else ""
        written = iter(self.format([value for value in values if value is not None]))
        return [self.missing if value is None else (text + unit if (text := next(written)) else "") for value in values]


def text_columns(*titles: str) -> list[Column[Sequence[str]]]:
    """Columns for rows that are sequences of texts: names in the first one, numbers in the others."""
    return [Column(title, itemgetter(k), numeric=k > 0) for k, title in enumerate(titles)]


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """A table.

    Attributes:
        columns: Its columns; at least one, which names the rows.
        rows: Its rows.
        share: The share of a row in a whole, from 0 to 1, drawn as a bar; None for no bars.
        pin: The node that the name of a row pins in the charts of a page, if any; None for a table without such nodes.
    """

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    share: Callable[[Row], float] | None = None
    pin: Callable[[Row], int | None] | None = None

    @property
    def titles(self) -> list[str]:
        """The headings."""
        return [column.title for column in self.columns]

    def cells(self) -> list[tuple[str, ...]]:
        """The texts of every row as people see them."""
        return list(zip(*(column.texts(self.rows) for column in self.columns), strict=True))

    def shares(self) -> list[float]:
        """The length of every row's bar; empty without bars."""
        return [] if self.share is None else [self.share(row) for row in self.rows]

    def pins(self) -> list[int | None]:
        """The node of every row; empty without nodes."""
        return [] if self.pin is None else [self.pin(row) for row in self.rows]

    def records(self) -> list[dict[str, Any]]:
        """The rows as objects for JSON, by the titles of the columns."""
        return [{column.title: column.value(row) for column in self.columns} for row in self.rows]

    def csv(self) -> str:
        """A line with the titles and one for every row. None is empty, and truth values are those of JSON."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.titles)
        writer.writerows([_csv_value(column.value(row)) for column in self.columns] for row in self.rows)
        return out.getvalue()

    def markdown(self) -> str:
        """The table in GitHub's Markdown."""
        rules = ["---:" if column.numeric else "---" for column in self.columns]
        lines = [map(markdown_escaped, self.titles), rules, *(map(markdown_escaped, row) for row in self.cells())]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def text(
        self, style: Style, *, head: bool = True, indent: int = _INDENT, gap: int = _GAP, longest_name: int = 0
    ) -> RichTable:
        """The table for a terminal, without lines. Names are shortened to fit; without them, the last columns go.

        Args:
            style: The layout.
            head: Whether it has headings; without them, values have units.
            indent: Spaces before every line.
            gap: Spaces between columns.
            longest_name: Longer names are shortened even if there is space; 0 for no limit.
        """
        from rich.cells import cell_len
        from rich.table import Table as RichTable
        from rich.text import Text

        names, *others = self._text_cells(style, head)
        above = len(names) - len(self.rows)
        columns = self.columns[1:]
        widths = [
            0 if column.wraps else max([column.least_width, *map(cell_len, texts)])
            for column, texts in zip(columns, others, strict=True)
        ]
        room = style.columns - indent - sum(width + gap for width in widths)
        while widths and room < _SHORTEST_NAME and not self._wraps:
            room += widths.pop() + gap
        bar = 0 if self.share is None else _bar_width(room - max(map(cell_len, names), default=0) - 2, room)
        room = style.columns if self._wraps else min(room - (bar + 2 if bar else 0), longest_name or style.columns)

        grid = RichTable.grid(padding=(0, gap, 0, 0), pad_edge=False)
        grid.add_column(no_wrap=True, overflow="fold")
        for column, width in zip(columns, widths, strict=False):  # those for which there is space
            grid.add_column(
                justify="right" if column.numeric else "left",
                no_wrap=not column.wraps,
                overflow="fold",  # rich's own ellipsis is no ASCII
                min_width=None if self._wraps else width,
                ratio=1 if column.wraps else None,
            )
        looks = [["bold"] * above + [column.look(row) for row in self.rows] for column in self.columns]
        shares = [*[0.0] * above, *self.shares()]
        for k, name in enumerate(names):
            line = [Text(" " * indent + style.short(name, room), style=looks[0][k])]
            line += [Text(others[c][k], style=looks[c + 1][k]) for c in range(len(widths))]
            if bar:
                line.append(Text(share_bar(shares[k], bar, style), style="cyan"))
            grid.add_row(*line)
        return grid

    @property
    def _wraps(self) -> bool:
        """Whether the last column takes the space that the others leave, so that nothing has to be shortened."""
        return self.columns[-1].wraps

    def _text_cells(self, style: Style, head: bool) -> list[list[str]]:
        """The texts of every column, with the lines of its heading above them; long ones that are no names are cut."""
        heads = [column.title.split("\n") if head else [] for column in self.columns]
        above = max(map(len, heads))
        cells = []
        for title, column in zip(heads, self.columns, strict=True):
            texts = [*title, *[""] * (above - len(title)), *column.texts(self.rows, units=not head)]
            whole = self._wraps or column is self.columns[0]
            cells.append([style.clean(text) if whole else style.short(text, style.columns // 3) for text in texts])
        return cells


def _bar_width(beside_names: int, room: int) -> int:
    """The width of bars in ``room`` characters, of which the full names leave ``beside_names``; 0 for no bars."""
    if beside_names >= _SHORTEST_BAR:
        return min(_LONGEST_BAR, beside_names)
    return _SHORTEST_BAR if room >= 30 else 0  # a short bar says more than the middle of a long name


def share_bar(share: float, width: int, style: Style) -> str:
    """A horizontal bar for ``share`` of 0..1, at most ``width`` columns; in eighths of a column with Unicode."""
    amount = min(1.0, max(0.0, share)) * width
    if not style.unicode:
        return "#" * round(amount)
    eighths = round(amount * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def markdown_escaped(text: str) -> str:
    """``text`` of a document, fit for Markdown and a cell of its tables."""
    plain = printable(text)
    for mark in "\\`*_[]<>|#":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def _csv_value(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return printable(value) if isinstance(value, str) else value
