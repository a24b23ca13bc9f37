"""One solve of a case on the clock of the processor, perhaps without a stage or with other constants."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.ablation.patching import scale
from benchmarks.solving import graph_of, warmed


def measured(
    spec: str,
    budget: str,
    time_limit_s: float,
    seed: int = 0,
    without: Sequence[str] = (),
    scaled: Sequence[str] = (),
    factor: float = 1.0,
) -> dict[str, Any]:
    """Solve one case with one thread.

    The clock of this process is its processor time, so that other programs on the machine change little.

    Args:
        spec: The graph, as :func:`benchmarks.solving.graph_of` names it; or one of the zoo whose costs are times on an
            A100, an ``@``, and the bandwidth of a host in GB/s.
        budget: As ``remat solve --budget`` takes it.
        time_limit_s: The time limit, in seconds of processor time.
        seed: The random seed.
        without: Names of stages to leave out.
        scaled: Beginnings of the names of constants that are scaled, see :func:`scale`.
        factor: By how much.

    Returns:
        ``stages``: for each that ran its name, its seconds (None if it did not end), and whether it made the incumbent
        cheaper and raised the bound; overhead, bound, and the mean gap over the time limit in percent, a gap of 1
        before there is a plan; the seconds until the end.
    """
    time.monotonic = time.process_time
    scale(scaled, factor)
    from remat_cli.control import Progress
    from remat_cli.errors import RematError
    from remat_cli.plan.host import Host
    from remat_cli.planning.solving import SolveOptions, solve

    warmed()
    _let_highs_run()
    records = _watched(without)
    name, _, bandwidth = spec.partition("@")
    graph = _timed(name) if bandwidth else graph_of(name)
    host = Host(float(bandwidth) * 1e9, float(bandwidth) * 1e9) if bandwidth else None
    area, since_s, gap = 0.0, 0.0, 1.0
    began_s = time.monotonic()

    def note(new: float) -> None:
        nonlocal area, since_s, gap
        at_s = min(time.monotonic() - began_s, time_limit_s)
        area, since_s, gap = area + gap * (at_s - since_s), at_s, min(gap, new)

    def listen(progress: Progress) -> None:
        if progress.gap is not None:
            note(progress.gap)

    overhead = bound = None
    try:
        options = SolveOptions(time_limit_s=time_limit_s, threads=1, host=host, seed=seed)
        claim = solve(graph, budget, options, listener=listen).plan.claim
        note(claim.gap)
        overhead, bound = (round(100 * (cost / graph.total_cost - 1), 5) for cost in (claim.cost, claim.lower_bound))
    except RematError as error:
        print(error.message, file=sys.stderr)
    return {
        "nodes": len(graph.nodes),
        "overhead": overhead,
        "bound": bound,
        "integral": round(100 * (area + gap * (time_limit_s - since_s)) / time_limit_s, 4),
        "took_s": round(time.monotonic() - began_s, 2),
        "stages": [_stage(record) for record in records],
    }


def _let_highs_run() -> None:
    """Stop HiGHS by this clock alone, and not by its own limit, which is by the clock on the wall."""
    from remat_cli.solvers import highs, worker

    set_options = highs._Run._set_options

    def unlimited(run: Any, solver: Any) -> None:
        set_options(run, solver)
        solver.setOptionValue("time_limit", math.inf)

    worker.LATE_S = 0.0
    highs._Run._set_options = unlimited  # type: ignore[method-assign]  # the same


def _watched(without: Sequence[str]) -> list[Any]:
    """From now on, searches leave these stages out, and the records of all others are put here."""
    from remat_cli.strategies import engine

    records: list[Any] = []

    class Recorded(engine.StageRecord):
        __slots__ = ()

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            records.append(self)

    wanted = engine._Pursuit._wanted
    engine.StageRecord = Recorded  # type: ignore[misc]  # in the measured process alone
    engine._Pursuit._wanted = (  # type: ignore[method-assign]  # the same
        lambda pursuit, stage, clock: stage.name not in without and wanted(pursuit, stage, clock)
    )
    return records


def _stage(record: Any) -> list[Any]:
    if record.seconds is None:
        return [record.name, None, False, False]
    higher = record.bound > record.bound_before * (1 + 1e-12)
    return [record.name, round(record.seconds, 3), record.cost < record.cost_before, higher]


def _timed(name: str) -> Any:
    from remat_cli.frontends.zoo import zoo_costs
    from remat_cli.zoo.registry import build_graph

    return build_graph(name, zoo_costs("roofline:a100"))
