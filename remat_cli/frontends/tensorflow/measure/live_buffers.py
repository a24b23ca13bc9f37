"""Counts the bytes of live tensors on the CPU, per buffer, after every operation.

A buffer is known by its address. It lives as long as one of the tensors that lie in it, whatever made them; so this
counts what is really there, and not what a plan says.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.tensorflow.operators import ASSIGNS, BY_ROWS, CALLS
from remat_cli.frontends.tensorflow.private import Execute, address


@dataclass(slots=True, eq=False)
class _Buffer:
    """Memory from ``start`` on, and references to the tensors in it, by their ids, since tensors have no hash."""

    start: int
    size: int
    tensors: dict[int, weakref.ref[Any]] = field(default_factory=dict)


class LiveBuffers:
    """Runs kernels, and counts the bytes that their results take.

    Attributes:
        peak_bytes: Most bytes at once, without variables and without tensors that were there before.
        executed: How often each operation has run.
    """

    def __init__(self, execute: Execute, places: Sequence[Any], constants: Sequence[Any] = ()) -> None:
        self.peak_bytes = 0
        self.executed: dict[str, int] = {}
        self._execute = execute
        self._buffers: list[_Buffer] = []  # by their starts, which are in a list of their own
        self._starts: list[int] = []
        self._bytes = 0
        tensors = [tensor for tensor in (*places, *constants) if tensor.dtype.name != "resource"]
        addresses = (address(tensor) for tensor in tensors)
        self._there = Counter(place[0] for place in addresses if place is not None)
        self._handles = {id(handle): handle for handle in places if handle.dtype.name == "resource"}
        self._attributes: dict[int, tuple[Any, ...]] = {}
        self._held: dict[int, int] = {}

    def __call__(self, op: str, inputs: list[Any], attributes: tuple[Any, ...], outputs: int) -> list[Any]:
        """Run a kernel, see :data:`remat_cli.frontends.tensorflow.private.Execute`."""
        results = self._execute(op, inputs, attributes, outputs)
        self.executed[op] = self.executed.get(op, 0) + 1
        for tensor in results:
            self._add(tensor)
        if op in {"ReadVariableOp", "AssignVariableOp"} and id(inputs[0]) in self._handles:
            types = dict(zip(attributes[::2], attributes[1::2], strict=True))
            self._attributes[id(inputs[0])] = ("dtype", types["dtype"])
            self._locate(inputs[0])
        elif op in ASSIGNS | BY_ROWS | CALLS:
            for handle in inputs:
                if id(handle) in self._attributes:
                    self._locate(handle)
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        return results

    def _add(self, tensor: Any) -> None:
        place = address(tensor)
        if place is None or not place[1]:
            return
        buffer = self._around(*place)
        if buffer is None:
            buffer = _Buffer(*place)
            at = bisect_right(self._starts, buffer.start)
            self._starts.insert(at, buffer.start)
            self._buffers.insert(at, buffer)
            self._bytes += buffer.size if not self._there[buffer.start] else 0
        lies_in = buffer

        def gone(tensor: weakref.ref[Any]) -> None:
            del lies_in.tensors[id(tensor)]
            if not lies_in.tensors:
                self._remove(lies_in)

        reference = weakref.ref(tensor, gone)
        buffer.tensors[id(reference)] = reference

    def _around(self, start: int, size: int) -> _Buffer | None:
        """The buffer that holds these bytes; None if there is none."""
        for at in range(bisect_right(self._starts, start) - 1, -1, -1):
            buffer = self._buffers[at]
            end = buffer.start + buffer.size
            if start + size <= end:
                return buffer
            if end <= start:
                break
        return None

    def _remove(self, buffer: _Buffer) -> None:
        at = self._buffers.index(buffer, bisect_left(self._starts, buffer.start))
        del self._starts[at], self._buffers[at]
        self._bytes -= buffer.size if not self._there[buffer.start] else 0

    def _sized(self, start: int) -> int:
        """Bytes of the buffers that begin at an address."""
        return sum(b.size for b in self._buffers[bisect_left(self._starts, start) : bisect_right(self._starts, start)])

    def _locate(self, handle: Any) -> None:
        """Note where a variable is now; what was read of it may lie elsewhere from then on.

        A variable that is used by rows is copied by each reading, and these copies are tensors like others.
        """
        first, second = (self._execute("ReadVariableOp", [handle], self._attributes[id(handle)], 1)[0] for _ in "12")
        place = address(first)
        before = self._held.pop(id(handle), None)
        if before is not None:
            self._there[before] -= 1
            self._bytes += self._sized(before) if not self._there[before] else 0
        if place is not None and place == address(second):
            self._held[id(handle)] = place[0]
            self._bytes -= self._sized(place[0]) if not self._there[place[0]] else 0
            self._there[place[0]] += 1
