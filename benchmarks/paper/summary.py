"""The first page: every published figure that has one of ours beside it, the contents, and what is not reproduced."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.frame import Row, Table, columns
from benchmarks.page import written_table

_HEAD = """\
# The papers' tables

What the papers state that remat reproduces, beside ours. Made by `make paper` (`python -m benchmarks.paper --help` for
parts of it) and `make paper-long` from the results in `results/`; do not edit. Every published number is in
`published.csv` with its place in the paper; numbers that stand only in pictures are not quoted. Costs are FLOPs where
the paper's are, and times on a V100 by its data sheet where the paper's are measured on one; digits of times cannot be
compared. The pages have what is proven of the optimum beside the heuristics, and pictures.
"""
_TABLE = Table(
    "summary",
    "",
    (
        *columns("text", source="where", quantity="figure", subject="of", digits="published", ours="ours"),
        *columns("text", why="most likely why they differ"),
    ),
)
_MISSING = Path(__file__).with_name("missing.md")
"""What the papers have and the pages do not, and why."""


def summary(quotes: Mapping[str, Sequence[Row]], pages: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """The first page, from the published figures of each part, and file, title and sections of every other page."""
    contents = ["## Pages\n"]
    for file, title, sections in pages:
        contents.append(f"- [{title}]({file})")
        contents += [f"  - [{section}]({file}#{anchor(section)})" for section in sections]
    rows = [row for part, mine in quotes.items() if part != "keras" for row in joined(mine)]
    return "\n".join([_HEAD, written_table(_TABLE, rows), *contents, "", _MISSING.read_text(encoding="utf-8")])


def joined(rows: Iterable[Row]) -> list[Row]:
    """One row for all figures of a quantity and a place that have something of ours beside them."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["ours"]:
            groups.setdefault((row["source"], row["quantity"]), []).append(row)
    return [
        {
            "table": _TABLE.key,
            "source": source,
            "quantity": quantity,
            **{key: "<br>".join(str(row[key]) for row in mine) for key in ("subject", "digits", "ours")},
            "why": "; ".join(dict.fromkeys(row["why"] for row in mine if row["why"])),
        }
        for (source, quantity), mine in groups.items()
    ]


def anchor(title: str) -> str:
    """The fragment by which a page is linked to at the heading ``title``."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
