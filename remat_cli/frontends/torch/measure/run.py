"""Runs plans of a step with random weights and inputs, and measures their results, peak and time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from remat_cli.frontends.captured.running import ComparedTensor, MeasuredPlan, PlanBench, median_s
from remat_cli.frontends.ran import Memory
from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.document import Step
from remat_cli.frontends.torch.execute.host_copies import CudaQueues
from remat_cli.frontends.torch.execute.out_of_memory import memory_told
from remat_cli.frontends.torch.execute.program import Program, Tangent, generator_state, program
from remat_cli.frontends.torch.execute.strides import copied_bytes
from remat_cli.frontends.torch.measure.allocator import footprint, start_libraries
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.measure.operations import new_tensor, place_tensors, seeded
from remat_cli.frontends.torch.types import Tensor
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Compute, Plan, Statement
from remat_cli.printable import printable
from remat_cli.units import format_bytes


@contextmanager
def plan_bench(step: Step, device: str, seed: int, peak_bytes: int) -> Iterator[PlanBench]:
    """What runs plans of ``step`` on ``device``, which exists; ``peak_bytes`` is the predicted peak, for messages.

    Raises:
        OutOfMemory: Within the context, if the device's memory is exhausted.
    """
    hint = (
        f"by prediction the plan needs {format_bytes(peak_bytes)} on the device, PyTorch itself not counted: make room "
        "there, or solve for a smaller budget"
    )
    with memory_told(device, "weights and inputs", hint):
        taken = start_libraries() if device == "cuda" else None
        yield TorchPlans(step, device, seed, place_tensors(step.given, device, seed), taken)


class TorchPlans(PlanBench):
    """Weights and inputs of a step, and programs that run with them.

    Args:
        step: The step.
        device: ``cpu`` or ``cuda``.
        seed: Seed of random operations.
        places: A tensor for each parameter, buffer and input.
        libraries_bytes: On CUDA, the bytes that libraries have taken permanently.
    """

    def __init__(self, step: Step, device: str, seed: int, places: list[Tensor], libraries_bytes: int | None) -> None:
        self._step, self._device, self._seed = step, device, seed
        self._places, self._libraries_bytes = places, libraries_bytes

    def value_workspaces(self, graph: Graph) -> Sequence[int]:
        """Bytes that operations copy to change strides, which are tensors."""
        return [copied_bytes(operation, self._device) for operation in self._step.operations]

    def memory(self, plan: Plan, memory: Memory) -> Memory:
        """See :meth:`PlanBench.memory`: with what the allocator of a GPU does, and saved states of generators."""
        cuda = self._device == "cuda"
        blocks = footprint(plan.graph, plan.statements) if cuda else None
        return replace(
            memory,
            predicted_blocks=None if blocks is None else blocks.allocated_bytes,
            predicted_reserved=None if blocks is None else blocks.reserved_bytes,
            reserved=None if memory.reserved is None else memory.reserved - (self._libraries_bytes or 0),
            libraries=self._libraries_bytes,
            generator_states=generator_state(self._device)[0]().numel() * _repeated_random(self._step, plan),
        )

    def measure(self, statements: Sequence[Statement], steps: int) -> MeasuredPlan:
        """Run once for results and memory, then ``steps`` times for the time."""
        import torch

        runnable, tangents = program(self._step.graph, statements, self._device), self._tangents()
        results, highest, reserved, host = (self._on_cuda if self._device == "cuda" else self._on_cpu)(
            runnable, tangents
        )
        compared = [kept_tensor(name, tensor) for name, tensor in zip(result_names(self._step), results, strict=True)]
        del results
        wait = torch.cuda.synchronize if self._device == "cuda" else lambda: None
        taken = median_s(lambda: runnable.run(self._places, tangents), wait, steps)
        return MeasuredPlan(compared, highest, taken, reserved_bytes=reserved, host_bytes=host)

    def _on_cpu(self, runnable: Program, tangents: Tangent) -> tuple[list[Tensor], int, None, int]:
        import torch

        torch.manual_seed(self._seed)
        with live_storages()(self._places) as live:
            results = runnable.run(self._places, tangents)
        return results, self._step.graph.fixed_memory + live.peak_bytes, None, live.host_peak_bytes

    def _on_cuda(self, runnable: Program, tangents: Tangent) -> tuple[list[Tensor], int, int, int]:
        import torch

        torch.cuda.manual_seed(self._seed)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        results = runnable.run(self._places, tangents)
        torch.cuda.synchronize()
        above = torch.cuda.max_memory_allocated() - before
        queues = runnable.host.queues
        pinned = queues.pinned_bytes if isinstance(queues, CudaQueues) else 0
        reserved = int(torch.cuda.max_memory_reserved())
        return results, self._step.graph.fixed_memory + int(above), reserved, pinned

    def _tangents(self) -> Tangent:
        """Ones for a scalar, as ``backward()`` uses; otherwise random numbers, in place of a gradient from outside."""
        import torch

        places = [place for place in self._step.places if place.kind == "tangent"]

        def make(number: int) -> Tensor:
            place = places[number]
            if not place.spec.shape:
                return torch.ones((), dtype=dtype_named(place.spec.dtype), device=self._device)
            return new_tensor(place.spec, self._device, seeded(self._device, self._seed + number), below=place.below)

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


def kept_tensor(name: str, tensor: Tensor) -> ComparedTensor:
    """A result in host memory."""
    import torch

    host = tensor.detach().cpu().contiguous()
    number = float(host) if host.numel() == 1 and not host.is_complex() else math.nan
    return ComparedTensor(
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
