"""Graphs and plans for measurements; the same numbers give the same data on every machine."""

from __future__ import annotations

import random
from math import isqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph
    from remat_cli.plan.model import Plan

_WINDOW = 200
"""Farthest distance, in nodes, of the values that a node of a random graph reads: networks read locally."""


def random_dag(n: int, *, inputs: int = 3) -> Graph:
    """A graph of ``n`` nodes with one value each; each node reads ``inputs`` of the last values (or all there are)."""
    from remat_cli.graph.model import Graph, Node, Phase

    rng = random.Random(n)
    nodes = []
    for i in range(n):
        earlier = range(max(0, i - _WINDOW), i)
        nodes.append(
            Node(
                id=f"block{i // 50}/operation{i}",
                cost=float(rng.randint(1, 10**9)),
                inputs=tuple(sorted(rng.sample(earlier, min(inputs, len(earlier))))),
                outputs=(4 * rng.randint(1, 10**7),),
                op="operation",
                phase=Phase.FORWARD if i < n // 2 else Phase.BACKWARD,
            )
        )
    return Graph(f"random-{n}", tuple(nodes), (n - 1,), cost_unit="flops", fixed_memory=2**30)


def training_chain(n: int) -> Graph:
    """The unit training chain of ``n`` nodes: node i below the middle also feeds node n - 1 - i."""
    from remat_cli.zoo.registry import build_graph

    return build_graph(f"unit-chain{{n={n}}}")


def random_recomputes(n: int) -> tuple[int, ...]:
    """Computes for ``random_dag(n)``: on average, before every second node one of its inputs is recomputed."""
    rng = random.Random(n + 1)
    graph = random_dag(n)
    computes: list[int] = []
    for i, node in enumerate(graph.nodes):
        if node.inputs and rng.random() < 0.5:
            computes.append(graph.producer[rng.choice(node.inputs)])
        computes.append(i)
    return tuple(computes)


def segment_recomputes(n: int) -> tuple[int, ...]:
    """Computes for ``training_chain(n)``, n even: keep sqrt(n/2) forward nodes, recompute the segments between."""
    half = n // 2
    length = isqrt(half)
    computes = list(range(half))
    for start in reversed(range(0, half, length)):
        end = min(start + length, half)
        if end < half:
            computes.extend(range(start + 1, end))
        computes.extend(n - 1 - i for i in reversed(range(start, end)))
    return tuple(computes)


def case(family: str, n: int) -> tuple[Graph, tuple[int, ...]]:
    """The graph and the computes of a family: ``training chain`` or ``random DAG``."""
    if family == "training chain":
        return training_chain(n), segment_recomputes(n)
    return random_dag(n), random_recomputes(n)


def plan_of(graph: Graph, computes: tuple[int, ...]) -> Plan:
    """The plan that runs ``computes``, with no budget and an honest claim."""
    from remat_cli.plan.derive import derive
    from remat_cli.plan.liveness import cost_of
    from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope

    return Plan(
        graph=graph,
        statements=derive(graph, computes),
        budget_bytes=None,
        claim=Claim(ClaimStatus.FEASIBLE, cost_of(graph, computes), graph.total_cost, Scope.ANY_ORDER),
        strategy="benchmark",
    )
