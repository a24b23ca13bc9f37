"""Measures memory: what operations allocate beyond what they return (workspace), and what live tensors take.

No rule tells the workspace of an operation: kernels differ between processors, numbers of threads and versions of
PyTorch. So an operation runs once, on random tensors of the shapes, types and strides that it has in the step. What was
measured on a CPU is kept in the cache folder, and all later steps know.
"""

import contextlib
import gc
import hashlib
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from remat_cli.errors import ExecutionFailed, InputError, UsageError
from remat_cli.files import read_text, write_text
from remat_cli.frontends.aten.retained_bytes import REDUCED, broadcast_elements
from remat_cli.frontends.captured.profiling import groups
from remat_cli.frontends.messages import tell_stderr, warn
from remat_cli.frontends.torch.compat.operators import (
    dispatch_mode,
    is_host,
    last_call,
    profiler_events,
    weak_storage,
)
from remat_cli.frontends.torch.document import Input, Named, read_step
from remat_cli.frontends.torch.execute.strides import copied_bytes
from remat_cli.frontends.torch.measure.operations import Operations
from remat_cli.frontends.torch.measure.rates import DeviceKey
from remat_cli.frontends.torch.types import DispatchMode, Operator
from remat_cli.graph.model import Graph

_MARK = "remat operation"
_METHOD = 1
"""Number of the way to measure; what was measured in another way is not read."""
_COLLECTIVE = ("_c10d_functional.", "c10d.")
"""Operators that wait for other processes cannot run alone."""
_MOST_NAMES = 3
"""Operators that a warning names."""
_SEEN: dict[Path, dict[str, int]] = {}
_CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_ATTENTION = frozenset(
    {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"}
)
_CALLS = _CONVOLUTIONS | _PRODUCTS | _ATTENTION
"""Operations that Inductor leaves to libraries on a CPU."""
_CONTIGUOUS = Named("memory_format", "contiguous_format")


def workspaces(operations: Operations, indices: Sequence[int]) -> list[int]:
    """Workspace of nodes, in bytes.

    On a CPU, PyTorch's profiler reports the requests to PyTorch's allocator; memory that a library takes elsewhere is
    not seen. On CUDA, the allocator's own statistics are used.

    Raises:
        ExecutionFailed: If an operation fails.
    """
    if operations.device == "cuda":
        return [_on_cuda(operations, index) for index in indices]

    def attempted(index: int) -> Callable[[], Any]:
        function = operations.prepared(index)

        def call() -> Any:
            with operations.attempt(index):
                return function()

        return call

    return [above_end(changes) for changes in changes_of(map(attempted, indices))]


def _on_cuda(operations: Operations, index: int) -> int:
    import torch

    function = operations.prepared(index)
    with operations.attempt(index):
        first = function()  # the first call may try several algorithms, which takes extra memory
        del first
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = function()
        torch.cuda.synchronize()
        highest, afterwards = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        del result
    return max(0, int(highest - max(before, afterwards)))


def changes_of(functions: Iterable[Callable[[], Any]]) -> list[list[int]]:
    """What each function requests from PyTorch's allocator on a CPU and gives back, in bytes and in order.

    The functions are called one after another; what one returns is freed before the next one is made. Garbage is
    collected before and after, not meanwhile: what it holds would count as given back by the function that runs.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    session = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
    with _silence():
        session.start()
    try:
        with _without_collection():
            for function in functions:
                with record_function(_MARK):
                    result = function()
                del result, function
    finally:
        with _silence():
            session.stop()
    events = profiler_events(session)
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    marks = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == _MARK)
    times = [at for at, _ in changes]
    sizes = [size for _, size in changes]
    return [sizes[bisect_left(times, start) : bisect_right(times, end)] for start, end in marks]


def above_end(changes: Sequence[int]) -> int:
    """The maximum of a running sum from 0, minus its final value (or minus 0, if that is negative)."""
    sums = list(accumulate(changes, initial=0))
    return max(sums) - max(0, sums[-1])


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Collect garbage, then none of it until the end."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence standard error: no setting stops the profiler's library from announcing its start and stop there."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def with_workspaces(graph: Graph) -> Graph:
    """``graph``, captured for this machine's CPU, with the workspace of each operation."""
    step = read_step(graph)
    alone = [
        index
        for index, operation in enumerate(step.operations)
        if index != step.tangents and operation.values and not operation.call.startswith(_COLLECTIVE)
    ]
    graph = _counted(graph, Operations(step, "cpu"), alone)
    nodes = [
        replace(node, workspace=max(node.workspace, copied_bytes(operation, "cpu")))
        for node, operation in zip(graph.nodes, step.operations, strict=True)
    ]
    return replace(graph, nodes=tuple(nodes))


def with_library_workspaces(graph: Graph) -> Graph:
    """``graph``, captured for Inductor, with the workspace of calls of libraries on this machine's CPU.

    Loops that Inductor writes need none. It lays out with channels last what a convolution reads. oneDNN copies weights
    into a layout of its own meanwhile, and computes their gradient in one: once or twice their bytes.
    """
    indices = [index for index, node in enumerate(graph.nodes) if node.op in _CALLS]
    return _counted(graph, _LaidOut(read_step(graph), "cpu"), indices) if indices else graph


class _LaidOut(Operations):
    """Operations as Inductor calls them: convolutions read images with channels last, products are written in place."""

    def prepared(self, index: int) -> Callable[[], Any]:
        """The operation bound to its inputs; it may be called repeatedly."""
        import torch

        function, op = super().prepared(index), self.step.graph.nodes[index].op
        if op not in _CONVOLUTIONS | _PRODUCTS:
            return function
        with self.attempt(index):
            operator, args = last_call(function)
            if op in _PRODUCTS:
                written, into = operator.overloadpacket.out, operator(*args)
                return lambda: written(*args, out=into)

        def laid_out(argument: Any) -> Any:
            image = isinstance(argument, torch.Tensor) and argument.dim() == 4
            return argument.contiguous(memory_format=torch.channels_last) if image else argument

        read = args if self._is_told(index) else [laid_out(argument) for argument in args]
        return lambda: operator(*read)

    def kind(self, index: int) -> str:
        """As for other operations; a gradient that reads contiguous copies is another kind."""
        return f"laid out {self._is_told(index)} {super().kind(index)}"

    def _is_told(self, index: int) -> bool:
        """Whether a gradient of a convolution reads contiguous copies, see ``inductor/image_layouts.py``."""
        node, operation = self.step.graph.nodes[index], self.step.operations[index]
        read = operation.args[:2] if node.op == "convolution_backward" else ()
        makers = [self.step.graph.producer[node.inputs[one.position]] for one in read if isinstance(one, Input)]
        copies = [self.step.operations[maker].kwargs.get("memory_format") == _CONTIGUOUS for maker in makers]
        return len(copies) == 2 and all(copies)


def _counted(graph: Graph, operations: Operations, indices: Sequence[int]) -> Graph:
    """``graph`` with the workspace of some of its nodes; those of one form are measured once.

    The state of the user's random generators is preserved. A warning names the operators that fail on random tensors.
    """
    kinds = groups((operations.kind(index), index) for index in indices)
    workspace_of = _kept_workspaces(operations, [members[0] for members in kinds])
    failed = sorted({operations.step.operations[index].call for index, taken in workspace_of.items() if taken is None})
    if failed:
        names = ", ".join(failed[:_MOST_NAMES]) + (", ..." if len(failed) > _MOST_NAMES else "")
        warn(f"remat: the workspace of {names} could not be measured, and is not counted: set reserve for it")
    nodes = list(graph.nodes)
    for members in kinds:
        for index in members:
            nodes[index] = replace(nodes[index], workspace=max(nodes[index].workspace, workspace_of[members[0]] or 0))
    return replace(graph, nodes=tuple(nodes))


def _kept_workspaces(operations: Operations, indices: Sequence[int]) -> Mapping[int, int | None]:
    """Workspace of each node in bytes, measured now or by an earlier process; None if it fails on random numbers."""
    import torch

    path = DeviceKey.of("cpu").path(
        "workspaces", _METHOD, torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled
    )
    keys = {index: hashlib.sha256(operations.kind(index).encode()).hexdigest()[:24] for index in indices}
    entries = _SEEN.setdefault(path, {})
    if not entries.keys() >= set(keys.values()):
        entries |= _read(path)
    missing = [index for index in indices if keys[index] not in entries]
    if missing:
        failed = set[int]()
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
            for index, workspace in zip(missing, _measured(operations, missing, failed), strict=True):
                if index not in failed:
                    entries[keys[index]] = workspace
        try:
            # Another process may have written meanwhile.
            write_text(str(path), json.dumps(_read(path) | entries, indent=0, sort_keys=True) + "\n")
        except UsageError as error:  # the next process measures again
            tell_stderr(f"the workspace of operations is not kept: {error.message}")
    return {index: entries.get(keys[index]) for index in indices}


def _measured(operations: Operations, indices: Sequence[int], failed: set[int]) -> list[int]:
    """The workspace of each node; 0 for those that fail, which are added to ``failed``."""
    try:
        return workspaces(operations, indices)
    except ExecutionFailed:
        pass
    sizes = []
    for index in indices:
        try:
            sizes += workspaces(operations, [index])
        except ExecutionFailed:
            failed.add(index)
            sizes.append(0)
    return sizes


def _read(path: Path) -> dict[str, int]:
    """What is kept; nothing if the file is missing or damaged."""
    try:
        document = json.loads(read_text(str(path))[0])
    except (InputError, ValueError):
        return {}
    entries = document.items() if isinstance(document, dict) else ()
    return {key: size for key, size in entries if isinstance(size, int) and size >= 0}


def live_storages() -> DispatchMode:
    """A mode that counts live bytes. Use it as a context manager; ``peak_bytes`` is their maximum.

    On a CPU, copies that a plan keeps in host memory count apart: ``host_peak_bytes`` is their maximum. Only storages
    made under the mode count, so parameters and inputs do not. Workspace inside an operator is not seen.
    """

    class LiveStorages(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __init__(self, known: list[Any]) -> None:
            super().__init__()
            self.known = {weak_storage(t) for t in known}
            self.sizes: dict[Any, int] = {}
            self.peak_bytes = 0
            self.host_sizes: dict[Any, int] = {}
            self.host_peak_bytes = 0

        def __torch_dispatch__(self, function: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            import torch

            result = function(*args, **(kwargs or {}))
            kept = kept_bytes(function, args, kwargs or {})
            for item in result if isinstance(result, list | tuple) else (result,):
                if isinstance(item, torch.Tensor):
                    reference = weak_storage(item)
                    if reference not in self.known:
                        sizes = self.host_sizes if is_host(reference) else self.sizes
                        sizes[reference] = max(item.untyped_storage().nbytes(), kept)
            self.sizes, self.host_sizes = _living(self.sizes), _living(self.host_sizes)
            self.peak_bytes = max(self.peak_bytes, sum(self.sizes.values()))
            self.host_peak_bytes = max(self.host_peak_bytes, sum(self.host_sizes.values()))
            return result

    return LiveStorages


def kept_bytes(function: Operator, args: Any, kwargs: Any) -> int:
    """Bytes that the result of a reduced loss keeps, which its fake tensor does not tell; 0 for other operators."""
    at = REDUCED.get(str(getattr(function, "overloadpacket", "")))
    if at is None or (args[at] if len(args) > at else kwargs.get("reduction", 1)) == 0:
        return 0
    return broadcast_elements(args[0].shape, args[1].shape) * int(args[0].itemsize)


def _living(sizes: dict[Any, int]) -> dict[Any, int]:
    return {reference: size for reference, size in sizes.items() if not reference.expired()}
