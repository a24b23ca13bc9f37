"""``python -m benchmarks [NAME ...]``: run benchmarks, keep their results, and rebuild the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.frame import NAMES, Benchmark, dump, load, perform, stored
from benchmarks.machine import ROOT
from benchmarks.measure import BenchmarkError
from benchmarks.page import page, section


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(NAMES)}")
    if asked.list:
        for name in NAMES:
            print(f"{name:12}{load(name).title}")
        return 0
    output: Path | None = asked.output
    if output is None and not asked.quick:
        output = ROOT / "benchmarks"
    failed = False
    for name in [] if asked.page else asked.names or NAMES:
        failed |= not run_one(load(name), output, quick=asked.quick, graphs=tuple(asked.graphs))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        results = stored(output / "results")
        for name, result in results.items():
            draw_pictures(load(name), result, output / "results")
        (output / "README.md").write_text(page([load(name) for name in NAMES], results), encoding="utf-8")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks of remat.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all by default")
    parser.add_argument("--quick", action="store_true", help="small inputs, one run: shows that a benchmark works")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--page", action="store_true", help="run nothing: rebuild the page from the results")
    parser.add_argument(
        "--graphs",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="graphs that networks and targets measure besides their own",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for README.md and results/NAME.json; by default benchmarks/, and none with --quick",
    )
    return parser


def draw_pictures(benchmark: Benchmark, result: Mapping[str, Any], folder: Path) -> None:
    """Draw its pictures, if it has any; those there are stay where matplotlib is missing."""
    if benchmark.draw is None:
        return
    if find_spec("matplotlib") is None:
        print(f"{benchmark.name}: not drawn: matplotlib is missing, pip install 'remat[plot]'", file=sys.stderr)
        return
    benchmark.draw(result["rows"], folder)


def run_one(benchmark: Benchmark, output: Path | None, *, quick: bool, graphs: tuple[Path, ...] = ()) -> bool:
    """Run one, print it, keep its result. False if it failed: then its old result stays."""
    partial = None if output is None else output / "results" / f"{benchmark.name}.partial.json"
    try:
        result = perform(benchmark, quick=quick, partial=partial, graphs=graphs)
    except BenchmarkError as error:
        print(f"{benchmark.name}: failed: {error}", file=sys.stderr)
        return False
    print(section(benchmark, result))
    if output is not None:
        path = output / "results" / f"{benchmark.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump(result), encoding="utf-8")
    return True


if __name__ == "__main__":
    sys.exit(main())
