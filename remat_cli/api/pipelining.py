"""Plans for the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remat_cli.api.arguments import as_number, as_whole, options_of
from remat_cli.api.documents import Source, as_graph
from remat_cli.control import Progress
from remat_cli.errors import wrong_type
from remat_cli.graph.model import Graph
from remat_cli.planning import pipelining
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.pipelining import Pipeline
from remat_cli.tracebacks import door
from remat_cli.units import as_size


@door
def pipeline(
    stages: Sequence[Graph | Source],
    memory: str | float | Sequence[str | float],
    *,
    schedule: str = "1f1b",
    microbatches: int,
    transfer: float = 0.0,
    options: SolveOptions | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> Pipeline:
    """Plans for the stages of a pipeline: on each device the least time that fits, and a bound on the time of a step.

    >>> import remat_cli as remat
    >>> stage = remat.build_graph("gpt2{depth=1,batch=1,sequence=128,width=64,heads=2,vocab=512}")
    >>> step = remat.pipeline([stage] * 4, "10MB", microbatches=8)
    >>> [facts.in_flight for facts in step.facts.stages]
    [4, 3, 2, 1]
    >>> step.lower_bound <= step.makespan
    True

    Args:
        stages: The graph of one microbatch's forward and backward pass through each stage, in order, each as
            :func:`solve` takes it. A graph may come several times.
        memory: The memory of every device, fixed memory included, or a list with that of each: ``"80GB"``.
        schedule: ``gpipe``, ``1f1b``, ``interleaved{chunks=2}``, ``zb-h1``, ``zb-h2`` or ``zb-v``.
        microbatches: Microbatches of a step.
        transfer: Time between passes on different devices, in the cost unit of the graphs.
        options: How to solve; the time limit is for the whole search, and a minute for each different device by
            default.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If it is proven that no plans of a device fit.
        LimitReached, Interrupted: If the search has to stop before it has found plans.
        InputError: If a document is invalid, or a graph does not tell its forward from its backward pass.
        UsageError: If an argument makes no sense, or the schedule is not for so many stages or microbatches.
        SolverUnavailable, StrategyMismatch: As :func:`solve`.
    """
    if not isinstance(stages, list | tuple) or not stages:
        raise wrong_type("stages", stages, "a list of graphs, one for each stage")
    each: list[Any] = list(memory) if isinstance(memory, list | tuple) else [memory]
    return pipelining.pipeline(
        [as_graph(one, f"stages[{i}]") for i, one in enumerate(stages)],
        [as_size(one, "memory") for one in each],
        schedule=schedule,
        microbatches=as_whole(microbatches, "microbatches"),
        transfer=as_number(transfer, "transfer", "a number in the graphs' cost unit", ""),
        options=options_of(options),
        listener=listener,
    )
