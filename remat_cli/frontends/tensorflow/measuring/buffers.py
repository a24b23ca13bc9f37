"""Counts the bytes of live tensors on the CPU, per buffer, after every operation.

A buffer is known by its address. It lives as long as one of the tensors that lie in it, whatever made them; so this
counts what is really there, and not what a plan says.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.tensorflow.operators import ASSIGNS, BY_ROWS, CALLS
from remat_cli.frontends.tensorflow.private import Execute, address


@dataclass(slots=True)
class _Buffer:
    start: int
    size: int
    tensors: list[weakref.ref[Any]] = field(default_factory=list)

    def live(self) -> bool:
        """Whether a tensor still lies in it."""
        self.tensors = [tensor for tensor in self.tensors if tensor() is not None]
        return bool(self.tensors)


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
        self._buffers: list[_Buffer] = []
        given = [tensor for tensor in (*places, *constants) if tensor.dtype.name != "resource"]
        self._given = {found[0] for tensor in given if (found := address(tensor)) is not None}
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
            self._look_at(inputs[0])
        elif op in ASSIGNS | BY_ROWS | CALLS:
            for handle in inputs:
                if id(handle) in self._attributes:
                    self._look_at(handle)
        self._buffers = [buffer for buffer in self._buffers if buffer.live()]
        held = set(self._held.values()) | self._given
        self.peak_bytes = max(self.peak_bytes, sum(b.size for b in self._buffers if b.start not in held))
        return results

    def _add(self, tensor: Any) -> None:
        place = address(tensor)
        if place is None or not place[1]:
            return
        start, size = place
        for buffer in self._buffers:
            if buffer.start <= start and start + size <= buffer.start + buffer.size and buffer.live():
                buffer.tensors.append(weakref.ref(tensor))
                return
        self._buffers.append(_Buffer(start, size, [weakref.ref(tensor)]))

    def _look_at(self, handle: Any) -> None:
        """Note where a variable is now; what was read of it may lie elsewhere from then on.

        A variable that is used by rows is copied by each reading, and these copies are tensors like others.
        """
        first, second = (self._execute("ReadVariableOp", [handle], self._attributes[id(handle)], 1)[0] for _ in "12")
        place = address(first)
        if place is not None and place == address(second):
            self._held[id(handle)] = place[0]
        else:
            self._held.pop(id(handle), None)
