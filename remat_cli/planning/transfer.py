"""Plans for other forms of a graph: the same operations on other sizes, as shorter batches have them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive, peak, prune
from remat_cli.plan.model import Claim, ClaimStatus, Compute, Copies, Plan, Scope
from remat_cli.plan.replay import replay
from remat_cli.version import __version__


def carried(graph: Graph, plans: Sequence[Plan], budget_bytes: int) -> Plan | None:
    """The cheapest plan of ``graph`` within the budget that computes as one of ``plans`` does; None if none fits.

    Nothing is searched. A plan for a larger form has the same sequence of computes, so each of its statements needs as
    much or less here; its peak is nevertheless computed on ``graph`` itself. Without recomputation is tried too. A plan
    with copies keeps its statements.

    Args:
        graph: The graph.
        plans: Plans, of which those for graphs of the same form are taken.
        budget_bytes: The budget, fixed memory included.
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
    costs = [math.fsum(graph.nodes[node].cost for node in sequence) for sequence in fitting]
    best = min(range(len(fitting)), key=costs.__getitem__)
    status = ClaimStatus.OPTIMAL if len(fitting[best]) == len(graph.nodes) else ClaimStatus.FEASIBLE
    return Plan(
        graph=graph,
        statements=derive(graph, fitting[best]),
        budget_bytes=budget_bytes,
        claim=Claim(status, costs[best], graph.total_cost, Scope.ANY_ORDER),
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
        claim=Claim(ClaimStatus.FEASIBLE, replayed.time, graph.total_cost, Scope.ANY_ORDER, copies=Copies.ANY),
        strategy="carried",
        provenance={"remat": __version__},
        host=plan.host,
    )


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
