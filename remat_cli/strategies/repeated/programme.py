"""The cheapest schedules of a chain whose stages have choices, by a dynamic programme that solves equal segments once.

Segment (s, t) with m units: as in Rotor's programme (see ``chains/rotor``), but a stage that stays may keep any of its
choices (see ``options``), as in Rockmate (Zhao et al., ICML 2023). The result depends on the kinds of its stages alone,
so a chain of L equal blocks has about 2 L different segments instead of L^2 / 2.

Sizes are rounded to the nearest unit, which errs to either side. So a schedule may need a little more or less memory
than its units say; the caller replays it, and asks for another one.

Where blocks have partial checkpoints (see ``partials``), a segment has two *states*. In the first, nothing of its
blocks is in memory. In the second, all their partial checkpoints are, so that its blocks run again at less cost. A run
through the blocks s .. j - 1 in the first state may leave either; the second can be left by dropping them. The
mathematics are in ``docs/mathematics.md``, "Blocks".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from remat_cli.control import Control
from remat_cli.mip import Floats, Ints
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.chains.segments import prefix_sums
from remat_cli.strategies.repeated.options import Option, options_of
from remat_cli.strategies.repeated.partials import Partial

if TYPE_CHECKING:  # numba takes 0.3 s to import
    from remat_cli.kernels.repeated import Stages


MOST_NUMBERS = 1.2e8
"""Most numbers of a table: 1 GB."""
_TURN = 1e8
"""Steps of the innermost loop between two looks at the clock: a tenth of a second."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The different segments of a chain.

    Attributes:
        first: int64[rows], the first stage of one segment of each kind, by growing length.
        last: int64[rows], its last stage.
        row_of: int64[L + 1, L + 1], the row of every segment; -1 where the last stage is not served.
    """

    first: Ints
    last: Ints
    row_of: Ints

    @classmethod
    def of(cls, kind: tuple[int, ...], top: Ints) -> Segments:
        """The segments of a chain whose stages have the kinds ``kind``; ``top`` is that of :class:`Programme`."""
        n = len(kind)
        row_of = np.full((n, n), -1, dtype=np.int64)
        served = top == np.arange(n)
        kinds = np.array(kind, dtype=np.int64)
        classes = kinds.copy()
        first: list[Ints] = []
        last: list[Ints] = []
        rows = 0
        for length in range(1, n + 1):
            starts = np.arange(n - length + 1)
            if length > 1:
                pairs = classes[: len(starts)] * n + kinds[length - 1 :]
                _, chosen, classes = np.unique(pairs, return_index=True, return_inverse=True)
            else:
                _, chosen, classes = np.unique(classes, return_index=True, return_inverse=True)
            order = np.argsort(chosen)  # neighbours in the chain are neighbours in the table
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            chosen, classes = chosen[order], rank[classes]
            wanted = served[chosen + length - 1]
            number = np.full(len(chosen), -1, dtype=np.int64)
            number[wanted] = rows + np.arange(int(wanted.sum()))
            row_of[starts, starts + length - 1] = number[classes]
            first.append(chosen[wanted])
            last.append(chosen[wanted] + length - 1)
            rows += int(wanted.sum())
        return cls(np.concatenate(first), np.concatenate(last), row_of)

    @property
    def work(self) -> float:
        """Steps of the programme for every unit of memory."""
        return float((self.last - self.first + 1).sum())


@dataclass(frozen=True, slots=True)
class State:
    """What of the blocks of a segment is in memory, and the choices of stages then.

    Attributes:
        partials: The partial checkpoint of every kind of stage; None for nothing.
        options: The options of every kind.
    """

    partials: tuple[Partial | None, ...]
    options: tuple[tuple[Option, ...], ...]

    @classmethod
    def empty(cls, options: Sequence[tuple[Option, ...]]) -> State:
        """The state in which nothing is in memory."""
        return cls((None,) * len(options), tuple(options))

    def holding(self, partials: Sequence[Partial | None], control: Control | None) -> State:
        """The state in which ``partials`` are in memory, where this one is empty.

        Args:
            partials: The partial checkpoint of every kind, or None.
            control: See :func:`options_of`.
        """
        both = zip(partials, self.options, strict=True)
        return State(tuple(partials), tuple(of if one is None else options_of(one.part, control) for one, of in both))


class Segment(NamedTuple):
    """A segment to solve: its first and last stage, its units, and the number of its state."""

    first: int
    last: int
    units: int
    state: int


def work_of(states: int) -> int:
    """How many times the steps of a programme with one state one with ``states`` takes."""
    return states + states * (states + 1) // 2 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Programme:
    """The result of ``kernels.repeated.fill_chosen``.

    Attributes:
        chain: The chain.
        kind: The kind of every stage.
        states: The states.
        unit: Bytes of a unit.
        stages: The arguments of that function.
        value: float64[states, rows, units + 1].
    """

    chain: Chain
    kind: tuple[int, ...]
    states: tuple[State, ...]
    unit: float
    stages: Stages
    value: Floats

    @classmethod
    def of(
        cls,
        chain: Chain,
        kind: tuple[int, ...],
        states: tuple[State, ...],
        segments: Segments,
        room: int,
        unit: float,
        control: Control,
    ) -> Programme | None:
        """The programme; None if the control stops it.

        Args:
            chain: The chain.
            kind: The kind of every stage.
            states: The states, the empty one first.
            segments: Its different segments.
            room: Most bytes to solve for.
            unit: Bytes of a unit.
            control: Checked several times a second.
        """
        from remat_cli.kernels.repeated import fill_chosen  # numba takes 0.3 s to import

        arrays = _arrays(chain, kind, states, segments, unit)
        width, rows = int(room / unit) + 1, len(segments.first)
        value, nothing = np.full(len(states) * rows * width, np.inf), np.zeros(width)
        steps = np.cumsum(segments.last - segments.first + 1) * width * work_of(len(states))
        turns = np.searchsorted(steps, np.arange(_TURN, float(steps[-1]), _TURN)).tolist()
        for start, stop in pairwise([0, *turns, rows]):
            if control.stopping():
                return None
            fill_chosen(arrays, nothing, value, start, stop)
        return cls(chain, kind, states, unit, arrays, value.reshape(len(states), -1, width))

    def cost_within(self, room: int) -> float:
        """Cost of the best schedule within ``room`` bytes as counted in units; infinite if there is none."""
        return float(self.value[0, self.stages.row_of[0, self.chain.length], self._width(room)])

    def _width(self, room: int) -> int:
        return max(0, min(int(self.value.shape[2]) - 1, int(room / self.unit)))

    def computes(self, room: int) -> tuple[int, ...] | None:
        """The best schedule within ``room`` bytes as counted in units; None if there is none."""
        if room < 0 or math.isinf(self.cost_within(room)):
            return None
        done: set[int] = set()
        computes: list[int] = []
        pending: list[list[int] | Segment] = [Segment(0, self.chain.length, self._width(room), 0)]
        while pending:
            item = pending.pop()
            if isinstance(item, list):
                self._append(computes, done, item)
                continue
            pending.extend(reversed(self._split(item)))
        return tuple(computes)

    def _append(self, computes: list[int], done: set[int], nodes: list[int]) -> None:
        """Add ``nodes``; one that may run only once is skipped the second time: its values stay resident."""
        for i in nodes:
            if self.chain.graph.nodes[i].recompute or i not in done:
                computes.append(i)
                done.add(i)

    def _split(self, segment: Segment) -> list[list[int] | Segment]:
        """A segment as nodes to run and smaller segments, in this order."""
        s, t, m, state = segment
        if t < s:
            return []
        if s == t and not self.stages.taped[s]:
            return [list(self.chain.stages[s].rest)]
        best, parts = math.inf, list[list[int] | Segment]()
        if state > 0:
            best = float(self.value[state - 1, self.stages.row_of[s, t], m])
            parts = [Segment(s, t, m, state - 1)]
        if self.stages.taped[s]:
            cost, choice = self._option(segment)
            if cost < best:
                best, parts = cost, self._kept(segment, choice)
        for left in range(state + 1 if state > 0 else len(self.states)) if s < t else ():
            costs, staying = self._costs(segment, left)
            at = int(np.argmin(costs))
            if costs[at] < best:
                j = s + 1 + at
                sweep = [i for k in range(s, j) for i in self._block(k, state)]
                right = Segment(j, t, m - int(staying[at]), state)
                best, parts = float(costs[at]), [sweep, right, Segment(s, int(self.stages.top[j - 1]), m, left)]
        return parts

    def _option(self, segment: Segment) -> tuple[float, int]:
        """Cost and number of the cheapest choice for the first stage of a segment; an infinite cost if none fits."""
        s, t, m, state = segment
        of, count = self.stages, len(self.kind)
        held = of.held.reshape(len(self.states), -1)[state]
        beside = int(of.waiting[t] + held[t + 1] - held[s])
        best, choice = math.inf, -1
        for o in range(of.begin[state * count + s], of.begin[state * count + s + 1]):
            need = max(int(of.serve[o]), beside + int(of.record[o]), int(of.kept[o]) if s < t else 0)
            if m < need:
                continue
            after = self.value[state, of.row_of[s + 1, t], m - of.kept[o]] if s < t else 0.0
            cost = float(of.cost[o] + after)
            if cost < best:
                best, choice = cost, int(o)
        return best, choice

    def _kept(self, segment: Segment, choice: int) -> list[list[int] | Segment]:
        """A segment whose first stage keeps what choice number ``choice`` says."""
        s, t, m, state = segment
        kind = self.kind[s]
        option = self.states[state].options[kind][choice - int(self.stages.begin[state * len(self.kind) + s])]
        partial = self.states[state].partials[kind]
        given = frozenset[int]() if partial is None else partial.nodes
        forward, rest = ([self._node(s, k) for k in of if k not in given] for of in (option.forward, option.rest))
        later = [Segment(s + 1, t, m - int(self.stages.kept[choice]), state)] if s < t else []
        return [forward, *later, rest]

    def _block(self, s: int, state: int) -> Iterable[int]:
        """The nodes that make the output of block ``s``."""
        partial = self.states[state].partials[self.kind[s]]
        return self.chain.stages[s].block if partial is None else (self._node(s, k) for k in partial.block)

    def _node(self, s: int, k: int) -> int:
        """Node ``k`` of the small graph of stage ``s``."""
        stage = self.chain.stages[s]
        return stage.block[k - 1] if k <= len(stage.block) else stage.rest[k - 2 - len(stage.block)]

    def _costs(self, segment: Segment, left: int) -> tuple[Floats, Ints]:
        """Cost of a segment (s, t) if a_j is kept, for every j in s + 1 .. t, and the units of what is kept then.

        Args:
            segment: The segment.
            left: The state in which the blocks before j are left.
        """
        s, t, m, state = segment
        of, states = self.stages, len(self.states)
        held, prefix, plain = (array.reshape(states, -1) for array in (of.held, of.prefix, of.plain))
        j = np.arange(s + 1, t + 1)
        before = of.top[j - 1]
        there = held[state, t + 1] - held[state, s] if state > 0 else held[left, j] - held[left, s]
        sweep = np.maximum.accumulate(plain[state, j - 1] + there + np.where(j - 1 > s, of.output[j - 1], 0))
        staying = of.output[j] + np.where(before >= s, held[left, before + 1] - held[left, s], 0)
        allowed = (m >= staying) & (m >= of.waiting[t] + sweep) & ((before < s) | (s >= of.again[before]))
        first = np.where(before >= s, self.value[left, of.row_of[s, before], m], 0.0 if left == 0 else np.inf)
        second = self.value[state, of.row_of[j, t], np.where(allowed, m - staying, 0)]
        costs: Floats = np.where(allowed, prefix[state, j] - prefix[state, s] + first + second, np.inf)
        return costs, staying


def _arrays(chain: Chain, kind: Sequence[int], states: Sequence[State], segments: Segments, unit: float) -> Stages:
    """The arguments of ``kernels.repeated.fill_chosen``, in units of memory."""
    from remat_cli.kernels.repeated import Stages  # numba takes 0.3 s to import

    stages, n = chain.stages, chain.length
    options = [state.options[k] for state in states for k in kind]
    partials = [[state.partials[k] for k in kind] for state in states]
    flat = [option for of in options for option in of]

    def units(counts: Iterable[int]) -> Ints:
        return np.rint(np.array([*counts], dtype=np.float64) / unit).astype(np.int64)

    run = [[stage if one is None else one for stage, one in zip(stages, of, strict=True)] for of in partials]
    held = [units(0 if one is None else one.kept for one in of) for of in partials]
    return Stages(
        first=segments.first,
        last=segments.last,
        row_of=segments.row_of,
        prefix=np.concatenate([prefix_sums([one.cost for one in of[:n]]) for of in run]),
        back=np.array([stage.rest_cost for stage in stages], dtype=np.float64),
        top=tops(chain),
        taped=np.array([stage.taped for stage in stages], dtype=np.bool_),
        output=units([0, *(stage.output for stage in stages[:n])]),
        plain=units(one.plain_peak for of in run for one in of),
        held=np.concatenate([np.concatenate([[0], np.cumsum(of)]) for of in held]),
        again=_again(chain),
        waiting=units(stage.waiting for stage in stages),
        rest=units(of[0].rest_peak for of in options[: n + 1]),
        begin=np.cumsum([0, *map(len, options)]).astype(np.int64),
        cost=np.array([option.cost for option in flat], dtype=np.float64),
        kept=units(option.kept for option in flat),
        record=units(option.forward_peak for option in flat),
        serve=units(option.rest_peak for option in flat),
    )


def tops(chain: Chain) -> Ints:
    """int64[L + 1]: for every stage the highest one up to it that has a rest or is the last, -1 if there is none."""
    n = chain.length
    top = np.full(n + 1, -1, dtype=np.int64)
    served = [*(s for s, stage in enumerate(chain.stages) if stage.rest), n]
    top[served] = served
    found: Ints = np.maximum.accumulate(top)
    return found


def _again(chain: Chain) -> Ints:
    """int64[L + 1]: the first stage from which stage t can be served once more, given the nodes that run only once."""
    first, after = [], 0
    for s, stage in enumerate(chain.stages):
        # Serving s once more reruns the blocks before it, and its own block if the rest needs that.
        first.append(s + 1 if stage.frozen and stage.taped else after)
        if stage.frozen:
            after = s + 1
    return np.array(first, dtype=np.int64)
