"""Peaks of JAX's steps, before and after contraction, and by plan.

Needs the extra `remat[jax]`. *One by one* is the peak if every primitive operation were an operation of the graph, and
*XLA* what the compiler states on a CPU for the whole step, its workspace for convolutions included; both without
parameters. Plans are for FLOPs, from a search of 20 s, and run on one core of a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of

if TYPE_CHECKING:
    from remat_cli.frontends.jax.capture.capture import Loss

_SOLVE_S, _QUICK_SOLVE_S = 20.0, 2.0
_QUICK = "transformer, 4 layers"

TABLES = (
    Table(
        "simulate",
        "Peaks without recomputation",
        (
            Column("step", "step"),
            *columns("count", equations="primitive operations", operations="operations of the graph"),
            *columns("count", functions="functions"),
            *columns("bytes", op_by_op="peak, one by one", contracted="peak of the graph", xla="XLA"),
            *columns("number", flops="FLOPs", xla_flops="FLOPs that XLA counts", export_s="export, s"),
        ),
        named_by=("step",),
    ),
    Table(
        "run",
        "Steps by plan",
        (
            *columns("text", step="step", budget="budget"),
            *columns("count", operations="operations", no_remat="peak without recomputation, B"),
            *columns("count", predicted="predicted, B", measured="measured, B"),
            Column("identical", "same bits"),
            Column("recomputations", "recomputations", "count"),
            *columns("number", recomputed="FLOPs more, %", step_ms="step, ms", no_remat_ms="step without, ms"),
            Column("problem", "problem"),
        ),
        named_by=("step",),
    ),
)


def run(session: Session) -> list[Row]:
    from benchmarks.jax.models import RUN, SIMULATED

    chosen = {_QUICK: RUN[_QUICK]} if session.quick else RUN
    cells = (
        []
        if session.quick
        else [
            Cell(f"simulate {name}", partial(_row, TABLES[0], name, partial(simulated, build)))
            for name, build in SIMULATED.items()
        ]
    )
    limit_s = _QUICK_SOLVE_S if session.quick else _SOLVE_S
    for name, (build, budget) in chosen.items():
        measure = partial(planned, build, budget, limit_s)
        cells.append(Cell(f"run {name}", partial(_row, TABLES[1], name, measure)))
    return rows_of(session, cells)


def _row(table: Table, name: str, measure: Callable[[], Row]) -> Row:
    return table.row({"step": name}, measure())


def op_by_op(loss: Loss, arguments: tuple[Any, ...]) -> tuple[int, int]:
    """Number of equations, and the peak of their values if each were an operation of its own."""
    from remat_cli.frontends.jax.capture.capture import capture
    from remat_cli.frontends.jax.capture.functions import spec_of
    from remat_cli.frontends.jax.capture.lower import items_of
    from remat_cli.graph.model import Graph, Node
    from remat_cli.plan.derive import peak

    flat = capture(loss, arguments).flat
    numbers: dict[int, int] = {}
    nodes = []
    for k, item in enumerate(items_of(flat, frozenset([*flat.places, *flat.constants]))):
        inputs = tuple(sorted(numbers[read] for read in item.reads))
        nodes.append(Node(f"n{k}", 1.0, inputs, tuple(spec_of(flat.avals[v]).bytes for v in item.makes)))
        for made in item.makes:
            numbers[made] = len(numbers)
    outputs = tuple(sorted({numbers[atom] for atom in flat.results if atom in numbers}))
    graph = Graph("raw", tuple(nodes), outputs)
    return len(nodes), peak(graph, range(len(nodes)))


def _exported(build: Callable[[], Any]) -> Any:
    from remat_cli.frontends.jax.framework import Jax

    return Jax().capture(build, "step", "benchmark", device="cpu", cost="flops", tell=print)[0]


def simulated(build: Callable[[], Any]) -> Row:
    """Peaks of values without fixed memory, in bytes."""
    import time

    import jax

    from remat_cli.frontends.jax.capture.capture import Loss
    from remat_cli.plan.derive import peak

    function, arguments, *options = build()
    loss = Loss(function, **(options[0] if options else {}))
    equations, raw = op_by_op(loss, arguments)
    started = time.perf_counter()
    graph = _exported(build)
    exported_s = time.perf_counter() - started
    compiled = jax.jit(loss.step()).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    return {
        "equations": equations,
        "operations": len(graph.nodes),
        "functions": len(graph.metadata["functions"]),
        "export_s": round(exported_s, 1),
        "op_by_op": raw,
        "contracted": peak(graph, range(len(graph.nodes))) - graph.fixed_memory,
        "xla": memory.temp_size_in_bytes + memory.output_size_in_bytes,
        "flops": graph.total_cost,
        "xla_flops": compiled.cost_analysis()["flops"],
    }


def planned(build: Callable[[], Any], budget: str, limit_s: float) -> Row:
    """A plan within a budget, run: bits, peaks in bytes, times."""
    import remat_cli as remat

    graph = _exported(build)
    facts: Row = {"budget": budget, "operations": len(graph.nodes)}
    try:
        solved = remat.solve(graph, budget, remat.SolveOptions(time_limit_s=limit_s))
    except remat.RematError as error:
        return facts | {"problem": error.message}
    ran = remat.run_plan(solved, steps=5)
    return facts | {
        "recomputations": ran.recomputations,
        "recomputed": round(100 * (solved.plan.claim.cost / graph.total_cost - 1), 2),
        "identical": "yes" if ran.identical else "no",
        "no_remat": ran.reference_peak,
        "predicted": ran.memory.predicted,
        "measured": ran.memory.measured,
        "step_ms": round(ran.step_s * 1e3, 1),
        "no_remat_ms": round((ran.reference_step_s or 0) * 1e3, 1),
    }
