"""The state of an annealed sequence, for the compiled loops of ``sequence`` and ``moves``."""

from __future__ import annotations

from typing import NamedTuple

from remat_cli.graph.arrays import FixedBools, FixedFloats, FixedInts
from remat_cli.kernels.compiling import Record, Square
from remat_cli.mip import Ints


class Now(Record):
    """The scalars of a state.

    Attributes:
        slots: Number of slots in use.
        extras: Number of recomputations.
        free: Number of unused instances.
        logged: Number of changes in the log.
        best: Length of the best sequence so far.
        random: State of the random generator.
        excess: Bytes over the room, summed over the slots.
        cost: Cost of the sequence.
        best_cost: Cost of the best sequence so far.
        price: Price of a byte of excess.
        lowest: Lowest price of a byte of excess.
        highest: Highest price of a byte of excess.
    """

    slots: int
    extras: int
    free: int
    logged: int
    best: int
    random: int
    excess: int
    cost: float
    best_cost: float
    price: float
    lowest: float
    highest: float


class State(NamedTuple):
    """A sequence in slots, with n nodes, V values and room for X instances; 0 .. n - 1 are first computations.

    Attributes:
        now: The scalars.
        cost: float64[n].
        own: int64[n], bytes of outputs and workspace, less the room.
        first_value: int64[n + 1].
        input_start: int64[n + 2], into ``inputs``; the closing stage is not used.
        inputs: int64[E].
        fixed: bool[n], nodes that may be computed only once.
        size: int64[V], bytes.
        producer: int64[V].
        output: bool[V], graph outputs.
        capacity: int64[V + 1], where the events of each value start.
        events: int64, instances by value, in order of their slots.
        used: int64[V], events of each value.
        node: int64[X], node of an instance.
        pos: int64[X], its slot.
        place: int64[X], its position in ``recomputed``.
        recomputed: int64[X], recomputations in use.
        spare: int64[X], instances not in use.
        found: int64[X], nodes of the best sequence so far.
        seq: int64[slots], the instance there, -1 for a hole; the last slot in use stays one.
        level: int64[slots], bytes live while it runs, less the room.
        seq_before: int64[slots], a working array.
        level_before: int64[slots], a working array.
        queue: int64[CHAIN], a working array.
        log: int64[changes, 3]: an inserted instance; or -1, the node that was deleted, and the instance that followed.
    """

    now: Now
    cost: FixedFloats
    own: Ints
    first_value: FixedInts
    input_start: FixedInts
    inputs: FixedInts
    fixed: FixedBools
    size: FixedInts
    producer: FixedInts
    output: FixedBools
    capacity: Ints
    events: Ints
    used: Ints
    node: Ints
    pos: Ints
    place: Ints
    recomputed: Ints
    spare: Ints
    found: Ints
    seq: Ints
    level: Ints
    seq_before: Ints
    level_before: Ints
    queue: Ints
    log: Square
