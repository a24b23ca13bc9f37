"""``python -m benchmarks.constants``: what every numeric constant of the search is worth.

A fixed set of graphs is solved under a time limit, each in a process of its own, with one constant off (0), halved or
doubled. The measure is the *gap integral*: the gap between the incumbent and its bound, 1 before there is a plan, as a
mean over the time limit and over the graphs. Runs without a change, several, give the number to compare with and its
noise: the band from the smallest to the largest of them. A change inside that band has no effect that can be seen here.

Every row is kept as soon as it is measured, and a later run measures only what is missing. Rows belong to a time limit;
with another one they are measured anew. All constants take days: ``--only`` chooses some by a part of their name.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from typing import Any

from benchmarks.constants.patching import VARIANTS, Constant, constants, patch
from benchmarks.machine import ROOT, machine, versions
from benchmarks.measure import BenchmarkError, call
from benchmarks.solving import LATE_S, graph_of, warmed

CASES = (
    ("linear{n=40}", "60%"),
    ("vgg16", "70%"),
    ("unet", "50%"),
    ("mobilenet-v1", "40%"),
    ("layered-250", "80%"),
)
"""Graphs and budgets: small and large, a chain, networks with and without long connections, and a random graph."""
LIMIT_S, REPEATS = 10.0, 5
_COMPILING_S = 600.0
"""Seconds in which inner loops are compiled: once, and anew for every variant of a constant of ``kernels``."""
RESULTS = ROOT / "benchmarks" / "constants" / "results"
_NONE = "none"
Row = dict[str, Any]


def main() -> None:
    asked = _parser().parse_args()
    chosen = [one for one in constants() if not asked.only or any(text in one.label for text in asked.only)]
    if asked.list:
        for one in chosen:
            print(f"{one.label} = {one.value:g}")
        return
    kept = RESULTS / "constants.json"
    stored = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    rows: list[Row] = stored["rows"] if stored.get("limit_s") == asked.limit else []
    compiled = call("benchmarks.solving:warmed", limit_s=_COMPILING_S)
    if compiled.problem:
        raise BenchmarkError(f"compiling the inner loops: {compiled.problem}")
    for row in _missing(chosen, rows, asked.repeats):
        rows.append(row | _measured(row, asked.limit))
        if row["constant"] == _NONE and "problem" in rows[-1]:
            raise BenchmarkError(f"without a change, {rows[-1]['problem']}")
        print(json.dumps(rows[-1]), flush=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        document = {"limit_s": asked.limit, "machine": machine(), "versions": versions(), "rows": rows}
        kept.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        kept.with_suffix(".md").write_text(page(rows, asked.limit), encoding="utf-8")


def _missing(chosen: list[Constant], rows: list[Row], repeats: int) -> list[Row]:
    """What is to be measured: runs without a change, then the variants of every constant."""
    there = {(row["constant"], row["variant"]) for row in rows}
    asked: list[Row] = [{"constant": _NONE, "variant": str(run)} for run in range(repeats)]
    for one in chosen:
        for how in VARIANTS:
            value = one.variant(how)
            if value is not None:
                asked.append({"constant": one.label, "variant": how, "before": one.value, "value": value})
    return [row for row in asked if (row["constant"], row["variant"]) not in there]


def _measured(row: Row, limit_s: float) -> Row:
    """The gap integral of each graph in percent, or why a run failed."""
    label = None if row["constant"] == _NONE else row["constant"]
    integrals: list[float] = []
    with tempfile.TemporaryDirectory(prefix="remat-constants-") as folder:
        # The cache of compiled loops knows the files of the kernels, and not that a number was replaced.
        compiled_anew = label is not None and label.startswith("remat_cli.kernels.")
        variables = {"NUMBA_CACHE_DIR": folder} if compiled_anew else {}
        for spec, budget in CASES:
            called = call(
                "benchmarks.constants.__main__:integral",
                limit_s=limit_s + LATE_S + (_COMPILING_S if compiled_anew else 0.0),
                variables=variables,
                spec=spec,
                budget=budget,
                time_limit_s=limit_s,
                label=label,
                value=row.get("value"),
            )
            if called.problem:
                return {"problem": f"{spec}: {called.problem.strip().splitlines()[-1]}"}
            integrals.append(called.values)
    return {"integrals": integrals, "mean": round(math.fsum(integrals) / len(integrals), 4)}


def integral(spec: str, budget: str, time_limit_s: float, label: str | None, value: float | None) -> float:
    """The mean gap over the time limit, in percent, of a solve with one constant replaced; no plan is a gap of 1.

    Args:
        spec: The graph, as :func:`benchmarks.solving.graph_of` names it.
        budget: As ``remat solve --budget`` takes it.
        time_limit_s: The time limit.
        label: The constant; None to replace none.
        value: Its new value.
    """
    if label is not None and value is not None:
        patch(label, value)
    from remat_cli.control import Progress
    from remat_cli.errors import RematError
    from remat_cli.planning.solving import SolveOptions, solve

    warmed()
    graph, area, since_s, gap = graph_of(spec), 0.0, 0.0, 1.0
    started_s = time.monotonic()

    def note(new: float) -> None:
        nonlocal area, since_s, gap
        at_s = min(time.monotonic() - started_s, time_limit_s)
        area, since_s, gap = area + gap * (at_s - since_s), at_s, min(gap, new)

    def listen(progress: Progress) -> None:
        if progress.gap is not None:
            note(progress.gap)

    try:
        answer = solve(graph, budget, SolveOptions(time_limit_s=time_limit_s, threads=1), listener=listen)
    except RematError:
        return 100.0 * (area + gap * (time_limit_s - since_s)) / time_limit_s
    note(answer.plan.claim.gap)
    return 100.0 * (area + gap * (time_limit_s - since_s)) / time_limit_s


def page(rows: list[Row], limit_s: float) -> str:
    """The rows as a page: those outside the noise first, the largest change first."""
    base = [row["mean"] for row in rows if row["constant"] == _NONE and "mean" in row]
    lines = [
        "# What constants are worth",
        "",
        "Made by `make constants`; do not edit. The mean gap between incumbent and bound over the time limit",
        f"({limit_s:g} s) and over {len(CASES)} graphs, with one constant off, halved or doubled. Positive changes are",
        "worse. A change within the noise of the runs without a change is no effect that can be seen here.",
        "",
    ]
    if not base:
        return "\n".join([*lines, "No run without a change ended well."]) + "\n"
    middle = math.fsum(base) / len(base)
    band = max(base) - min(base)
    lines += [
        f"Without a change: {middle:.3f}%, band {band:.3f} ({len(base)} runs).",
        "",
        "| constant | variant | value | mean gap | change | beyond the noise |",
        "|---|---|---:|---:|---:|---|",
    ]
    changed = [row for row in rows if row["constant"] != _NONE]
    changed.sort(key=lambda row: -abs(row.get("mean", math.inf) - middle))
    for row in changed:
        cells = [
            f"`{row['constant'].removeprefix('remat_cli.')}`",
            row["variant"],
            f"{row['before']:g} to {row['value']:g}",
        ]
        if "problem" in row:
            cells += ["", "", row["problem"].replace("|", "/")]
        else:
            change = row["mean"] - middle
            cells += [f"{row['mean']:.3f}%", f"{change:+.3f}", "yes" if abs(change) > band else "no"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constants", description="Sweep numeric constants.")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="constants with one of these in the name")
    parser.add_argument("--list", action="store_true", help="list the constants and stop")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="time for each solve")
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help="runs without a change")
    return parser


if __name__ == "__main__":
    main()
