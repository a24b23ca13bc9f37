"""``python -m benchmarks.paper [PART ...]``: reproduce the papers' tables, store results, rebuild page and pictures."""

import argparse
import json
import re
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.__main__ import add_shared_options, draw_pictures, run_one
from benchmarks.frame import Benchmark, Row, Table, load
from benchmarks.machine import ROOT
from benchmarks.page import section
from benchmarks.paper.published import QUOTES, quoted
from benchmarks.paper.summary import anchor, summary
from remat_cli.reports import table as report

PARTS = ("memory", "gaps", "budgets", "batches", "keras", "rounding", "treewidth", "chains")
"""All parts, in the order in which they run and appear on the page."""
LONG = "long"
"""The part that takes a night: `make paper-long`. It is the last on the page."""
_LONG_TABLE = 50
"""Tables with more rows than fit on two screens stand in files of their own."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of sections.

    Attributes:
        name: The stem of its file.
        title: Its title.
        parts: Its sections.
        about: What a reader has to know first.
    """

    name: str
    title: str
    parts: tuple[str, ...]
    about: str


PAGES = (
    Page(
        *("checkmate", "Checkmate", ("memory", "gaps", "budgets", "batches", "rounding", LONG)),
        "Graphs are those of the zoo, which follow the paper's networks.",
    ),
    Page(*("keras", "Checkmate's networks as Keras writes them", ("keras",)), "Figures 5 and 6 and table 2 once more."),
    Page(*("kumar", "Kumar et al.: TWRemat", ("treewidth",)), "Graphs are those of the zoo."),
    Page(*("rotor", "Rotor", ("chains",)), "Graphs are those of the zoo, as chains of blocks."),
)
"""All pages; beside them is README.md, with the summary."""


def part(name: str) -> Benchmark:
    """The part in ``benchmarks/paper/NAME.py``."""
    return replace(load(f"paper.{name}"), name=name)


def completed(name: str, results: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The rows of one part with what follows from them, and from the parts that it names in ``BESIDE``."""
    module = import_module(f"benchmarks.paper.{name}")
    others = [results[other]["rows"] if other in results else [] for other in getattr(module, "BESIDE", ())]
    rows: list[Row] = getattr(module, "completed", list)(results[name]["rows"], *others)
    return rows


def beside(name: str, results: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The published figures of one part, with ours and the most likely reason of a difference."""
    module = import_module(f"benchmarks.paper.{name}")
    return quoted(name, {} if results[name]["quick"] else module.ours(completed(name, results)))


def written(name: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The section of one part: what the paper states beside ours, then what was measured, with what follows from it.

    A part may have ``completed(rows)``, which adds what is computed from the measured rows and the published figures
    beside them, and ``SHOWN``, its tables with these columns. So neither is stored. ``ours(rows)`` says what stands
    beside each published figure.
    """
    module = import_module(f"benchmarks.paper.{name}")
    result = results[name]
    again = [{**record, "rows": _briefly(record["rows"])} for record in result.get("again", ())]
    shown = replace(part(name), tables=(QUOTES, *getattr(module, "SHOWN", module.TABLES)))
    rows = [*beside(name, results), *completed(name, results)]
    files = {table.key: f"results/{name}-{table.key}.csv" for table, _ in long_tables(name, results)}
    return section(shown, {**result, "rows": rows, **({"again": again} if again else {})}, files=files)


def long_tables(name: str, results: Mapping[str, Mapping[str, Any]]) -> list[tuple[Table, list[Row]]]:
    """The tables of one part that are too long for a page, with their rows."""
    module = import_module(f"benchmarks.paper.{name}")
    rows = completed(name, results)
    made = [
        (table, [row for row in rows if row["table"] == table.key]) for table in getattr(module, "SHOWN", module.TABLES)
    ]
    return [(table, mine) for table, mine in made if len(mine) > _LONG_TABLE]


def as_csv(table: Table, rows: Sequence[Row]) -> str:
    """A table as CSV with its headings."""
    columns = [report.Column(column.heading, itemgetter(column.key)) for column in table.columns]
    return report.Table(columns, rows).csv()


def _briefly(names: list[str]) -> list[str]:
    """Names of rows, once where they differ in the budget alone."""
    return list(dict.fromkeys(" ".join(w for w in name.split() if not w.replace(".", "").isdigit()) for name in names))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description="Make the papers' tables again.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    add_shared_options(parser)
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    for name in asked.parts if asked.only else ():
        if not part(name).rows_have_names:
            parser.error(f"--only is not for {name}: its rows have no names")
    if asked.only and not asked.parts:
        parser.error("--only takes a part: name it first")
    output: Path | None = asked.output
    if output is None and not asked.quick:
        output = ROOT / "benchmarks" / "paper"
    names = [] if asked.page else list(asked.parts or PARTS)
    if asked.resume and output is not None:
        names = _from_interrupted(names, output)
    failed = False
    for name in names:
        failed |= not run_one(part(name), output, quick=asked.quick, only=tuple(asked.only), resume=asked.resume)
    if output is not None:
        rebuild(output)
    return 1 if failed else 0


def _from_interrupted(names: list[str], output: Path) -> list[str]:
    """The parts from the one on that an interrupted run was at; all if there was no such run."""
    at = [k for k, name in enumerate(names) if (output / "results" / f"{name}.partial.json").is_file()]
    return names[at[0] :] if at else names


def rebuild(output: Path) -> None:
    """Pages, tables and pictures from the stored results."""
    results: dict[str, dict[str, Any]] = {}
    for name in (*PARTS, LONG):
        path = output / "results" / f"{name}.json"
        if path.is_file():
            results[name] = json.loads(path.read_text(encoding="utf-8"))
    output.mkdir(parents=True, exist_ok=True)
    for name in results:
        draw_pictures(part(name), {"rows": completed(name, results)}, output / "results")
        for table, rows in long_tables(name, results):
            path = output / "results" / f"{name}-{table.key}.csv"
            path.write_text(as_csv(table, rows), encoding="utf-8")
    for page in PAGES:
        (output / f"{page.name}.md").write_text(paged(page, results), encoding="utf-8")
    quotes = {name: beside(name, results) for name in results}
    links = [(f"{page.name}.md", page.title, [part(name).title for name in page.parts]) for page in PAGES]
    (output / "README.md").write_text(summary(quotes, links), encoding="utf-8")


def paged(page: Page, results: Mapping[str, Mapping[str, Any]]) -> str:
    """One page: its contents, then its sections."""
    head = [f"# {page.title}\n", f"{page.about} [All pages](README.md) has the summary, and what is not here.\n"]
    if len(page.parts) > 1:
        head.append("\n".join(f"- [{part(name).title}](#{anchor(part(name).title)})" for name in page.parts) + "\n")
    return _machines_last("\n".join([*head, *(_section(name, results) for name in page.parts)]))


def _machines_last(text: str) -> str:
    """A page that names each machine with its versions once, at its end, and by a letter in its sections."""
    machines = dict.fromkeys(re.findall(r"^Measured on: (.*)$", text, flags=re.MULTILINE))
    if not machines:
        return text
    ends = ["## Machines and versions\n"]
    for letter, machine in zip(string.ascii_uppercase, machines, strict=False):
        text = text.replace(f"Measured on: {machine}", f"Measured on {letter}.")
        ends.append(f"- {letter}: {machine}")
    return "\n".join([text, *ends, ""])


def _section(name: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    if name in results:
        return written(name, results)
    command = f"python -m benchmarks.paper.{LONG}" if name == LONG else f"python -m benchmarks.paper {name}"
    return f"## {part(name).title}\n\nNot measured yet: `{command}`.\n"


if __name__ == "__main__":
    sys.exit(main())
