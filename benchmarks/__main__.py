"""``python -m benchmarks [NAME ...]``: run benchmarks, keep their results, and rebuild the pages."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.frame import APART, NAMES, Benchmark, dump, load, merged, perform, stored
from benchmarks.machine import ROOT
from benchmarks.measure import BenchmarkError, MissingInput
from benchmarks.page import own_page, page, section


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    known = (*NAMES, *APART)
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(known)}")
    if asked.list:
        for name in known:
            print(f"{name:18}{load(name).title}")
        return 0
    output: Path | None = asked.output
    if output is None and not asked.quick:
        output = ROOT / "benchmarks"
    names = [] if asked.page else asked.names or NAMES
    benchmarks = {name: load(name) for name in names}
    for benchmark in benchmarks.values():
        if asked.on is not None and asked.on not in benchmark.on:
            parser.error(f"--on {asked.on} is not for {benchmark.name}")
        if asked.only and not benchmark.rows_have_names:
            parser.error(f"--only is not for {benchmark.name}: its rows have no names")
        if asked.limit is not None and benchmark.limit_s is None:
            parser.error(f"--limit is not for {benchmark.name}")
    failed = False
    for name, benchmark in benchmarks.items():
        on = asked.on or next(iter(benchmark.on), "")
        failed |= not run_one(
            load(name, on),
            None if output is None else folder_of(output, name),
            quick=asked.quick,
            graphs=tuple(asked.graphs),
            only=tuple(asked.only),
            limit_s=asked.limit,
            on=on,
            named=bool(asked.names),
            resume=asked.resume,
        )
    if output is not None:
        rebuild(output)
    return 1 if failed else 0


def folder_of(output: Path, name: str) -> Path:
    """The folder of a benchmark below that of all: its results are in ``results`` in there."""
    return output / name.rpartition(".")[0]


def rebuild(output: Path) -> None:
    """Pages and pictures from the stored results."""
    output.mkdir(parents=True, exist_ok=True)
    results = stored(output / "results")
    for name, result in results.items():
        draw_pictures(load(name), result, output / "results")
    (output / "README.md").write_text(page([load(name) for name in NAMES], results), encoding="utf-8")
    for benchmark, path in apart(output):
        result = json.loads(path.read_text(encoding="utf-8"))
        path.with_suffix(".md").write_text(own_page(benchmark, result), encoding="utf-8")


def apart(output: Path) -> Iterator[tuple[Benchmark, Path]]:
    """The benchmarks with pages of their own that have results, and the files of these."""
    for name in APART:
        for on in load(name).on or ("",):
            benchmark = load(name, on)
            path = folder_of(output, name) / "results" / f"{benchmark.name}.json"
            if path.is_file():
                yield benchmark, path


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return seconds


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """What every program that runs benchmarks takes."""
    parser.add_argument("--quick", action="store_true", help="small inputs, one run: shows that a benchmark works")
    parser.add_argument("--page", action="store_true", help="run nothing: rebuild pages and pictures from the results")
    parser.add_argument("--resume", action="store_true", help="measure only what an interrupted run had not")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="measure only the rows whose label has one of these in it, and keep the others of the stored result",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for pages and results; by default that of the committed ones, and none with --quick",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks of remat.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which of {', '.join(NAMES)}, which is the default; or, each with a page of its own, {', '.join(APART)}",
    )
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    add_shared_options(parser)
    parser.add_argument(
        "--graphs",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="graphs that networks, targets, tight, order and captured measure",
    )
    parser.add_argument(
        "--limit",
        type=_seconds,
        metavar="SECONDS",
        help="time for each solve, for benchmarks whose rows all have the same: "
        + ", ".join(name for name in (*NAMES, *APART) if load(name).limit_s is not None),
    )
    parser.add_argument("--on", help="device or framework, for benchmarks that have several; else their first")
    return parser


def draw_pictures(benchmark: Benchmark, result: Mapping[str, Any], folder: Path) -> None:
    """Draw its pictures, if it has any. Without matplotlib, existing pictures stay."""
    if benchmark.draw is None:
        return
    if find_spec("matplotlib") is None:
        print(f"{benchmark.name}: not drawn: matplotlib is missing, pip install 'remat[plot]'", file=sys.stderr)
        return
    benchmark.draw(result["rows"], folder)


def run_one(
    benchmark: Benchmark,
    output: Path | None,
    *,
    quick: bool,
    only: tuple[str, ...] = (),
    named: bool = True,
    resume: bool = False,
    **asked: Any,
) -> bool:
    """Run one benchmark, print it, and store its result in ``output``. False if it failed: then its old result stays.

    Rows of ``only`` replace those in the stored result. If the user ``named`` the benchmark, a missing requirement is a
    failure. The other arguments are those of :func:`benchmarks.frame.perform`.
    """
    path = None if output is None else output / "results" / f"{benchmark.name}.json"
    partial = None if path is None else path.with_suffix(".partial.json")
    try:
        old = _stored(path, quick=quick) if only and path is not None else None
        result = perform(benchmark, partial=partial, resume=resume, quick=quick, only=only, **asked)
    except BenchmarkError as error:
        left_out = isinstance(error, MissingInput) and not named
        print(f"{benchmark.name}: {'left out' if left_out else 'failed'}: {error}", file=sys.stderr)
        return left_out
    whole = result if old is None else merged(benchmark, old, result)
    if benchmark.conclude is not None:
        whole = {**whole, "rows": benchmark.conclude(whole["rows"])}
    print(section(benchmark, whole if benchmark.conclude is not None else result))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump(whole), encoding="utf-8")
    return True


def _stored(path: Path, *, quick: bool) -> dict[str, Any]:
    """The result in ``path``, in which new rows replace old ones.

    Raises:
        BenchmarkError: If there is none, or it was measured in another way.
    """
    if not path.is_file():
        raise BenchmarkError(f"--only takes rows into {path.name}, which is not there: measure all rows first")
    old: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if old["quick"] != quick:
        raise BenchmarkError(
            f"{path.name} is {'a' if old['quick'] else 'not a'} quick run: its rows are not comparable"
        )
    return old


if __name__ == "__main__":
    sys.exit(main())
