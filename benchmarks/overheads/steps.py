"""What running by plan costs.

A step by plan beside the same operations without recomputation, by the same program, on one core. Each framework needs
an environment of its own (`--on tensorflow`, `--on jax`); measure on one quiet core (`OMP_NUM_THREADS=1 taskset -c 0`).
Budgets are shares of the peak without recomputation, and plans are for FLOPs. *Extra* is how much longer the step by
plan takes, *recomputed* what the second and later computations of operations take, each timed as the plan runs; both
are shares of the step without recomputation. *Beyond* is the difference. Steps with and without recomputation take
turns, and times are medians. Plans are made before anything is measured, and kept in `build/overheads`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.frame import Column, Row, Session, Table, Target, columns
from benchmarks.lanes import Cell, chosen, rows_of
from benchmarks.measure import spread
from benchmarks.solving import first_plan

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph
    from remat_cli.plan.model import Plan, Statement

ON = ("tensorflow", "jax")
_SHARES = (0.60, 0.65, 0.70, 0.80, 0.90)
"""Budgets as shares of the no-remat peak; the first that has a plan is taken."""
_SOLVE_S = 10.0
_ROUNDS = 10
"""Steps of each kind. The first is not counted."""
_QUICK = "U-Net"

TABLES = (
    Table(
        "steps",
        "",
        (
            *columns("text", model="model", spec="step"),
            Column("nodes", "nodes", "count"),
            Column("budget", "budget"),
            Column("recomputations", "recomputations", "count"),
            *columns("seconds", plain="without", plan="by plan"),
            *columns("number", extra="extra, %", recomputed="recomputed, %", beyond="beyond, %"),
            Column("version", "measured with"),
        ),
        named_by=("model",),
    ),
    Table(
        "most",
        "",
        (Column("models", "models", "count"), Column("beyond", "most beyond, %", "number")),
        named_by=("models",),
    ),
)
TARGETS = (Target("less than 5% of a step beyond what is recomputed", "most", {}, "beyond", 5.0),)


class Runner(Protocol):
    """A program for the statements of a plan."""

    def step(self) -> float:
        """Seconds that one step takes."""

    def computes(self) -> list[float]:
        """Seconds of each computation in the order of the plan, measured in one step."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on a framework.

    Attributes:
        spec: What it is, for the page.
        export: Makes its graph.
    """

    spec: str
    export: Callable[[], Graph]


def run(session: Session) -> list[Row]:
    home: Any = import_module(f"benchmarks.overheads.on_{session.on}")
    subjects: dict[str, Subject] = home.SUBJECTS
    names = [_QUICK] if session.quick else list(subjects)
    folder = session.folder if session.quick else Path("build/overheads")
    rounds = session.times(_ROUNDS - 1) + 1

    def measure(name: str) -> Row:
        share, plan = planned(folder / f"{session.on}-{name}.plan.json", subjects[name])
        case = {"model": name, "spec": subjects[name].spec, "budget": f"{share:.0%}", "version": home.VERSION}
        return TABLES[0].row(case, measured(plan, home.runners, rounds))

    cells = [Cell(name, partial(measure, name)) for name in names]
    for cell in chosen(session, cells):  # no search runs between measurements
        planned(folder / f"{session.on}-{cell.label}.plan.json", subjects[cell.label])
    return rows_of(session, cells)


def conclude(rows: list[Row]) -> list[Row]:
    """The rows of the models, and the most of them in one more."""
    models = [row for row in rows if row["table"] == "steps"]
    most = {"models": len(models), "beyond": max(row["beyond"] for row in models)}
    return [*models, TABLES[1].row(most, {})]


def measured(
    plan: Plan, runners: Callable[[Graph], Callable[[Sequence[Statement]], Runner]], rounds: int = _ROUNDS
) -> dict[str, Any]:
    """The numbers of one model: times in seconds, and shares of the time without recomputation in percent."""
    from remat_cli.plan.derive import derive
    from remat_cli.plan.model import Compute

    graph = plan.graph
    runner = runners(graph)
    computes = [statement.node for statement in plan.statements if isinstance(statement, Compute)]
    plain, by_plan = runner(derive(graph, range(len(graph.nodes)))), runner(plan.statements)
    times: dict[str, list[float]] = {"plain": [], "plan": [], "again": []}
    for _ in range(rounds):
        times["plain"].append(plain.step())
        times["plan"].append(by_plan.step())
        times["again"].append(_again_s(computes, by_plan.computes()))
    taken = {name: spread(seconds[1:]) for name, seconds in times.items()}
    without, with_plan, again = (taken[name]["median"] for name in ("plain", "plan", "again"))
    return {
        "nodes": len(graph.nodes),
        "recomputations": len(computes) - len(graph.nodes),
        "plain": taken["plain"],
        "plan": taken["plan"],
        "extra": round(100 * (with_plan / without - 1), 1),
        "recomputed": round(100 * again / without, 1),
        "beyond": round(100 * (with_plan - without - again) / without, 1),
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
    import remat_cli as remat
    from remat_cli.plan.derive import peak
    from remat_cli.plan.io import load_plan

    if file.exists():
        plan, _ = load_plan(str(file))
        assert plan.budget_bytes is not None
        return round(plan.budget_bytes / peak(plan.graph, range(len(plan.graph.nodes))), 2), plan
    share, plan = first_plan(subject.export(), _SHARES, _SOLVE_S)
    file.parent.mkdir(parents=True, exist_ok=True)
    remat.save_plan(plan, file)
    return share, plan
