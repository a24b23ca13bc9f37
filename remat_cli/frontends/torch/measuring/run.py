"""Runs a plan on a device: checks its results against a run without recomputation, and measures its peak and time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import OutOfMemory, UsageError
from remat_cli.frontends.ran import Copied, Memory, Ran
from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.document import FRONTEND, Step
from remat_cli.frontends.torch.executing.host_copies import CudaQueues
from remat_cli.frontends.torch.executing.inputs import new_tensor, place_tensors, seeded
from remat_cli.frontends.torch.executing.out_of_memory import memory_told
from remat_cli.frontends.torch.executing.program import Program, Tangent, generator_state, program
from remat_cli.frontends.torch.executing.rehearsal import rehearse
from remat_cli.frontends.torch.executing.same_graph import require_home, require_same
from remat_cli.frontends.torch.installed import require_present
from remat_cli.frontends.torch.layouts import copied_bytes
from remat_cli.frontends.torch.measuring.allocator import footprint, start_libraries
from remat_cli.frontends.torch.measuring.live_storages import live_storages
from remat_cli.frontends.torch.reading import read_step, require_torch_graph
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive
from remat_cli.plan.host import seconds_in
from remat_cli.plan.model import Compute, Offload, Plan, Prefetch
from remat_cli.plan.replay import Replay, Severity, replay
from remat_cli.printable import printable
from remat_cli.units import format_bytes


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
        seed: Seed of weights, inputs and random operations.
        graph: The graph that the plan must be for; None for any.
        force: Whether to run it even if it was exported for another PyTorch or device.
        libraries: Python modules to import; operators of their packages are accepted besides PyTorch's.

    Raises:
        UsageError: If the plan is not valid, or its graph is not of this frontend, or damaged, or not ``graph``, or was
            exported for another PyTorch or device.
        FrameworkUnavailable: If there is no such device.
        OutOfMemory: If the device's memory is exhausted, with the place.
        ExecutionFailed: If an operation fails, with the node.
    """
    require_torch_graph(plan.graph)
    if steps < 1:
        raise UsageError("at least one step has to be run")
    replayed = _replayed(plan)
    if graph is not None:
        require_torch_graph(graph)
        require_same(plan.graph, graph)
    require_present(device)
    if not force:
        require_home(plan.graph, device)
    step = read_step(plan.graph)
    rehearse(step, device, force=force, libraries=libraries)
    needs = format_bytes(replayed.peak_bytes)
    with memory_told(
        device,
        "weights and inputs",
        f"by prediction the plan needs {needs} on the device, PyTorch itself not counted: make room there, or solve "
        "for a smaller budget",
    ):
        return _ran(plan, step, replayed, device, steps, seed)


def _ran(plan: Plan, step: Step, replayed: Replay, device: str, steps: int, seed: int) -> Ran:
    """Run a plan that passed all checks; ``step`` are the contents of its graph."""
    import torch

    graph = plan.graph
    computes = [s.node for s in plan.statements if isinstance(s, Compute)]
    first = list(dict.fromkeys(computes))  # in the plan's own order, so that random numbers are drawn in that order
    libraries = start_libraries() if device == "cuda" else None
    bench = _Bench(step, device, seed, place_tensors(step.given, device, seed))
    reference = bench.attempt(program(graph, derive(graph, first), device), steps)
    planned = bench.measure(program(graph, plan.statements, device), steps)
    names = result_names(step)
    differing = () if reference is None else _differing(names, planned.results, reference.results)
    unsteady: tuple[str, ...] = ()
    if differing and reference is not None:
        again = bench.measure(program(graph, derive(graph, first), device), 1)
        unsteady = _differing(names, again.results, reference.results)
    leading = planned.results[names.index("result 0")] if "result 0" in names else None
    blocks = footprint(graph, plan.statements) if device == "cuda" else None
    states = generator_state(device)[0]().numel() * _repeated_random(step, computes)
    return Ran(
        graph=graph.name,
        device=device,
        framework=FRONTEND,
        version=str(torch.__version__),
        computations=len(computes),
        recomputations=len(computes) - len(first),
        identical=None if reference is None else not differing,
        compared=0 if reference is None else len(names),
        differing=differing,
        unsteady=unsteady,
        finite=all(bool(torch.isfinite(t).all()) for t in planned.results),
        result=_scalar(leading),
        memory=Memory(
            predicted=replayed.peak_bytes,
            predicted_without_workspace=replay(
                without_workspace(step, device), plan.statements, host=plan.host
            ).peak_bytes,
            measured=planned.peak_bytes,
            predicted_blocks=None if blocks is None else blocks.allocated_bytes,
            predicted_reserved=None if blocks is None else blocks.reserved_bytes,
            reserved=None if planned.reserved_bytes is None else planned.reserved_bytes - (libraries or 0),
            libraries=libraries,
            generator_states=states,
        ),
        reference_peak=None if reference is None else reference.peak_bytes,
        step_s=planned.step_s,
        reference_step_s=None if reference is None else reference.step_s,
        steps=steps,
        copied=_copied(plan, replayed, planned),
    )


def _copied(plan: Plan, replayed: Replay, planned: _Measured) -> Copied | None:
    if not plan.copies:
        return None
    return Copied(
        to_host=sum(isinstance(s, Offload) for s in plan.statements),
        from_host=sum(isinstance(s, Prefetch) for s in plan.statements),
        predicted=replayed.host_peak_bytes,
        measured=planned.host_bytes,
        predicted_s=replayed.time / seconds_in(plan.graph.cost_unit),
    )


def _replayed(plan: Plan) -> Replay:
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
    """Results (in host memory), peak and time of a program, and the host memory of its copies."""

    results: list[Any]
    peak_bytes: int
    reserved_bytes: int | None
    host_bytes: int
    step_s: float


@dataclass(frozen=True, slots=True)
class _Bench:
    """Weights and inputs, and programs that run with them."""

    step: Step
    device: str
    seed: int
    places: list[Any]

    def attempt(self, runnable: Program, steps: int) -> _Measured | None:
        """As :meth:`measure`; None if it does not fit the device's memory."""
        import torch

        try:
            return self.measure(runnable, steps)
        except OutOfMemory:
            pass  # leaving this block frees the error, and with it the tensors in its frames
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return None

    def measure(self, runnable: Program, steps: int) -> _Measured:
        """Run once for results and memory, then ``steps`` times for the time."""
        tangents = self._tangents()
        results, highest, reserved, host = (self._on_cuda if self.device == "cuda" else self._on_cpu)(
            runnable, tangents
        )
        kept = [tensor.detach().cpu().clone() for tensor in results]
        del results
        return _Measured(kept, highest, reserved, host, statistics.median(self._time(runnable, tangents, steps)))

    def _on_cpu(self, runnable: Program, tangents: Tangent) -> tuple[list[Any], int, None, int]:
        import torch

        torch.manual_seed(self.seed)
        with live_storages()(self.places) as live:
            results = runnable.run(self.places, tangents)
        return results, self.step.graph.fixed_memory + live.peak_bytes, None, live.host_peak_bytes

    def _on_cuda(self, runnable: Program, tangents: Tangent) -> tuple[list[Any], int, int, int]:
        import torch

        torch.cuda.manual_seed(self.seed)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        results = runnable.run(self.places, tangents)
        torch.cuda.synchronize()
        above = torch.cuda.max_memory_allocated() - before
        queues = runnable.host.queues
        pinned = queues.pinned_bytes if isinstance(queues, CudaQueues) else 0
        reserved = int(torch.cuda.max_memory_reserved())
        return results, self.step.graph.fixed_memory + int(above), reserved, pinned

    def _time(self, runnable: Program, tangents: Tangent, steps: int) -> list[float]:
        import torch

        wait = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        taken = []
        for _ in range(steps):
            wait()
            started = time.perf_counter()
            runnable.run(self.places, tangents)
            wait()
            taken.append(time.perf_counter() - started)
        return taken

    def _tangents(self) -> Tangent:
        """Ones for a scalar, as ``backward()`` uses; otherwise random numbers, in place of a gradient from outside."""
        import torch

        places = [place for place in self.step.places if place.kind == "tangent"]

        def make(number: int) -> Any:
            place = places[number]
            if not place.spec.shape:
                return torch.ones((), dtype=dtype_named(place.spec.dtype), device=self.device)
            return new_tensor(place.spec, self.device, seeded(self.device, self.seed + number), below=place.below)

        return make


def result_names(step: Step) -> list[str]:
    """Names of the results: ``result 0``, ``gradient of conv1.weight``, ``update of bn1.running_mean``."""
    names = []
    for result in step.results:
        if result.kind == "dropped":
            continue
        of = (
            f"of {step.places[result.of].name}" if isinstance(result.of, int) and result.kind != "result" else result.of
        )
        names.append(printable(f"{result.kind} {of}"))
    return names


def without_workspace(step: Step, device: str) -> Graph:
    """The graph of ``step`` with all workspaces set to what the plan itself copies."""
    nodes = [
        replace(node, workspace=copied_bytes(operation, device))
        for node, operation in zip(step.graph.nodes, step.operations, strict=True)
    ]
    return replace(step.graph, nodes=tuple(nodes))


def _repeated_random(step: Step, computes: Sequence[int]) -> int:
    """Number of random operations that are computed more than once."""
    return sum(1 for i, operation in enumerate(step.operations) if operation.random and computes.count(i) > 1)


def _differing(names: Sequence[str], found: Sequence[Any], wanted: Sequence[Any]) -> tuple[str, ...]:
    return tuple(name for name, a, b in zip(names, found, wanted, strict=True) if not same_bits(a, b))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors are equal bit for bit; this compares NaNs and the sign of zero too."""
    import torch

    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    left, right = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b))
    return bool(torch.equal(left, right))


def _scalar(tensor: Any) -> float | None:
    if tensor is None or tensor.numel() != 1 or tensor.is_complex():
        return None
    number = float(tensor)
    return number if math.isfinite(number) else None
