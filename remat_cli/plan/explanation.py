"""The explanation of one node of a plan: its computations, the lives of its values, and the alternatives."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report
from remat_cli.plan.derive import derive, prune
from remat_cli.plan.model import Allocate, Compute, Deallocate, Offload, Plan, Prefetch
from remat_cli.plan.replay import Replay, replay

MOST_CHANGES = 8
"""Changes of each kind that are tried: those with the largest product of bytes and statements. Untuned."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a value in memory; all positions are statements, from 0.

    Attributes:
        value: Its name: ``bn1:0``.
        size_bytes: Its size.
        allocated: Where it is allocated.
        computed: Where it is computed, or copied back from the host.
        reads: Where it is read, and by which node.
        freed: Where it is dropped; None if it stays to the end.
        fetched: Whether it comes back from the host, and is not computed.
        sent: Where it is copied to the host.
    """

    value: str
    size_bytes: int
    allocated: int
    computed: int
    reads: tuple[tuple[int, str], ...]
    freed: int | None
    fetched: bool = False
    sent: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """The replayed effect of keeping or dropping a node's values in one interval of the plan.

    Attributes:
        start: Statement after which the values would stay, or be dropped.
        stop: Statement before which they are recomputed now, or would be.
        size_bytes: Bytes of those values.
        peak_bytes: Peak of the plan with the change, fixed memory included.
        cost_change: Additional cost; negative if it saves cost.
        others: Other nodes that would be computed less often, or more often.
        fits: Whether the changed plan is within the budget; None without a budget.
    """

    start: int
    stop: int
    size_bytes: int
    peak_bytes: int
    cost_change: float
    others: tuple[str, ...]
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A node and its part in a plan.

    Attributes:
        report: The plan as replayed.
        node: Index of the node.
        computed: ``(statement, stage)`` of each computation; a stage is named after the node whose first computation
            ends it, and is None after the last one.
        lives: Every life of its values in memory, in order.
        keep: The effects of keeping it instead of recomputing it, in the order of the statements.
        drop: The effects of dropping it between two uses, in the same order.
        skipped: Changes that were not tried, because there are many.
    """

    report: Report
    node: int
    computed: tuple[tuple[int, str | None], ...]
    lives: tuple[Life, ...]
    keep: tuple[Change, ...]
    drop: tuple[Change, ...]
    skipped: int


def explain(plan: Plan, report: Report, node: int) -> Explanation:
    """Explain ``node`` (an index) of ``plan``, whose report is ``report``.

    No changes are tried on an invalid plan, because its peak and cost mean nothing, and on a plan with copies, because
    its copies would have to change with it.
    """
    places = [at for at, statement in enumerate(plan.statements) if isinstance(statement, Compute)]
    computes = [s.node for s in plan.statements if isinstance(s, Compute)]
    lives = _lives(plan)
    own = [life for value, life in lives if plan.graph.producer[value] == node]
    keep: list[Change] = []
    drop: list[Change] = []
    skipped = 0
    if report.valid and not plan.copies:
        workbench = _Workbench(plan, report, computes, places, lives)
        gaps, idle = workbench.gaps(node), workbench.idle(node)
        keep = [workbench.kept(node, gap) for gap in sorted(_widest(gaps), key=lambda g: g.start)]
        drop = [workbench.dropped(node, gap) for gap in sorted(_widest(idle), key=lambda g: g.start)]
        skipped = len(gaps) + len(idle) - len(keep) - len(drop)
    stages = _stages(plan.graph, computes)
    computed = [(places[k], stages[k]) for k, computing in enumerate(computes) if computing == node]
    return Explanation(report, node, tuple(computed), tuple(own), tuple(keep), tuple(drop), skipped)


@dataclass(frozen=True, slots=True)
class _Gap:
    """An interval of statements, the position of its end in the sequence of computes, and the bytes of the values."""

    start: int
    stop: int
    position: int
    size_bytes: int


def _widest(gaps: Sequence[_Gap]) -> list[_Gap]:
    return sorted(gaps, key=lambda g: (-g.size_bytes * (g.stop - g.start), g.start))[:MOST_CHANGES]


@dataclass(frozen=True, slots=True)
class _Workbench:
    """A valid plan as a sequence of computes, and the replay of changed sequences."""

    plan: Plan
    report: Report
    computes: list[int]
    places: list[int]
    lives: list[tuple[int, Life]]

    def gaps(self, node: int) -> list[_Gap]:
        """The intervals in which no value of ``node`` is in memory, from its last free to its next computation."""
        mine = [k for k, computing in enumerate(self.computes) if computing == node]
        gaps = []
        for before, position in pairwise(mine):
            now = self.places[position]
            again = [life for life in self._made_at(node, now) if life.reads or life.freed is None]
            freed = [life.freed for life in self._made_at(node, self.places[before]) if life.freed is not None]
            size = sum(life.size_bytes for life in again)
            gaps.append(_Gap(max(freed, default=self.places[before]), now, position, size))
        return gaps

    def idle(self, node: int) -> list[_Gap]:
        """The intervals between two uses of the values of ``node`` in which other nodes are computed."""
        if not self.plan.graph.nodes[node].recompute:
            return []
        gaps = []
        position = {place: k for k, place in enumerate(self.places)}
        for place in (at for at, computing in zip(self.places, self.computes, strict=True) if computing == node):
            lives = self._made_at(node, place)
            uses = sorted({place, *(at for life in lives for at, _ in life.reads)})
            for before, after in pairwise(uses):
                if position[after] - position[before] < 2:  # no other node runs in between
                    continue
                size = sum(life.size_bytes for life in lives if any(at >= after for at, _ in life.reads))
                if size:
                    gaps.append(_Gap(before, after, position[after], size))
        return gaps

    def kept(self, node: int, gap: _Gap) -> Change:
        """The plan without the computation of ``node`` at the end of ``gap`` and without recomputations only for it."""
        shorter = self.computes[: gap.position] + self.computes[gap.position + 1 :]
        return self._change(node, gap, prune(self.plan.graph, shorter))

    def dropped(self, node: int, gap: _Gap) -> Change:
        """The plan with ``node`` recomputed at the end of ``gap``, and with those of its inputs that are not in memory.

        Inputs that may be computed only once are kept for it instead.
        """
        graph, nodes = self.plan.graph, self.plan.graph.nodes
        resident = {
            value
            for value, life in self.lives
            if life.computed < gap.stop and (life.freed is None or life.freed > gap.stop)
        }
        again: set[int] = set()
        waiting = [node]  # nodes to recompute; each adds the makers of its missing inputs
        while waiting:
            here = waiting.pop()
            if here in again:
                continue
            again.add(here)
            makers = {graph.producer[value] for value in nodes[here].inputs if value not in resident}
            waiting += [maker for maker in makers if nodes[maker].recompute]
        longer = [*self.computes[: gap.position], *sorted(again), *self.computes[gap.position :]]
        return self._change(node, gap, longer)

    def _made_at(self, node: int, place: int) -> list[Life]:
        producer = self.plan.graph.producer
        return [life for value, life in self.lives if life.computed == place and producer[value] == node]

    def _change(self, node: int, gap: _Gap, computes: Sequence[int]) -> Change:
        graph, budget = self.plan.graph, self.report.budget_bytes
        any_order = bool(self.plan.provenance.get("reorder", False))
        seen: Replay = replay(graph, derive(graph, computes, within_bytes=budget), any_order=any_order)
        if not seen.valid:
            raise AssertionError(f"a changed plan is invalid: {seen.findings[0].message}")
        others = tuple(
            item.id for i, item in enumerate(graph.nodes) if i != node and seen.times[i] != self.report.replay.times[i]
        )
        return Change(
            start=gap.start,
            stop=gap.stop,
            size_bytes=gap.size_bytes,
            peak_bytes=seen.peak_bytes,
            cost_change=seen.time - self.report.replay.time,
            others=others,
            fits=None if budget is None else seen.peak_bytes <= budget,
        )


def _lives(plan: Plan) -> list[tuple[int, Life]]:
    """``(value, life)`` of every life of every value, in the order of allocation; also for an invalid plan."""
    graph = plan.graph
    begun: dict[str, tuple[int, int]] = {}
    computed: dict[str, int] = {}
    reads: dict[str, list[tuple[int, str]]] = {}
    freed: dict[str, int] = {}
    fetched: set[str] = set()
    sent: dict[str, list[int]] = {}
    holder: dict[int, str] = {}
    for at, statement in enumerate(plan.statements):
        match statement:
            case Allocate(register, value):
                begun.setdefault(register, (at, value))
                holder[value] = register
            case Compute(node, registers):
                for value in graph.nodes[node].inputs:
                    if value in holder:
                        reads.setdefault(holder[value], []).append((at, graph.nodes[node].id))
                for register in registers:
                    computed.setdefault(register, at)
            case Prefetch(_, register):
                computed.setdefault(register, at)
                fetched.add(register)
            case Offload(register):
                sent.setdefault(register, []).append(at)
            case Deallocate(register):
                freed.setdefault(register, at)
                if register in begun and holder.get(begun[register][1]) == register:
                    del holder[begun[register][1]]
    return [
        (
            value,
            Life(
                value=graph.value_name(value),
                size_bytes=graph.size[value],
                allocated=at,
                computed=computed[register],
                reads=tuple(reads.get(register, ())),
                freed=freed.get(register),
                fetched=register in fetched,
                sent=tuple(sent.get(register, ())),
            ),
        )
        for register, (at, value) in begun.items()
        if register in computed
    ]


def _stages(graph: Graph, computes: Sequence[int]) -> list[str | None]:
    """For each position of ``computes`` the node whose first computation ends its stage; None after the last."""
    first: dict[int, int] = {}
    for position, node in enumerate(computes):
        first.setdefault(node, position)
    stages: list[str | None] = []
    current: str | None = None
    for position in range(len(computes) - 1, -1, -1):
        if first[computes[position]] == position:
            current = graph.nodes[computes[position]].id
        stages.append(current)
    return stages[::-1]
