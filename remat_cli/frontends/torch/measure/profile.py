"""Measures the operations of a graph one by one: their time, and the memory that they return and need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from remat_cli.frontends.captured.profiling import MeasuredOperation, OperationBench, host_facts, time_call
from remat_cli.frontends.torch.document import Step
from remat_cli.frontends.torch.execute.out_of_memory import memory_told
from remat_cli.frontends.torch.execute.strides import copied_bytes
from remat_cli.frontends.torch.measure.allocator import BLOCK_BYTES, start_libraries
from remat_cli.frontends.torch.measure.memory import workspaces
from remat_cli.frontends.torch.measure.operations import Operations
from remat_cli.frontends.torch.reading import read_padding
from remat_cli.frontends.torch.tensors import storage_bytes, tensors_in
from remat_cli.graph.model import Graph, Node

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
            return MeasuredOperation(time_call(function, _synchronizer(self.device), repeats, warmup), None, sizes)

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


def _synchronizer(device: str) -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None
