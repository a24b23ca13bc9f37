"""XLA's rematerialisation pass: walk the schedule, and where memory runs out recompute later what is large now.

Source: openxla/xla, ``HloRematerialization``. One pass with a count of live memory. Where an instruction does not fit,
a run of earlier instructions is cloned to just before the next use of what it makes, so that its values can go now.
Runs of one instruction are tried first; if none helps, longer ones, up to twice as long each time.

Differences: no compression and no offload to the host; first computations stay where they are, so XLA's free moves of
an instruction are recomputations here; runs are runs of the document, not of clones; and once nothing helps at one
point, long runs are not tried any more, which stands in for XLA's limit on effort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.published._offers import Offers

_BLOCKS = (1, 4, 16)
_LONGEST = 5
"""Schedules longer than so many times the graph are given up."""


@dataclass(frozen=True, slots=True)
class XlaGreedy(Strategy):
    """Frees the most memory at every point where it runs out, whatever that costs.

    Attributes:
        block: Longest run of instructions to recompute together; None tries several and takes what gives the cheapest
            plan within the budget. XLA's own default is 1.
        cost_aware: Take the run with the least cost per byte instead of the one with the most bytes.
    """

    block: int | None = field(
        default=None, metadata={"help": "longest run to recompute together; none: what fits the budget best"}
    )
    cost_aware: bool = field(default=False, metadata={"help": "least cost per byte instead of most bytes"})

    name: ClassVar[str] = "xla-greedy"
    summary: ClassVar[str] = "in one pass, recompute later what frees most memory where it runs out, as XLA does"
    reference: ClassVar[str] = "openxla/xla, HloRematerialization"
    ignores: ClassVar[frozenset[str]] = frozenset({"costs"})

    def __post_init__(self) -> None:
        """Refuse a length that means nothing."""
        if self.block is not None and self.block < 1:
            raise UsageError(f"xla-greedy{{block={self.block}}}: a run has at least one instruction")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Walk the schedule for every length of runs."""
        offers = Offers(task, context, self.name)
        budget = no_remat_peak(task.graph) if task.budget_bytes is None else task.budget_bytes
        aware = ",cost_aware=true" if self.cost_aware else ""
        for block in (self.block,) if self.block is not None else _BLOCKS:
            walk = _Walk(task.graph, budget, block, self.cost_aware)
            walk.run(context.control)
            offers.offer(walk.items, "" if self.block is not None else f"{self.name}{{block={block}{aware}}}")
            if offers.over() or not walk.stuck:  # longer runs would not have been looked at
                break
        return offers.answer()


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of placed instructions that could be computed again.

    Attributes:
        nodes: What it computes.
        before: Place in the schedule before which it would go.
        bytes: Memory that this frees now.
        cost: What it costs.
    """

    nodes: Sequence[int]
    before: int
    bytes: int
    cost: float


@dataclass(slots=True)
class _Walk:
    """The schedule, of which everything before ``at`` is placed and ``at`` is in progress.

    Attributes:
        graph: The graph.
        budget: Bytes, fixed memory included.
        block: Longest run.
        cost_aware: How to choose.
        items: The schedule: nodes by index.
        at: The instruction in progress.
        stage: Nodes that are placed.
        stuck: Whether memory ran out somewhere and no run helped.
        next_read: For every value that is needed after ``at``, where it is read next; the end for a graph output.
    """

    graph: Graph
    budget: int
    block: int
    cost_aware: bool
    items: list[int] = field(default_factory=list)
    at: int = 0
    stage: int = 0
    stuck: bool = False
    next_read: dict[int, int] = field(default_factory=dict)

    def run(self, control: Control) -> None:
        """Walk once through the schedule; what does not fit is left as it is."""
        self.items = list(range(len(self.graph.nodes)))
        self.at = self.stage = 0
        while self.at < len(self.items) and not control.stopping():
            self._look_ahead()
            while self._used() > self.budget:
                run = self._best_run()
                if run is None or len(self.items) > _LONGEST * len(self.graph.nodes):
                    self.stuck = True
                    break
                self.items[run.before : run.before] = run.nodes
                self._look_ahead()
            self.stage += self.items[self.at] == self.stage
            self.at += 1

    def _look_ahead(self) -> None:
        """Find what is needed after the instruction in progress, and where."""
        graph, ahead = self.graph, dict.fromkeys(self.graph.outputs, len(self.items))
        for place in range(len(self.items) - 1, self.at, -1):
            node = self.items[place]
            for v in graph.values_of(node):
                ahead.pop(v, None)
            for v in graph.nodes[node].inputs:
                ahead[v] = place
        self.next_read = ahead

    def _used(self) -> int:
        """Bytes in use while the instruction in progress runs."""
        graph, item = self.graph, self.items[self.at]
        node = graph.nodes[item]
        live: set[int] = {*self.next_read, *node.inputs, *graph.values_of(item)}
        return graph.fixed_memory + node.workspace + sum(graph.size[v] for v in live)

    def _best_run(self) -> _Run | None:
        """The run that is best to recompute, of those as short as can be; the first of equals."""
        shortest = longest = 1
        while True:
            best: _Run | None = None
            for start in range(self.stage):
                for run in self._runs(start, shortest, longest):
                    if best is None or self._better(run, best):
                        best = run
            if best is not None or longest >= (1 if self.stuck else self.block):
                return best
            shortest, longest = longest + 1, min(2 * longest, self.block)

    def _better(self, run: _Run, best: _Run) -> bool:
        if self.cost_aware:
            return run.cost * best.bytes < best.cost * run.bytes
        return run.bytes > best.bytes

    def _runs(self, start: int, shortest: int, longest: int) -> list[_Run]:
        """Runs from ``start`` on that free memory now."""
        graph, item, ahead = self.graph, self.items[self.at], self.next_read
        pinned = {*graph.nodes[item].inputs, *graph.values_of(item)}
        made: set[int] = set()
        operands: set[int] = set()
        found = []
        gain, cost = 0, 0.0
        for node in range(start, min(start + longest, self.stage)):
            values = graph.values_of(node)
            stay = any(ahead.get(v) == len(self.items) for v in values)  # a graph output
            if stay or not graph.nodes[node].recompute or not pinned.isdisjoint(values):
                break
            for v in graph.nodes[node].inputs:
                if v not in made and v not in operands:
                    operands.add(v)
                    gain -= 0 if v in ahead or v in pinned else graph.size[v]
            made.update(values)
            gain += sum(graph.size[v] for v in values if v in ahead)
            cost += graph.nodes[node].cost
            if node >= start + shortest - 1 and gain > 0:
                before = min(ahead[v] for v in (*made, *operands) if v in ahead)
                found.append(_Run(range(start, node + 1), before, gain, cost))
        return found
