"""Solving with a note of every incumbent, in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph

Steps = Sequence[tuple[float, float]]
"""Incumbents: seconds since the start, and overhead in percent."""


def warmed() -> list[str]:
    """Compile the inner loops into the cache, so that no measurement has to; the groups."""
    from remat_cli.control import Control
    from remat_cli.kernels import compiling

    return [group for group in compiling.GROUPS if compiling.wait(group, Control())]


def graph_of(spec: str) -> Graph:
    """A file ending in ``.json``; ``layered-N``, a random layered graph of N nodes; or a graph of the zoo."""
    from benchmarks.families import layered
    from remat_cli.graph.io import load_graph
    from remat_cli.zoo.registry import build_graph

    if spec.endswith(".json"):
        return load_graph(spec)
    return layered(int(spec.removeprefix("layered-")), 0) if spec.startswith("layered-") else build_graph(spec)


def traced(
    spec: str,
    percent: int,
    time_limit_s: float,
    stop_s: float | None = None,
    strategy: str = "auto",
    threads: int | None = 1,
    seed: int = 0,
) -> dict[str, Any]:
    """Solve a graph, and note every incumbent.

    Args:
        spec: The graph, as :func:`graph_of` names it.
        percent: The budget as a share of the no-remat peak.
        time_limit_s: The limit that the search is told.
        stop_s: Seconds after which it is interrupted, as by Ctrl-C; None for not at all.
        strategy: As ``--strategy``.
        threads: As ``--threads``.
        seed: As ``--seed``.

    Returns:
        The incumbents as ``steps``; overhead and bound in percent over the cost without recomputation, time in seconds
        and how it ended.
    """
    import os
    import signal
    import threading
    import time

    from remat_cli.control import Progress
    from remat_cli.errors import RematError
    from remat_cli.planning.solving import SolveOptions, solve

    graph = graph_of(spec)
    steps: list[tuple[float, float]] = []
    started_s = time.monotonic()

    def percentage(cost: float) -> float:
        return round(100 * (cost / graph.total_cost - 1), 5)

    def listen(progress: Progress) -> None:
        if progress.cost is not None and (not steps or percentage(progress.cost) < steps[-1][1]):
            steps.append((round(time.monotonic() - started_s, 3), percentage(progress.cost)))

    stop = threading.Timer(stop_s or 0.0, os.kill, (os.getpid(), signal.SIGINT))
    stop.daemon = True
    if stop_s is not None and stop_s < time_limit_s:
        stop.start()
    facts: dict[str, Any] = {"nodes": len(graph.nodes)}
    options = SolveOptions(strategy=strategy, time_limit_s=time_limit_s, threads=threads, seed=seed)
    try:
        answer = solve(graph, f"{percent}%", options, listener=listen)
    except RematError as error:
        wall_s = round(time.monotonic() - started_s, 2)
        return {**facts, "steps": steps, "wall_s": wall_s, "ending": error.message.partition(";")[0]}
    finally:
        stop.cancel()
    claim = answer.plan.claim
    if not steps or percentage(claim.cost) < steps[-1][1]:
        steps.append((round(answer.wall_s, 3), percentage(claim.cost)))
    told = {"overhead": percentage(claim.cost), "bound": percentage(claim.lower_bound), "scope": claim.scope.value}
    first_s, wall_s = round(steps[0][0], 2), round(answer.wall_s, 2)
    return {**facts, **told, "steps": steps, "first_s": first_s, "wall_s": wall_s, "ending": str(answer.ending)}
