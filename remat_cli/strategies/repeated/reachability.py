"""Proofs that nothing fits: all sets of values that memory can hold, in some part of a training step.

Near the least memory few values fit at once. So the sets of large values that can be in memory when a node runs for the
first time can all be listed, for a graph of up to 62 of them; if none lets some node run, no schedule fits. For large
graphs it suffices that none fits a few neighbouring blocks. ``docs/mathematics.md``, "Reachable states", has the proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch
from remat_cli.graph.analysis import no_remat_peak, working_set, working_sets
from remat_cli.graph.induced import induced
from remat_cli.graph.model import Graph, closed
from remat_cli.mip import Ints
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.engine import Once
from remat_cli.strategies.repeated.parts import reduced

if TYPE_CHECKING:  # numba takes 0.3 s to import
    from remat_cli.kernels.reaching import Nodes

_SHARES = (0.25, 0.15, 0.1, 0.05, 0.0)
"""Values below these shares of the room do not count, one after the other. Untuned."""
_COUNTING = (20, 40, 62)
"""Most values that count in a window; 62 fit a signed number of 64 bits, whose sign stays out of shifts."""
_MOST_NODES = 50
"""No run of stages with so many nodes gets another stage: what does not fit is close together. ResNet-1001 is excluded
at five tensors less a byte in 2 s; with 300 nodes in 12 s (by hand)."""
_EFFORTS = (3_000, 30_000, 300_000, 3_000_000)
"""Most sets to list for one window; the last takes about a minute. Untuned."""
_WINDOWS = 3
"""Most windows to look at with one choice of these numbers: those with the highest peaks. Untuned."""
_FIRST_SPACE = 1_024
"""Space for sets at first, a power of two; where it does not suffice it is made four times as large."""
_FURTHER_S = 2.0
"""Most seconds to look at larger budgets, for the message that the asked one is impossible."""
_NO_LIMIT = 2**62
_BATCH = 20
"""Sets between two looks at the clock: a millisecond, and more where each has many successors."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A run of stages.

    Attributes:
        first: Its first stage.
        end: The stage after its last one.
        graph: The graph of its nodes.
        peak: Bytes that it needs without recomputation.
    """

    first: int
    end: int
    graph: Graph
    peak: int


@dataclass(slots=True)
class Reachability:
    """Asks for parts of a graph whether any schedule fits.

    Attributes:
        graph: The graph.
        stages: Its nodes by stages of the chain; all of them if it is none.
        kinds: A number for every stage; stages of one kind are alike.
    """

    graph: Graph
    stages: list[list[int]]
    kinds: list[int]

    @classmethod
    def of(cls, graph: Graph) -> Reachability:
        """Cut ``graph`` into stages."""
        try:
            chain = Chain.of(reduced(graph, max(working_sets(graph))).graph, "reachability")
            stages = [[*stage.block, *stage.rest] for stage in chain.stages]
        except StrategyMismatch:
            stages = [list(range(len(graph.nodes)))]
        known: dict[object, int] = {}
        kinds = []
        for stage in stages:
            nodes = [graph.nodes[i] for i in stage]
            alike = tuple((tuple(graph.size[v] for v in node.inputs), node.outputs, node.workspace) for node in nodes)
            kinds.append(known.setdefault(alike, len(known)))
        return cls(graph, stages, kinds)

    def least_beyond(self, budget_bytes: int, control: Control) -> int | None:
        """A budget below which no schedule in document order fits, and above ``budget_bytes``; None without a proof.

        Args:
            budget_bytes: Fixed memory included, as in the result.
            control: Clock.
        """
        room, fixed = budget_bytes - self.graph.fixed_memory, self.graph.fixed_memory
        if (largest := max(working_sets(self.graph))) > room:
            return fixed + largest
        windows: dict[tuple[float, int], list[_Window]] = {}
        possible: list[tuple[_Window, float]] = []
        for most, share, counting in product(_EFFORTS, _SHARES, _COUNTING):
            if (share, counting) not in windows:
                windows[share, counting] = self._windows(room, share * room, counting, control)
            for window in windows[share, counting]:
                # What fits a run of stages fits all runs within it, also if fewer values count.
                if any(w.first <= window.first and window.end <= w.end and least <= share for w, least in possible):
                    continue
                if control.stopping():
                    return None
                states = _States.of(window.graph, share * room)
                fits = states.fit(room, most, control)
                if fits is False:
                    return budget_bytes + states.more
                if fits:
                    possible.append((window, share))
        return None

    def _windows(self, room: int, least: float, counting: int, control: Control) -> list[_Window]:
        """The longest runs of stages in which at most ``counting`` values of ``least`` bytes count.

        Those that need more than ``room`` bytes without recomputation, a few with the highest such peaks.
        """
        found: dict[tuple[int, ...], _Window] = {}
        values = [self._counting(stage, least) for stage in range(len(self.stages))]
        last = 0
        for first in range(len(self.stages)):
            end, together, nodes = first, set[int](), 0
            while end < len(self.stages) and nodes < _MOST_NODES and len(together | values[end]) <= counting:
                together |= values[end]
                nodes += len(self.stages[end])
                end += 1
            kinds = tuple(self.kinds[first:end])
            if end <= last or kinds in found:  # the run before has it all, or one is alike, or the stage is too large
                continue
            last = end
            if control.stopping():
                break
            graph, _ = induced(self.graph, (i for stage in self.stages[first:end] for i in stage))
            found[kinds] = _Window(first, end, graph, no_remat_peak(graph))
        tight = [window for window in found.values() if window.peak > room]
        return sorted(tight, key=lambda window: -window.peak)[:_WINDOWS]

    def _counting(self, stage: int, least: float) -> set[int]:
        """The values of ``least`` bytes, and not of none, that a stage reads or makes."""
        graph = self.graph
        nodes = self.stages[stage]
        touched = (v for i in nodes for v in (*graph.nodes[i].inputs, *graph.values_of(i)))
        return {v for v in touched if graph.size[v] >= max(least, 1)}


@dataclass(slots=True)
class _Space:
    """Sets of values, and their hash table."""

    sets: Ints
    table: Ints

    @classmethod
    def of(cls, number: int) -> _Space:
        return cls(np.zeros(number, dtype=np.int64), np.zeros(2 * number, dtype=np.int64))


@dataclass(slots=True)
class _States:
    """The states of a graph, of which some values count: the others are always in memory once they were made.

    Attributes:
        nodes: The nodes for the kernel, the closing node included.
        more: With fewer bytes more than this, the last answer would have been the same.
        scratch: Scratch space of the kernel.
    """

    nodes: Nodes
    more: int = 0
    scratch: Any = field(default_factory=lambda: np.zeros((7, 65), dtype=np.int64))

    @classmethod
    def of(cls, graph: Graph, least: float) -> _States:
        """The states in which values of at least ``least`` bytes count."""
        from remat_cli.kernels.reaching import Nodes

        whole = closed(graph)
        counting = [v for v, size in enumerate(whole.size) if size >= max(least, 1)]
        counting.sort(key=lambda v: -whole.size[v])
        bit = {v: 1 << k for k, v in enumerate(counting)}
        count = len(whole.nodes)
        reads = [sum(bit.get(v, 0) for v in set(node.inputs)) for node in whole.nodes]
        makes = [sum(bit.get(v, 0) for v in whole.values_of(i)) for i in range(count)]
        return cls(
            Nodes(
                reads=np.array(reads, dtype=np.int64),
                makes=np.array(makes, dtype=np.int64),
                working=np.array([working_set(whole, i) for i in range(count)], dtype=np.int64),
                again=np.array([node.recompute and bool(of) for node, of in zip(whole.nodes, makes, strict=True)]),
                sizes=np.array([whole.size[v] for v in counting], dtype=np.int64),
            )
        )

    def fit(self, room: int, most: int, control: Control) -> bool | None:
        """Whether some order of states reaches the end; None if that takes more than ``most`` sets, or time is up.

        Every set in memory fits ``room`` bytes, beside what the node that runs reads and makes of values that do not
        count. If all values count, the answer yes is one for the graph, too.
        """
        from remat_cli.kernels.reaching import FULL, TOO_MANY, Layer, expand, put

        layer: Any = np.zeros(1, dtype=Layer.dtype())[0]
        layer.more = _NO_LIMIT
        sets, looked, size = np.zeros(1, dtype=np.int64), 0, _FIRST_SPACE
        here, there = _Space.of(size), _Space.of(size)
        for t in range(len(self.nodes.reads)):
            useful = self._useful(t)
            sets = self._largest_first(np.unique(sets & useful))
            while True:
                for space in (here, there):
                    space.table[:] = 0
                full = len(sets) > size
                if not full:
                    layer.useful, layer.done, layer.following = useful, 0, 0
                    layer.sets = put(here.sets, here.table, sets)
                while not full and layer.done < layer.sets:
                    arrays = (self.scratch, here.sets, here.table, there.sets, there.table)
                    end = expand(self.nodes, t, room, layer, *arrays, _BATCH)
                    full = end == FULL
                    if end == TOO_MANY or control.stopping() or looked + max(layer.sets, layer.following) > most:
                        return None
                if not full:
                    break
                size *= 4
                here, there = _Space.of(size), _Space.of(size)
            looked, self.more = looked + int(layer.sets), int(layer.more)
            if not layer.following:
                return False
            sets = there.sets[: layer.following].copy()
        return True

    def _useful(self, t: int) -> int:
        """The values that node t or a later one reads, or that are read to make one of these again."""
        of = self.nodes
        useful = int(np.bitwise_or.reduce(of.reads[t:]))
        while True:
            wanted = of.again[:t] & ((of.makes[:t] & useful) != 0)
            more = useful | int(np.bitwise_or.reduce(of.reads[:t][wanted], initial=0))
            if more == useful:
                return useful
            useful = more

    def _largest_first(self, sets: Ints) -> Ints:
        """The sets with the most bytes first, as these contain others."""
        held = np.zeros(len(sets), dtype=np.int64)
        for k, size in enumerate(self.nodes.sizes):
            held += (sets >> k & 1) * size
        ordered: Ints = sets[np.argsort(-held, kind="stable")]
        return ordered


class Unreachable(Once):
    """Tries to prove that nothing fits."""

    def attempt(self) -> None:
        """Raise the bound to infinity if no schedule in document order fits, and look for a budget that may do."""
        incumbent = self.incumbent
        incumbent.report("listing states of memory")
        reachability, control = Reachability.of(incumbent.graph), incumbent.context.control
        least = reachability.least_beyond(incumbent.budget_bytes, control)
        if least is not None:
            further = control.part(most_s=_FURTHER_S)
            while least is not None:
                incumbent.least_bytes = least
                least = reachability.least_beyond(least, further)
            incumbent.raise_bound(Bound(float("inf"), Scope.DOCUMENT_ORDER))
