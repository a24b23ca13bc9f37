"""Solving one graph in a process of its own, as plain numbers, and the columns of tables that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.frame import Column, Row, Table, columns
from benchmarks.measure import BenchmarkError, call

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph

LATE_S = 120.0
"""Seconds over its limit after which a process is killed, since building a graph and stopping take time. Untuned."""
OUTCOME = (
    Column("gap", "gap, %", "number"),
    Column("scope", "bound holds for"),
    *columns("number", first_s="first, s", wall_s="time, s"),
    Column("ending", "ended"),
    Column("peak_bytes", "memory", "bytes"),
)
"""How a solve ended, for the end of a table's row."""
COST = columns("number", overhead="overhead, %", bound="proven bound, %")
"""What a solve found, over the cost without recomputation."""
CASE = (Column("graph", "graph"), Column("nodes", "nodes", "count"), Column("budget", "budget"))
"""What was solved, for the beginning of a table's row."""
STRATEGY = Column("strategy", "strategy")
Steps = Sequence[tuple[float, float]]
"""Incumbents: seconds since the start, and overhead in percent."""
_GAPS = {"gap5_s": 0.05, "gap1_s": 0.01}


def solved_apart(*, time_limit_s: float, late_s: float = LATE_S, **arguments: Any) -> dict[str, Any]:
    """The result of :func:`solved` in a process of its own, with its memory, or why it failed (``ending``)."""
    called = call("benchmarks.solving:solved", limit_s=time_limit_s + late_s, time_limit_s=time_limit_s, **arguments)
    return (called.values or {"ending": called.problem, "steps": []}) | {"peak_bytes": called.peak_bytes}


def solved_row(table: Table, case: Row, *, time_limit_s: float, **arguments: Any) -> Row:
    """The row of ``case`` in ``table``: the result of :func:`solved` for ``arguments``, or why it failed."""
    return table.row(case, solved_apart(time_limit_s=time_limit_s, **arguments))


def long_columns(limit_s: float) -> tuple[Column, ...]:
    """How a second solve with a longer limit ended, see :func:`solved_longer`."""
    return columns("number", long_overhead=f"overhead in {limit_s:g} s, %", long_gap=f"gap in {limit_s:g} s, %")


def solved_longer(
    table: Table, case: Row, *, limits_s: tuple[float, float | None], enough: float, **arguments: Any
) -> Row:
    """As :func:`solved_row`; solved once more, with a longer limit, if there is no plan or its gap is too large.

    Args:
        table: The table; it has the columns of :func:`long_columns`.
        case: What the row is of.
        limits_s: Seconds of the first and of the second solve; None for no second one.
        enough: The gap in percent up to which there is no second one.
        **arguments: As :func:`solved` takes them.
    """
    first_s, second_s = limits_s
    row = solved_row(table, case, time_limit_s=first_s, **arguments)
    if second_s is None or (row["gap"] is not None and row["gap"] <= enough):
        return row
    longer = solved_row(table, case, time_limit_s=second_s, **arguments)
    return {**row, "long_overhead": longer["overhead"], "long_gap": longer["gap"]}


def solved(
    spec: str,
    budget: str | int | None,
    strategy: str = "auto",
    time_limit_s: float | None = None,
    threads: int | None = 1,
    reorder: bool = False,
    seed: int = 0,
    stop_s: float | None = None,
) -> dict[str, Any]:
    """Solve one graph, and note every incumbent; no plan within the limit is a valid outcome.

    Args:
        spec: The graph, as :func:`graph_of` names it.
        budget: As ``remat solve --budget`` takes it, bytes, or None for none.
        strategy: The strategy.
        time_limit_s: As ``--time-limit``.
        threads: As ``--threads``.
        reorder: As ``--reorder``.
        seed: As ``--seed``.
        stop_s: Seconds after which the search is interrupted, as by Ctrl-C; None for not at all.

    Returns:
        Overhead, bound and gap in percent, the first two over the cost without recomputation; the peak without fixed
        memory, and as a share of the no-remat peak; what is claimed; times in seconds, those to gaps of 5% and 1% too;
        the incumbents (``steps``); how it ended. Without a plan only the last, the steps and the time.
    """
    import os
    import signal
    import threading
    import time

    from remat_cli.control import Progress
    from remat_cli.errors import Infeasible, RematError
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.planning.solving import SolveOptions, solve

    graph = graph_of(spec)
    steps: list[tuple[float, float]] = []
    reached: dict[str, float] = {}
    started_s = time.monotonic()

    def percentage(cost: float) -> float:
        return round(100 * (cost / graph.total_cost - 1), 5)

    def note(cost: float, gap: float | None) -> None:
        at_s = time.monotonic() - started_s
        if not steps or percentage(cost) < steps[-1][1]:
            steps.append((round(at_s, 3), percentage(cost)))
        for key, most in _GAPS.items():
            if gap is not None and gap <= most:
                reached.setdefault(key, round(at_s, 2))

    def listen(progress: Progress) -> None:
        if progress.cost is not None:
            note(progress.cost, progress.gap)

    stop = threading.Timer(stop_s or 0.0, os.kill, (os.getpid(), signal.SIGINT))
    stop.daemon = True
    if stop_s is not None and (time_limit_s is None or stop_s < time_limit_s):
        stop.start()
    facts: dict[str, Any] = {"nodes": len(graph.nodes), "edges": graph.edges, "steps": steps}
    options = SolveOptions(strategy=strategy, time_limit_s=time_limit_s, threads=threads, reorder=reorder, seed=seed)
    try:
        answer = solve(graph, budget, options, listener=listen)
    except RematError as error:
        wall_s = round(time.monotonic() - started_s, 2)
        ending = error.message.partition(";")[0]
        return {**facts, "wall_s": wall_s, "ending": ending, "impossible": isinstance(error, Infeasible)}
    finally:
        stop.cancel()
    claim, peak_bytes = answer.plan.claim, answer.report.replay.peak_bytes
    note(claim.cost, claim.gap)
    return {
        **facts,
        **reached,
        "overhead": percentage(claim.cost),
        "bound": percentage(claim.lower_bound),
        "gap": round(100 * claim.gap, 5),
        "scope": claim.scope.value,
        "claim": claim.status.value,
        "values_bytes": peak_bytes - graph.fixed_memory,
        "peak": round(100 * peak_bytes / no_remat_peak(graph), 3),
        "order": answer.plan.provenance.get("order", "document"),
        "first_s": round(steps[0][0], 2),
        "wall_s": round(answer.wall_s, 2),
        "ending": str(answer.ending),
    }


def warmed() -> list[str]:
    """Compile the inner loops into the cache, so that no measurement has to; the groups."""
    from remat_cli.control import Control
    from remat_cli.kernels import compiling

    return [group for group in compiling.GROUPS if compiling.wait(group, Control())]


def first_plan(graph: Any, shares: tuple[float, ...], limit_s: float) -> tuple[float, Any]:
    """The plan at the first of these shares of the no-remat peak that has one.

    Raises:
        BenchmarkError: If none has.
    """
    import remat_cli as remat
    from remat_cli.plan.derive import peak

    highest = peak(graph, range(len(graph.nodes)))
    for share in shares:
        try:
            solved = remat.solve(graph, round(share * highest), remat.SolveOptions(time_limit_s=limit_s))
        except (remat.Infeasible, remat.LimitReached):
            continue
        return share, solved.plan
    raise BenchmarkError(f"{graph.name}: no plan at any of {shares}")


def graph_of(spec: str) -> Graph:
    """A file (``....json``), a captured step (``torch/...``), a random graph (``layered-500``), or one of the zoo.

    Random graphs may have a seed (``layered-500-1``).
    """
    from benchmarks.families import FAMILIES, chain
    from remat_cli.graph.io import load_graph

    if spec.endswith(".json"):
        return load_graph(spec)
    if spec.startswith("torch/"):
        from remat_cli.frontends.torch.framework import Torch

        return Torch().export_architecture(spec.replace("{", "{cost=flops,"))  # the same on every machine
    family, _, nodes = spec.rpartition("-")
    if nodes.isdigit() and family == "chain":
        return chain(int(nodes))
    if nodes.isdigit() and family in FAMILIES:
        return FAMILIES[family](int(nodes), 0)
    family, _, size = family.rpartition("-")
    if nodes.isdigit() and size.isdigit() and family in FAMILIES:
        return FAMILIES[family](int(size), int(nodes))
    from remat_cli.zoo.registry import build_graph

    return build_graph(spec)
