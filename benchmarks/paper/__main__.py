"""``python -m benchmarks.paper [PART ...]``: reproduce the papers' tables, store results, rebuild page and pictures."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.__main__ import draw_pictures, run_one
from benchmarks.frame import Benchmark, load
from benchmarks.machine import ROOT
from benchmarks.page import section

PARTS = ("gaps", "budgets", "batches", "rounding", "treewidth", "chains")
"""All parts, in the order in which they run and appear on the page."""
_HEAD = """\
# The papers' tables

Made by `make paper` (`python -m benchmarks.paper --help` for parts of it) from the results in `results/`; do not edit.
Published numbers are cited where they stand; a column is empty where none is at hand. Costs are FLOPs of the zoo's
graphs and not profiled times, so ratios and shapes can be compared, and digits cannot.
"""


def part(name: str) -> Benchmark:
    """The part in ``benchmarks/paper/NAME.py``."""
    return replace(load(f"paper.{name}"), name=name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description="Make the papers' tables again.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="tiny graphs: shows that a part works")
    parser.add_argument("--page", action="store_true", help="run nothing: rebuild page and pictures from the results")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for results; none with --quick")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    output: Path | None = asked.output
    if output is None and not asked.quick:
        output = ROOT / "benchmarks" / "paper"
    failed = False
    for name in [] if asked.page else asked.parts or PARTS:
        failed |= not run_one(part(name), output, quick=asked.quick)
    if output is not None:
        _rebuild(output)
    return 1 if failed else 0


def _rebuild(output: Path) -> None:
    """Page and pictures from the stored results."""
    output.mkdir(parents=True, exist_ok=True)
    sections = [_HEAD]
    for name in PARTS:
        path = output / "results" / f"{name}.json"
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            draw_pictures(part(name), result, path.parent)
            sections.append(section(part(name), result))
        else:
            sections.append(f"## {part(name).title}\n\nNot measured yet: `python -m benchmarks.paper {name}`.\n")
    (output / "README.md").write_text("\n".join(sections), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
