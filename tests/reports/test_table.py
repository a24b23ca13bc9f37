"""Tables: one statement of columns and rows, and the same rows in every form."""

import csv
import io
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import STYLES
from test_report_any import assert_fits

from remat_cli.reports.style import Style, render
from remat_cli.reports.table import Column, Table, each, text_columns
from remat_cli.reports.words import size_column

ROWS = [("[red]a|b[/red]", 1_500_000, True), ("c\x1b[31m", None, None), ("d" * 60, 20, False)]
COLUMNS: list[Column[tuple[str, int | None, bool | None]]] = [
    Column("name", itemgetter(0), numeric=False),
    Column("size\nof it", itemgetter(1), size_column, missing="none", unit="large"),
    Column("sure", itemgetter(2), each(lambda sure: "yes" if sure else "no")),
]
TABLE = Table(COLUMNS, ROWS, share=lambda row: (row[1] or 0) / 2e6, pin=lambda row: None if row[1] is None else 7)


def lines(width: int, table: Table[Any] = TABLE, **layout: Any) -> list[str]:
    style = Style(width, color=False, unicode=True)
    return render(style, table.text(style, **layout)).splitlines()


def test_text_has_headings_and_names_are_cut_before_columns_go() -> None:
    assert lines(60) == [
        "  name                                  size  sure",
        "                                       of it",
        "  [red]a|b[/red]                    1.500 MB   yes  ██████",
        "  c\\x1b[31m                             none",
        "  ddddddddddddddd…ddddddddddddddd  <0.001 MB    no",
    ]
    narrow = lines(40)
    assert narrow[2].split() == ["[red]a|b[/red]", "1.500", "MB", "yes"]
    assert all("█" not in line for line in narrow)


def test_text_without_headings_has_units_and_leaves_out_what_has_no_space() -> None:
    [first, second, _] = lines(60, head=False)
    assert first.split()[:4] == ["[red]a|b[/red]", "1.500", "MB", "large"]
    assert second.split() == ["c\\x1b[31m", "none"]
    wide = Table(text_columns("name", "first", "second"), [("n", "1" * 13, "2" * 13)])
    assert lines(40, wide) == ["  name          first", "  n     1111111111111"]


def test_a_column_that_wraps_cuts_nothing() -> None:
    columns: list[Column[tuple[str, str]]] = [
        Column("name", itemgetter(0), numeric=False),
        Column("why", itemgetter(1), numeric=False, wraps=True),
    ]
    name, words = "a name of thirty characters...", "word " * 30
    text = lines(40, Table(columns, [(name, words)]))
    assert " ".join(text).split() == ["name", "why", *name.split(), *words.split()]
    assert max(map(len, text)) <= 40


CELLS = st.none() | st.text(max_size=60)


@settings(max_examples=100)
@given(
    width=st.integers(1, 6),
    data=st.data(),
    style=STYLES,
    head=st.booleans(),
    bars=st.booleans(),
    layout=st.sampled_from([{}, {"indent": 0, "gap": 1, "longest_name": 25}]),
)
def test_any_table_fits_its_width(
    width: int, data: st.DataObject, style: Style, head: bool, bars: bool, layout: dict[str, int]
) -> None:
    wraps = data.draw(st.booleans())
    rows = data.draw(st.lists(st.tuples(*[CELLS] * width), max_size=4))
    columns: list[Column[Any]] = [
        Column(
            data.draw(st.text(max_size=30)),
            itemgetter(k),
            numeric=data.draw(st.booleans()),
            unit=data.draw(st.sampled_from(["", "times"])),
            wraps=wraps and k == width - 1,
        )
        for k in range(width)
    ]
    table = Table(columns, rows, share=(lambda row: len(row) / 9) if bars and not wraps else None)
    assert_fits(render(style, table.text(style, head=head, **layout)) or "\n", style)


def test_looks_are_of_cells_and_headings_are_bold() -> None:
    style = Style(60, color=True, unicode=True)
    column: Column[tuple[str]] = Column("name", itemgetter(0), numeric=False, look=lambda row: "red" if row[0] else "")
    text = render(style, Table([column], [("bad",), ("",)]).text(style))
    assert text == "\x1b[1m  name\x1b[0m\n\x1b[31m  bad \x1b[0m\n\n"


def test_csv_and_records_hold_the_values() -> None:
    table = Table([Column("name", itemgetter(0)), Column("sure", itemgetter(2))], ROWS)
    assert table.records() == [{"name": row[0], "sure": row[2]} for row in ROWS]
    assert list(csv.reader(io.StringIO(table.csv()))) == [
        ["name", "sure"],
        ["[red]a|b[/red]", "true"],
        ["c\\x1b[31m", ""],
        ["d" * 60, "false"],
    ]
    assert Table(table.columns, []).csv() == "name,sure\n"


def test_markdown_escapes_what_would_be_markup() -> None:
    table = Table(text_columns("", "a_b"), [("x|y", "<1>")])
    assert table.markdown() == "|  | a\\_b |\n| --- | ---: |\n| x\\|y | \\<1\\> |\n"


def test_a_page_gets_texts_shares_and_nodes() -> None:
    assert TABLE.cells() == [
        ("[red]a|b[/red]", "1.500 MB", "yes"),
        ("c\x1b[31m", "none", ""),
        ("d" * 60, "<0.001 MB", "no"),
    ]
    assert TABLE.shares() == pytest.approx([0.75, 0, 1e-5])
    assert TABLE.pins() == [7, None, 7]
    assert Table(COLUMNS, ROWS).shares() == Table(COLUMNS, ROWS).pins() == []
