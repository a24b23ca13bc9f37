"""Runs a plan and its graph without recomputation, compares the results, and reports memory and time."""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import OutOfMemory, UsageError
from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.ran import Copied, Memory, Ran, RanInParts
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive
from remat_cli.plan.host import seconds_in
from remat_cli.plan.model import Compute, Offload, Plan, Prefetch, Statement
from remat_cli.plan.replay import Replay, Severity, replay

_NO_NUMBERS = "OSUT"
"""Kinds of types of numpy that hold texts or objects."""
_WHOLE = "biu"


@dataclass(frozen=True, slots=True)
class ComparedTensor:
    """What a step returned or wrote, as far as runs are compared.

    Attributes:
        name: Its name.
        form: Its type and shape.
        bits: Its bytes, as an array of numpy; this compares NaNs and the sign of zero too.
        finite: Whether it holds no infinity and no NaN.
        number: It as a number; None if it is not a scalar, or not finite.
    """

    name: str
    form: str
    bits: Any
    finite: bool
    number: float | None

    def same(self, other: ComparedTensor) -> bool:
        """Whether both are equal bit for bit."""
        return self.form == other.form and bool((self.bits == other.bits).all())


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """What one program did.

    Attributes:
        results: Everything that it returned or wrote.
        peak_bytes: Bytes at the peak, fixed memory included.
        step_s: Median seconds of a step.
        allocator_bytes: What the allocator handed out, if that is counted apart.
        reserved_bytes: What was taken from the device, if that is counted apart.
        host_bytes: Host memory of its copies.
    """

    results: Sequence[ComparedTensor]
    peak_bytes: int
    step_s: float
    allocator_bytes: int | None = None
    reserved_bytes: int | None = None
    host_bytes: int = 0


class PlanBench(ABC):
    """Weights and inputs of a step on a device, and programs that run with them.

    Attributes:
        leading: Name of the result to report, such as the loss; None for none.
    """

    leading: str | None = "result 0"

    @abstractmethod
    def measure(self, statements: Sequence[Statement], steps: int) -> MeasuredPlan:
        """Run statements: once or more for results and memory, then so often for the time.

        Raises:
            OutOfMemory: If the device's memory is exhausted, with the place.
            ExecutionFailed: If an operation fails, with the node.
        """

    def whole(self) -> PlanBench:
        """The same weights and inputs for the graph with whole operations, if some are in parts."""
        return self

    def in_parts(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the results that are sums over parts, and of those that are computed from what regions make."""
        return frozenset(), frozenset()

    def difference(self, one: ComparedTensor, other: ComparedTensor) -> tuple[float, float]:
        """The largest difference, and the largest that another order of sums explains.

        Both are shares of the largest number of ``other``.
        """
        raise NotImplementedError  # asked only where something is in parts, which a bench says by in_parts

    def value_workspaces(self, graph: Graph) -> Sequence[int]:
        """The part of each node's workspace that is tensors, as a measurement of live tensors sees them."""
        return [0] * len(graph.nodes)

    def memory(self, plan: Plan, memory: Memory) -> Memory:
        """What was measured, with what else the framework knows of it."""
        return memory


def replay_of_valid(plan: Plan) -> Replay:
    """The replay of ``plan``.

    Raises:
        UsageError: If the plan is not valid.
    """
    seen = check(plan).replay
    errors = [finding for finding in seen.findings if finding.severity is Severity.ERROR]
    if errors:
        raise UsageError(f"the plan is not valid: {errors[0].message}", hint="remat check says more")
    return seen


def compared_tensor(name: str, array: Any) -> ComparedTensor:
    """A result that is an array of numpy, of which nothing else holds the memory."""
    import numpy as np

    form = f"{array.dtype} {array.shape}"
    if array.dtype.kind in _NO_NUMBERS:
        return ComparedTensor(name, form, np.frombuffer(repr(array.tolist()).encode(), np.uint8), True, None)
    known = array.astype("float32") if array.dtype.kind == "V" else array  # numpy itself knows no bfloat16
    finite = array.dtype.kind in _WHOLE or bool(np.isfinite(known).all())
    number = float(array.reshape(())) if array.size == 1 and array.dtype.kind != "c" else math.nan
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return ComparedTensor(name, form, bits, finite, number if math.isfinite(number) else None)


def median_s(step: Callable[[], object], wait: Callable[[], object], steps: int) -> float:
    """Median seconds of a step; ``wait`` returns when the device has finished."""
    taken = []
    for _ in range(steps):
        wait()
        started = time.perf_counter()
        step()
        wait()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def compare_runs(plan: Plan, seen: Replay, bench: PlanBench, frontend: Frontend, device: str, steps: int) -> Ran:
    """Run a checked plan, whose replay was ``seen``, and compare it with its graph without recomputation."""
    computes = [s.node for s in plan.statements if isinstance(s, Compute)]
    first = list(dict.fromkeys(computes))
    plain, whole = derive(plan.graph.whole, _whole_order(plan.graph, first)), bench.whole()
    reference = _fitting(whole, plain, steps)
    planned = bench.measure(plan.statements, steps)
    differing = () if reference is None else _differing(planned, reference)
    values = without_workspace(plan.graph, bench.value_workspaces(plan.graph))
    memory = Memory(
        predicted=seen.peak_bytes,
        predicted_without_workspace=replay(values, plan.statements, host=plan.host).peak_bytes,
        measured=planned.peak_bytes,
        allocator=planned.allocator_bytes,
        reserved=planned.reserved_bytes,
    )
    unsteady = _differing(whole.measure(plain, 1), reference) if differing and reference is not None else ()
    return Ran(
        graph=plan.graph.name,
        device=device,
        framework=frontend.name,
        version=frontend.framework_version(),
        computations=len(computes),
        recomputations=len(computes) - len(first),
        identical=None if reference is None else not differing,
        compared=0 if reference is None else len(planned.results),
        differing=differing,
        unsteady=unsteady,
        finite=all(result.finite for result in planned.results),
        result=next((result.number for result in planned.results if result.name == bench.leading), None),
        memory=bench.memory(plan, memory),
        reference_peak=None if reference is None else reference.peak_bytes,
        step_s=planned.step_s,
        reference_step_s=None if reference is None else reference.step_s,
        steps=steps,
        copied=_copied(plan, seen, planned.host_bytes),
        in_parts=None if reference is None else _in_parts(plan.graph, bench, planned, reference),
    )


def _whole_order(graph: Graph, order: Sequence[int]) -> list[int]:
    """The nodes of the graph with whole operations, in the order of a plan, in which random numbers are drawn."""
    if graph.origin is None:
        return list(order)
    place = {graph.nodes[node].id: k for k, node in enumerate(order)}
    regions = [region for region in graph.whole.splits if region.id in graph.origin.parts]
    stands_for = {i: o.id for region in regions for o in region.operations for i in o.nodes}
    nodes, producer = graph.whole.nodes, graph.whole.producer
    places: list[int] = []
    for i, node in enumerate(
        nodes
    ):  # an operation that is ahead of a node has nodes that wait for it when they are whole
        places.append(max([place[stands_for.get(i, node.id)], *(places[producer[v]] for v in node.inputs)]))
    return sorted(range(len(nodes)), key=lambda i: (places[i], i))


def _in_parts(graph: Graph, bench: PlanBench, measured: MeasuredPlan, wanted: MeasuredPlan) -> RanInParts | None:
    """How results with regions in parts differ from those of whole operations; None if no region is in parts."""
    if graph.origin is None:
        return None
    summed, others = bench.in_parts()
    largest, within = 0.0, True
    for one, other in zip(measured.results, wanted.results, strict=True):
        if not one.same(other):
            relative, most = bench.difference(one, other)
            largest = max(largest, relative)
            within = within and one.name in summed | others and relative <= most
    names = tuple(one.name for one in measured.results if one.name in summed)
    return RanInParts(dict(graph.origin.parts), names, len(others - summed), largest, within)


def without_workspace(graph: Graph, workspaces: Sequence[int] | None = None) -> Graph:
    """``graph`` with these workspaces, or with none."""
    spaces = [0] * len(graph.nodes) if workspaces is None else workspaces
    nodes = (replace(node, workspace=space) for node, space in zip(graph.nodes, spaces, strict=True))
    return replace(graph, nodes=tuple(nodes))


def _fitting(bench: PlanBench, statements: Sequence[Statement], steps: int) -> MeasuredPlan | None:
    """What a program did; None if it does not fit the device's memory."""
    try:
        return bench.measure(statements, steps)
    except OutOfMemory:
        return None  # leaving this block frees the error, and with it the tensors in its frames


def _differing(measured: MeasuredPlan, wanted: MeasuredPlan) -> tuple[str, ...]:
    return tuple(a.name for a, b in zip(measured.results, wanted.results, strict=True) if not a.same(b))


def _copied(plan: Plan, seen: Replay, measured: int) -> Copied | None:
    if not plan.copies:
        return None
    return Copied(
        to_host=sum(isinstance(s, Offload) for s in plan.statements),
        from_host=sum(isinstance(s, Prefetch) for s in plan.statements),
        predicted=seen.host_peak_bytes,
        measured=measured,
        predicted_s=seen.time / seconds_in(plan.graph.cost_unit),
    )
