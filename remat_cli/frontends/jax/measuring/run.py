"""Runs a plan on a device: checks its results against a run without recomputation, and measures its peak and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.captured.origin import require_same
from remat_cli.frontends.captured.running import Home, Measured, checked, compared, kept, median_s, without_workspace
from remat_cli.frontends.jax.document import FRONTEND, Step
from remat_cli.frontends.jax.executing.functions import Loaded, load, wide_numbers
from remat_cli.frontends.jax.executing.inputs import place_arrays
from remat_cli.frontends.jax.executing.program import program
from remat_cli.frontends.jax.executing.same_graph import difference_of_graphs, require_home
from remat_cli.frontends.jax.installed import refuse_libraries, require_present
from remat_cli.frontends.jax.measuring.live_arrays import LiveArrays
from remat_cli.frontends.jax.reading import read_step
from remat_cli.frontends.ran import Ran
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan, Statement
from remat_cli.plan.replay import Replay
from remat_cli.printable import printable


def run_plan(
    plan: Plan,
    *,
    device: str = "cpu",
    steps: int = 3,
    seed: int = 0,
    graph: Graph | None = None,
    force: bool = False,
    libraries: Sequence[str] = (),
) -> Ran:
    """Run ``plan`` with random weights and inputs, and compare it with the same graph without recomputation.

    Args:
        plan: A plan of a graph that this frontend made.
        device: ``cpu`` or ``cuda``.
        steps: Steps to time; one more is run to measure memory.
        seed: Seed of the arrays that it is given.
        graph: The graph that the plan must be for; None for any.
        force: Whether to run it even if it was exported for another JAX.
        libraries: None: the functions of JAX's graphs hold all that they need.

    Raises:
        UsageError: If the plan is not valid, or its graph is not of this frontend, or damaged, or not ``graph``, or was
            exported for another JAX or device.
        FrameworkUnavailable: If there is no such device.
        OutOfMemory: If the device's memory is exhausted, with the node.
        ExecutionFailed: If an operation fails, with the node.
    """
    seen = checked(plan, FRONTEND, steps)
    refuse_libraries(libraries)
    if graph is not None:
        require_same(plan.graph, graph, difference_of_graphs)
    require_present(device)
    step = read_step(plan.graph)
    if not force:
        require_home(plan.graph, device)
    with wide_numbers():
        return _ran(plan, load(step, device), seen, steps, seed)


def _ran(plan: Plan, loaded: Loaded, seen: Replay, steps: int, seed: int) -> Ran:
    """Run a plan that passed all checks."""
    import jax

    step = loaded.step
    bench = _Bench(loaded, place_arrays(step.places, loaded.device, seed), tuple(result_names(step)))
    leading = next((name for r, name in zip(step.results, bench.names, strict=True) if r.kind == "loss"), None)
    home = Home(FRONTEND.name, str(jax.__version__), loaded.device, bench.measure)
    return compared(plan, seen, without_workspace(plan.graph), home, steps, leading)


@dataclass(frozen=True, slots=True)
class _Bench:
    """Arrays that a step is given, names of its results, and programs that run with them."""

    loaded: Loaded
    places: list[Any]
    names: tuple[str, ...]

    def measure(self, statements: Sequence[Statement], steps: int) -> Measured:
        """Run once for results and memory, then ``steps`` times for the time."""
        import jax
        import numpy as np

        runnable, live = program(self.loaded, statements), LiveArrays()
        results = runnable.run(self.places, live)
        found = [kept(name, np.array(array)) for name, array in zip(self.names, results, strict=True)]
        del results
        taken = median_s(lambda: jax.block_until_ready(runnable.run(self.places)), lambda: None, steps)
        return Measured(found, self.loaded.step.graph.fixed_memory + live.peak_bytes, taken)


def result_names(step: Step) -> list[str]:
    """Names of the results: ``loss``, ``gradient of 0.w``."""
    of = {"loss": "loss", "auxiliary": "auxiliary result", "gradient": "gradient of"}
    return [printable(of[r.kind] if r.kind == "loss" else f"{of[r.kind]} {r.name}") for r in step.results]
