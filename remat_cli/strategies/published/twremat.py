"""Schedules by tree and path decomposition of the graph (Kumar et al., NeurIPS 2019)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.model import Graph
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.published.eviction import fitted, in_document_order
from remat_cli.strategies.published.separators import (
    Separator,
    path_separators,
    recursive_schedule,
    tree_separators,
)

_LONGEST = 60
"""Schedules with more computes than so many times the graph are given up."""
_PATIENCE = 3
"""Levels in a row that bring nothing cheaper before no deeper one is tried: each takes longer than the one before."""


@dataclass(frozen=True, slots=True)
class _Separating(Strategy):
    """Computes the graph separator by separator, with some levels of recursion, and then keeps what there is room for.

    Attributes:
        levels: Levels of recursion: more take less memory and more time. None tries them until deeper ones
            bring nothing more, and takes what gives the cheapest plan within the budget.
    """

    levels: int | None = field(
        default=None, metadata={"help": "levels of recursion, from 0; none: what fits the budget best"}
    )

    reference: ClassVar[str] = "Kumar et al., Efficient Rematerialization for Deep Networks, NeurIPS 2019"

    def __post_init__(self) -> None:
        """Refuse a number that means nothing."""
        if self.levels is not None and self.levels < 0:
            raise UsageError(f"{self.name}{{levels={self.levels}}}: there are no fewer levels than 0")

    @abstractmethod
    def separators(self, graph: Graph, control: Control) -> Separator:
        """The separators of ``graph``.

        Raises:
            StrategyMismatch: If the strategy does not take this graph.
            LimitReached, Interrupted: If it has to stop.
        """

    def options(self, levels: int) -> str:
        """Text form of this strategy with ``levels``."""
        return f"{self.name}{{levels={levels}}}"

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try levels of recursion, the fewest first."""
        graph = task.graph
        incumbent = Incumbent.empty(task, context)
        root = self.separators(graph, context.control)
        idle = 0
        for levels in range(root.depth) if self.levels is None else (self.levels,):
            computes = recursive_schedule(graph, root, levels, _LONGEST * len(graph.nodes))
            if computes is None:
                break
            before = incumbent.cost
            maker = "" if self.levels is not None else self.options(levels)
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
    not bytes). The decomposition knows neither costs nor sizes; what is kept where there is room goes by both.
    """

    name: ClassVar[str] = "twremat"
    summary: ClassVar[str] = "recursion over a tree decomposition, then keep what there is room for"

    def separators(self, graph: Graph, control: Control) -> Separator:
        """Those of a min-fill tree decomposition."""
        return tree_separators(graph, control)[0]


@dataclass(frozen=True, slots=True)
class PwRemat(_Separating):
    """The same along a path: the spine of a path decomposition is halved, and both sides are made by recursion.

    The paper only sketches its algorithm for pathwidth (section 5). Here every part lies between two bags that are
    resident, and the depth is the logarithm of n whatever the graph. But the bags are as wide as the path decomposition
    that a greedy search finds, often wider than those of a tree, and the constants are those of the recursion: for each
    node of a bag both sides are made anew. So it is for graphs of small pathwidth only, and others are refused.

    Attributes:
        most_width: Largest width of a path decomposition.
    """

    most_width: int = field(default=16, metadata={"help": "largest width of a path decomposition that is taken"})

    name: ClassVar[str] = "pwremat"
    summary: ClassVar[str] = "recursion over a narrow path decomposition, then keep what there is room for"

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        _Separating.__post_init__(self)
        if self.most_width < 1:
            raise UsageError(f"pwremat{{most_width={self.most_width}}}: a width is at least 1")

    def options(self, levels: int) -> str:
        """Text form of this strategy with ``levels``."""
        width = "" if self.most_width == PwRemat().most_width else f",most_width={self.most_width}"
        return f"{self.name}{{levels={levels}{width}}}"

    def separators(self, graph: Graph, control: Control) -> Separator:
        """Those of the narrowest path decomposition that was found.

        Raises:
            StrategyMismatch: If it is not narrow.
            LimitReached, Interrupted: If it has to stop.
        """
        root, width = path_separators(graph, control)
        if width > self.most_width:
            raise StrategyMismatch(
                f"pwremat is for graphs of small pathwidth, and the narrowest path decomposition that it finds has "
                f"width {width}, above {self.most_width}",
                hint=f"take twremat, or pwremat{{most_width={width}}} and patience",
            )
        return root
