"""Runs single operations and whole plans of a step on random numbers, and measures time, memory and results."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from remat_cli.frontends.aten.division_rules import Summed
from remat_cli.frontends.captured.profiling import MeasuredOperation, OperationBench, host_facts, time_call
from remat_cli.frontends.captured.running import ComparedTensor, MeasuredPlan, PlanBench, median_s
from remat_cli.frontends.ran import Memory
from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.document import Result, Step, Value, read_padding, tensors_read
from remat_cli.frontends.torch.execute.host_copies import CudaQueues
from remat_cli.frontends.torch.execute.in_parts import divisions
from remat_cli.frontends.torch.execute.out_of_memory import memory_told
from remat_cli.frontends.torch.execute.program import Program, Tangent, generator_state, program
from remat_cli.frontends.torch.execute.strides import copied_bytes
from remat_cli.frontends.torch.execute.trial import Trial
from remat_cli.frontends.torch.measure.allocator import BLOCK_BYTES, footprint, start_libraries
from remat_cli.frontends.torch.measure.memory import live_storages, workspaces
from remat_cli.frontends.torch.measure.operations import Operations, new_tensor, place_tensors, seeded
from remat_cli.frontends.torch.tensors import storage_bytes, tensors_in
from remat_cli.frontends.torch.types import Tensor
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.model import Compute, Plan, Statement
from remat_cli.printable import printable
from remat_cli.units import format_bytes

_MOST_UNITS, _MOST_UNITS_OF_16_BITS = 4096, 4
"""Units in the last place by which sums in another order may differ: 1e-12 in float64, 3% in bfloat16. Untuned."""
_BLOCKS = {"cpu": 1, "cuda": BLOCK_BYTES}


@contextmanager
def operation_bench(step: Step, device: str, seed: int) -> Iterator[OperationBench]:
    """What runs the operations of ``step`` one by one on ``device``, which exists.

    Raises:
        OutOfMemory: Within the context, if the device's memory is too small for an operation and its inputs.
    """
    where = "the inputs of an operation"
    hint = "operations are run one by one, with their inputs: make room on the device, or profile a smaller batch"
    with memory_told(device, where, hint):
        if device == "cuda":
            start_libraries()
        yield TorchOperations(step, device, seed)


class TorchOperations(OperationBench):
    """The operations of a step, with random inputs."""

    def __init__(self, step: Step, device: str, seed: int) -> None:
        self.graph, self.device = step.graph, device
        self._step, self._operations, self._block = step, Operations(step, device, seed), _BLOCKS[device]

    def measured_nodes(self) -> Sequence[int]:
        """All but the node that stands for the tangents."""
        return [index for index in range(len(self.graph.nodes)) if index != self._step.tangents]

    def kind(self, index: int) -> str:
        """See :meth:`OperationBench.kind`."""
        return self._operations.kind(index)

    def measure(self, indices: Sequence[int], repeats: int, warmup: int) -> Iterator[MeasuredOperation]:
        """See :meth:`OperationBench.measure`. The workspaces of all are measured first, in one session."""
        for index, workspace in zip(indices, workspaces(self._operations, indices), strict=True):
            yield replace(self.measure_one(index, repeats, warmup), workspace_bytes=workspace)

    def measure_one(self, index: int, repeats: int, warmup: int) -> MeasuredOperation:
        """See :meth:`OperationBench.measure_one`. Its workspace is measured apart."""
        function = self._operations.prepared(index)
        with self._operations.attempt(index):
            result = function()
            sizes = {item: storage_bytes(tensor) for item, tensor in tensors_in(result)}
            del result
            return MeasuredOperation(time_call(function, _wait(self.device), repeats, warmup), None, sizes)

    def node(self, index: int, measured: MeasuredOperation | None, cheapest_us: float) -> Node:
        """See :meth:`OperationBench.node`. Sizes are rounded up to whole blocks of the allocator."""
        node = self.graph.nodes[index]
        if measured is None:
            return replace(node, cost=cheapest_us, outputs=tuple(map(self._blocks, node.outputs)))
        operation, returned = self._step.operations[index], measured.returned_bytes
        # A kernel may leave out what fake tensors promise: that of batch norm makes no gradient that is not asked for.
        sizes = [max(returned.get(tensor.item, 0) for tensor in tensors) for tensors in operation.values]
        return replace(
            node,
            cost=measured.timed.median_us,
            outputs=tuple(map(self._blocks, sizes)),
            workspace=max(measured.workspace_bytes or 0, copied_bytes(operation, self.device)),
        )

    def _blocks(self, size: int) -> int:
        """``size`` rounded up to whole blocks."""
        return -(-size // self._block) * self._block

    def finished(self, graph: Graph) -> Graph:
        """The measured graph with the padding of parameters and inputs in its fixed memory."""
        padding = sum(-place.storage_bytes % self._block for place in self._step.given)
        said = graph.metadata["profile"] | {"fixed_padding": padding}
        fixed = graph.fixed_memory - read_padding(self.graph) + padding
        return replace(graph, fixed_memory=fixed, metadata=graph.metadata | {"profile": said})

    def machine(self) -> dict[str, Any]:
        """See :meth:`OperationBench.machine`."""
        import torch

        version = {"torch": str(torch.__version__)}
        if self.device == "cuda":
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            return version | {
                "machine": properties.name,
                "cuda": str(torch.version.cuda),
                "cudnn": torch.backends.cudnn.version(),
                "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
            }
        return version | host_facts(torch.get_num_threads())


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
        """Bytes that operations copy to change strides, and those of tensors within a part."""
        copied = [copied_bytes(operation, self._device) for operation in self._step.operations]
        for index, division in divisions(self._step).items():
            copied[index] = Trial(division, division.size(self._step.parts[index].parts)).peak_bytes()
        return copied

    def whole(self) -> PlanBench:
        """See :meth:`PlanBench.whole`."""
        step = self._step.whole
        if step is None:
            return self
        return TorchPlans(step, self._device, self._seed, self._places, self._libraries_bytes)

    def in_parts(self) -> tuple[frozenset[str], frozenset[str]]:
        """See :meth:`PlanBench.in_parts`."""
        step, graph = self._step, self._step.graph
        summed = {
            value
            for index, division in divisions(step).items()
            for value, state in zip(graph.values_of(index), division.results.values(), strict=True)
            if isinstance(state, Summed)
        }
        reached: set[int] = set()
        for index, node in enumerate(graph.nodes):
            if index in step.parts or not reached.isdisjoint(node.inputs):
                reached.update(graph.values_of(index))
        names = dict.fromkeys(("summed", "others"), frozenset[str]())
        for kind, values in (("summed", summed), ("others", reached)):
            names[kind] = frozenset(
                name
                for name, result in zip(result_names(step), kept_results(step), strict=True)
                if any(isinstance(t, Value) and t.number in values for t in tensors_read([result.tensor]))
            )
        return names["summed"], names["others"]

    def difference(self, one: ComparedTensor, other: ComparedTensor) -> tuple[float, float]:
        """See :meth:`PlanBench.difference`."""
        import torch

        if one.form != other.form:
            return math.inf, 0.0
        name = one.form.partition(" ")[0].removeprefix("torch.")
        dtype = dtype_named(name)
        if not dtype.is_floating_point:
            return math.inf, 0.0
        mine, theirs = (torch.from_numpy(tensor.bits.copy()).view(dtype).double() for tensor in (one, other))
        apart, size = float((mine - theirs).abs().max()), float(theirs.abs().max())
        relative = apart / size if size else math.inf
        return relative if math.isfinite(relative) else math.inf, self._explained(name)

    def _explained(self, dtype: str) -> float:
        """What another order of sums explains in a result of a type, with the types that the step rounds to before."""
        import torch

        names = {tensor.spec.dtype for one in self._step.operations for tensors in one.values for tensor in tensors}
        types = [found for name in {dtype, *names} if (found := dtype_named(name)).is_floating_point]
        units = (_MOST_UNITS if found.itemsize > 2 else _MOST_UNITS_OF_16_BITS for found in types)
        return float(max(count * torch.finfo(found).eps for count, found in zip(units, types, strict=True)))

    def memory(self, plan: Plan, memory: Memory) -> Memory:
        """See :meth:`PlanBench.memory`: with what the allocator of a GPU does, and saved states of generators."""
        cuda = self._device == "cuda"
        blocks = footprint(plan.graph, plan.statements) if cuda else None
        times = Counter(one.node for one in plan.statements if isinstance(one, Compute))
        repeated = sum(1 for k, operation in enumerate(self._step.operations) if operation.random and times[k] > 1)
        return replace(
            memory,
            predicted_blocks=None if blocks is None else blocks.allocated_bytes,
            predicted_reserved=None if blocks is None else blocks.reserved_bytes,
            reserved=None if memory.reserved is None else memory.reserved - (self._libraries_bytes or 0),
            libraries=self._libraries_bytes,
            generator_states=generator_state(self._device)[0]().numel() * repeated,
        )

    def measure(self, statements: Sequence[Statement], steps: int) -> MeasuredPlan:
        """Run once for results and memory, then ``steps`` times for the time."""
        runnable, tangents = program(self._step.graph, statements, self._device), self._tangents()
        results, highest, reserved, host = (self._on_cuda if self._device == "cuda" else self._on_cpu)(
            runnable, tangents
        )
        compared = [kept_tensor(name, tensor) for name, tensor in zip(result_names(self._step), results, strict=True)]
        del results
        taken = median_s(lambda: runnable.run(self._places, tangents), _wait(self._device), steps)
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
    for result in kept_results(step):
        of = (
            f"of {step.places[result.of].name}" if isinstance(result.of, int) and result.kind != "result" else result.of
        )
        names.append(printable(f"{result.kind} {of}"))
    return names


def kept_results(step: Step) -> list[Result]:
    """The results that are there at the end."""
    return [result for result in step.results if result.kind != "dropped"]


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


def _wait(device: str) -> Callable[[], None]:
    """What waits until ``device`` has done all that it was given."""
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None
