"""Chen et al.'s two heuristics, and the four by which the Checkmate paper extends them to graphs that are not chains.

They differ only in the forward nodes that may be checkpoints: on a chain all of them; else the articulation points
(``ap``), or all of them as if the order of the document were a chain (``linearized``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.graph.phases import Training
from remat_cli.plan.derive import prune
from remat_cli.plan.matrices import least_recomputation_between
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context, Found, Needs, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent


def every_root(candidates: Sequence[int]) -> frozenset[int]:
    """Every k-th of N candidates, k the integral root of N (Chen et al., section 4.1)."""
    step = math.isqrt(len(candidates))
    return frozenset(candidates[step - 1 :: step]) if step else frozenset()


def greedy(training: Training, candidates: Collection[int], segment_bytes: int) -> frozenset[int]:
    """Every first candidate after more than ``segment_bytes`` of forward values since the last (Chen et al., 4.4)."""
    chosen, since = [], 0
    for i in training.forward:
        since += sum(training.graph.nodes[i].outputs)
        if i in candidates and since > segment_bytes:
            chosen.append(i)
            since = 0
    return frozenset(chosen)


def checkpointed(training: Training, checkpoints: Collection[int]) -> tuple[int, ...]:
    """The schedule that keeps the checkpoints and recomputes the values between them, segment by segment.

    The forward sweep frees values after their last forward reader, except the checkpoints and the segment after the
    last one, with which the backward pass begins. When the backward pass first reads a value of another segment, all
    values of that segment that are still to be read are recomputed, and each stays until its last reader. Further
    recomputation is minimal (R minimal for this S). Graph outputs and values of nodes that may run only once are kept
    too, without ending a segment.

    Args:
        training: The graph.
        checkpoints: Forward nodes. The last forward node is ignored, because the segment that it ends is kept anyway.
    """
    graph, n = training.graph, len(training.graph.nodes)
    ends = sorted(i for i in checkpoints if i != training.forward[-1])
    outputs = set(graph.outputs)
    kept: list[list[tuple[int, int]]] = [[] for _ in graph.size]
    segments: list[list[tuple[int, int, list[int]]]] = [[] for _ in range(len(ends) + 1)]
    inside = set(training.forward).difference(ends)
    for v, i in enumerate(graph.producer):
        if i not in inside or not graph.nodes[i].recompute or v in outputs:
            kept[v].append((i, n))  # freed after its last reader, recomputed ones included
            continue
        early = max((j for j in graph.readers[v] if j < training.sweep), default=i)
        late = [j for j in graph.readers[v] if j >= training.sweep]
        if early > i:
            kept[v].append((i, early))
        segments[bisect_left(ends, i)].append((v, max(early, i), late))
    for number, segment in enumerate(segments):
        begin = min((late[0] for _, _, late in segment if late), default=n)
        for v, early, late in segment:
            start = early if number == len(ends) else max(begin, early)
            if late and late[-1] > start:
                kept[v].append((start, late[-1]))
    return least_recomputation_between(graph, kept)


_CHEN = "Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016"
_JAIN = "Jain et al., Checkmate, MLSys 2020, table 1"
_TRIED = 100
"""Segment sizes to try, in geometric progression. Untuned."""
_EACH, _STRIDE = 2_000, 8
"""Nodes up to which every size is tried; beyond, every eighth and then a bisection. Untuned."""


def _chain(training: Training, name: str) -> tuple[int, ...]:
    """The candidates of a chain."""
    training.require_chain(name)
    return training.forward


class _Checkpointing(Strategy):
    """A strategy that chooses checkpoints among some forward nodes."""

    needs: ClassVar[Needs] = Needs.PHASES

    @abstractmethod
    def candidates(self, training: Training) -> tuple[int, ...]:
        """Forward nodes that may be checkpoints, ascending.

        Raises:
            StrategyMismatch: If the forward pass is not what the strategy needs.
        """


class _Sqrt(_Checkpointing):
    """Keeps every k-th of k * k candidates."""

    minds_budget: ClassVar[bool] = False
    ignores: ClassVar[frozenset[str]] = frozenset({"costs", "sizes", "budget"})

    def solve(self, task: Task, context: Context) -> Found:
        """The schedule with every k-th candidate as a checkpoint."""
        training = Training.of(task.graph, self.name)
        computes = prune(task.graph, checkpointed(training, every_root(self.candidates(training))))
        return Found(Schedule(computes), (Bound(task.graph.total_cost, Scope.ANY_ORDER),))


@dataclass(frozen=True, slots=True)
class _Greedy(_Checkpointing):
    """Ends a segment as soon as it holds more than a number of bytes.

    Attributes:
        b: Bytes of a segment; None tries many numbers and takes the cheapest plan within the budget.
    """

    b: int | None = field(
        default=None, metadata={"unit": "bytes", "help": "bytes of a segment; none: what fits the budget best"}
    )

    ignores: ClassVar[frozenset[str]] = frozenset({"costs"})

    def __post_init__(self) -> None:
        """Refuse a negative size."""
        if self.b is not None and self.b < 0:
            raise UsageError(f"{self.name}{{b={self.b}}}: a segment cannot hold less than nothing")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try segment sizes, the smallest first; on large graphs those around the smallest that fits."""
        training = Training.of(task.graph, self.name)
        candidates = frozenset(self.candidates(training))
        incumbent = Incumbent.empty(task, context)
        tried: dict[frozenset[int], bool] = {}

        def fits(segment_bytes: int) -> bool:
            chosen = greedy(training, candidates, segment_bytes)
            if chosen not in tried and not incumbent.over():
                maker = "" if self.b is not None else f"{self.name}{{b={segment_bytes}}}"
                tried[chosen] = incumbent.offer(checkpointed(training, chosen), maker)
            return tried.get(chosen, False)

        sizes = [self.b] if self.b is not None else _sizes(training)
        if len(task.graph.nodes) <= _EACH:
            for segment_bytes in sizes:
                fits(segment_bytes)
                if incumbent.over():
                    break
        else:
            _first_that_fits(sizes, fits)
        return incumbent.answer(self.name)


def _first_that_fits(sizes: Sequence[int], fits: Callable[[int], bool]) -> None:
    """Find the smallest size that fits: it has the most checkpoints and so, with few exceptions, the cheapest plan.

    Two effects decide whether a size fits: larger segments leave fewer checkpoints, but each segment takes more memory.
    So fitting is not monotone: sizes over the whole range are tried, then those before the first that fits, by
    bisection.
    """
    coarse = range(0, len(sizes), _STRIDE)
    first = next((k for k in coarse if fits(sizes[k])), None)
    if first is None:
        next((size for size in sizes if fits(size)), None)
        return
    fails = first - _STRIDE
    while first - fails > 1 and fails >= 0:
        middle = (first + fails) // 2
        if fits(sizes[middle]):
            first = middle
        else:
            fails = middle


def _sizes(training: Training) -> list[int]:
    """Segment sizes from none to all forward values."""
    sizes = [sum(training.graph.nodes[i].outputs) for i in training.forward]
    smallest, total = min((s for s in sizes if s), default=1), max(1, sum(sizes))
    ratio = math.log(total / smallest) / (_TRIED - 2)
    return sorted({0, total, *(int(smallest * math.exp(k * ratio)) for k in range(_TRIED - 1))})


@dataclass(frozen=True, slots=True)
class ChenSqrt(_Sqrt):
    """About the root of n checkpoints, equally far apart, along a chain."""

    name: ClassVar[str] = "chen-sqrt"
    summary: ClassVar[str] = "about sqrt(n) checkpoints, equally far apart, along a chain"
    reference: ClassVar[str] = _CHEN
    needs: ClassVar[Needs] = Needs.CHAIN

    def candidates(self, training: Training) -> tuple[int, ...]:
        """All forward nodes, if they form a chain."""
        return _chain(training, self.name)


@dataclass(frozen=True, slots=True)
class ChenGreedy(_Greedy):
    """Segments of equal memory along a chain, as small as the budget allows."""

    name: ClassVar[str] = "chen-greedy"
    summary: ClassVar[str] = "segments of about equal memory along a chain"
    reference: ClassVar[str] = _CHEN
    needs: ClassVar[Needs] = Needs.CHAIN

    def candidates(self, training: Training) -> tuple[int, ...]:
        """All forward nodes, if they form a chain."""
        return _chain(training, self.name)


@dataclass(frozen=True, slots=True)
class ApSqrt(_Sqrt):
    """About the root of the number of articulation points, equally many apart."""

    name: ClassVar[str] = "ap-sqrt"
    summary: ClassVar[str] = "chen-sqrt on the articulation points of the forward graph"
    reference: ClassVar[str] = _JAIN

    def candidates(self, training: Training) -> tuple[int, ...]:
        """The articulation points."""
        return training.articulation_points()


@dataclass(frozen=True, slots=True)
class ApGreedy(_Greedy):
    """Segments of equal memory between articulation points."""

    name: ClassVar[str] = "ap-greedy"
    summary: ClassVar[str] = "chen-greedy on the articulation points of the forward graph"
    reference: ClassVar[str] = _JAIN

    def candidates(self, training: Training) -> tuple[int, ...]:
        """The articulation points."""
        return training.articulation_points()


@dataclass(frozen=True, slots=True)
class LinearizedSqrt(_Sqrt):
    """Every k-th forward node, also where values skip over it."""

    name: ClassVar[str] = "linearized-sqrt"
    summary: ClassVar[str] = "chen-sqrt as if the forward nodes in document order were a chain"
    reference: ClassVar[str] = _JAIN

    def candidates(self, training: Training) -> tuple[int, ...]:
        """All forward nodes."""
        return training.forward


@dataclass(frozen=True, slots=True)
class LinearizedGreedy(_Greedy):
    """Segments of equal memory, also where values skip over their ends."""

    name: ClassVar[str] = "linearized-greedy"
    summary: ClassVar[str] = "chen-greedy as if the forward nodes in document order were a chain"
    reference: ClassVar[str] = _JAIN

    def candidates(self, training: Training) -> tuple[int, ...]:
        """All forward nodes."""
        return training.forward
