"""Schedules by tree and path decomposition of the graph (Kumar et al., NeurIPS 2019)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import prune
from remat_cli.plan.liveness import reads_at_end, walk_back
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.published.separators import (
    Separator,
    path_separators,
    recursive_schedule,
    tree_separators,
)
from remat_cli.strategies.published.spine import Spine, spine_schedule

_ROUNDS = 6


def in_document_order(graph: Graph, computes: Sequence[int]) -> tuple[int, ...]:
    """``computes`` with first computations in document order: missing earlier nodes are inserted before a node.

    Nodes that may run only once do.
    """
    ordered: list[int] = []
    first = 0
    for node in computes:
        if node >= first:
            ordered.extend(range(first, node + 1))
            first = node + 1
        elif graph.nodes[node].recompute:
            ordered.append(node)
    return (*ordered, *range(first, len(graph.nodes)))


def fitted(graph: Graph, computes: Sequence[int], budget_bytes: int | None) -> list[tuple[int, ...]]:
    """Schedules, one per round, that free what ``computes`` frees, but only when memory runs out.

    Args:
        graph: The graph.
        computes: A schedule in document order.
        budget_bytes: Fixed memory included; None for no limit. Exceeded where no value is evictable.
    """
    rounds = [prune(graph, computes)]
    for _ in range(_ROUNDS):
        walked = prune(graph, _walk(graph, rounds[-1], budget_bytes))
        if walked == rounds[-1]:
            break
        rounds.append(walked)
    return rounds


def _endings(graph: Graph, computes: Sequence[int]) -> list[list[tuple[int, bool]]]:
    """For every position the values whose instances end there, and whether a later instance is needed."""
    ending: list[list[tuple[int, bool]]] = [[] for _ in computes]
    needed = set(graph.outputs)
    for position, _, dying in walk_back(graph, computes, reads_at_end(graph, computes)):
        ending[position] = [(v, v in needed) for v in dying]
        needed.update(graph.nodes[computes[position]].inputs)
    return ending


def _walk(graph: Graph, computes: Sequence[int], budget_bytes: int | None) -> list[int]:
    """One round."""
    room = None if budget_bytes is None else budget_bytes - graph.fixed_memory
    walked: list[int] = []
    first = 0
    there: set[int] = set()
    may_go: dict[int, float] = {}  # evictable values, with their cost per byte
    heap: list[tuple[float, int]] = []  # the same; may hold values that are no longer evictable
    used = 0
    for i, ending in zip(computes, _endings(graph, computes), strict=True):
        values = graph.values_of(i)
        unread = {v for v, _ in ending}
        for v in values:
            may_go.pop(v, None)
        if i == first or any(v not in there and v not in unread for v in values):
            used += sum(graph.size[v] for v in values if v not in there)
            there.update(values)
            while room is not None and used + graph.nodes[i].workspace > room and may_go:
                rate, victim = heappop(heap)
                if may_go.get(victim) != rate:  # it was needed since
                    continue
                del may_go[victim]
                there.remove(victim)
                used -= graph.size[victim]
            walked.append(i)
            first += i == first
        for v, again in ending:
            maker = graph.nodes[graph.producer[v]]
            if v not in there:
                continue
            if not again:
                there.remove(v)
                used -= graph.size[v]
            elif maker.recompute and graph.size[v]:
                may_go[v] = maker.cost / graph.size[v]
                heappush(heap, (may_go[v], v))
    return walked


_LONGEST = 60
"""Longest schedule, as a multiple of the number of nodes. Untuned."""
_PATIENCE = 3
"""Levels in a row without a cheaper plan after which the search ends: each takes longer than the last. Untuned."""


@dataclass(frozen=True, slots=True)
class Recursion:
    """A recursion that can end at any level.

    Attributes:
        depth: Levels of the full recursion, or more.
        schedule: By the number of levels: the nodes in the order in which they run; None if that is too long.
    """

    depth: int
    schedule: Callable[[int], list[int] | None]


@dataclass(frozen=True, slots=True)
class _Separating(Strategy):
    """Computes the graph separator by separator, with levels of recursion, then keeps as many values as fit.

    Attributes:
        levels: Levels of recursion: more take less memory and more time. None tries growing numbers until the plan gets
            no cheaper.
        bags: The paper's TWRemat(k): the recursion ends at parts whose decomposition has fewer bags. With k = 1 it is
            the full recursion, and with k above the number of all bags nothing is recomputed.
    """

    levels: int | None = field(
        default=None, metadata={"help": "levels of recursion, from 0; none: what fits the budget best"}
    )
    bags: int | None = field(
        default=None, metadata={"help": "recurse down to parts with fewer bags than this, from 1, instead of by levels"}
    )

    reference: ClassVar[str] = "Kumar et al., Efficient Rematerialization for Deep Networks, NeurIPS 2019"

    def __post_init__(self) -> None:
        """Refuse a negative number."""
        if self.levels is not None and self.levels < 0:
            raise UsageError(f"{self.name}{{levels={self.levels}}}: there are no fewer levels than 0")
        if self.bags is not None and self.bags < 1:
            raise UsageError(f"{self.name}{{bags={self.bags}}}: there is no part with fewer bags than 1")
        if self.bags is not None and self.levels is not None:
            raise UsageError(
                f"{self.name} ends its recursion either by levels or by bags", hint="leave out levels or bags"
            )

    @abstractmethod
    def recursion(self, graph: Graph, control: Control) -> Recursion:
        """The recursion over ``graph``.

        Raises:
            StrategyMismatch: If the strategy does not accept this graph.
            LimitReached, Interrupted: If it has to stop.
        """

    def over(self, graph: Graph, root: Separator) -> Recursion:
        """The recursion over separators."""
        longest, fewest = _LONGEST * len(graph.nodes), self.bags or 1
        return Recursion(root.depth, lambda levels: recursive_schedule(graph, root, levels, longest, fewest))

    def options(self, levels: int) -> str:
        """Text form of this strategy with ``levels``."""
        return f"{self.name}{{levels={levels}}}"

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try levels of recursion, the fewest first."""
        graph = task.graph
        incumbent = Incumbent.empty(task, context)
        recursion = self.recursion(graph, context.control)
        idle = 0
        given = self.levels is not None or self.bags is not None
        limit = recursion.depth if self.levels is None else self.levels
        for levels in (limit,) if given else range(recursion.depth):
            computes = recursion.schedule(levels)
            if computes is None:
                break
            before = incumbent.cost
            maker = "" if given else self.options(levels)
            for schedule in fitted(graph, in_document_order(graph, computes), task.budget_bytes):
                incumbent.offer(schedule, maker)
            idle = idle + 1 if incumbent.cost == before < math.inf else 0
            if incumbent.over() or idle == _PATIENCE:
                break
        return incumbent.answer(self.name)


@dataclass(frozen=True, slots=True)
class TwRemat(_Separating):
    """Recursion over the balanced separators of a tree decomposition.

    Within width * log(n) values of memory the time is polynomial for a fixed width (the paper's theorem counts values,
    not bytes). The decomposition uses neither costs nor sizes; the choice of values to keep uses both.
    """

    name: ClassVar[str] = "twremat"
    summary: ClassVar[str] = "recursion over a tree decomposition, then keep what there is room for"

    def recursion(self, graph: Graph, control: Control) -> Recursion:
        """Over the separators of a min-fill tree decomposition."""
        return self.over(graph, tree_separators(graph, control)[0])


@dataclass(frozen=True, slots=True)
class PwRemat(_Separating):
    """The same along a path: a path decomposition is halved, and both sides are made by recursion.

    Every part lies between two resident bags, and the depth is the logarithm of n for every graph. But the bags are
    those of a greedy path decomposition, often wider than those of a tree, and for each node of a bag both sides are
    recomputed. So the strategy accepts only graphs of small pathwidth.

    The paper's own algorithm for pathwidth (section 5) also has a spine, and is only sketched there. With ``spine`` it
    is what follows from that sketch (:mod:`remat_cli.strategies.published.spine`).

    Attributes:
        most_width: Largest width of a path decomposition, before a spine is added.
        spine: Whether to run along a spine.
    """

    most_width: int = field(default=16, metadata={"help": "largest width of a path decomposition to accept"})
    spine: bool = field(
        default=False, metadata={"help": "run along a spine, on which parts get shorter and narrower (section 5)"}
    )

    name: ClassVar[str] = "pwremat"
    summary: ClassVar[str] = "recursion over a narrow path decomposition, then keep what there is room for"

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        _Separating.__post_init__(self)
        if self.most_width < 1:
            raise UsageError(f"pwremat{{most_width={self.most_width}}}: a width is at least 1")

    def options(self, levels: int) -> str:
        """Text form of this strategy with ``levels``."""
        width = "" if self.most_width == PwRemat().most_width else f",most_width={self.most_width}"
        return f"{self.name}{{levels={levels}{width}{',spine=true' if self.spine else ''}}}"

    def recursion(self, graph: Graph, control: Control) -> Recursion:
        """Over the narrowest path decomposition found.

        Raises:
            StrategyMismatch: If it is not narrow.
            LimitReached, Interrupted: If it has to stop.
        """
        if self.spine:
            spines = Spine.both(graph, control)
            self._require_narrow(spines[0].bare_width)
            return self._along(graph, spines, control)
        root, width = path_separators(graph, control)
        self._require_narrow(width)
        return self.over(graph, root)

    def _along(self, graph: Graph, spines: tuple[Spine, ...], control: Control) -> Recursion:
        """The recursion along spines. Each level halves the parts, so no more levels than nodes change anything."""
        longest, fewest = _LONGEST * len(graph.nodes), self.bags or 1
        return Recursion(
            len(graph.nodes), lambda levels: spine_schedule(graph, spines, levels, longest, control, fewest)
        )

    def _require_narrow(self, width: int) -> None:
        if width > self.most_width:
            raise StrategyMismatch(
                f"pwremat is for graphs of small pathwidth, and the narrowest path decomposition that it finds has "
                f"width {width}, above {self.most_width}",
                hint=f"take twremat, or pwremat{{most_width={width}}} and patience",
            )
