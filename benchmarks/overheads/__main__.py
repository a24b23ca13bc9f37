"""Steps by plan beside the same operations without recomputation: ``python -m benchmarks.overheads tensorflow|jax``.

    python -m benchmarks.overheads tensorflow [NAME ...] [--again | --prepare]

Each framework needs an environment of its own. A model that has been measured is left out, unless ``--again`` or its
name is given; the results are written after each model, so that an interrupted run goes on. ``--prepare`` only makes
the plans, which are kept in ``build/overheads``. Measure on one quiet core: ``OMP_NUM_THREADS=1 taskset -c 0``.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import remat_cli
from benchmarks.machine import Load, machine, versions
from benchmarks.overheads.page import page
from benchmarks.overheads.subject import Runner, Subject
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.io import load_plan
from remat_cli.plan.model import Compute, Plan, Statement

FRAMEWORKS = ("tensorflow", "jax")
SHARES = (0.60, 0.65, 0.70, 0.80, 0.90)
"""Budgets as shares of the no-remat peak; the first that has a plan is taken."""
LIMIT_S = 10
"""Seconds that the search for a plan gets."""
ROUNDS = 10
"""Steps of each kind. The first is not counted."""
RESULTS = Path(__file__).parent / "results"
PLANS = Path("build/overheads")


def measured(
    plan: Plan, share: float, runners: Callable[[Graph], Callable[[Sequence[Statement]], Runner]]
) -> dict[str, Any]:
    """The numbers of one model: times in seconds, and shares of the time without recomputation."""
    graph = plan.graph
    runner = runners(graph)
    computes = [statement.node for statement in plan.statements if isinstance(statement, Compute)]
    plain, planned = runner(derive(graph, range(len(graph.nodes)))), runner(plan.statements)
    load = Load.now()
    times: dict[str, list[float]] = {"plain": [], "plan": [], "again": []}
    for _ in range(ROUNDS):
        times["plain"].append(plain.step())
        times["plan"].append(planned.step())
        times["again"].append(_again_s(computes, planned.computes()))
    without, with_plan, again = (statistics.median(times[name][1:]) for name in ("plain", "plan", "again"))
    return {
        "nodes": len(graph.nodes),
        "share": share,
        "recomputations": len(computes) - len(graph.nodes),
        "plain_s": without,
        "plan_s": with_plan,
        "recomputed_s": again,
        "extra": with_plan / without - 1,
        "recomputed": again / without,
        "beyond": (with_plan - without - again) / without,
        "samples": times,
        "load": load.until_now(),
    }


def _again_s(computes: Sequence[int], taken: Sequence[float]) -> float:
    """Seconds that all computations of nodes but the first of each take."""
    seen: set[int] = set()
    total = 0.0
    for node, seconds in zip(computes, taken, strict=True):
        total += seconds if node in seen else 0.0
        seen.add(node)
    return total


def planned(file: Path, subject: Subject) -> tuple[float, Plan]:
    """The plan of a model and the share of its budget; those in ``file`` if there is one, which is made otherwise."""
    if file.exists():
        plan, _ = load_plan(str(file))
        assert plan.budget_bytes is not None
        return round(plan.budget_bytes / peak(plan.graph, range(len(plan.graph.nodes))), 2), plan
    graph = subject.export()
    highest = peak(graph, range(len(graph.nodes)))
    for share in SHARES:
        options = remat_cli.SolveOptions(time_limit_s=LIMIT_S)
        try:
            solved = remat_cli.solve(graph, round(share * highest), options)
        except (remat_cli.Infeasible, remat_cli.LimitReached):
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        remat_cli.save_plan(solved.plan, file)
        return share, solved.plan
    raise SystemExit(f"{graph.name}: no plan at any of {SHARES}")


def main(arguments: Sequence[str]) -> None:
    """Measure what is asked for or missing, and write the results and the page."""
    names = [argument for argument in arguments if argument not in {"--again", "--prepare"}]
    if not names or names[0] not in FRAMEWORKS:
        raise SystemExit(__doc__)
    framework, asked = names[0], names[1:]
    home = import_module(f"benchmarks.overheads.on_{framework}")
    subjects: dict[str, Subject] = home.SUBJECTS
    unknown = sorted(set(asked) - set(subjects))
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: no such model; there are {', '.join(subjects)}")
    file = RESULTS / f"{framework}.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": {}}
    for name in asked or subjects:
        if name in found["rows"] and not asked and "--again" not in arguments:
            continue
        share, plan = planned(PLANS / f"{framework}-{name}.plan.json", subjects[name])
        if "--prepare" in arguments:
            continue
        row = measured(plan, share, home.runners) | {"spec": subjects[name].spec, "version": home.VERSION}
        print(framework, name, {key: row[key] for key in ("plain_s", "extra", "recomputed", "beyond")}, flush=True)
        row |= {"date": datetime.now(UTC).date().isoformat(), "commit": versions()["commit"]}
        rows = found["rows"] | {name: row}
        found["rows"] = {key: rows[key] for key in subjects if key in rows}
        found |= {"machine": machine(), "versions": versions()}
        RESULTS.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    texts = {name: RESULTS / f"{name}.json" for name in FRAMEWORKS}
    results = {name: json.loads(text.read_text(encoding="utf-8")) for name, text in texts.items() if text.exists()}
    if results:
        (RESULTS / "overheads.md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
