"""The state of an annealed sequence: what the compiled loops of ``sequence`` and ``moves`` take."""

from __future__ import annotations

from typing import NamedTuple

from remat_cli.graph.arrays import FixedBools, FixedFloats, FixedInts
from remat_cli.kernels.compiling import Record, Square
from remat_cli.mip import Ints


class Now(Record):
    """The numbers of a state.

    Attributes:
        slots: Slots in use.
        extras: Recomputations.
        free: Instances not in use.
        logged: Changes in the log.
        best: Length of the best sequence so far.
        random: State of the random generator.
        excess: Bytes over the room, summed over the slots.
        cost: Cost of the sequence.
        best_cost: Cost of the best sequence so far.
        price: What a byte of excess costs.
        cheapest: The least that it may cost.
        dearest: The most.
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
    cheapest: float
    dearest: float


class State(NamedTuple):
    """A sequence in slots; n nodes, V values, and X instances that there is room for (0 .. n - 1 come first).

    Attributes:
        now: The numbers.
        cost: float64[n].
        own: int64[n], bytes of outputs and workspace, less the room.
        first_value: int64[n + 1].
        input_start: int64[n + 2], into ``inputs``; the last stage is not looked at.
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
        place: int64[X], where it is among ``recomputed``.
        recomputed: int64[X], recomputations in use.
        spare: int64[X], instances not in use.
        found: int64[X], nodes of the best sequence so far.
        seq: int64[slots], the instance there, -1 for a hole; the last slot in use stays one.
        level: int64[slots], bytes live while it runs, less the room.
        seq_before: int64[slots], room to work in.
        level_before: int64[slots], room to work in.
        queue: int64[CHAIN], room to work in.
        log: int64[changes, 3]: an inserted instance; or -1, the node that was deleted, and the instance that came
            after it.
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
