"""Old plans of a graph: where a search starts from, or carried over to other sizes of the same operations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from remat_cli.errors import StrategyMismatch, UsageError, Worded
from remat_cli.graph.model import Graph, NodeQueue
from remat_cli.graph.reader import plain_number
from remat_cli.plan.check import check, graphs_differ
from remat_cli.plan.copying import copying_of
from remat_cli.plan.derive import derive, peak, prune
from remat_cli.plan.host import Host
from remat_cli.plan.liveness import priced
from remat_cli.plan.model import Claim, ClaimStatus, Compute, Copies, Plan, Scope
from remat_cli.plan.replay import replay
from remat_cli.strategies.base import Found, Schedule, Strategy
from remat_cli.strategies.engine import Pipelined
from remat_cli.strategies.objective import objective_of
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import SAME_COST
from remat_cli.units import format_bytes
from remat_cli.version import __version__


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The schedule of an old plan.

    Attributes:
        found: The schedule, credited to the strategy that made it. The old plan's bounds are not trusted.
        cost: Its cost.
        peak_bytes: Its peak, fixed memory included.
    """

    found: Found
    cost: float
    peak_bytes: int

    @classmethod
    def of(
        cls, plan: Plan, graph: Graph, strategy: Strategy, *, reorder: bool = False, host: Host | None = None
    ) -> WarmStart:
        """The start that ``plan``, which may be for any budget and host, gives to a search for a plan of ``graph``.

        Raises:
            UsageError: If the plan is for another graph, or does not replay, or runs its nodes in another order; or if
                it copies, and there is no host, or no schedule has such copies.
            StrategyMismatch: If the strategy makes plans of its own, and starts from none.
        """
        if not isinstance(strategy, Pipelined):
            hint = Worded(
                "leave start out, or take one that searches, such as auto",
                "leave --start out, or take one that searches, such as auto",
            )
            raise StrategyMismatch(f"{strategy.name} does not start from a plan", hint=hint)
        other = graphs_differ(plan.graph, graph)
        if other is not None:
            raise UsageError(
                f"the plan to start from is for a different graph: {other}", hint="start from a plan of this graph"
            )
        report = check(plan)
        if not report.valid:
            worst = next(f for f in report.findings if f.severity == "error")
            raise UsageError(f"the plan to start from is invalid: {worst.message}", hint="see remat check")
        if host is not None:
            return _with_host(plan, graph, host)
        if plan.copies:
            raise UsageError(
                "the plan to start from copies values to a host", hint=Worded("give a host", "add --host-bandwidth")
            )
        schedule = priced(graph, [s.node for s in plan.statements if isinstance(s, Compute)])
        firsts = [k for k in dict.fromkeys(schedule.computes) if not graph.moves_freely(k)]
        if firsts != sorted(firsts) and not reorder:
            raise UsageError(
                "the plan to start from runs the nodes in another order",
                hint=Worded("set reorder=True", "add --reorder"),
            )
        found = Found(Schedule(schedule.computes), exhausted=False, maker=_known_maker(plan.strategy))
        return cls(found, report.replay.time if graph.overlaps else schedule.cost, schedule.peak_bytes)

    def document(self) -> dict[str, float]:
        """The start as a plan's provenance records it."""
        return {"cost": plain_number(self.cost), "peak_memory": self.peak_bytes}

    def credited(self, found: Found) -> Found:
        """``found``, credited to the maker of the old plan if it is that plan's schedule."""
        same = found.schedule == self.found.schedule
        return replace(found, maker=self.found.maker) if same else found


def _with_host(plan: Plan, graph: Graph, host: Host) -> WarmStart:
    """The start for a search with copies.

    Raises:
        UsageError: If the plan runs its nodes in another order, or no schedule has its copies.
    """
    computes = tuple(s.node for s in plan.statements if isinstance(s, Compute))
    firsts = list(dict.fromkeys(computes))
    if firsts != sorted(firsts):
        raise UsageError(
            "the plan to start from runs the nodes in another order", hint="with a host, nodes run in document order"
        )
    schedule = Schedule(computes, copying=copying_of(plan.statements))
    before = replay(graph, plan.statements, host=host)
    if host.memory_bytes is not None and before.host_peak_bytes > host.memory_bytes:
        raise UsageError(
            f"the plan to start from needs {format_bytes(before.host_peak_bytes)} of host memory",
            hint=Worded(
                f"there are {format_bytes(host.memory_bytes)}: give the host more memory_bytes",
                f"there are {format_bytes(host.memory_bytes)}: give more with --host-memory",
            ),
        )
    try:
        replayed = replay(graph, derive(graph, computes, copying=schedule.copying), host=host)
    except ValueError:
        replayed = None
    if (
        replayed is None
        or not replayed.valid
        or replayed.peak_bytes > before.peak_bytes
        or replayed.time > before.time * (1 + SAME_COST)
    ):
        raise UsageError(
            "the plan to start from copies in another way than searches do: values twice, or instances made anew",
            hint="start from a plan that remat has made",
        )
    found = Found(schedule, exhausted=False, maker=_known_maker(plan.strategy))
    return WarmStart(found, replayed.time, replayed.peak_bytes)


def _known_maker(text: str) -> str:
    """A strategy as a plan names it; empty if there is no such strategy here."""
    try:
        strategy_from_spec(text)
    except UsageError:
        return ""
    return text


def carried(graph: Graph, plans: Sequence[Plan], budget_bytes: int) -> Plan | None:
    """The cheapest plan of ``graph`` within the budget that computes as one of ``plans`` does; None if none fits.

    Plans for graphs of other forms are passed over. Nothing is searched. A plan for a larger form has the same sequence
    of computes, so each of its statements needs as much or less here; its peak is nevertheless computed on ``graph``
    itself. Without recomputation is tried too. A plan with copies keeps its statements.
    """
    same = [plan for plan in plans if same_form(graph, plan.graph)]
    if not same:
        return None
    candidates = [
        _without_copies(graph, same, budget_bytes),
        *(_with_copies(graph, plan, budget_bytes) for plan in same),
    ]
    fitting = [plan for plan in candidates if plan is not None and check(plan, budget_bytes=budget_bytes).ok]
    return min(fitting, key=lambda plan: plan.claim.cost, default=None)


def _without_copies(graph: Graph, plans: Sequence[Plan], budget_bytes: int) -> Plan | None:
    sequences = [tuple(range(len(graph.nodes)))]
    sequences += [tuple(s.node for s in plan.statements if isinstance(s, Compute)) for plan in plans]
    sequences = [prune(graph, sequence) for sequence in sequences]
    fitting = [sequence for sequence in sequences if peak(graph, sequence) <= budget_bytes]
    if not fitting:
        return None
    objective = objective_of(graph, None, budget_bytes)
    costs = [objective.cost(Schedule(sequence)) for sequence in fitting]
    best = min(range(len(fitting)), key=costs.__getitem__)
    status = ClaimStatus.OPTIMAL if costs[best] <= graph.least_cost else ClaimStatus.FEASIBLE
    return Plan(
        graph=graph,
        statements=objective.statements(Schedule(fitting[best])),
        budget_bytes=budget_bytes,
        claim=Claim(status, costs[best], graph.least_cost, Scope.ANY_ORDER),
        strategy="carried",
        provenance={"remat": __version__},
    )


def _with_copies(graph: Graph, plan: Plan, budget_bytes: int) -> Plan | None:
    """The statements of a plan with copies on ``graph``; None for a plan without."""
    if not plan.copies:
        return None
    replayed = replay(graph, plan.statements, host=plan.host)
    return Plan(
        graph=graph,
        statements=plan.statements,
        budget_bytes=budget_bytes,
        claim=Claim(ClaimStatus.FEASIBLE, replayed.time, graph.least_cost, Scope.ANY_ORDER, copies=Copies.ANY),
        strategy="carried",
        provenance={"remat": __version__},
        host=plan.host,
    )


def in_order_of(plan: Plan, graph: Graph) -> Plan | None:
    """A plan of ``graph`` that computes in the order of ``plan``, which is for the same operations, or for fewer.

    Nodes that only ``graph`` has, such as those that pad the part of a rank, are computed right before each node that
    reads them. So what both graphs have runs in one order, which is that of collectives on all ranks.

    Returns:
        The plan, whatever its peak; None if ``graph`` lacks a node of the plan's, joins them in another way, or has
        collectives of its own.
    """
    own = _own_nodes(plan.graph, graph)
    if own is None:
        return None
    shared = set(own)
    sequence: list[int] = []
    for one in plan.statements:
        if isinstance(one, Compute):
            sequence += [*_needed(graph, own[one.node], shared), own[one.node]]
    for k in sorted(set(range(len(graph.nodes))).difference(sequence)):  # what only the caller reads
        ready = max((sequence.index(graph.producer[v]) for v in graph.nodes[k].inputs), default=-1)
        sequence.insert(ready + 1, k)
    objective = objective_of(graph, None, plan.budget_bytes)
    schedule = Schedule(prune(graph, sequence))
    reordered = len(own) < len(graph.nodes)  # a collective that reads fixed memory may come early, unless it is padded
    return Plan(
        graph=graph,
        statements=objective.statements(schedule),
        budget_bytes=plan.budget_bytes,
        claim=Claim(ClaimStatus.FEASIBLE, objective.cost(schedule), graph.least_cost, Scope.ANY_ORDER),
        strategy="carried",
        provenance={"remat": __version__} | ({"reorder": True, "order": "of another rank"} if reordered else {}),
    )


def _own_nodes(other: Graph, graph: Graph) -> list[int] | None:
    """The node of ``graph`` for each of ``other``, in the same order; None if they are not the same operations."""
    if same_form(graph, other):
        return list(range(len(graph.nodes)))
    numbers = {node.id: k for k, node in enumerate(graph.nodes)}
    own = [numbers.get(node.id, -1) for node in other.nodes]
    shared = set(own)
    if -1 in shared or own != sorted(own):
        return None
    if any(k not in shared and node.queue is not NodeQueue.COMPUTE for k, node in enumerate(graph.nodes)):
        return None
    for theirs, k in zip(other.nodes, own, strict=True):
        mine = graph.nodes[k]
        if (mine.op, mine.phase, len(mine.outputs), mine.recompute, mine.queue) != (
            theirs.op,
            theirs.phase,
            len(theirs.outputs),
            theirs.recompute,
            theirs.queue,
        ):
            return None
        read = {own[other.producer[v]] for v in theirs.inputs}
        if read != _read_through(graph, k, shared):
            return None
    return own


def _read_through(graph: Graph, node: int, shared: Collection[int]) -> set[int]:
    """The nodes of ``shared`` whose values ``node`` reads, by itself or through nodes that are not."""
    found: set[int] = set()
    for value in graph.nodes[node].inputs:
        maker = graph.producer[value]
        found |= {maker} if maker in shared else _read_through(graph, maker, shared)
    return found


def _needed(graph: Graph, node: int, shared: Collection[int]) -> list[int]:
    """The nodes that are not in ``shared`` and that ``node`` reads, those before them first."""
    found: list[int] = []
    for value in graph.nodes[node].inputs:
        maker = graph.producer[value]
        if maker not in shared:
            found += [k for k in (*_needed(graph, maker, shared), maker) if k not in found]
    return found


def same_form(one: Graph, other: Graph) -> bool:
    """Whether two graphs have the same operations in the same order; sizes and costs do not matter."""
    return (
        len(one.nodes) == len(other.nodes)
        and one.outputs == other.outputs
        and all(
            (a.op, a.phase, a.inputs, len(a.outputs), a.recompute)
            == (b.op, b.phase, b.inputs, len(b.outputs), b.recompute)
            for a, b in zip(one.nodes, other.nodes, strict=True)
        )
    )
