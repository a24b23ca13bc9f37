"""Stretches of stages that repeat, in a sequence of kinds of stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.mip import Ints

_LONGEST = 64
"""Most stages of a repeated stretch to look for."""


@dataclass(frozen=True, slots=True)
class Run:
    """Stages ``first`` to ``end`` - 1, of which every ``period`` are a repetition; one stage that nothing repeats.

    Attributes:
        first: The first stage.
        end: The stage after the last one.
        period: Number of stages of a repetition.
    """

    first: int
    end: int
    period: int


def runs_of(kind: Sequence[int]) -> tuple[Run, ...]:
    """The stages as runs, greedily from the first: the period that covers the most, of equal ones the shortest."""
    kinds = np.array(kind, dtype=np.int64)
    reach = [_reach(kinds, period) for period in range(1, min(_LONGEST, len(kinds) // 2) + 1)]
    runs, s = [], 0
    while s < len(kinds):
        covered, period = 1, 1
        for lag, of in enumerate(reach, 1):
            length = int(of[s]) + lag if s < len(of) else 0
            if length >= 2 * lag and length // lag * lag > covered:
                covered, period = length // lag * lag, lag
        runs.append(Run(s, s + covered, period))
        s += covered
    return tuple(runs)


def _reach(kinds: Ints, period: int) -> Ints:
    """For every stage how many stages from it on, in a row, are of the kind of the stage ``period`` later."""
    same = kinds[:-period] == kinds[period:]
    ends = np.flatnonzero(~np.append(same, False))
    place = np.arange(len(same))
    found: Ints = ends[np.searchsorted(ends, place)] - place
    return found


def group_ends(runs: Sequence[Run], repetitions: int) -> Iterator[int]:
    """The last stages of groups of ``repetitions`` repetitions, or as many stages where nothing repeats."""
    alone = 0
    for run in runs:
        if run.end - run.first == 1:
            alone += 1
            if alone % repetitions == 0:
                yield run.first
            continue
        if alone % repetitions:
            yield run.first - 1
        alone = 0
        yield from range(run.first + run.period * repetitions - 1, run.end - 1, run.period * repetitions)
        yield run.end - 1
