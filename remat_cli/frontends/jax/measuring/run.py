"""Runs a plan on a device: checks its results against a run without recomputation, and measures its peak and time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import OutOfMemory, UsageError
from remat_cli.frontends.jax.document import FRONTEND, Step
from remat_cli.frontends.jax.executing.functions import Loaded, load, wide_numbers
from remat_cli.frontends.jax.executing.inputs import place_arrays
from remat_cli.frontends.jax.executing.program import Program, program
from remat_cli.frontends.jax.executing.same_graph import require_home, require_same
from remat_cli.frontends.jax.installed import require_present
from remat_cli.frontends.jax.measuring.live_arrays import LiveArrays
from remat_cli.frontends.jax.reading import read_step, require_jax_graph
from remat_cli.frontends.ran import Memory, Ran
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.model import Compute, Plan
from remat_cli.plan.replay import Replay, Severity
from remat_cli.printable import printable


def run_plan(
    plan: Plan,
    *,
    device: str = "cpu",
    steps: int = 3,
    seed: int = 0,
    graph: Graph | None = None,
    force: bool = False,
) -> Ran:
    """Run ``plan`` with random weights and inputs, and compare it with the same graph without recomputation.

    Args:
        plan: A plan of a graph that this frontend made.
        device: ``cpu`` or ``cuda``.
        steps: Steps to time; one more is run to measure memory.
        seed: Seed of the arrays that it is given.
        graph: The graph that the plan must be for; None for any.
        force: Whether to run it even if it was exported for another JAX.

    Raises:
        UsageError: If the plan is not valid, or its graph is not of this frontend, or damaged, or not ``graph``, or was
            exported for another JAX or device.
        FrameworkUnavailable: If there is no such device.
        OutOfMemory: If the device's memory is exhausted, with the node.
        ExecutionFailed: If an operation fails, with the node.
    """
    require_jax_graph(plan.graph)
    if steps < 1:
        raise UsageError("at least one step has to be run")
    seen = replayed(plan)
    if graph is not None:
        require_same(plan.graph, graph)
    require_present(device)
    step = read_step(plan.graph)
    if not force:
        require_home(step, device)
    with wide_numbers():
        return _ran(plan, load(step, device), seen, steps, seed)


def _ran(plan: Plan, loaded: Loaded, seen: Replay, steps: int, seed: int) -> Ran:
    """Run a plan that passed all checks."""
    import jax

    graph, step = plan.graph, loaded.step
    computes = [s.node for s in plan.statements if isinstance(s, Compute)]
    first = list(dict.fromkeys(computes))
    bench = _Bench(step, place_arrays(step.places, loaded.device, seed))
    reference = bench.attempt(program(loaded, derive(graph, first)), steps)
    planned = bench.measure(program(loaded, plan.statements), steps)
    names = result_names(step)
    differing = () if reference is None else _differing(names, planned.results, reference.results)
    unsteady: tuple[str, ...] = ()
    if differing and reference is not None:
        again = bench.measure(program(loaded, derive(graph, first)), 1)
        unsteady = _differing(names, again.results, reference.results)
    leading = next((a for r, a in zip(step.results, planned.results, strict=True) if r.kind == "loss"), None)
    return Ran(
        graph=graph.name,
        device=loaded.device,
        framework=FRONTEND,
        version=str(jax.__version__),
        computations=len(computes),
        recomputations=len(computes) - len(first),
        identical=None if reference is None else not differing,
        compared=0 if reference is None else len(names),
        differing=differing,
        unsteady=unsteady,
        finite=all(_finite(array) for array in planned.results),
        result=_scalar(leading),
        memory=Memory(
            predicted=seen.peak_bytes,
            predicted_without_workspace=peak(without_workspace(graph), computes),
            measured=planned.peak_bytes,
        ),
        reference_peak=None if reference is None else reference.peak_bytes,
        step_s=planned.step_s,
        reference_step_s=None if reference is None else reference.step_s,
        steps=steps,
    )


def replayed(plan: Plan) -> Replay:
    """The replay of ``plan``.

    Raises:
        UsageError: If the plan is not valid.
    """
    seen = check(plan).replay
    errors = [finding for finding in seen.findings if finding.severity is Severity.ERROR]
    if errors:
        raise UsageError(f"the plan is not valid: {errors[0].message}", hint="remat check says more")
    return seen


@dataclass(frozen=True, slots=True)
class _Measured:
    """Results (in host memory), peak and time of a program."""

    results: list[Any]
    peak_bytes: int
    step_s: float


@dataclass(frozen=True, slots=True)
class _Bench:
    """Arrays that a step is given, and programs that run with them."""

    step: Step
    places: list[Any]

    def attempt(self, runnable: Program, steps: int) -> _Measured | None:
        """As :meth:`measure`; None if it does not fit the device's memory."""
        try:
            return self.measure(runnable, steps)
        except OutOfMemory:
            return None

    def measure(self, runnable: Program, steps: int) -> _Measured:
        """Run once for results and memory, then ``steps`` times for the time."""
        import numpy as np

        live = LiveArrays()
        results = runnable.run(self.places, live)
        kept = [np.array(array) for array in results]
        del results
        taken = statistics.median(self._time(runnable) for _ in range(steps))
        return _Measured(kept, self.step.graph.fixed_memory + live.peak_bytes, taken)

    def _time(self, runnable: Program) -> float:
        import jax

        started = time.perf_counter()
        jax.block_until_ready(runnable.run(self.places))
        return time.perf_counter() - started


def result_names(step: Step) -> list[str]:
    """Names of the results: ``loss``, ``gradient of 0.w``."""
    of = {"loss": "loss", "auxiliary": "auxiliary result", "gradient": "gradient of"}
    return [printable(of[r.kind] if r.kind == "loss" else f"{of[r.kind]} {r.name}") for r in step.results]


def without_workspace(graph: Graph) -> Graph:
    """``graph`` with all workspaces set to 0."""
    return replace(graph, nodes=tuple(replace(node, workspace=0) for node in graph.nodes))


def _differing(names: Sequence[str], found: Sequence[Any], wanted: Sequence[Any]) -> tuple[str, ...]:
    return tuple(name for name, a, b in zip(names, found, wanted, strict=True) if not same_bits(a, b))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays of numpy are equal bit for bit; this compares NaNs and the sign of zero too."""
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def _finite(array: Any) -> bool:
    import jax.numpy as jnp

    return not jnp.issubdtype(array.dtype, jnp.inexact) or bool(jnp.isfinite(array).all())


def _scalar(array: Any) -> float | None:
    if array is None or array.size != 1 or array.dtype.kind == "c":
        return None
    number = float(array.reshape(()))
    return number if math.isfinite(number) else None
