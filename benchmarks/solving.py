"""Solving one graph in a process of its own, as plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.frame import Column, Row, Table
from benchmarks.measure import BenchmarkError, call

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph

LATE_S = 120.0
"""Seconds over its limit after which a process is killed, since building a graph and stopping take time. Untuned."""
OUTCOME = (
    Column("gap", "gap, %", "number"),
    Column("scope", "bound holds for"),
    Column("first_s", "first, s", "number"),
    Column("wall_s", "time, s", "number"),
    Column("ending", "ended"),
    Column("peak_bytes", "memory", "bytes"),
)
"""How a solve ended, for the end of a table's row."""


def solved_row(table: Table, case: Row, *, time_limit_s: float, **arguments: Any) -> Row:
    """The row of ``case`` in ``table``: the result of :func:`solved` for ``arguments``, or why it failed."""
    called = call("benchmarks.solving:solved", limit_s=time_limit_s + LATE_S, time_limit_s=time_limit_s, **arguments)
    values = called.values or {"ending": called.problem}
    return table.row(case, {**values, "peak_bytes": called.peak_bytes})


def long_columns(limit_s: float) -> tuple[Column, ...]:
    """How a second solve with a longer limit ended, see :func:`solved_longer`."""
    return (
        Column("long_overhead", f"overhead in {limit_s:g} s, %", "number"),
        Column("long_gap", f"gap in {limit_s:g} s, %", "number"),
    )


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
) -> dict[str, Any]:
    """Solve one graph; no plan within the limit is a valid outcome.

    Args:
        spec: A file ending in ``.json``, or the graph as the zoo names it.
        budget: As ``remat solve --budget`` takes it, bytes, or None for none.
        strategy: The strategy.
        time_limit_s: As ``--time-limit``.
        threads: As ``--threads``.
        reorder: As ``--reorder``.

    Returns:
        Overhead, bound and gap in percent, the first two over the cost without recomputation; the peak without fixed
        memory; what is claimed; times in seconds; how it ended. Without a plan only the last and the time.
    """
    import time

    from remat_cli.control import Progress
    from remat_cli.errors import Infeasible, RematError
    from remat_cli.planning.solving import SolveOptions, solve

    graph = _graph(spec)
    started_s = time.monotonic()
    first: list[float] = []

    def listen(progress: Progress) -> None:
        if progress.cost is not None and not first:
            first.append(time.monotonic() - started_s)

    def percentage(cost: float) -> float:
        return round(100 * (cost / graph.total_cost - 1), 5)

    facts: dict[str, Any] = {"nodes": len(graph.nodes)}
    options = SolveOptions(strategy=strategy, time_limit_s=time_limit_s, threads=threads, reorder=reorder)
    try:
        answer = solve(graph, budget, options, listener=listen)
    except RematError as error:
        wall_s = round(time.monotonic() - started_s, 2)
        ending = error.message.partition(";")[0]
        return {**facts, "wall_s": wall_s, "ending": ending, "impossible": isinstance(error, Infeasible)}
    claim = answer.plan.claim
    return {
        **facts,
        "overhead": percentage(claim.cost),
        "bound": percentage(claim.lower_bound),
        "gap": round(100 * claim.gap, 5),
        "scope": claim.scope.value,
        "claim": claim.status.value,
        "values_bytes": answer.report.replay.peak_bytes - graph.fixed_memory,
        "order": answer.plan.provenance.get("order", "document"),
        "first_s": round(first[0] if first else answer.wall_s, 2),
        "wall_s": round(answer.wall_s, 2),
        "ending": str(answer.ending),
    }


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


def _graph(spec: str) -> Graph:
    """A file ending in ``.json``, a captured step (``torch/...``), or a graph of the zoo."""
    from remat_cli.graph.io import load_graph

    if spec.endswith(".json"):
        return load_graph(spec)
    if spec.startswith("torch/"):
        from remat_cli.frontends.torch.architectures import build_torch_graph

        return build_torch_graph(spec.replace("{", "{cost=flops,"))  # the same on every machine
    from remat_cli.zoo.registry import build_graph

    return build_graph(spec)
