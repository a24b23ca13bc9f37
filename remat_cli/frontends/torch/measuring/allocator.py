"""What PyTorch's CUDA allocator takes from the device for a plan: blocks rounded up, split, joined and kept.

PyTorch does not give memory back to the device when a tensor dies. It cuts what it took (*segments*) into blocks, joins
neighbours that are free, and hands them out again; so it holds more (*reserved*) than tensors do (*allocated*), by gaps
that nothing fits into. Which gaps there are follows from the order of allocations, and a plan is such an order. This
is the allocator's published behaviour (PyTorch's notes on CUDA semantics, and ``CUDACachingAllocator`` with its default
settings), followed step by step; ``PYTORCH_CUDA_ALLOC_CONF`` can change it, and is not read.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from remat_cli.frontends.torch.document import Step
from remat_cli.frontends.torch.reading import read_step
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Compute, Deallocate, Statement

BLOCK_BYTES = 512
"""Sizes are rounded up to multiples of this."""
_SMALL_BYTES = 1 << 20
"""Up to this size blocks come from segments of ``_SMALL_SEGMENT``."""
_SMALL_SEGMENT = 2 << 20
_MEDIUM_BYTES = 10 << 20
"""Below this size they come from segments of ``_MEDIUM_SEGMENT``; from there on each asks for one of its own size."""
_MEDIUM_SEGMENT = 20 << 20
_LARGE_STEP = 2 << 20
"""Segments of a size of their own are multiples of this."""
LIBRARY_BYTES = 32 << 20
"""What cuBLAS keeps for each thread that uses it: so much on the largest devices, and less on others."""
_LOOP = 3
"""Steps after which a training loop takes no more."""


class NoRoom(Exception):
    """The allocator could not serve a request within its limit."""


@dataclass(slots=True)
class Block:
    """A piece of a segment.

    Attributes:
        address: Where it begins, in a device that is handed out from 0 on.
        size: Bytes.
        small: Whether its segment is one for small blocks.
        before: The block below it in the segment, or None.
        after: The block above it, or None.
        free: Whether it may be handed out.
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
        limit_bytes: The most it may take from the device, as ``set_per_process_memory_fraction`` says; None for no
            limit.
        allocated: Bytes in blocks that are handed out.
        reserved: Bytes in segments.
        peak_allocated: The most there ever was of each.
        peak_reserved: Likewise.
    """

    limit_bytes: int | None = None
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    _end: int = 0
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _blocks: dict[int, Block] = field(default_factory=dict)

    def allocate(self, size: int) -> Block | None:
        """A block of at least ``size`` bytes; None for no bytes at all.

        Raises:
            NoRoom: If there is none within the limit, even after giving back every segment that is free.
        """
        if size == 0:
            return None
        rounded = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        block = self._found(rounded) or self._segment(rounded)
        if block is None:
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
        """The end of a block that :meth:`allocate` handed out."""
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
        """The smallest free block that is large enough, the lowest of several."""
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
        """Return every segment that is one free block."""
        for pool in self._free.values():
            for _, address in list(pool):
                block = self._blocks[address]
                if block.before is None and block.after is None:
                    self._forget(block)
                    self.reserved -= block.size

    def _split(self, block: Block, rounded: int) -> None:
        """Cut off what a block has too much, if that is worth a block of its own."""
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
        """Take a block out of those that may be handed out."""
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]
        del self._blocks[block.address]


def _joined(low: Block, high: Block) -> Block:
    """Two neighbours that are free as one block."""
    low.size += high.size
    low.after = high.after
    if high.after is not None:
        high.after.before = low
    low.free = True
    return low


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the allocator does during steps.

    Attributes:
        allocated_bytes: The most that is handed out at once, fixed memory included, in blocks.
        reserved_bytes: The most that is taken from the device.
    """

    allocated_bytes: int
    reserved_bytes: int


def footprint(graph: Graph, statements: Iterable[Statement]) -> Footprint:
    """What the allocator hands out and takes for one step by plan, from nothing, the libraries' memory left out.

    Args:
        graph: A graph that this frontend made.
        statements: A valid plan of it.
    """
    allocator = CachingAllocator()
    step = read_step(graph)
    for size in _fixed(step):
        allocator.allocate(size)
    _step(allocator, step, statements, USUAL)
    return Footprint(allocator.peak_allocated, allocator.peak_reserved)


@dataclass(frozen=True, slots=True)
class Habit:
    """In which order operations ask for memory, where a plan does not say.

    Attributes:
        last_first: Whether the last output comes first.
        workspace_first: Whether workspace comes before the outputs, and goes after them.
    """

    last_first: bool = False
    workspace_first: bool = False


USUAL = Habit()
_HABITS = tuple(Habit(last, workspace) for last in (False, True) for workspace in (False, True))


def loop_footprint(
    graph: Graph,
    statements: Sequence[Statement],
    *,
    limit_bytes: int | None = None,
    state_bytes: int = 0,
    habit: Habit = USUAL,
) -> Footprint:
    """What the allocator hands out and takes for a training loop by plan.

    cuBLAS takes memory for good when it is first used, at the start of the forward and of the backward pass, each of
    which runs in a thread of its own. Gradients of a step are gone before the next, as ``zero_grad()`` does.

    Args:
        graph: A graph that this frontend made.
        statements: A valid plan of it.
        limit_bytes: The most it may take; None for no limit.
        state_bytes: Part of the graph's fixed memory that comes only after the first step, as the state of most
            optimizers does: twice for every parameter, in proportion. Half as much is taken for a while at the end
            of every step.
        habit: Of the operations.

    Raises:
        NoRoom: If the limit does not allow the loop.
    """
    return _loop(read_step(graph), statements, limit_bytes, state_bytes, habit)


def _loop(
    step: Step, statements: Sequence[Statement], limit_bytes: int | None, state_bytes: int, habit: Habit
) -> Footprint:
    """As :func:`loop_footprint`."""
    allocator = CachingAllocator(limit_bytes)
    for size in _fixed(step, state_bytes):
        allocator.allocate(size)
    states = _states(step, state_bytes)
    for number in range(_LOOP):
        left = _step(allocator, step, statements, habit, LIBRARY_BYTES if number == 0 else 0)
        if number == 0:
            for size in states:
                allocator.allocate(size)
        left += [allocator.allocate(size) for size in states[::2]]  # what an optimizer works with for all at once
        for block in left:
            allocator.release(block)
    return Footprint(allocator.peak_allocated, allocator.peak_reserved)


def _step(
    allocator: CachingAllocator, step: Step, statements: Iterable[Statement], habit: Habit, libraries: int = 0
) -> list[Block | None]:
    """Follow one step; the blocks of what is left at its end. ``libraries``: what each pass takes for good."""
    graph = step.graph
    held: dict[str, Block | None] = {}
    allocator.allocate(libraries)
    for statement in statements:
        if isinstance(statement, Compute):
            node = graph.nodes[statement.node]
            first = allocator.allocate(node.workspace if habit.workspace_first else 0)
            made = list(zip(statement.registers, graph.values_of(statement.node), strict=True))
            for register, value in reversed(made) if habit.last_first else made:
                held[register] = allocator.allocate(graph.size[value])
            allocator.release(first or allocator.allocate(node.workspace))
            if statement.node == step.tangents:
                allocator.allocate(libraries)
        elif isinstance(statement, Deallocate):
            allocator.release(held.pop(statement.register))
    return list(held.values())


def fixed_sizes(graph: Graph) -> list[int]:
    """Bytes of parameters, buffers and inputs, one by one, and of what else is in fixed memory, as one."""
    return _fixed(read_step(graph))


def _fixed(step: Step, state_bytes: int = 0) -> list[int]:
    """As :func:`fixed_sizes`, without ``state_bytes`` of the rest."""
    sizes = [place.storage_bytes for place in step.given]
    graph = step.graph
    padding = int((graph.metadata.get("profile") or {}).get("fixed_padding", 0))  # to whole blocks, which is done here
    return [*sizes, max(0, graph.fixed_memory - padding - state_bytes - sum(sizes))]


def _states(step: Step, state_bytes: int) -> list[int]:
    """``state_bytes`` in two pieces for every parameter, as large as it in proportion."""
    parameters = [place.storage_bytes for place in step.places if place.kind == "parameter"]
    if not any(parameters):
        return [state_bytes]
    share = state_bytes / (2 * sum(parameters))
    return [math.ceil(share * size) for size in parameters for _ in range(2)]


def least_limit(graph: Graph, statements: Sequence[Statement], *, state_bytes: int = 0) -> int:
    """Memory, to 1%, within which the allocator serves a training loop by plan, whatever the operations' habits.

    Gaps depend on every single request, so near the least limit of one order another one fails.

    Args:
        graph: A graph that this frontend made.
        statements: A valid plan of it.
        state_bytes: As in :func:`loop_footprint`.
    """
    step = read_step(graph)
    return max(_least_limit(step, statements, state_bytes, habit) for habit in _HABITS)


def _least_limit(step: Step, statements: Sequence[Statement], state_bytes: int, habit: Habit) -> int:
    freely = _loop(step, statements, None, state_bytes, habit)
    low, high = freely.allocated_bytes, freely.reserved_bytes  # no more is ever needed, and no less is ever enough
    while high - low > high // 100:
        middle = (low + high) // 2
        try:
            _loop(step, statements, middle, state_bytes, habit)
        except NoRoom:
            low = middle
        else:
            high = middle
    return high


def start_libraries() -> int:
    """Let cuBLAS take the memory that it keeps, before anything else; bytes that are taken from the device by then.

    Later it would take it from between other blocks, and they could not be given back.
    """
    import torch

    torch.cuda.empty_cache()
    torch.cuda.current_blas_handle()
    return int(torch.cuda.memory_reserved())
