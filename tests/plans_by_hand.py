"""Plans for any graph without a solver: each node once, or many of them again at random places."""

import random

from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope


def plan_of(graph: Graph, computes) -> Plan:
    """A plan that computes these nodes in this order."""
    claim = Claim(ClaimStatus.FEASIBLE, sum(graph.nodes[i].cost for i in computes), 0.0, Scope.ANY_ORDER)
    return Plan(graph, derive(graph, computes), None, claim, "by-hand")


def plain(graph: Graph) -> Plan:
    """The plan without recomputation."""
    return plan_of(graph, range(len(graph.nodes)))


def repeated(graph: Graph, seed: int = 3, share: float = 0.1) -> list[int]:
    """A schedule with recomputations of many nodes, at random places, the random ones among them."""
    source = random.Random(seed)
    computes = []
    for node in range(len(graph.nodes)):
        computes += [i for i in range(node) if graph.nodes[i].recompute and source.random() < share]
        computes.append(node)
    return computes
