"""Runs a plan on a device: checks its results against a run without recomputation, and measures its peak and time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.frontends.captured.origin import require_same
from remat_cli.frontends.captured.running import Home, Kept, Measured, checked, compared, median_s, without_workspace
from remat_cli.frontends.ran import Ran
from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.document import FRONTEND, Step
from remat_cli.frontends.torch.executing.host_copies import CudaQueues
from remat_cli.frontends.torch.executing.out_of_memory import memory_told
from remat_cli.frontends.torch.executing.program import Program, Tangent, generator_state, program
from remat_cli.frontends.torch.executing.rehearsal import rehearse
from remat_cli.frontends.torch.executing.same_graph import difference, require_home
from remat_cli.frontends.torch.executing.strides import copied_bytes
from remat_cli.frontends.torch.installed import require_present
from remat_cli.frontends.torch.measuring.allocator import footprint, start_libraries
from remat_cli.frontends.torch.measuring.memory import live_storages
from remat_cli.frontends.torch.measuring.operations import new_tensor, place_tensors, seeded
from remat_cli.frontends.torch.reading import read_step
from remat_cli.frontends.torch.types import Tensor
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Compute, Plan, Statement
from remat_cli.plan.replay import Replay
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
    seen = checked(plan, FRONTEND, steps)
    if graph is not None:
        FRONTEND.require(graph)
        require_same(plan.graph, graph, difference)
    require_present(device)
    if not force:
        require_home(plan.graph, device)
    step = read_step(plan.graph)
    rehearse(step, device, force=force, libraries=libraries)
    needs = format_bytes(seen.peak_bytes)
    with memory_told(
        device,
        "weights and inputs",
        f"by prediction the plan needs {needs} on the device, PyTorch itself not counted: make room there, or solve "
        "for a smaller budget",
    ):
        return _ran(plan, step, seen, device, steps, seed)


def _ran(plan: Plan, step: Step, seen: Replay, device: str, steps: int, seed: int) -> Ran:
    """Run a plan that passed all checks; ``step`` are the contents of its graph."""
    import torch

    libraries = start_libraries() if device == "cuda" else None
    bench = _Bench(step, device, seed, place_tensors(step.given, device, seed))
    home = Home(FRONTEND.name, str(torch.__version__), device, bench.measure)
    spaces = [copied_bytes(operation, device) for operation in step.operations]
    ran = compared(plan, seen, without_workspace(plan.graph, spaces), home, steps, "result 0")
    blocks = footprint(plan.graph, plan.statements) if device == "cuda" else None
    memory = replace(
        ran.memory,
        predicted_blocks=None if blocks is None else blocks.allocated_bytes,
        predicted_reserved=None if blocks is None else blocks.reserved_bytes,
        reserved=None if ran.memory.reserved is None else ran.memory.reserved - (libraries or 0),
        libraries=libraries,
        generator_states=generator_state(device)[0]().numel() * _repeated_random(step, plan),
    )
    return replace(ran, memory=memory)


@dataclass(frozen=True, slots=True)
class _Bench:
    """Weights and inputs, and programs that run with them."""

    step: Step
    device: str
    seed: int
    places: list[Any]

    def measure(self, statements: Sequence[Statement], steps: int) -> Measured:
        """Run once for results and memory, then ``steps`` times for the time."""
        import torch

        runnable, tangents = program(self.step.graph, statements, self.device), self._tangents()
        results, highest, reserved, host = (self._on_cuda if self.device == "cuda" else self._on_cpu)(
            runnable, tangents
        )
        kept = [kept_tensor(name, tensor) for name, tensor in zip(result_names(self.step), results, strict=True)]
        del results
        wait = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        seconds = median_s(lambda: runnable.run(self.places, tangents), wait, steps)
        return Measured(kept, highest, seconds, reserved_bytes=reserved, host_bytes=host)

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


def kept_tensor(name: str, tensor: Tensor) -> Kept:
    """A result in host memory."""
    import torch

    host = tensor.detach().cpu().contiguous()
    number = float(host) if host.numel() == 1 and not host.is_complex() else math.nan
    return Kept(
        name=name,
        form=f"{host.dtype} {tuple(host.shape)}",
        bits=host.reshape(-1).view(torch.uint8).numpy().copy(),
        finite=bool(torch.isfinite(host).all()),
        number=number if math.isfinite(number) else None,
    )


def _repeated_random(step: Step, plan: Plan) -> int:
    """Number of random operations that are computed more than once."""
    times = Counter(s.node for s in plan.statements if isinstance(s, Compute))
    return sum(1 for i, operation in enumerate(step.operations) if operation.random and times[i] > 1)
