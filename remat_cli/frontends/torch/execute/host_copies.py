"""Copies of values to host memory and back, in two queues beside the computations.

On CUDA the queues are two streams, and host memory is pinned. On a CPU the copies are real and nothing overlaps.
Storages are copied whole, so that the tensors that come back have the same sizes, strides and offsets, and share
storages as before: operators cannot tell them from the old ones.

Waits are those of the replay's model (:mod:`remat_cli.plan.queues`): a copy starts after all that was issued to the
computations before it; a computation waits for the copies into what it reads; memory is freed after the copies from it
and into it. So the allocator of the device never needs to know of the copy streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import accumulate
from typing import Any

from remat_cli.frontends.torch.compat.operators import host_storage, storage_identity, weak_reference
from remat_cli.frontends.torch.types import Storage, Tensor
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Offload, Release, Statement

_Part = tuple[int, Any, int, tuple[int, ...], tuple[int, ...]]
"""The storage of a tensor, and its type, offset, size and stride."""


class Stream(StrEnum):
    """Where something runs, one after another."""

    COMPUTE = "compute"
    OUT = "to host"
    IN = "from host"


class Queues:
    """The three queues of a device, and host memory for copies. Those of a CPU: all runs at once, and nothing waits."""

    def mark(self, stream: Stream) -> Any:
        """An event that comes when all that was issued to ``stream`` so far has ended; None if it is over already."""
        return None

    def wait(self, stream: Stream, event: Any) -> None:
        """Let what is issued to ``stream`` from now on wait for ``event``."""

    def running(self, stream: Stream) -> AbstractContextManager[Any]:
        """A context in which operators are issued to ``stream``."""
        return nullcontext()

    def buffer(self, size: int) -> tuple[Tensor, Any]:
        """Host memory as a tensor of bytes, and the event for which a copy into it has to wait."""
        return _tensor(host_storage(size), "cpu"), None

    def read(self, buffer: Tensor, event: Any) -> None:
        """Take note that ``buffer`` is read until ``event``."""


@dataclass(slots=True)
class _Pinned:
    """Pinned memory, which serves one slot after another.

    Attributes:
        memory: The same memory for numpy, which keeps it alive.
        user: A weak reference to the storage that was handed out last.
        read: When the copies from it end.
    """

    memory: Any
    user: Any = None
    read: Any = None


@dataclass(slots=True)
class CudaQueues(Queues):
    """Streams and pinned memory. Memory is kept for later steps, by size, and returns when nothing refers to it.

    Attributes:
        device: ``cuda`` or ``cuda:1``.
        pinned: The memory, by size in bytes.
    """

    device: str
    pinned: dict[int, list[_Pinned]] = field(default_factory=dict)

    def _stream(self, stream: Stream) -> Any:
        import torch

        return torch.cuda.current_stream(self.device) if stream is Stream.COMPUTE else _copy_stream(self.device, stream)

    @property
    def pinned_bytes(self) -> int:
        """All pinned memory taken so far."""
        return sum(size * len(blocks) for size, blocks in self.pinned.items())

    def mark(self, stream: Stream) -> Any:
        """An event of CUDA."""
        return self._stream(stream).record_event()

    def wait(self, stream: Stream, event: Any) -> None:
        """Let the stream wait, and not this program."""
        if event is not None:
            self._stream(stream).wait_event(event)

    def running(self, stream: Stream) -> AbstractContextManager[Any]:
        """A context that makes the stream the current one."""
        import torch

        context: AbstractContextManager[Any] = torch.cuda.stream(self._stream(stream))
        return context

    def buffer(self, size: int) -> tuple[Tensor, Any]:
        """Pinned memory: what is not in use any more, else new memory."""
        import torch

        blocks = self.pinned.setdefault(size, [])
        one = next((p for p in blocks if p.user.expired()), None)
        if one is None:
            one = _Pinned(torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy())
            blocks.append(one)
        # A storage of its own for every user, so that a weak reference tells when the user is gone: autograd may keep
        # a slot for a second backward pass.
        tensor = torch.from_numpy(one.memory)
        one.user = weak_reference(tensor.untyped_storage())
        return tensor, one.read

    def read(self, buffer: Tensor, event: Any) -> None:
        """Let the next copy into this memory wait for ``event``."""
        for one in self.pinned[buffer.numel()]:
            if one.memory.ctypes.data == buffer.data_ptr():
                one.read = event


@cache
def _copy_stream(device: str, stream: Stream) -> Any:
    import torch

    return torch.cuda.Stream(device)


@dataclass(slots=True)
class HostLink:
    """What the code of a plan calls to copy. Events are those of its queues.

    Attributes:
        device: The device beside the host.
        queues: Its queues.
        forms: For each slot the sizes of its storages, and its tensors; None for a result that the operator was not
            asked for. They are the same in every step.
        events: Events that cross from the forward to the backward function, by address. An old one is over, and does
            no harm.
    """

    device: str
    queues: Queues
    forms: dict[int, tuple[list[int], list[_Part | None]]] = field(default_factory=dict)
    events: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, device: str) -> HostLink:
        """A link for ``cpu``, ``cuda`` or ``cuda:1``."""
        return cls(device, CudaQueues(device) if device.startswith("cuda") else Queues())

    def to_host(self, slot: int, tensors: Sequence[Tensor | None], filled: Any = None) -> tuple[Any, Any]:
        """Copy the storages of ``tensors`` after the event ``filled``: host memory, and the event of the copy's end."""
        numbers: dict[int, int] = {}
        storages: list[Storage] = []
        parts: list[_Part | None] = []
        for tensor in tensors:
            if tensor is None:
                parts.append(None)
                continue
            place = storage_identity(tensor)
            if place not in numbers:
                numbers[place] = len(storages)
                storages.append(tensor.untyped_storage())
            parts.append(
                (numbers[place], tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
            )
        sizes = [storage.nbytes() for storage in storages]
        self.forms[slot] = sizes, parts
        queues = self.queues
        buffer, free = queues.buffer(sum(sizes))
        for event in (queues.mark(Stream.COMPUTE), filled, free):
            queues.wait(Stream.OUT, event)
        with queues.running(Stream.OUT):
            for piece, storage in zip(_pieces(buffer, sizes), storages, strict=True):
                piece.copy_(_tensor(storage, self.device), non_blocking=True)
        return buffer, queues.mark(Stream.OUT)

    def from_host(self, slot: int, buffer: Tensor, sent: Any) -> tuple[Any, ...]:
        """New tensors with what ``buffer`` holds after the event ``sent``, and the event of the copy's end."""
        import torch

        sizes, parts = self.forms[slot]
        queues = self.queues
        storages = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes]
        for event in (queues.mark(Stream.COMPUTE), sent):
            queues.wait(Stream.IN, event)
        with queues.running(Stream.IN):
            for piece, new in zip(_pieces(buffer, sizes), storages, strict=True):
                new.copy_(piece, non_blocking=True)
        ended = queues.mark(Stream.IN)
        queues.read(buffer, ended)
        tensors = [
            None
            if part is None
            else torch.empty(0, dtype=part[1], device=self.device).set_(storages[part[0]].untyped_storage(), *part[2:])
            for part in parts
        ]
        return (*tensors, ended)

    def wait(self, event: Any) -> None:
        """Let later computations wait for ``event``."""
        self.queues.wait(Stream.COMPUTE, event)

    def hand_over(self, tensor: Tensor, event: Any) -> Any:
        """``tensor`` itself; its event is there for :meth:`handed_over` in the other function."""
        if tensor is not None:
            self.events[tensor.data_ptr()] = event
        return tensor

    def handed_over(self, tensor: Tensor) -> Any:
        """The event of a tensor that crossed; what has no memory has nothing to wait for."""
        return None if tensor is None else self.events.get(tensor.data_ptr())


def pinned_bytes(graph: Graph, statements: Sequence[Statement]) -> int:
    """The pinned memory that :class:`CudaQueues` takes for a plan: for each size the most slots that are ever there."""
    value_of: dict[str, int] = {}
    size_of: dict[str, int] = {}
    live: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for statement in statements:
        if isinstance(statement, Allocate):
            value_of[statement.register] = statement.value
        elif isinstance(statement, Offload):
            size_of[statement.slot] = size = graph.size[value_of[statement.register]]
            live[size] += 1
            most[size] = max(most[size], live[size])
        elif isinstance(statement, Release):
            live[size_of[statement.slot]] -= 1
    return sum(size * count for size, count in most.items())


def _pieces(buffer: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """``buffer`` in pieces of these sizes."""
    ends = [*accumulate(sizes)]
    return [buffer[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _tensor(storage: Storage, device: str) -> Tensor:
    """The bytes of a storage as a tensor."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
