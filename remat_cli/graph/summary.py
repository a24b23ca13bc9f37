"""A graph in numbers: its size, its costliest and largest parts, and budgets worth trying."""

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from remat_cli.graph.analysis import no_remat_profile, peak_bound, working_sets
from remat_cli.graph.model import Graph, NodeQueue, Phase
from remat_cli.graph.splitting import least_in_parts

_LARGEST = 5
_PERCENTAGES = (95, 90, 80, 70, 60, 50, 40, 30, 20, 10)
_FEW = 3


@dataclass(frozen=True, slots=True)
class Sized:
    """A node or value by name, and its bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class OpShare:
    """All nodes of one kind of operation.

    Attributes:
        op: The kind; None for nodes without one.
        nodes: Number of such nodes.
        cost: Cost of computing each once, in the graph's cost unit.
        bytes: Bytes of all their outputs.
    """

    op: str | None
    nodes: int
    cost: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Costly:
    """A node by name, and the cost of one computation."""

    name: str
    cost: float


@dataclass(frozen=True, slots=True)
class Divisible:
    """A region by name, the numbers of parts in which it may run, and what is divided."""

    name: str
    parts: tuple[int, ...]
    along: str


@dataclass(frozen=True, slots=True)
class BudgetHint:
    """A budget worth trying.

    Attributes:
        percent: Share of the no-remat peak, rounded up to one decimal for the bound; ``--budget 80%`` means the same.
        bytes: The same in bytes, fixed memory included, floored.
        possible: Whether it is at least the bound; a plan need not exist.
    """

    percent: float
    bytes: int
    possible: bool


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """A graph in numbers. Bytes include fixed memory where they are of a peak, a bound or a budget.

    Attributes:
        name: Of the graph.
        cost_unit: Unit of all costs.
        nodes: Number of nodes n.
        values: Number of values V.
        edges: Number of (value, reader) pairs.
        phases: Nodes of each phase, in the order of :class:`Phase`; ``None`` counts those without.
        total_cost: Of computing every node once, of all queues together.
        communication_cost: The part of it in the communication queue, which is at work beside computations.
        no_remat_cost: C0: ``total_cost``, or with collectives the time of every node once (see ``Graph``).
        value_bytes: Of all values together.
        fixed_bytes: Fixed memory.
        output_bytes: Of the values that are resident at the end.
        outputs: How many those are.
        no_remat_peak_bytes: P0.
        no_remat_peak_node: The first node at which it is reached; None for a graph without nodes.
        bound_bytes: No plan has a smaller peak.
        bound_node: The node or operation whose working set that is; None for the outputs at the end.
        regions: Regions that may run in parts.
        whole_bound_bytes: No plan with whole operations has a smaller peak.
        working_sets: The largest, by node; fixed memory not counted.
        largest_values: The largest values.
        ops: Kinds of operation, the costliest first.
        costliest: The costliest nodes.
        zero_cost_nodes: Nodes that cost nothing.
        only_once_nodes: Nodes with ``recompute: false``.
        longest_path: Nodes on the longest path.
        is_chain: Whether every node but the first reads the node before it and nothing else.
        budgets: Budgets worth trying, the largest first.
    """

    name: str
    cost_unit: str
    nodes: int
    values: int
    edges: int
    phases: tuple[tuple[Phase | None, int], ...]
    total_cost: float
    communication_cost: float
    no_remat_cost: float
    value_bytes: int
    fixed_bytes: int
    output_bytes: int
    outputs: int
    no_remat_peak_bytes: int
    no_remat_peak_node: str | None
    bound_bytes: int
    bound_node: str | None
    regions: tuple[Divisible, ...]
    whole_bound_bytes: int
    working_sets: tuple[Sized, ...]
    largest_values: tuple[Sized, ...]
    ops: tuple[OpShare, ...]
    costliest: tuple[Costly, ...]
    zero_cost_nodes: int
    only_once_nodes: int
    longest_path: int
    is_chain: bool
    budgets: tuple[BudgetHint, ...]


def summarize(graph: Graph) -> GraphSummary:
    """Describe ``graph``, in time linear in its edges, except for sorting."""
    profile = no_remat_profile(graph)
    top = max(range(len(profile)), key=profile.__getitem__, default=None)
    peak = graph.fixed_memory if top is None else profile[top]
    split = least_in_parts(graph)
    bound = peak_bound(split)
    counts = Counter(node.phase for node in graph.nodes)
    sets = working_sets(graph)
    costs = [node.cost for node in graph.nodes]
    return GraphSummary(
        name=graph.name,
        cost_unit=graph.cost_unit,
        nodes=len(graph.nodes),
        values=len(graph.size),
        edges=graph.edges,
        phases=tuple((phase, counts[phase]) for phase in (*Phase, None) if counts[phase]),
        total_cost=graph.total_cost,
        communication_cost=graph.cost_in(NodeQueue.COMMUNICATION),
        no_remat_cost=graph.no_remat_cost,
        value_bytes=sum(graph.size),
        fixed_bytes=graph.fixed_memory,
        output_bytes=sum(graph.size[v] for v in graph.outputs),
        outputs=len(graph.outputs),
        no_remat_peak_bytes=peak,
        no_remat_peak_node=None if top is None else graph.nodes[top].id,
        bound_bytes=bound.bytes,
        bound_node=None if bound.node is None else split.nodes[bound.node].id,
        regions=tuple(Divisible(region.id, region.parts, region.along) for region in graph.splits),
        whole_bound_bytes=peak_bound(graph).bytes,
        working_sets=tuple(Sized(graph.nodes[i].id, sets[i]) for i in _top(sets)),
        largest_values=tuple(Sized(graph.value_name(v), graph.size[v]) for v in _top(graph.size)),
        ops=_ops(graph),
        costliest=tuple(Costly(graph.nodes[i].id, costs[i]) for i in _top(costs)),
        zero_cost_nodes=sum(cost == 0 for cost in costs),
        only_once_nodes=sum(not node.recompute for node in graph.nodes),
        longest_path=_longest_path(graph),
        is_chain=_is_chain(graph),
        budgets=budgets_worth_trying(peak, bound.bytes),
    )


def budgets_worth_trying(no_remat_peak_bytes: int, bound_bytes: int) -> tuple[BudgetHint, ...]:
    """Budgets below the no-remat peak, down to the bound and one step further, which is impossible.

    If fewer than three round percentages lie above the bound, points between bound and peak replace them. There are
    none if no plan can save memory.
    """
    peak, bound = no_remat_peak_bytes, bound_bytes
    if bound >= peak:
        return ()
    round_ones = [BudgetHint(float(p), p * peak // 100, p * peak // 100 >= bound) for p in _PERCENTAGES]
    hints = [hint for hint in round_ones if hint.possible]
    if len(hints) < _FEW:
        hints = [_hint(bound + (peak - bound) * k // 4, peak) for k in (3, 2, 1)]
    least = _hint(bound, peak)
    below = [hint for hint in round_ones if not hint.possible and hint.percent < least.percent][:1]
    chosen = {hint.bytes: hint for hint in (*hints, least, *below)}  # no two hints with the same bytes
    return tuple(sorted(chosen.values(), key=lambda hint: -hint.bytes))


def _hint(amount: int, peak: int) -> BudgetHint:
    """``amount`` bytes, rounded up to a tenth of a percent of the peak if that is below the peak."""
    tenths = -(-1000 * amount // peak)
    rounded = tenths * peak // 1000
    if amount <= rounded < peak:
        return BudgetHint(tenths / 10, rounded, True)
    return BudgetHint(100 * amount / peak, amount, True)


def _top(amounts: Iterable[float]) -> list[int]:
    """Indices of the largest amounts, in order for equal ones; zeros are left out."""
    largest = heapq.nlargest(_LARGEST, ((amount, -i) for i, amount in enumerate(amounts) if amount > 0))
    return [-i for _, i in largest]


def _ops(graph: Graph) -> tuple[OpShare, ...]:
    members: dict[str | None, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        members.setdefault(node.op, []).append(i)
    shares = [
        OpShare(
            op,
            len(nodes),
            math.fsum(graph.nodes[i].cost for i in nodes),
            sum(sum(graph.nodes[i].outputs) for i in nodes),
        )
        for op, nodes in members.items()
    ]
    return tuple(sorted(shares, key=lambda share: (-share.cost, -share.bytes, share.op or "")))


def _longest_path(graph: Graph) -> int:
    """Nodes on the longest path of reads."""
    depth: list[int] = []
    for node in graph.nodes:
        depth.append(1 + max((depth[graph.producer[v]] for v in node.inputs), default=0))
    return max(depth, default=0)


def _is_chain(graph: Graph) -> bool:
    """Whether every node but the first reads the node before it and nothing else."""
    return bool(graph.nodes) and all(
        {graph.producer[v] for v in node.inputs} == ({i - 1} if i else set()) for i, node in enumerate(graph.nodes)
    )
