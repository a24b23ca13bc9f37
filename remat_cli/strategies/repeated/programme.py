"""The cheapest schedules of a chain whose stages have choices, by a dynamic programme that solves equal segments once.

Segment (s, t) with m units: as in Rotor's programme (see ``chains/rotor``), but a stage that stays may keep any of its
choices (see ``options``), as in Rockmate (Zhao et al., ICML 2023). The result depends on the kinds of its stages alone,
so a chain of L equal blocks has about 2 L different segments instead of L^2 / 2.

Sizes are rounded to the nearest unit, which errs to either side. So a schedule may need a little more or less memory
than its units say; the caller replays it, and asks for another one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from remat_cli.control import Control
from remat_cli.mip import Floats, Ints
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.chains.segments import prefix_sums
from remat_cli.strategies.repeated.options import Option
from remat_cli.strategies.repeated.parts import Parts

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


@dataclass(frozen=True, slots=True, eq=False)
class Programme:
    """The result of ``kernels.repeated.fill_chosen``.

    Attributes:
        chain: The chain.
        options: The choices of every stage.
        unit: Bytes of a unit.
        stages: The arguments of that function.
        value: float64[rows, units + 1].
    """

    chain: Chain
    options: tuple[tuple[Option, ...], ...]
    unit: float
    stages: Stages
    value: Floats

    @classmethod
    def of(
        cls,
        chain: Chain,
        parts: Parts,
        choices: tuple[tuple[Option, ...], ...],
        segments: Segments,
        room: int,
        unit: float,
        control: Control,
    ) -> Programme | None:
        """The programme; None if the control stops it.

        Args:
            chain: The chain.
            parts: Its stages by kind.
            choices: The options of every kind.
            segments: Its different segments.
            room: Most bytes to solve for.
            unit: Bytes of a unit.
            control: Checked several times a second.
        """
        from remat_cli.kernels.repeated import Stages, fill_chosen  # numba takes 0.3 s to import

        stages, n = chain.stages, chain.length
        options = tuple(choices[kind] for kind in parts.kind)
        flat = [option for of in options for option in of]

        def units(counts: list[int]) -> Ints:
            return np.rint(np.array(counts, dtype=np.float64) / unit).astype(np.int64)

        arrays = Stages(
            first=segments.first,
            last=segments.last,
            row_of=segments.row_of,
            prefix=prefix_sums([stage.cost for stage in stages[:n]]),
            back=np.array([stage.rest_cost for stage in stages], dtype=np.float64),
            top=tops(chain),
            taped=np.array([stage.taped for stage in stages], dtype=np.bool_),
            output=units([0, *(stage.output for stage in stages[:n])]),
            plain=units([stage.plain_peak for stage in stages]),
            again=_again(chain),
            waiting=units([stage.waiting for stage in stages]),
            rest=units([of[0].rest_peak for of in options]),
            begin=np.cumsum([0, *map(len, options)]).astype(np.int64),
            cost=np.array([option.cost for option in flat], dtype=np.float64),
            kept=units([option.kept for option in flat]),
            record=units([option.forward_peak for option in flat]),
            serve=units([option.rest_peak for option in flat]),
        )
        width, rows = int(room / unit) + 1, len(segments.first)
        value, nothing = np.full(rows * width, np.inf), np.zeros(width)
        steps = np.cumsum(segments.last - segments.first + 1) * width
        turns = np.searchsorted(steps, np.arange(_TURN, float(steps[-1]), _TURN)).tolist()
        for start, stop in pairwise([0, *turns, rows]):
            if control.stopping():
                return None
            fill_chosen(arrays, nothing, value, start, stop)
        return cls(chain, options, unit, arrays, value.reshape(-1, width))

    def cost_within(self, room: int) -> float:
        """Cost of the best schedule within ``room`` bytes as counted in units; infinite if there is none."""
        return float(self.value[self.stages.row_of[0, self.chain.length], self._width(room)])

    def _width(self, room: int) -> int:
        return max(0, min(int(self.value.shape[1]) - 1, int(room / self.unit)))

    def computes(self, room: int) -> tuple[int, ...] | None:
        """The best schedule within ``room`` bytes as counted in units; None if there is none."""
        if room < 0 or math.isinf(self.cost_within(room)):
            return None
        done: set[int] = set()
        computes: list[int] = []
        pending: list[list[int] | tuple[int, int, int]] = [(0, self.chain.length, self._width(room))]
        while pending:
            item = pending.pop()
            if isinstance(item, list):
                self._append(computes, done, item)
                continue
            pending.extend(reversed(self._split(*item)))
        return tuple(computes)

    def _append(self, computes: list[int], done: set[int], nodes: list[int]) -> None:
        """Add ``nodes``; one that may run only once is skipped the second time: its values stay resident."""
        for i in nodes:
            if self.chain.graph.nodes[i].recompute or i not in done:
                computes.append(i)
                done.add(i)

    def _split(self, s: int, t: int, m: int) -> list[list[int] | tuple[int, int, int]]:
        """Segment (s, t) with m units as nodes to run and smaller segments, in this order."""
        if t < s:
            return []
        stage = self.chain.stages[s]
        best, choice = math.inf, -1
        if not self.stages.taped[s]:
            if s == t:
                return [list(stage.rest)]
        else:
            for o in range(self.stages.begin[s], self.stages.begin[s + 1]):
                need = max(int(self.stages.serve[o]), int(self.stages.waiting[t] + self.stages.record[o]))
                need = max(need, int(self.stages.kept[o])) if s < t else need
                if m < need:
                    continue
                cost = float(self.stages.cost[o])
                if s < t:
                    cost += float(self.value[self.stages.row_of[s + 1, t], m - self.stages.kept[o]])
                if cost < best:
                    best, choice = cost, int(o)
        if s < t:
            costs = self._costs(s, t, m)
            j = s + 1 + int(np.argmin(costs))
            if costs[j - s - 1] < best:
                sweep = [i for k in range(s, j) for i in self.chain.stages[k].block]
                return [sweep, (j, t, m - int(self.stages.output[j])), (s, int(self.stages.top[j - 1]), m)]
        option = self.options[s][choice - int(self.stages.begin[s])]
        forward, rest = ([self._node(s, k) for k in part] for part in (option.forward, option.rest))
        return [forward, *([(s + 1, t, m - int(self.stages.kept[choice]))] if s < t else []), rest]

    def _node(self, s: int, k: int) -> int:
        """Node ``k`` of the small graph of stage ``s``."""
        stage = self.chain.stages[s]
        return stage.block[k - 1] if k <= len(stage.block) else stage.rest[k - 2 - len(stage.block)]

    def _costs(self, s: int, t: int, m: int) -> Floats:
        """Cost of (s, t) with m units if a_j is kept, for every j in s + 1 .. t."""
        j = np.arange(s + 1, t + 1)
        before = self.stages.top[j - 1]
        beside = np.where(j - 1 > s, self.stages.output[j - 1], 0)
        sweep = np.maximum.accumulate(self.stages.plain[j - 1] + beside)
        allowed = (m >= self.stages.output[j]) & (m >= self.stages.waiting[t] + sweep)
        allowed &= (before < s) | (s >= self.stages.again[before])
        rows = self.stages.row_of
        left = np.where(before >= s, self.value[rows[s, before], m], 0.0)
        right = self.value[rows[j, t], np.where(allowed, m - self.stages.output[j], 0)]
        costs: Floats = np.where(allowed, self.stages.prefix[j] - self.stages.prefix[s] + left + right, np.inf)
        return costs


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
