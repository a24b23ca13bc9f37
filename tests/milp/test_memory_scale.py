"""Bytes as models state them: exact in floats, never too small for a solver, rounded so that no schedule is lost."""

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.graph.model import Graph, Node
from remat_cli.milp.memory_scale import FINEST, MemoryScale

SIZES = st.lists(st.one_of(st.integers(0, 1000), st.integers(2**30, 2**62)), min_size=1, max_size=12)


def scale_of(sizes: list[int], room: int) -> MemoryScale:
    return MemoryScale.of(Graph("g", tuple(Node(f"n{k}", 1.0, (), (s,)) for k, s in enumerate(sizes)), ()), room)


def exact(units: float, scale: MemoryScale) -> Fraction:
    return Fraction(units) * scale.unit_bytes


@given(sizes=SIZES, slack=st.integers(0, 2000))
def test_what_fits_still_fits_and_what_must_be_freed_is_freed(sizes: list[int], slack: int) -> None:
    room = sum(sizes) + slack
    scale = scale_of(sizes, room)
    assert sum(map(scale.down, sizes)) <= scale.down(room)
    assert sum(map(scale.up, sizes)) >= scale.down(sum(sizes))
    assert scale.down(room) == 0 or math.log2(scale.steps).is_integer()
    for size in sizes:
        assert exact(scale.down(size), scale) <= size <= exact(scale.up(size), scale)
        assert scale.down(size) == 0 or scale.down(size) >= FINEST / 2


@given(sizes=st.lists(st.integers(0, 2**53), min_size=1, max_size=12), room=st.integers(1, 2**24))
def test_nothing_is_rounded_where_the_budget_is_few_bytes(sizes: list[int], room: int) -> None:
    scale = scale_of(sizes, room)
    assert [exact(scale.down(size), scale) for size in sizes] == sizes
