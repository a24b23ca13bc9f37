"""What running a plan takes in every framework: the checks before, two runs to compare, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import OutOfMemory, UsageError
from remat_cli.frontends.ran import Memory, Ran
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.model import Compute, Plan, Statement
from remat_cli.plan.replay import Replay, Severity


@dataclass(frozen=True, slots=True)
class Measured:
    """What one program did.

    Attributes:
        results: Name and numbers of everything that it returned or wrote, as arrays of numpy.
        peak_bytes: Bytes at the peak, fixed memory included.
        step_s: Median seconds of a step.
        allocator_bytes: What the allocator handed out, if that is counted apart.
    """

    results: Sequence[tuple[str, Any]]
    peak_bytes: int
    step_s: float
    allocator_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """Where plans run.

    Attributes:
        framework: Name of the framework.
        version: Its version.
        device: The device.
        measure: Runs statements: once or more for results and memory, then so often for the time.
        finite: Whether the numbers of an array hold no infinity and no NaN.
    """

    framework: str
    version: str
    device: str
    measure: Callable[[Sequence[Statement], int], Measured]
    finite: Callable[[Any], bool]


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


def compared(plan: Plan, seen: Replay, values: Graph, home: Home, steps: int, leading: str | None) -> Ran:
    """Run a plan that passed all checks, and compare it with its graph without recomputation.

    Args:
        plan: The plan.
        seen: Its replay.
        values: The graph with workspaces that hold values alone.
        home: Where it runs.
        steps: Steps to time.
        leading: Name of the result to report, such as the loss; None for none.
    """
    computes = [s.node for s in plan.statements if isinstance(s, Compute)]
    first = list(dict.fromkeys(computes))  # in the plan's own order, so that random numbers are drawn in that order
    plain = derive(plan.graph, first)
    try:
        reference: Measured | None = home.measure(plain, steps)
    except OutOfMemory:
        reference = None
    planned = home.measure(plan.statements, steps)
    differing = () if reference is None else _differing(planned, reference)
    unsteady = _differing(home.measure(plain, 1), reference) if differing and reference is not None else ()
    return Ran(
        graph=plan.graph.name,
        device=home.device,
        framework=home.framework,
        version=home.version,
        computations=len(computes),
        recomputations=len(computes) - len(first),
        identical=None if reference is None else not differing,
        compared=0 if reference is None else len(planned.results),
        differing=differing,
        unsteady=unsteady,
        finite=all(home.finite(array) for _, array in planned.results),
        result=next((_scalar(array) for name, array in planned.results if name == leading), None),
        memory=Memory(
            predicted=seen.peak_bytes,
            predicted_without_workspace=peak(values, computes),
            measured=planned.peak_bytes,
            allocator=planned.allocator_bytes,
        ),
        reference_peak=None if reference is None else reference.peak_bytes,
        step_s=planned.step_s,
        reference_step_s=None if reference is None else reference.step_s,
        steps=steps,
    )


def _differing(found: Measured, wanted: Measured) -> tuple[str, ...]:
    pairs = zip(found.results, wanted.results, strict=True)
    return tuple(name for (name, array), (_, other) in pairs if not same_bits(array, other))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays of numpy are equal bit for bit; this compares NaNs and the sign of zero too."""
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def _scalar(array: Any) -> float | None:
    if array.size != 1 or array.dtype.kind == "c":
        return None
    number = float(array.reshape(()))
    return number if math.isfinite(number) else None
