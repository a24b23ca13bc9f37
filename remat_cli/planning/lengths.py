"""One plan for batches of many sizes: a peak that is proven for every batch and every length up to the given ones.

The memory of a plan at each of its statements is a sum of bytes of values, workspace and fixed memory. If none of
these falls as batch or length grow, neither does the sum, and the peak at the largest sizes is one for all smaller
ones. Where that does not follow from the form of a function, its values are compared at all sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.graph.model import Graph
from remat_cli.graph.sized import Bytes, SizedGraph, grid
from remat_cli.plan.model import Compute, Deallocate, Statement

MOST_SIZES = 1 << 22
"""Most pairs of batch and length whose bytes are compared; untuned."""


@dataclass(frozen=True, slots=True)
class Covered:
    """The sizes for which a peak is proven.

    Attributes:
        batches: The least and the largest batch.
        lengths: The least and the largest length; (0, 0) without lengths.
        peak_bytes: No batch of these sizes takes more, fixed memory included: bytes of tensors, without what a caching
            allocator leaves between them.
        proof: How: ``expressions`` if all bytes are sums and products that cannot fall, ``enumeration`` if some were
            compared at all sizes.
    """

    batches: tuple[int, int]
    lengths: tuple[int, int]
    peak_bytes: int
    proof: str


def covered(
    sized: SizedGraph, statements: Sequence[Statement], batch: int, length: int, least: int = 2
) -> Covered | None:
    """The sizes, from ``least`` up to a batch and a length, at which the peak is not above that at these.

    Args:
        sized: The graph at all sizes.
        statements: A plan of it, without copies to a host.
        batch: The largest batch.
        length: The largest length; 0 without lengths.
        least: The least batch and length; with a size of 1, PyTorch makes another graph. Lengths begin later if the
            graph is another one at a shorter one.

    Returns:
        None if the graph is another one at the largest sizes, or bytes fall, or there are too many sizes to compare.
    """
    batches = range(min(least, batch), batch + 1)
    lengths = range(min(least, length), length + 1)
    if len(batches) * len(lengths) > MOST_SIZES:
        return None
    every = sized.holds(*grid(batches, lengths)).reshape(len(batches), len(lengths))
    held = np.asarray(every.all(axis=0))
    if not held[-1]:
        return None
    lengths = lengths[np.flatnonzero(~held).max(initial=-1) + 1 :]
    at = grid(batches, lengths)
    proof = "expressions"
    if not all(sized.rising):
        proof = "enumeration"
        doubtful = np.flatnonzero(~np.array(sized.rising))
        found = sized.bytes_of(*at)[doubtful].reshape(len(doubtful), len(batches), len(lengths))
        if (np.diff(found, axis=1) < 0).any() or (np.diff(found, axis=2) < 0).any():
            return None
    [peak] = peaks(sized, statements, [batch], [length])
    return Covered((batches[0], batch), (lengths[0], length), int(peak), proof)


def peaks(sized: SizedGraph, statements: Sequence[Statement], batches: Sequence[int], lengths: Sequence[int]) -> Bytes:
    """The peak of a plan at every batch with every length, fixed memory included: int64[batches x lengths]."""
    held = _held(sized, statements)
    table = sized.bytes_of(*grid(batches, lengths))
    found = np.zeros(table.shape[1], dtype=np.int64)
    for counts in held:
        np.maximum(found, counts @ table, out=found)
    return found


def _held(sized: SizedGraph, statements: Sequence[Statement]) -> Bytes:
    """How many of each class are in memory while each node runs, different ones: int64[S, C]."""
    graph: Graph = sized.graph
    counts = np.zeros(len(sized.rising), dtype=np.int64)
    counts[-1] = 1
    of_register: dict[str, int] = {}
    rows = [counts.copy()]
    for statement in statements:
        if isinstance(statement, Compute):
            for register, value in zip(statement.registers, graph.values_of(statement.node), strict=True):
                of_register[register] = sized.of_value[value]
                counts[sized.of_value[value]] += 1
            counts[sized.of_workspace[statement.node]] += 1
            rows.append(counts.copy())
            counts[sized.of_workspace[statement.node]] -= 1
        elif isinstance(statement, Deallocate):
            counts[of_register.pop(statement.register)] -= 1
    return np.unique(np.array(rows), axis=0)
