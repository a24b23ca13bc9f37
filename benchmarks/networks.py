"""How close to the optimum on real networks.

Training graphs of the zoo at budgets between 80% and 40% of their no-remat peak, each strategy with the same time
limit and the embedded solver. The paper's MILP stands beside the default strategy where its model is small enough to
be built. Overhead is over the cost without recomputation; the bound is what the strategy proved, for the schedules
named beside it. "First" is the time to the first plan within the budget, the building of the model included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Row, Session, Table
from benchmarks.measure import call

_LIMIT_S = 60.0
_CASES = (
    ("vgg16", 50, "auto"),
    ("vgg16", 50, "checkmate-ilp"),
    ("unet", 50, "auto"),
    ("unet", 50, "checkmate-ilp"),
    ("mobilenet-v1", 60, "auto"),
    ("mobilenet-v1", 60, "checkmate-ilp"),
    ("mobilenet-v2", 40, "auto"),
    ("fcn8", 60, "auto"),
    ("segnet", 40, "auto"),
    ("resnet50", 60, "auto"),
    ("resnet50", 40, "auto"),
    ("inception-v3", 50, "auto"),
    ("bert", 50, "auto"),
    ("gpt2", 50, "auto"),
    ("densenet121", 50, "auto"),
    ("resnet152", 60, "auto"),
    ("resnet152", 40, "auto"),
    ("densenet161", 50, "auto"),
    ("gpt2{depth=132,batch=1}", 60, "auto"),
)
_FILE_PERCENTS = (80, 60)
"""Budgets for graphs given on the command line."""
_QUICK_CASES = (("linear{n=6}", 60, "auto"),)

TABLES = (
    Table(
        "networks",
        "",
        (
            Column("graph", "graph"),
            Column("nodes", "nodes", "count"),
            Column("budget", "budget"),
            Column("strategy", "strategy"),
            Column("overhead", "overhead, %", "number"),
            Column("bound", "proven bound, %", "number"),
            Column("gap", "gap, %", "number"),
            Column("scope", "bound holds for"),
            Column("first_s", "first, s", "number"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
            Column("peak_bytes", "memory", "bytes"),
        ),
        "One run each, 60 s at most, seed 0. The search stops at a gap of 0.01%.",
    ),
)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    files = [(str(path.resolve()), percent, "auto") for path in session.graphs for percent in _FILE_PERCENTS]
    for spec, percent, strategy in [*(_QUICK_CASES if session.quick else _CASES), *files]:
        session.say(f"{spec} at {percent}%, {strategy}")
        called = call("benchmarks.networks:solved", limit_s=4 * _LIMIT_S, spec=spec, percent=percent, strategy=strategy)
        keys = ("nodes", "overhead", "bound", "gap", "scope", "first_s", "wall_s")
        values = called.values or {**dict.fromkeys(keys), "ending": called.problem}
        name = Path(spec).stem if spec.endswith(".json") else spec
        case: Row = {"table": "networks", "graph": name, "budget": f"{percent}%", "strategy": strategy}
        values.pop("impossible", None)
        rows.append({**case, **values, "peak_bytes": called.peak_bytes})
        session.keep(rows)
    return rows


def solved(
    spec: str, percent: int, strategy: str, time_limit_s: float = _LIMIT_S, threads: int | None = None
) -> dict[str, Any]:
    """Solve one graph; no plan within the limit is an answer."""
    import time

    from remat_cli.api.solving import SolveOptions, solve
    from remat_cli.control import Progress
    from remat_cli.errors import Infeasible, RematError
    from remat_cli.graph.io import load_graph
    from remat_cli.zoo.registry import build_graph

    graph = load_graph(spec) if spec.endswith(".json") else build_graph(spec)
    base = graph.total_cost
    started_s = time.monotonic()
    first: list[float] = []

    def listen(progress: Progress) -> None:
        if progress.cost is not None and not first:
            first.append(time.monotonic() - started_s)

    def percentage(cost: float) -> float:
        return round(100 * (cost / base - 1), 5)

    facts: dict[str, Any] = {"nodes": len(graph.nodes)}
    nothing = dict.fromkeys(("overhead", "bound", "gap", "scope", "first_s"))
    options = SolveOptions(strategy=strategy, time_limit_s=time_limit_s, threads=threads)
    try:
        answer = solve(graph, f"{percent}%", options, listener=listen)
    except RematError as error:
        wall_s = round(time.monotonic() - started_s, 2)
        ending = error.message.partition(";")[0]
        return {**facts, **nothing, "wall_s": wall_s, "ending": ending, "impossible": isinstance(error, Infeasible)}
    claim = answer.plan.claim
    return {
        **facts,
        "overhead": percentage(claim.cost),
        "bound": percentage(claim.lower_bound),
        "gap": round(100 * claim.gap, 5),
        "scope": claim.scope.value,
        "first_s": round(first[0] if first else answer.wall_s, 2),
        "wall_s": round(answer.wall_s, 2),
        "ending": answer.outcome,
    }
