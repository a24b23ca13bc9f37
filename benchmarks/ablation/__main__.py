"""``python -m benchmarks.ablation``: what every stage, and the constants of every part, of the search are worth.

A fixed set of graphs is solved under a time limit, each in a process of its own whose clock is its processor time: as
it is, with several seeds; without one stage; and with all numeric constants of one part halved or doubled. The measure
is the *gap integral*: the gap between the incumbent and its bound, 1 before there is a plan, as a mean over the time
limit and over the graphs. A stage is left out on the graphs where it ran longest. The noise is the band from the
smallest to the largest mean over the seeds, because any change leads a random search elsewhere.

Every run is kept as soon as it is measured, and a later call measures only what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.machine import ROOT, machine, versions
from benchmarks.measure import BenchmarkError, call
from benchmarks.solving import LATE_S

CASES = {
    "layered-60": ("layered-60", "80%", 8.0),
    "layered-250": ("layered-250", "80%", 10.0),
    "layered-1000": ("layered-1000", "85%", 12.0),
    "wild-500": ("wild-500", "60%", 10.0),
    "chain-400": ("chain-400", "15%", 8.0),
    "chain-2000": ("chain-2000", "20%", 10.0),
    "unet": ("unet", "15200000000B", 10.0),
    "segnet": ("segnet", "9482000000B", 10.0),
    "resnet50, least": ("resnet50", "4469014848B", 120.0),
    "bert": ("bert{backward=operator}", "40%", 10.0),
    "gpt2": ("gpt2{depth=30,backward=operator}", "5968608908B", 12.0),
    "llama": ("llama{depth=20,chunks=32,backward=operator}", "24556484198B", 12.0),
    "resnet-1001": ("resnet-deep{backward=operator}", "20%", 15.0),
    "resnet50, host": ("resnet50@25", "40%", 12.0),
}
"""Graph, budget and seconds: random graphs, chains, networks with and without long connections, equal blocks, loose and
tight budgets (in bytes: near the least memory), small and large, and a host to copy to."""
PARTS = {
    "annealing": (("strategies.annealing.",), ("segnet", "wild-500", "layered-250", "unet")),
    "openers": (("strategies.openers.",), ("layered-1000", "chain-2000", "llama", "wild-500")),
    "retention": (("strategies.retention.",), ("layered-60", "unet", "bert")),
    "chains": (("strategies.chains.", "strategies.repeated."), ("resnet-1001", "gpt2", "chain-400", "llama")),
    "steering": (
        tuple(f"strategies.{name}." for name in ("conditions", "pipeline", "round_robin", "engine", "incumbent")),
        ("layered-250", "unet", "gpt2"),
    ),
    "copying": (("strategies.copying.",), ("resnet50, host",)),
    "kernels": (
        tuple(f"kernels.{name}." for name in ("moves", "sequence", "pricing", "copying")),
        ("segnet", "wild-500", "resnet50, host"),
    ),
}
"""Modules whose constants are changed together, and the cases that need them."""
SEEDS, _MOST_CASES = 3, 4
_COMPILING_S = 600.0
RESULTS = ROOT / "benchmarks" / "ablation" / "results"
AS_IT_IS, AS_IT_WAS = "as it is", "as it was"
"""The change of runs without one; the second name is that of runs of an earlier state, with which the rows that name it
as ``against`` are compared."""
_FACTORS = {"halved": 0.5, "doubled": 2.0}
Row = dict[str, Any]


def main() -> None:
    asked = _parser().parse_args()
    kept = RESULTS / "ablation.json"
    stored = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    rows: list[Row] = stored.get("rows", [])
    compiled = call("benchmarks.solving:warmed", limit_s=_COMPILING_S)
    if compiled.problem:
        raise BenchmarkError(f"compiling the inner loops: {compiled.problem}")
    for row in missing(AS_IT_IS, rows):
        rows.append(row | _run(row))
        _keep(rows)
    for row in in_turns(asked.together, rows) if asked.together else ():
        rows.append(row | _run(row))
        _keep(rows)
    for change in () if asked.together else changes(rows):
        if not asked.only or any(text in change for text in asked.only):
            for row in missing(change, rows):
                rows.append(row | _run(row))
                _keep(rows)


def changes(rows: Iterable[Row]) -> list[str]:
    """What can be changed: the stages that ran as it is, and the constants of each part."""
    stages = (name for row in rows if row["change"] == AS_IT_IS for name, *_ in row.get("stages", ()))
    return [
        *(f"without {name}" for name in dict.fromkeys(stages)),
        *(f"{part} {how}" for part in PARTS for how in _FACTORS),
    ]


def missing(change: str, rows: Sequence[Row]) -> list[Row]:
    """The runs of a change that are not among ``rows``."""
    done = {(row["change"], row["case"], row["seed"]) for row in rows}
    cases: Iterable[str] = CASES
    if change.startswith("without "):
        cases = longest(change.removeprefix("without "), rows)
    elif change != AS_IT_IS:
        cases = PARTS[change.rpartition(" ")[0]][1]
    seeds = range(SEEDS if change == AS_IT_IS else 1)
    return [
        {"change": change, "case": case, "seed": seed}
        for case in cases
        for seed in seeds
        if (change, case, seed) not in done
    ]


def in_turns(stages: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """The runs with and without some stages that are not among ``rows``, by turns: gaps differ from hour to hour."""
    names = "+".join(stages)
    base, change = f"with {names}, in turns", f"without {names}, in turns"
    done = {(row["change"], row["case"], row["seed"]) for row in rows}
    return [
        row
        for case in CASES
        for seed in range(SEEDS)
        for row in (
            {"change": base, "case": case, "seed": seed},
            {"change": change, "case": case, "seed": seed, "against": base, "left_out": [*stages]},
        )
        if (row["change"], case, seed) not in done
    ]


def longest(stage: str, rows: Iterable[Row]) -> list[str]:
    """The cases in which a stage ran longest."""
    seconds: dict[str, float] = defaultdict(float)
    for row in rows:
        for name, took_s, *_ in row.get("stages", ()) if row["change"] == AS_IT_IS else ():
            if name == stage:
                seconds[row["case"]] += took_s or 0.0
    return sorted(seconds, key=lambda case: -seconds[case])[:_MOST_CASES]


def _run(row: Row) -> Row:
    """The result of a run, or why it failed."""
    spec, budget, limit_s = CASES[row["case"]]
    asked: Row = {"spec": spec, "budget": budget, "time_limit_s": limit_s, "seed": row["seed"]}
    part, _, how = row["change"].rpartition(" ")
    compiling_s, variables = 0.0, dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="remat-ablation-") as folder:
        if "left_out" in row:
            asked["without"] = row["left_out"]
        elif part == "without":
            asked["without"] = [how]
        elif part in PARTS:
            asked |= {"scaled": [f"remat_cli.{module}" for module in PARTS[part][0]], "factor": _FACTORS[how]}
            if part == "kernels":  # the cache of compiled loops does not see that a number was replaced
                compiling_s, variables = _COMPILING_S, {"NUMBA_CACHE_DIR": folder}
        most_s = 4 * limit_s + LATE_S + compiling_s  # the clock of a processor is slow on a busy machine
        called = call("benchmarks.ablation.running:measured", limit_s=most_s, variables=variables, **asked)
    return {"problem": called.problem.strip().splitlines()[-1]} if called.problem else called.values


def _keep(rows: Sequence[Row]) -> None:
    """Store all rows and the page, and print the last row."""
    print(json.dumps({key: value for key, value in rows[-1].items() if key != "stages"}), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    about = json.dumps({"machine": machine(), "versions": versions()})[:-1]
    (RESULTS / "ablation.json").write_text(f'{about}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    (RESULTS / "ablation.md").write_text(page(rows), encoding="utf-8")


def page(rows: Sequence[Row], note: str = "") -> str:
    """What every change does, the largest first, and what every stage did without a change.

    ``note`` is a sentence on rows that this program did not measure as it is now; new rows leave it out.
    """
    runs = [row for row in rows if "integral" in row]
    lines = [
        "# What stages and constants of the search are worth",
        "",
        "Made by `make ablation`; do not edit. The mean over time of the gap between incumbent and bound, in percent:",
        "positive changes are worse. A change within the noise, the band of several seeds on the same cases, is no",
        "effect that can be seen here. Seconds are of the processor.",
        *(["", note] if note else []),
        "",
        "| change | cases | gap | noise | change | beyond the noise |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    changed = {row["change"] for row in runs if "against" in row}
    bases = {AS_IT_IS, *(row["against"] for row in runs if "against" in row)} - changed
    named = [change for change in dict.fromkeys(row["change"] for row in runs) if change not in bases]
    compared = [(change, *compare(change, runs)) for change in named]
    for change, cases, before, noise, difference in sorted(compared, key=lambda one: -abs(one[4])):
        verdict = "no" if abs(difference) <= noise else "worse" if difference > 0 else "better"
        if cases:
            lines.append(f"| {change} | {cases} | {before:.3f} | {noise:.3f} | {difference:+.3f} | {verdict} |")
    failures = dict.fromkeys((row["change"], row["problem"]) for row in rows if "problem" in row)
    lines += [f"| {change} | | | | | failed: {problem.replace('|', '/')} |" for change, problem in failures]
    for change in (AS_IT_IS, AS_IT_WAS, *(change for change in named if change.startswith("before"))):
        shown = [row for row in runs if row["change"] == change]
        lines += _stages(change, shown) if shown else []
    return "\n".join(lines) + "\n"


def _stages(change: str, runs: Iterable[Row]) -> list[str]:
    """A table of the stages in some runs."""
    stages: dict[str, list[list[Any]]] = defaultdict(list)
    for row in runs:
        for name, *record in row["stages"]:
            stages[name].append(record)
    rows = [
        f"| {name} | {len(records)} | {math.fsum(took_s or 0.0 for took_s, *_ in records):.1f} "
        f"| {sum(cheaper for _, cheaper, _ in records)} | {sum(higher for *_, higher in records)} |"
        for name, records in stages.items()
    ]
    head = "| stage | runs | seconds | made the incumbent cheaper | raised the bound |"
    return ["", f"## Stages: {change}", "", head, "| --- | ---: | ---: | ---: | ---: |", *rows]


def compare(change: str, runs: Iterable[Row]) -> tuple[int, float, float, float]:
    """Number of cases of a change, the mean gap without it on them, its band over the seeds, and the difference."""
    runs = [*runs]
    basis = next((row["against"] for row in runs if row["change"] == change and "against" in row), AS_IT_IS)
    gaps: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in runs:
        gaps[row["change"], row["case"]].append(row["integral"])
    cases = [case for of, case in gaps if of == change and (basis, case) in gaps]
    if not cases:
        return 0, 0.0, 0.0, 0.0
    seeds = range(min(len(gaps[basis, case]) for case in cases))
    means = [_mean(gaps[basis, case][seed] for case in cases) for seed in seeds]
    before = _mean(means)
    changed = _mean(_mean(gaps[change, case]) for case in cases)
    return len(cases), before, max(means) - min(means), changed - before


def _mean(numbers: Iterable[float]) -> float:
    values = [*numbers]
    return math.fsum(values) / len(values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.ablation", description="What parts of a search are worth.")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="changes with one of these in the name")
    parser.add_argument(
        "--together",
        nargs="+",
        metavar="STAGE",
        help="leave these stages out at once, by turns with none, on all cases",
    )
    return parser


if __name__ == "__main__":
    main()
