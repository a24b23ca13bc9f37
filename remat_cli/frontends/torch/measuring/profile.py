"""Measures costs: runs every operation of a graph on the device, and puts its time and memory into the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.frontends.captured.profiling import LEAST_US, Timed, facts, groups, host, require_counts, timed, told
from remat_cli.frontends.torch.document import FRONTEND, Step
from remat_cli.frontends.torch.executing.out_of_memory import memory_told
from remat_cli.frontends.torch.executing.rehearsal import rehearse
from remat_cli.frontends.torch.executing.same_graph import require_home
from remat_cli.frontends.torch.executing.strides import copied_bytes
from remat_cli.frontends.torch.installed import require_present
from remat_cli.frontends.torch.measuring.allocator import BLOCK_BYTES, start_libraries
from remat_cli.frontends.torch.measuring.memory import workspaces
from remat_cli.frontends.torch.measuring.operations import Operations
from remat_cli.frontends.torch.reading import read_padding, read_step
from remat_cli.frontends.torch.tensors import storage_bytes, tensors_in
from remat_cli.graph.model import Graph, Node

_BLOCKS = {"cpu": 1, "cuda": BLOCK_BYTES}


@dataclass(frozen=True, slots=True)
class Measured:
    """One operation on a device.

    Attributes:
        timed: How long a call takes.
        item_bytes: Bytes of the storage of each returned tensor, by position (None for a single one).
        workspace_bytes: Most bytes allocated during the call, without the returned tensors.
    """

    timed: Timed
    item_bytes: dict[int | None, int]
    workspace_bytes: int


def profile(
    graph: Graph,
    *,
    device: str = "cpu",
    repeats: int = 10,
    warmup: int = 2,
    seed: int = 0,
    force: bool = False,
    captured: bool = False,
    libraries: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """``graph`` with measured costs (microseconds), sizes and workspaces.

    Nodes with the same operation on tensors of the same form are measured once.

    Args:
        graph: A graph that this frontend made.
        device: ``cpu`` or ``cuda``.
        repeats: Samples per operation; their median is the cost.
        warmup: Calls before the samples.
        seed: Seed of the random inputs.
        force: Whether to measure even if the graph was exported for another PyTorch or device.
        captured: Whether this process captured the graph from the user's own code. Other graphs may hold anything, so
            their operations are checked first.
        libraries: Python modules to import; operators of their packages are accepted besides PyTorch's.
        progress: Called with the number of kinds of operations that are done, and of all kinds.

    Raises:
        UsageError: If the graph is not of this frontend, or damaged, or was exported for another PyTorch or device, or
            a number is out of range.
        FrameworkUnavailable: If there is no such device.
        OutOfMemory: If the device's memory is too small for an operation and its inputs.
        ExecutionFailed: If an operation fails, with the node.
    """
    FRONTEND.require(graph)
    step = read_step(graph)
    require_counts(repeats, warmup)
    require_present(device)
    if not force:
        require_home(graph, device)
    if not captured:
        rehearse(step, device, force=force, libraries=libraries)
    with memory_told(
        device,
        "the inputs of an operation",
        "operations are run one by one, with their inputs: make room on the device, or profile a smaller batch",
    ):
        return _profiled(step, device, repeats, warmup, seed, progress)


def _profiled(
    step: Step, device: str, repeats: int, warmup: int, seed: int, progress: Callable[[int, int], None] | None
) -> Graph:
    """The graph of ``step`` as measured on ``device``, which exists."""
    graph = step.graph
    metadata = graph.metadata
    if device == "cuda":
        start_libraries()
    operations = Operations(step, device, seed)
    indices = [index for index in range(len(graph.nodes)) if index != step.tangents]
    kinds = groups((operations.kind(index), index) for index in indices)
    extra = workspaces(operations, [members[0] for members in kinds])
    measurements: dict[int, Measured] = {}
    for members, workspace in zip(told(kinds, progress), extra, strict=True):
        measurements |= dict.fromkeys(members, _measured(operations, members[0], repeats, warmup, workspace))
    block = _BLOCKS[device]
    cheapest = min((m.timed.median_us for m in measurements.values()), default=LEAST_US)
    nodes = [_with(step, i, measurements.get(i), device, cheapest) for i in range(len(graph.nodes))]
    said = _facts(device, repeats, warmup, len(kinds)) | {
        "spread": {graph.nodes[i].id: round(m.timed.spread, 4) for i, m in sorted(measurements.items())}
    }
    padding = sum(-place.storage_bytes % block for place in step.given)
    before = read_padding(graph)
    return replace(
        graph,
        nodes=tuple(nodes),
        cost_unit="us",
        fixed_memory=graph.fixed_memory - before + padding,
        metadata=metadata | {"costs": {"model": "measured"}, "profile": said | {"fixed_padding": padding}},
    )


def _with(step: Step, index: int, measured: Measured | None, device: str, cheapest_us: float) -> Node:
    """A node with its measurements. The tangents are not run; their cost is that of the cheapest operation."""
    node, block = step.graph.nodes[index], _BLOCKS[device]
    if measured is None:
        return replace(node, cost=cheapest_us, outputs=tuple(_blocks(size, block) for size in node.outputs))
    values = step.operations[index].values
    # A kernel may leave out what fake tensors promise: that of batch norm makes no gradient that is not asked for.
    sizes = [max(measured.item_bytes.get(tensor.item, 0) for tensor in tensors) for tensors in values]
    return replace(
        node,
        cost=measured.timed.median_us,
        outputs=tuple(_blocks(size, block) for size in sizes),
        workspace=max(measured.workspace_bytes, copied_bytes(step.operations[index], device)),
    )


def _blocks(size: int, block: int) -> int:
    """``size`` rounded up to whole blocks."""
    return -(-size // block) * block


def _measured(operations: Operations, index: int, repeats: int, warmup: int, workspace: int) -> Measured:
    """Measure one operation; its inputs are freed afterwards."""
    function = operations.prepared(index)
    with operations.attempt(index):
        result = function()
        items = {item: storage_bytes(tensor) for item, tensor in tensors_in(result)}
        del result
        times = timed(function, _synchronizer(operations.device), repeats, warmup)
    return Measured(times, items, workspace)


def _synchronizer(device: str) -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None


def _facts(device: str, repeats: int, warmup: int, kinds: int) -> dict[str, Any]:
    """The machine and the settings of the measurement."""
    import torch

    about = facts(device, "torch", str(torch.__version__), repeats, warmup, kinds)
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return about | {
            "machine": properties.name,
            "cuda": str(torch.version.cuda),
            "cudnn": torch.backends.cudnn.version(),
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        }
    return about | host(torch.get_num_threads())
