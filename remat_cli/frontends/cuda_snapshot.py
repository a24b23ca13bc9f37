"""Recordings of CUDA memory that PyTorch writes with ``torch.cuda.memory._dump_snapshot``.

The file is a pickle, which can run any code when it is read. This reader builds plain data alone: it refuses every name
of a class or a function. PyTorch is not needed.

Sizes are what was asked for; the allocator rounds them up. A free is counted when it is asked for, as
``max_memory_allocated`` counts it. What was there before the recording began is known by its free, or by a segment in
which it still lies.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from remat_cli.errors import InputError, Problem
from remat_cli.files import read_bytes
from remat_cli.frontends.source import place_in
from remat_cli.plan.snapshot import Block, OutOfMemory, Snapshot

_RECORD = "record one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(FILE)"
_ALLOC, _FREE = "alloc", "free_requested"
_GROWS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_LIVE = "active_allocated"
_BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    MemoryError,
    OverflowError,
    RecursionError,
)
"""What reading a damaged pickle raises: it says any of these."""


def read_snapshot(path: str) -> Snapshot:
    """The recording in a file, of the device with the highest peak.

    Args:
        path: The file; ``-`` for standard input.

    Raises:
        InputError: If it cannot be read, or is no such recording.
    """
    data, name = read_bytes(path)
    return snapshot_of(data, name)


def snapshot_of(data: bytes, name: str) -> Snapshot:
    """The recording in ``data``, which messages call ``name``.

    Raises:
        InputError: If it is no such recording.
    """
    try:
        document = _Plain(io.BytesIO(data)).load()
    except _Refused as refused:
        message = f"this pickle asks for {refused.args[0]}, which is not read: it could run any code"
        raise InputError(name, [Problem(message, hint=_RECORD)]) from None
    except _BROKEN as error:
        raise InputError(name, [Problem(f"not a complete pickle: {error}", hint=_RECORD)]) from None
    try:
        return _chosen(document, name)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        message = f"a pickle, but not a snapshot of CUDA memory: {type(error).__name__}: {error}"
        raise InputError(name, [Problem(message, hint=_RECORD)]) from None


class _Refused(Exception):
    """The pickle names something that is not plain data."""


class _Plain(pickle.Unpickler):
    """Builds lists, mappings, texts and numbers, and nothing else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every class and function."""
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse what lies outside the pickle."""
        raise _Refused("an object outside it")


def _chosen(document: Any, name: str) -> Snapshot:
    """The device with the highest peak, the first on a tie."""
    segments, traces = document["segments"], document.get("device_traces") or []
    numbers = sorted({segment["device"] for segment in segments} | {k for k, trace in enumerate(traces) if trace})
    if not numbers:
        raise InputError(name, [Problem("no memory of a CUDA device is in this snapshot", hint=_RECORD)])
    found = []
    for number in numbers:
        trace = traces[number] if number < len(traces) else []
        own = [segment for segment in segments if segment["device"] == number]
        found.append(_of_device(name, number, len(numbers), trace, own))
    return max(found, key=lambda one: max(one.allocated()))


def _of_device(
    name: str, device: int, devices: int, trace: Sequence[Mapping[str, Any]], segments: Sequence[Mapping[str, Any]]
) -> Snapshot:
    """The recording of one device: event 0 is before the first entry of its trace."""
    blocks: list[Block] = []
    live: dict[int, tuple[int, int, str]] = {}
    failed: list[OutOfMemory] = []
    change = [0] * (len(trace) + 1)
    for event, entry in enumerate(trace, 1):
        action = entry["action"]
        if action == _ALLOC:
            live[entry["addr"]] = entry["size"], event, _line(entry)
        elif action == _FREE:
            size, first, line = live.pop(entry["addr"], (entry["size"], 0, ""))
            blocks.append(Block(size, first, event, line))
        elif action in _GROWS:
            change[event] = _GROWS[action] * entry["size"]
        elif action == "oom":
            failed.append(OutOfMemory(event, entry["size"], entry.get("device_free", 0)))
    events = len(trace) + 1
    for segment in segments:
        for address, block in _blocks(segment):
            if block["state"] == _LIVE and address not in live:
                live[address] = block.get("requested_size", block["size"]), 0, _line(block)
    blocks += [Block(size, first, events, line) for size, first, line in live.values()]
    reserved = [sum(segment["total_size"] for segment in segments)]
    for step in reversed(change[1:]):
        reserved.append(reserved[-1] - step)
    times = [entry["time_us"] for entry in trace if "time_us" in entry]
    return Snapshot(
        name=name,
        device=device,
        devices=devices,
        events=events,
        blocks=tuple(sorted(blocks, key=lambda block: (block.first, block.end, -block.size))),
        reserved=tuple(reversed(reserved)),
        failed=tuple(failed),
        seconds=(times[-1] - times[0]) / 1e6 if times else None,
    )


def _blocks(segment: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """The blocks of a segment with their addresses, which old versions leave out: blocks lie one behind the other."""
    found, address = [], segment["address"]
    for block in segment["blocks"]:
        found.append((block.get("address", address), block))
        address += block["size"]
    return found


def _line(entry: Mapping[str, Any]) -> str:
    """The line of Python that asked for memory; empty if there is none."""
    frames = [(str(one["filename"]), int(one["line"]), str(one["name"])) for one in entry.get("frames") or ()]
    return place_in([frame for frame in reversed(frames) if frame[0].endswith(".py")], "torch")
