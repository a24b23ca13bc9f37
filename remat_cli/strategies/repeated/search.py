"""Schedules of a training step from its chain of blocks, in several groupings of the blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.liveness import Priced, heights, priced
from remat_cli.strategies.annealing.engines import workers_for
from remat_cli.strategies.base import Context, Found, Needs, NotFound, Strategy, Task
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.conditions import is_tight
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.clearing import Clearing, Network
from remat_cli.strategies.repeated.options import options_of
from remat_cli.strategies.repeated.partials import partial_of
from remat_cli.strategies.repeated.parts import Parts, Reduced, reduced
from remat_cli.strategies.repeated.programme import MOST_NUMBERS, Programme, Segments, State, tops, work_of
from remat_cli.strategies.repeated.runs import Run, group_ends, runs_of

# Doubling all constants of ``chains`` and ``repeated`` makes the gap larger, halving does not (benchmark ``ablation``).
_COARSE, _FINE = 4, 6_000
"""Groupings with fewer groups than the first number are left out, unless no other has few enough; so are those with
more groups than the second."""
_MIDDLE, _FINER = 64, 320
"""Groups of the first grouping, about: the second number where the budget is a few working sets, as that needs small
groups. GPT-2 of 2,500 blocks has a plan at 1.2 working sets with 315 groups, and none with 81 (by hand)."""
_QUICK_NODES, _MOST_SOLVED = 1_000, 0.5
"""Choices that need less are looked for if the different groups have at most so many nodes, or this share of the graph:
where few groups are alike, as in a DenseNet, that takes longer than other methods."""
_WORK = 2e9
"""Most steps of the innermost loop for one grouping: a few seconds."""
_FEWEST_UNITS, _MOST_UNITS = 300, 4_000
_NEGLIGIBLE = (0.0, 1e-4, 1e-3)
"""Shares of the room below which sizes do not count for the unit, tried one after the other: statistics of
normalisations take less than the last. Untuned."""
_BEYOND = 0.08
"""The table also covers budgets higher by this share, because a schedule may need less than its units say."""
_WORTH = 0.01
"""A schedule beyond the budget is cleared if it costs less than the best one by this share; clearing takes seconds on a
large graph, and adds some cost. Untuned."""
_CLEAR, _IDLE, _MOST_CLEARED = (0.02, 0.05, 0.0), 2, 24
"""Shares of the room that must be free where a stretch to clear ends, one tried after the other. A try ends after so
many stretches in a row after which no fewer steps are over the budget, and after so many in all. Untuned."""
_ENOUGH = 0.25
"""Partial checkpoints are used if blocks of at least this share of the cost of all have one. Untuned."""
_LOOKS = 9
"""Most schedules to replay for one grouping."""
_CLOSE = 5e-4
"""The limit is close enough if it is known to this share of the room."""


TooCoarse = Literal["too coarse"]
TOO_COARSE: TooCoarse = "too coarse"
"""The result of :meth:`Blocks.best` if not even one group fits the budget; larger ones will not either."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cheapest schedule within the budget, and the cheapest one of those just beyond it; None for none."""

    within: Priced | None
    beyond: Priced | None

    @classmethod
    def of(cls, found: Sequence[Priced], budget_bytes: int) -> Outcome:
        """The cheapest of schedules."""
        within, beyond = ([one for one in found if (one.peak_bytes > budget_bytes) is over] for over in (False, True))
        return cls(*(min(of, key=lambda one: one.cost, default=None) for of in (within, beyond)))


@dataclass(frozen=True, slots=True)
class Blocks:
    """A training step as a chain of blocks.

    Attributes:
        graph: The graph.
        cut: The graph as it is cut.
        chain: The chain, as fine as possible.
        runs: Its repetitions.
        tight: Whether the budget is.
    """

    graph: Graph
    cut: Reduced
    chain: Chain
    runs: tuple[Run, ...]
    tight: bool

    @classmethod
    def of(cls, graph: Graph, room_bytes: int, strategy: str) -> Blocks:
        """The blocks of ``graph``.

        Args:
            graph: The graph.
            room_bytes: The budget without fixed memory.
            strategy: Name of the strategy, for error messages.

        Raises:
            StrategyMismatch: If the forward part is no chain of blocks.
        """
        cut = reduced(graph, room_bytes)
        chain = Chain.of(cut.graph, strategy)
        tight = is_tight(graph, room_bytes + graph.fixed_memory)
        return cls(graph, cut, chain, runs_of(Parts.of(chain).kind[: chain.length]), tight)

    def groupings(self) -> list[list[int]]:
        """The last blocks of the groups; each grouping has about half as many groups as another one.

        A middling one comes first: with coarser groups a block may keep what helps blocks after it, and with finer
        ones less memory suffices.
        """
        found = [list(range(self.chain.length))]
        repetitions = 1
        while repetitions <= self.chain.length:
            ends = sorted({*group_ends(self.runs, repetitions), self.chain.length - 1})
            if len(ends) < _COARSE and len(found[-1]) <= _FINE:
                break
            if len(ends) < len(found[-1]):
                found.append(ends)
            repetitions *= 2
        usable = [ends for ends in found if len(ends) <= _FINE]
        return sorted(usable, key=lambda ends: abs(math.log(len(ends) / (_FINER if self.tight else _MIDDLE))))

    def best(self, ends: Sequence[int], budget_bytes: int, control: Control) -> Outcome | TooCoarse | None:
        """The cheapest schedules that the programme over a grouping leads to.

        Args:
            ends: The last blocks of the groups.
            budget_bytes: Fixed memory included.
            control: Ends it early.

        Returns:
            The schedules; None if the time is up or values that stay take all room; :data:`TOO_COARSE` if a group alone
            does not fit.
        """
        if control.stopping():
            return None
        chain = self.chain.grouped(ends)
        parts = Parts.of(chain)
        room = budget_bytes - self.graph.fixed_memory - self.cut.staying_bytes - chain.always
        if room <= 0:
            return None
        to_solve = sum(len(part.graph.nodes) for part in parts.parts)
        slimmer = self.tight and to_solve <= max(_QUICK_NODES, _MOST_SOLVED * len(self.graph.nodes))
        empty = State.empty([options_of(part, control if slimmer else None) for part in parts.parts])
        most = int(room * (1 + _BEYOND))
        if any(min(option.rest_peak for option in of) > most for of in empty.options):
            return TOO_COARSE
        partial = self._partial(chain, parts, empty, control) if slimmer else None
        segments = Segments.of(parts.kind, tops(chain))
        found: list[Priced] = []
        for states in ((empty,),) if partial is None else ((empty,), (empty, partial)):
            unit = self._unit(segments, room, len(states))
            if unit is None or control.stopping():
                break
            programme = Programme.of(chain, parts.kind, states, segments, most, unit, control)
            if programme is not None:
                found += self._fitted(programme, room, budget_bytes, control)
        return Outcome.of(found, budget_bytes)

    def _partial(self, chain: Chain, parts: Parts, empty: State, control: Control) -> State | None:
        """The state with partial checkpoints, if enough blocks have one."""
        partials = tuple(partial_of(part, control) for part in parts.parts)
        blocks = list(zip(chain.stages, parts.kind, strict=True))
        cost = sum(stage.cost for stage, kind in blocks if partials[kind] is not None)
        if cost < _ENOUGH * sum(stage.cost for stage, _ in blocks):
            return None
        return empty.holding(partials, control)

    def _unit(self, segments: Segments, room: int, states: int) -> float | None:
        """Bytes of a unit of memory of the programme; None if what can be afforded is too coarse.

        The greatest common divisor of all bytes makes the programme exact, but for sizes that are negligible. It is
        affordable near the least memory, where few units fit: many layers of equal sizes need no more.
        """
        work = segments.work * work_of(states)
        affordable = int(min(_MOST_UNITS, _WORK / work, MOST_NUMBERS / (len(segments.first) * states)))
        sizes = {*self.graph.size, *(node.workspace for node in self.graph.nodes)}
        for share in _NEGLIGIBLE:
            grain = math.gcd(*(size for size in sizes if size >= share * room)) or 1
            if room <= affordable * grain:
                return float(grain)
        return room / affordable if affordable >= _FEWEST_UNITS else None

    def _fitted(self, programme: Programme, room: int, budget_bytes: int, control: Control) -> Iterator[Priced]:
        """Schedules within the budget, and the last one beyond it.

        Limits are tried: what units say of memory errs to either side.
        """
        beyond: Priced | None = None
        low, high = 0.0, room * (1 + _BEYOND)
        limit = float(room)
        for _ in range(_LOOKS):
            if control.stopping() or high - low < _CLOSE * room:
                break
            computes = programme.computes(int(limit))
            if computes is None:
                low, limit = limit, (limit + high) / 2
                continue
            found = priced(self.graph, computes)
            excess = found.peak_bytes - budget_bytes
            if excess <= 0:
                low = limit
                yield found
                limit = min(limit - excess, (limit + high) / 2) if math.isfinite(high) else limit - excess
            else:
                high, beyond = limit, found
                lower = limit - max(excess, programme.unit)
                limit = max(lower, (limit + low) / 2) if low else lower
        if beyond is not None:
            yield beyond

    def cleared(self, found: Priced, budget_bytes: int, control: Control) -> Priced | None:
        """A schedule that exceeds the budget at a few steps, with some values dropped across them.

        Returns:
            A schedule within the budget; one beyond it if the time is up; None if this fails.
        """
        room = budget_bytes - self.graph.fixed_memory
        network = Network.of(self.graph, room)
        for spare in _CLEAR:
            clearing, fewest, idle, current = Clearing(self.graph, network, 1.0, spare), len(found.computes), 0, found
            for _ in range(_MOST_CLEARED):
                in_use = np.array(heights(self.graph, current.computes), dtype=np.int64) - self.graph.fixed_memory
                over = int((in_use > room).sum())
                if not over or control.stopping():
                    return current
                idle = 0 if over < fewest else idle + 1
                fewest = min(fewest, over)
                computes = clearing.cleared(current.computes, in_use, current.peak_bytes - budget_bytes)
                if computes is None or computes == current.computes or idle > _IDLE:
                    break
                current = priced(self.graph, computes)
        return None


@dataclass(slots=True)
class Repetition(Engine):
    """Offers the schedules of all groupings, each once; a turn that the clock ends is continued by the next one.

    Attributes:
        blocks: The blocks; None before the first turn, or if the graph has none.
        groupings: The groupings that are left, by the last blocks of their groups; None before the first turn.
        hopeless: Groupings into at most so many groups are too coarse.
        beyond: Schedules just beyond the budget, to be cleared.
    """

    blocks: Blocks | None = None
    groupings: list[list[int]] | None = None
    hopeless: int = 0
    beyond: list[Priced] = field(default_factory=list)

    def work(self, *, strict: bool = False) -> bool:
        """Solve the groupings that are left, two at a time if there are two threads; whether any is left.

        Args:
            strict: Whether to raise an error if the graph has no blocks.

        Raises:
            StrategyMismatch: If ``strict`` and the graph is no chain of blocks.
        """
        incumbent = self.incumbent
        control = incumbent.context.control
        if self.groupings is None:
            incumbent.report("looking for blocks")
            self.groupings = []
            try:
                room = incumbent.budget_bytes - incumbent.graph.fixed_memory
                self.blocks = Blocks.of(incumbent.graph, room, "repeated")
                self.groupings = self.blocks.groupings()
            except StrategyMismatch:
                if strict:
                    raise
        if self.blocks is None:
            return False
        incumbent.report("solving blocks")
        with ThreadPoolExecutor(workers_for(incumbent.context.threads)) as pool:
            waiting = [pool.submit(self._best, self.blocks, ends, control) for ends in self.groupings]
            for future in waiting:  # in this order, so that the incumbent does not depend on which one ends first
                found = future.result()
                if found is not None and found.within is not None:
                    incumbent.offer(found.within.computes)
                if found is not None and found.beyond is not None:
                    self.beyond.append(found.beyond)
                if control.stopping():
                    break
                self.groupings = self.groupings[1:]
        return bool(self.groupings) or self._clear(self.blocks, control)

    def _clear(self, blocks: Blocks, control: Control) -> bool:
        """Clear schedules beyond the budget that are worth it, the cheapest first; whether any is left."""
        incumbent = self.incumbent
        self.beyond.sort(key=lambda found: found.cost)
        while self.beyond and self.beyond[0].cost < incumbent.cost * (1 - _WORTH):
            found = blocks.cleared(self.beyond[0], incumbent.budget_bytes, control)
            if found is not None and found.peak_bytes > incumbent.budget_bytes:
                self.beyond[0] = found
                return True
            self.beyond = self.beyond[1:]
            if found is not None:
                incumbent.offer(found.computes)
        return False

    def _best(self, blocks: Blocks, ends: list[int], control: Control) -> Outcome | None:
        """The cheapest schedules of a grouping; None if it is too coarse."""
        if len(ends) <= self.hopeless:
            return None
        found = blocks.best(ends, self.incumbent.budget_bytes, control)
        if found == TOO_COARSE:
            self.hopeless = max(self.hopeless, len(ends))
        return found if isinstance(found, Outcome) else None


@dataclass(frozen=True, slots=True)
class Repeated(Strategy):
    """Cuts a training step into blocks, finds what a block may keep, and chooses for all blocks by a programme.

    Equal blocks are solved once, and so are equal stretches of blocks. The blocks are joined to groups of several
    sizes, and the cheapest plan counts.
    """

    name: ClassVar[str] = "repeated"
    summary: ClassVar[str] = "one solution for all equal blocks, and a programme over the chain of blocks"
    reference: ClassVar[str] = "Zhao et al., Rockmate, ICML 2023; Beaumont et al., INRIA RR-9302, 2019"
    needs: ClassVar[Needs] = Needs.CHAIN

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Solve all groupings that the time allows."""
        incumbent = Incumbent.empty(task, context)
        if task.budget_bytes is None:
            incumbent.budget_bytes = no_remat_peak(task.graph)
        Repetition(incumbent).turn(context.control, strict=True)
        return incumbent.answer(self.name)
