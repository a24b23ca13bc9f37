"""``python -m benchmarks.paper [PART ...]``: reproduce the papers' tables, store results, rebuild page and pictures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.__main__ import draw_pictures, run_one
from benchmarks.frame import Benchmark, load
from benchmarks.machine import ROOT
from benchmarks.page import section
from benchmarks.paper.published import QUOTES, quoted

PARTS = ("memory", "gaps", "budgets", "batches", "keras", "rounding", "treewidth", "chains")
"""All parts, in the order in which they run and appear on the page."""
LONG = "long"
"""The part that takes a night: `make paper-long`. It is the last on the page."""
_HEAD = """\
# The papers' tables

Made by `make paper` (`python -m benchmarks.paper --help` for parts of it) from the results in `results/`; do not edit.
Every number that is called published is in `published.py`, with its place in the paper; each section begins with all of
them. A cell in a column of published numbers is empty where the paper prints none: many stand only in pictures. Graphs
are those of the zoo, which follow the papers' networks. Costs are FLOPs where the paper's are, and times on a V100 by
its data sheet where the paper's are measured on one; digits of times cannot be compared. Each part has what is proven
of the optimum beside the heuristics. Where rows were measured later than the rest of their table, a line below the
table says which.
"""


def part(name: str) -> Benchmark:
    """The part in ``benchmarks/paper/NAME.py``."""
    return replace(load(f"paper.{name}"), name=name)


def written(name: str, result: Mapping[str, Any]) -> str:
    """The section of one part: what the paper states, then what was measured, with what follows from both.

    A part may have ``completed(rows)``, which adds what is computed from the measured rows and the published figures
    beside them, and ``SHOWN``, its tables with these columns. So neither is stored.
    """
    module = import_module(f"benchmarks.paper.{name}")
    completed = getattr(module, "completed", list)
    shown = replace(part(name), tables=(QUOTES, *getattr(module, "SHOWN", module.TABLES)))
    again = [{**record, "rows": _briefly(record["rows"])} for record in result.get("again", ())]
    rows = [*quoted(name), *completed(result["rows"])]
    return section(shown, {**result, "rows": rows, **({"again": again} if again else {})})


def _briefly(names: list[str]) -> list[str]:
    """Names of rows, once where they differ in the budget alone."""
    return list(dict.fromkeys(" ".join(w for w in name.split() if not w.replace(".", "").isdigit()) for name in names))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description="Make the papers' tables again.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="tiny graphs: shows that a part works")
    parser.add_argument("--page", action="store_true", help="run nothing: rebuild page and pictures from the results")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for results; none with --quick")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="measure only the rows whose label has one of these in it, and keep the others of the stored result",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on where a run was interrupted: measure only what it had not"
    )
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
    """Page and pictures from the stored results."""
    output.mkdir(parents=True, exist_ok=True)
    sections = [_HEAD]
    for name in (*PARTS, LONG):
        path = output / "results" / f"{name}.json"
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            draw_pictures(part(name), result, path.parent)
            sections.append(written(name, result))
        else:
            command = f"python -m benchmarks.paper.{LONG}" if name == LONG else f"python -m benchmarks.paper {name}"
            sections.append(f"## {part(name).title}\n\nNot measured yet: `{command}`.\n")
    (output / "README.md").write_text("\n".join(sections), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
