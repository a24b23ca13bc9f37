"""Which sets of values can be in memory at the first computation of each node, compiled by numba.

Sets are bit sets of the values that count, the largest first. A smaller set does nothing that a larger one does not, so
only sets that no other contains are wanted; of these it looks for some containing sets, not for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from remat_cli.kernels.compiling import Record, Square, entry, inner
from remat_cli.mip import Bools, Ints

_SCAN = 2_000
"""How many of the first and of the last sets are tried whether they contain a new one."""
_SPREAD = 0x9E3779B97F4A7C15 >> 1
"""Multiplier of the hash: an odd number of 63 bits without a pattern (Knuth, volume 3, 6.4)."""
_NO_LIMIT = 2**62
_MOST_STEPS = 2**13
"""Most steps for the successors of one set by one node: some milliseconds, as nobody looks at the clock meanwhile."""
FULL, TOO_MANY = 1, 2
"""Results of :func:`expand`: the space for sets is used up; a set has too many successors."""


class Nodes(NamedTuple):
    """The nodes of a graph.

    Attributes:
        reads: int64[n], the values that count among those that a node reads.
        makes: int64[n], and among those that it makes.
        working: int64[n], bytes of its working set, of all values.
        again: bool[n], whether computing it again makes anything that counts.
        sizes: int64[values], bytes of the values that count, descending.
    """

    reads: Ints
    makes: Ints
    working: Ints
    again: Bools
    sizes: Ints


class Layer(Record):
    """The sets before the first computation of one node.

    Attributes:
        useful: The values that are read from then on, as a set.
        sets: Number of sets.
        done: Number of them whose successors are known.
        following: Number of sets after that computation.
        more: With fewer bytes more than this, no other sets would have been found so far.
    """

    useful: int
    sets: int
    done: int
    following: int
    more: int


@inner
def _added(sets: Any, count: int, table: Any, new: int) -> int:
    """The number of sets once ``new`` is among them, unless one of them is or contains it; -1 if there is no space."""
    mask = len(table) - 1
    at = ((new * _SPREAD) >> 20) & mask
    while table[at]:
        if sets[table[at] - 1] == new:
            return count
        at = (at + 1) & mask
    for k in range(min(count, _SCAN)):
        if new & ~sets[k] == 0:
            return count
    for k in range(max(_SCAN, count - _SCAN), count):
        if new & ~sets[k] == 0:
            return count
    if count == len(sets):
        return -1
    sets[count] = new
    table[at] = count + 1
    return count + 1


@inner
def _listed(sizes: Any, other: int, bit: Any, size: Any, rest: Any, beyond: Any) -> None:
    """List the values of a set: their bits and bytes, and of each and all after it the set and its bytes."""
    items = 0
    for k in range(len(sizes)):
        if other >> k & 1:
            bit[items], size[items] = 1 << k, sizes[k]
            items += 1
    rest[items] = beyond[items] = 0
    for k in range(items - 1, -1, -1):
        rest[k], beyond[k] = rest[k + 1] | bit[k], beyond[k + 1] + size[k]


@inner
def _successors(
    of: Nodes, need: int, other: int, room: int, layer: Any, space: Any, sets: Any, count: int, table: Any
) -> int:
    """Add ``need`` with each set of ``other`` that fits into ``room`` bytes and to which nothing of ``other`` can come.

    Args:
        of: The nodes.
        need: What must be in memory.
        other: What may be in memory beside it.
        room: Bytes for that.
        layer: Says which values are useful; gets how many bytes more would change the result.
        space: int64[7, 65], scratch space.
        sets: The sets.
        count: Their number.
        table: Their hash table.

    Returns:
        The new number of sets; -1 if there is no space, -2 if it takes too many steps.
    """
    bit, size, rest, beyond, chosen, left, least = space
    _listed(of.sizes, other, bit, size, rest, beyond)
    # At each depth one value is decided on, first with it, then without; ``least`` is the smallest one left out so far.
    depth, without = 0, False
    chosen[0], left[0], least[0] = 0, room, _NO_LIMIT
    for _ in range(_MOST_STEPS):
        down = False
        if not without and beyond[depth] <= left[depth]:
            if left[depth] - beyond[depth] < least[depth]:
                count = _added(sets, count, table, (need | chosen[depth] | rest[depth]) & layer.useful)
                if count < 0:
                    return -1
        elif not without and size[depth] <= left[depth]:
            chosen[depth + 1] = chosen[depth] | bit[depth]
            left[depth + 1] = left[depth] - size[depth]
            least[depth + 1] = least[depth]
            down = True
        elif not without:
            layer.more = min(layer.more, size[depth] - left[depth])
            without = True
            continue
        elif left[depth] - beyond[depth + 1] < min(least[depth], size[depth]):
            chosen[depth + 1], left[depth + 1] = chosen[depth], left[depth]
            least[depth + 1] = min(least[depth], size[depth])
            down = True
        without = False
        if down:
            depth += 1
            continue
        while depth > 0 and not without:  # back to the last value that was taken, and on without it
            depth -= 1
            without = left[depth + 1] != left[depth]
        if not without:
            return count
    return -2


@entry
def expand(
    of: Nodes,
    t: int,
    room: int,
    layer: Layer,
    space: Square,
    sets: Ints,
    table: Ints,
    following: Ints,
    next_table: Ints,
    most: int,
) -> int:
    """Find the successors of at most ``most`` sets: recomputations stay before node t, its first computation does not.

    Args:
        of: The nodes.
        t: The node that runs for the first time next.
        room: Bytes of memory.
        layer: How far this got; is changed.
        space: int64[7, 65], scratch space.
        sets: int64[space], the sets before t.
        table: Their hash table, of zeros at first; its length is a power of two.
        following: int64[space], the sets after t.
        next_table: Their hash table.
        most: Most sets to look at.

    Returns:
        0, or :data:`FULL` or :data:`TOO_MANY`.
    """
    for _ in range(most):
        if layer.done == layer.sets:
            break
        present = sets[layer.done]
        layer.done += 1
        for i in range(t + 1):
            if of.reads[i] & ~present or (i < t and (not of.again[i] or of.makes[i] & layer.useful & ~present == 0)):
                continue
            need = of.reads[i] | of.makes[i]
            beside = room - of.working[i]
            if beside < 0:
                layer.more = min(layer.more, -beside)
                continue
            other = present & ~need
            if i < t:
                count = _successors(of, need, other, beside, layer, space, sets, layer.sets, table)
                layer.sets = max(count, layer.sets)
            else:
                count = _successors(of, need, other, beside, layer, space, following, layer.following, next_table)
                layer.following = max(count, layer.following)
            if count < 0:
                return FULL if count == -1 else TOO_MANY
    return 0


@entry
def put(sets: Ints, table: Ints, new: Ints) -> int:
    """Put sets into an empty table, but those that another contains; returns their number.

    Args:
        sets: int64[space], gets the sets.
        table: Their hash table, of zeros.
        new: int64[...], at most ``space`` sets.
    """
    count = 0
    for one in new:
        count = _added(sets, count, table, one)
    return count
