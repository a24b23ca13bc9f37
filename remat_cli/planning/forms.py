"""Plans for other forms of a graph: the same operations on other sizes, as shorter batches have them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive, peak, prune
from remat_cli.plan.model import Claim, ClaimStatus, Compute, Plan, Scope
from remat_cli.version import __version__


def carried(graph: Graph, plans: Sequence[Plan], budget_bytes: int) -> Plan | None:
    """The cheapest plan of ``graph`` within the budget that computes as one of ``plans`` does; None if none fits.

    Nothing is searched. A plan for a larger form has the same sequence of computes, so each of its statements needs as
    much or less here; its peak is nevertheless computed on ``graph`` itself. Without recomputation is tried too.

    Args:
        graph: The graph.
        plans: Plans, of which those for graphs of the same form are taken.
        budget_bytes: The budget, fixed memory included.
    """
    same = [plan for plan in plans if same_form(graph, plan.graph)]
    if not same:
        return None
    sequences = [tuple(range(len(graph.nodes)))]
    sequences += [tuple(s.node for s in plan.statements if isinstance(s, Compute)) for plan in same]
    sequences = [prune(graph, sequence) for sequence in sequences]
    fitting = [sequence for sequence in sequences if peak(graph, sequence) <= budget_bytes]
    if not fitting:
        return None
    costs = [math.fsum(graph.nodes[node].cost for node in sequence) for sequence in fitting]
    best = min(range(len(fitting)), key=costs.__getitem__)
    status = ClaimStatus.OPTIMAL if len(fitting[best]) == len(graph.nodes) else ClaimStatus.FEASIBLE
    plan = Plan(
        graph=graph,
        statements=derive(graph, fitting[best]),
        budget_bytes=budget_bytes,
        claim=Claim(status, costs[best], graph.total_cost, Scope.ANY_ORDER),
        strategy="carried",
        provenance={"remat": __version__},
    )
    return plan if check(plan, budget_bytes=budget_bytes).ok else None


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
