"""A graph as flat arrays, for array code and compiled loops; made once for each graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from remat_cli.graph.model import Graph
from remat_cli.mip import Bools, Floats, Ints

READONLY = "readonly"
"""Marks arrays that cannot be written to: numba has separate types for them."""

FixedInts = Annotated[Ints, READONLY]
FixedFloats = Annotated[Floats, READONLY]
FixedBools = Annotated[Bools, READONLY]


class Arrays(NamedTuple):
    """A graph of n nodes and V values. A closing stage n reads the graph outputs. All arrays are read-only.

    Attributes:
        cost: float64[n], in units of C0 (as they are if C0 is 0).
        own: int64[n], bytes of outputs and workspace.
        workspace: int64[n], bytes.
        fixed: bool[n], nodes that may be computed only once.
        first_value: int64[n + 1].
        input_start: int64[n + 2], into ``inputs``.
        inputs: int64[E], the values that each node reads, then those that the closing stage reads.
        size: int64[V], bytes.
        producer: int64[V].
        output: bool[V], graph outputs.
        reader_start: int64[V + 1], into ``readers``.
        readers: int64[E], ascending for each value; n is the closing stage.
    """

    cost: FixedFloats
    own: FixedInts
    workspace: FixedInts
    fixed: FixedBools
    first_value: FixedInts
    input_start: FixedInts
    inputs: FixedInts
    size: FixedInts
    producer: FixedInts
    output: FixedBools
    reader_start: FixedInts
    readers: FixedInts

    @property
    def reads(self) -> int:
        """Number of (value, reader) pairs without the closing stage; its inputs start at this index."""
        return int(self.input_start[-2])

    @classmethod
    def of(cls, graph: Graph) -> Arrays:
        """The arrays of ``graph``; use :func:`arrays_of`, which keeps them."""
        nodes, n = graph.nodes, len(graph.nodes)
        ends = set(graph.outputs)
        readers = [(*of, n) if v in ends else of for v, of in enumerate(graph.readers)]
        reads = [*(node.inputs for node in nodes), graph.outputs]
        return cls(
            cost=_fixed([node.cost for node in nodes], np.float64, unit=graph.total_cost or 1.0),
            own=_fixed([sum(node.outputs) + node.workspace for node in nodes]),
            workspace=_fixed([node.workspace for node in nodes]),
            fixed=_fixed([not node.recompute for node in nodes], np.bool_),
            first_value=_fixed(graph.first_value),
            input_start=_starts(reads),
            inputs=_fixed([v for of in reads for v in of]),
            size=_fixed(graph.size),
            producer=_fixed(graph.producer),
            output=_fixed([v in ends for v in range(len(graph.size))], np.bool_),
            reader_start=_starts(readers),
            readers=_fixed([t for of in readers for t in of]),
        )


def _starts(parts: Iterable[Sequence[int]]) -> Any:
    return _fixed(np.cumsum([0, *(len(part) for part in parts)]))


def _fixed(values: Any, kind: Any = np.int64, unit: float | None = None) -> Any:
    array = np.array(values, dtype=kind)
    if unit is not None:
        array /= unit
    array.flags.writeable = False
    return array


def arrays_of(graph: Graph) -> Arrays:
    """``graph`` as flat arrays; made on the first call and cached on the graph."""
    return graph.derived(Arrays.of)
