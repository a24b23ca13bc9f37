"""Simulates PyTorch's CUDA allocator for a plan: it rounds blocks up, splits them, joins them and keeps them.

PyTorch does not return memory to the device when a tensor is freed. It divides the memory that it took (*segments*)
into blocks, joins free neighbours, and reuses them. So it holds more memory (*reserved*) than tensors do (*allocated*):
the difference are gaps that no request fits into. The gaps depend only on the order of allocations, which a plan
determines. The simulation follows the published behaviour (PyTorch's notes on CUDA semantics, and
``CUDACachingAllocator`` with its default settings). ``PYTORCH_CUDA_ALLOC_CONF`` can change that, and is not read.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from remat_cli.frontends.torch.document import Step, read_padding, read_step
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Prefetch, Statement

BLOCK_BYTES = 512
"""Sizes are rounded up to multiples of this. This and the next five are constants of ``CUDACachingAllocator``."""
_SMALL_BYTES = 1 << 20
"""Up to this size, blocks come from segments of ``_SMALL_SEGMENT``."""
_SMALL_SEGMENT = 2 << 20
_MEDIUM_BYTES = 10 << 20
"""Below this size, blocks come from segments of ``_MEDIUM_SEGMENT``; larger blocks get segments of their own."""
_MEDIUM_SEGMENT = 20 << 20
_LARGE_STEP = 2 << 20
"""Sizes of such segments are multiples of this."""
LIBRARY_BYTES = 32 << 20
"""Most bytes that cuBLAS keeps for each thread that uses it: its workspace on the largest devices."""
_MULTIPLYING = frozenset(
    (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "matmul", "einsum"),
        *("_scaled_mm", "_int_mm", "_scaled_dot_product_attention_math", "_scaled_dot_product_attention_math_backward"),
    )
)
"""ATen's operators that call cuBLAS; convolutions and fused attention do not."""
_KNOWN = frozenset(("aten", "prims", "remat", "_c10d_functional", "c10d", "_operator"))
"""Namespaces whose other operators do not call it. Those of other libraries may."""
_LOOP = 3
"""Steps to simulate: a training loop takes no more memory after them."""


class NoRoom(Exception):
    """The allocator could not serve a request within its limit."""


@dataclass(slots=True)
class Block:
    """A piece of a segment.

    Attributes:
        address: Its first byte, in a device whose addresses start at 0.
        size: Bytes.
        small: Whether its segment is for small blocks.
        before: The block below it in the segment, or None.
        after: The block above it in the segment, or None.
        free: Whether it may be allocated.
    """

    address: int
    size: int
    small: bool
    before: Block | None = None
    after: Block | None = None
    free: bool = False


@dataclass(slots=True)
class CachingAllocator:
    """The allocator of one device and one stream.

    Attributes:
        limit_bytes: Most bytes that it may take from the device, as ``set_per_process_memory_fraction`` sets it; None
            for no limit.
        allocated: Bytes in allocated blocks.
        reserved: Bytes in segments.
        peak_allocated: Maximum of ``allocated`` so far.
        peak_reserved: Maximum of ``reserved`` so far.
        returns: How often it has returned free segments to the device to serve a request, which takes much time.
    """

    limit_bytes: int | None = None
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    returns: int = 0
    _end: int = 0
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _blocks: dict[int, Block] = field(default_factory=dict)

    def allocate(self, size: int) -> Block | None:
        """Allocate a block of at least ``size`` bytes; None if ``size`` is 0.

        Raises:
            NoRoom: If the limit does not allow it, even after all free segments are returned to the device.
        """
        if size == 0:
            return None
        rounded = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        block = self._found(rounded) or self._segment(rounded)
        if block is None:  # as PyTorch does: free segments go back to the device only if a request fails
            self._give_back()
            block = self._segment(rounded)
        if block is None:
            raise NoRoom(f"{size} bytes; {self.allocated} are handed out, {self.reserved} taken of {self.limit_bytes}")
        self._split(block, rounded)
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block | None) -> None:
        """Free a block that :meth:`allocate` returned, and join it with free neighbours."""
        if block is None:
            return
        self.allocated -= block.size
        block.free = True
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._forget(other)
                block = _joined(*((other, block) if other is block.before else (block, other)))
        self._blocks[block.address] = block
        insort(self._free[block.small], (block.size, block.address))

    def _found(self, rounded: int) -> Block | None:
        """The smallest free block that is large enough; of equal ones, that of the lowest address."""
        pool = self._free[rounded <= _SMALL_BYTES]
        at = bisect_left(pool, (rounded, -1))
        if at == len(pool):
            return None
        block = self._blocks[pool[at][1]]
        self._forget(block)
        return block

    def _segment(self, rounded: int) -> Block | None:
        """A new segment for a block; None if the limit does not allow it."""
        if rounded <= _SMALL_BYTES:
            size = _SMALL_SEGMENT
        elif rounded < _MEDIUM_BYTES:
            size = _MEDIUM_SEGMENT
        else:
            size = -(-rounded // _LARGE_STEP) * _LARGE_STEP
        if self.limit_bytes is not None and self.reserved + size > self.limit_bytes:
            return None
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = Block(self._end, size, rounded <= _SMALL_BYTES)
        self._end += size
        return block

    def _give_back(self) -> None:
        """Return every segment that is a single free block to the device."""
        self.returns += 1
        for pool in self._free.values():
            for _, address in list(pool):
                block = self._blocks[address]
                if block.before is None and block.after is None:
                    self._forget(block)
                    self.reserved -= block.size

    def _split(self, block: Block, rounded: int) -> None:
        """Split off the rest of a block, if it is large enough for the allocator to make a block of it."""
        rest = block.size - rounded
        if rest < BLOCK_BYTES or (not block.small and rest <= _SMALL_BYTES):
            return
        other = Block(block.address + rounded, rest, block.small, block, block.after, free=True)
        if block.after is not None:
            block.after.before = other
        block.after, block.size = other, rounded
        self._blocks[other.address] = other
        insort(self._free[other.small], (other.size, other.address))

    def _forget(self, block: Block) -> None:
        """Remove a block from the free blocks."""
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]
        del self._blocks[block.address]


def _joined(low: Block, high: Block) -> Block:
    """Join two free neighbours to one block."""
    low.size += high.size
    low.after = high.after
    if high.after is not None:
        high.after.before = low
    low.free = True
    return low


@dataclass(frozen=True, slots=True)
class Footprint:
    """Peaks of the allocator during steps.

    Attributes:
        allocated_bytes: Most bytes in allocated blocks, fixed memory included.
        reserved_bytes: Most bytes taken from the device.
        returns: How often memory is returned to the device in the last step of a loop, because of a limit.
    """

    allocated_bytes: int
    reserved_bytes: int
    returns: int = 0


def footprint(graph: Graph, statements: Iterable[Statement]) -> Footprint:
    """Peaks of the allocator for one step by a valid plan of ``graph``, starting empty, without what libraries take."""
    allocator = CachingAllocator()
    step = read_step(graph)
    for size in fixed_sizes(step):
        allocator.allocate(size)
    _step(allocator, _requests(step, statements, USUAL))
    return Footprint(allocator.peak_allocated, allocator.peak_reserved)


@dataclass(frozen=True, slots=True)
class Habit:
    """The order in which an operation requests memory, which a plan does not determine.

    Attributes:
        last_first: Whether the last output is allocated first.
        workspace_first: Whether workspace is allocated before the outputs. It is freed once they exist, in either case.
        workspace_each: Whether there is workspace between outputs, too, as between gradients of a convolution.
    """

    last_first: bool = False
    workspace_first: bool = False
    workspace_each: bool = False


USUAL = Habit()
_HABITS = tuple(
    Habit(last, first, each) for last in (False, True) for first, each in ((False, False), (True, False), (False, True))
)
_LIBRARIES = 0
"""Among the requests of a step: where a pass first calls cuBLAS, which takes memory permanently then."""


def loop_footprint(
    step: Step,
    statements: Sequence[Statement],
    *,
    limit_bytes: int | None = None,
    state_bytes: int = 0,
    update_bytes: int | None = None,
    habit: Habit = USUAL,
) -> Footprint:
    """Peaks of the allocator for a training loop by plan.

    cuBLAS takes memory permanently when a thread first multiplies matrices; the forward and the backward pass run in
    different threads. Gradients of a step are freed before the next, as by ``zero_grad()``.

    Args:
        step: A captured step.
        statements: A valid plan of it.
        limit_bytes: Most bytes that it may take from the device; None for no limit.
        state_bytes: Part of the graph's fixed memory that is allocated only after the first step, as the state of most
            optimizers is: two tensors for every result of the step, which are gradients, in proportion to it.
        update_bytes: Allocated temporarily at the end of every step, in proportion to its results; None for half of
            ``state_bytes``.
        habit: The order of requests of every operation.

    Raises:
        NoRoom: If the limit does not allow the loop.
    """
    requests = _requests(step, statements, habit, _multiplying(step))
    return _Loop.of(step, state_bytes, update_bytes).footprint(requests, limit_bytes)


@dataclass(frozen=True, slots=True)
class _Loop:
    """What a training loop allocates besides what its steps do.

    Attributes:
        fixed: Bytes of what is there from the start.
        states: Bytes of what the optimizer keeps after the first step.
        temporary: Bytes of what it allocates at the end of every step.
    """

    fixed: Sequence[int]
    states: Sequence[int]
    temporary: Sequence[int]

    @classmethod
    def of(cls, step: Step, state_bytes: int, update_bytes: int | None) -> _Loop:
        """The loop of a step, see :func:`loop_footprint`."""
        graph = step.graph
        trained = [graph.size[value] for value in graph.outputs]  # gradients; the loss is small beside them
        states = _shared_out(state_bytes, [size for size in trained for _ in range(2)])
        temporary = states[::2] if update_bytes is None else _shared_out(update_bytes, trained)
        return cls(fixed_sizes(step, state_bytes), states, temporary)

    def footprint(self, requests: Sequence[int], limit_bytes: int | None = None) -> Footprint:
        """Peaks of the allocator with these requests in every step, see :func:`_requests`.

        Raises:
            NoRoom: If the limit does not allow the loop.
        """
        allocator = CachingAllocator(limit_bytes)
        for size in self.fixed:
            allocator.allocate(size)
        returns = 0
        for number in range(_LOOP):
            returns = allocator.returns
            left = _step(allocator, requests, LIBRARY_BYTES if number == 0 else 0)
            if number == 0:
                for size in self.states:
                    allocator.allocate(size)
            left += [allocator.allocate(size) for size in self.temporary]
            for block in left:
                allocator.release(block)
        return Footprint(allocator.peak_allocated, allocator.peak_reserved, allocator.returns - returns)

    def least_limit(self, requests: Sequence[int], low: int) -> int:
        """The least limit above ``low``, to 1%, that allows the loop."""
        freely = self.footprint(requests)
        low, high = max(low, freely.allocated_bytes), freely.reserved_bytes  # the least limit is between
        while high - low > high // 100:
            middle = (low + high) // 2
            low, high = (low, middle) if self.within(requests, middle) else (middle, high)
        return high

    def within(self, requests: Sequence[int], limit_bytes: int) -> bool:
        """Whether a limit allows the loop."""
        try:
            self.footprint(requests, limit_bytes)
        except NoRoom:
            return False
        return True


def _shared_out(size: int, among: Sequence[int]) -> list[int]:
    """``size`` bytes in pieces, in proportion to ``among``, each rounded up."""
    whole = sum(among)
    return [math.ceil(size * one / whole) for one in among] if whole else [size]


def _step(allocator: CachingAllocator, requests: Iterable[int], libraries: int = 0) -> list[Block | None]:
    """Simulate one step; returns the blocks that are left at its end.

    ``libraries`` are the bytes that each pass takes permanently.
    """
    held: list[Block | None] = []
    for request in requests:
        if request > 0:
            held.append(allocator.allocate(request))
        elif request < 0:
            allocator.release(held[~request])
            held[~request] = None
        else:
            allocator.allocate(libraries)
    return held


def _multiplying(step: Step) -> frozenset[str]:
    """The ids of the nodes of ``step`` that call cuBLAS, or may."""
    whole = step.whole or step
    found = set()
    for k, (node, operation) in enumerate(zip(step.graph.nodes, step.operations, strict=True)):
        inner = [whole.operations[one] for one in step.parts[k].nodes] if k in step.parts else [operation]
        if any(_multiplies(one.call) for one in inner):
            found.add(node.id)
    return frozenset(found)


def _multiplies(call: str) -> bool:
    """Whether an operator calls cuBLAS, or may."""
    namespace, _, name = call.partition(".")
    return namespace not in _KNOWN or name.partition(".")[0] in _MULTIPLYING


def _requests(
    step: Step, statements: Iterable[Statement], habit: Habit, multiplying: frozenset[str] = frozenset()
) -> tuple[int, ...]:
    """What one step by plan asks of the allocator, in order.

    Bytes of a block, or ``~k`` to free the block of the k-th such request, or ``_LIBRARIES`` for the first node of each
    pass in ``multiplying``.
    """
    graph = step.graph
    asked, found, idle = 0, list[int](), True
    held: dict[str, int] = {}
    into: dict[str, int] = {}

    def allocate(size: int) -> int:
        """The number of the request, which is none for 0 bytes: -1."""
        nonlocal asked
        if not size:
            return -1
        found.append(size)
        asked += 1
        return asked - 1

    def release(number: int) -> None:
        if number >= 0:
            found.append(~number)

    for statement in statements:
        if isinstance(statement, Compute):
            node = graph.nodes[statement.node]
            first = allocate(node.workspace) if habit.workspace_first else -1
            outputs = list(zip(statement.registers, graph.values_of(statement.node), strict=True))
            between = node.workspace if habit.workspace_each else 0
            for k, (register, value) in enumerate(reversed(outputs) if habit.last_first else outputs):
                release(allocate(between if k else 0))
                held[register] = allocate(graph.size[value])
            if idle and node.id in multiplying:
                found.append(_LIBRARIES)
            idle = statement.node == step.tangents or (idle and node.id not in multiplying)
            release(first if habit.workspace_first else allocate(node.workspace))
        elif isinstance(statement, Deallocate):
            release(held.pop(statement.register))
        elif isinstance(statement, Allocate):
            into[statement.register] = statement.value
        elif isinstance(statement, Prefetch):
            held[statement.register] = allocate(graph.size[into[statement.register]])
    return tuple(found)


def fixed_sizes(step: Step, state_bytes: int = 0) -> list[int]:
    """Bytes of each parameter, buffer and input, then those of the rest of fixed memory but ``state_bytes``."""
    sizes = [place.storage_bytes for place in step.given]
    padding = read_padding(step.graph)  # this allocator rounds up by itself
    return [*sizes, max(0, step.graph.fixed_memory - padding - state_bytes - sum(sizes))]


def least_limit(
    graph: Graph,
    statements: Sequence[Statement],
    update_bytes: int | None = None,
    *,
    state_bytes: int = 0,
    captured: Graph | None = None,
) -> int:
    """The least limit, to 1%, within which the allocator serves a training loop by plan, for every habit.

    Gaps depend on every request, so a limit that just suffices for one order of requests fails for another.

    Args:
        graph: The graph of the step.
        statements: A valid plan of it.
        update_bytes: See :func:`loop_footprint`.
        state_bytes: See there.
        captured: The graph as it was captured, if nodes without operations were added to it; None if none were.
    """
    loop, orders = _loops(graph, statements, update_bytes, state_bytes, captured)
    least = 0
    for requests in orders:
        if not least or not loop.within(requests, least):
            least = loop.least_limit(requests, least)
    return least


def returns_within(
    graph: Graph, statements: Sequence[Statement], limit_bytes: int, *, state_bytes: int = 0
) -> int | None:
    """How often a training loop returns memory to the device in each step, to stay within a limit; None if it cannot.

    What works within a limit may fail within a larger one, because memory is returned later. It is the most for any
    habit.
    """
    loop, orders = _loops(graph, statements, None, state_bytes, None)
    try:
        return max(loop.footprint(requests, limit_bytes).returns for requests in orders)
    except NoRoom:
        return None


def _loops(
    graph: Graph, statements: Sequence[Statement], update_bytes: int | None, state_bytes: int, captured: Graph | None
) -> tuple[_Loop, list[tuple[int, ...]]]:
    """The loop of a plan, and the requests of its step for every habit, see :func:`least_limit`."""
    step = read_step(graph if captured is None else captured)
    multiplying = _multiplying(step)
    if captured is not None:
        tangents = captured.nodes[step.tangents].id
        step = replace(step, graph=graph, tangents=next(k for k, n in enumerate(graph.nodes) if n.id == tangents))
    # Without workspace, or where operations have one output, habits make the same requests.
    orders = list(dict.fromkeys(_requests(step, statements, habit, multiplying) for habit in _HABITS))
    return _Loop.of(step, state_bytes, update_bytes), orders


def start_libraries() -> int:
    """Let cuBLAS take its memory before all other allocations; returns the bytes then taken from the device.

    Later it would take it from a segment with other blocks, which then could not be returned to the device.
    """
    import torch

    torch.cuda.empty_cache()
    torch.cuda.current_blas_handle()
    return int(torch.cuda.memory_reserved())
