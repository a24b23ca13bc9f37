"""Graphs, plans and random reports for the tests of reports."""

import math
from collections.abc import Sequence
from typing import Any

from families import graphs
from hypothesis import strategies as st

from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.plan.check import Report, check
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope
from remat_cli.reports.style import Style

LAYERS = 12


def training_chain(layers: int = LAYERS, fixed_memory: int = 1_230_000_000, prefix: str = "conv") -> Graph:
    """Forward, loss, backward, with activations that shrink."""
    sizes = [int(3.3e9 / (1 + 0.7 * i)) for i in range(layers)]
    nodes = [
        Node(
            id=f"{prefix}{i // 2}_{i % 2}",
            cost=1e11 * (1 + i % 3),
            inputs=(i - 1,) if i else (),
            outputs=(sizes[i],),
            workspace=5_000_000,
            op="conv2d",
            phase=Phase.FORWARD,
        )
        for i in range(layers)
    ]
    nodes.append(Node("loss", 0.0, (layers - 1,), (4,), recompute=False, op="loss", phase=Phase.LOSS))
    for i in reversed(range(layers)):
        inputs = {i, len(nodes) - 1} | ({i - 1} if i else set())
        nodes.append(
            Node(
                id=f"grad_{nodes[i].id}",
                cost=2 * nodes[i].cost,
                inputs=tuple(sorted(inputs)),
                outputs=(sizes[i],),
                op="conv2d_backward",
                phase=Phase.BACKWARD,
            )
        )
    return Graph("vgg-like", tuple(nodes), (len(nodes) - 1,), cost_unit="flops", fixed_memory=fixed_memory)


def checkpointed(layers: int = LAYERS, segment: int = 4) -> list[int]:
    """Computes of :func:`training_chain` that recompute every segment but the last before its backward nodes."""
    computes = list(range(layers + 1))
    for i in reversed(range(layers)):
        if i % segment == segment - 1 and i < layers - 1:
            computes += range(i - segment + 1 + (i >= segment), i + 1)
        computes.append(2 * layers - i)
    return computes


def plan_of(
    graph: Graph,
    computes: Sequence[int],
    budget_bytes: int | None,
    *,
    status: ClaimStatus = ClaimStatus.OPTIMAL,
    bound_share: float = 1.0,
    scope: Scope = Scope.FRONTIER,
    asked: str = "",
    solver: str | None = "highs",
) -> Plan:
    """A plan that claims ``bound_share`` of its cost as its lower bound."""
    cost = math.fsum(graph.nodes[i].cost for i in computes)
    return Plan(
        graph=graph,
        statements=derive(graph, computes),
        budget_bytes=budget_bytes,
        claim=Claim(status, cost, cost * bound_share, scope),
        strategy="checkmate-ilp" if solver else "keep-all",
        solver=solver,
        solver_version="1.15.1" if solver else None,
        provenance={"budget": asked} if asked else {},
    )


STYLES = st.builds(Style, width=st.integers(20, 130), color=st.booleans(), unicode=st.booleans())


@st.composite
def plans(draw: st.DrawFn, **options: Any) -> Plan:
    """Any plan, good or bad: recomputations anywhere, statements lost, any claim, any budget."""
    graph = draw(graphs(payloads=False, **options))
    computes: list[int] = []
    for node in range(len(graph.nodes)):
        computes += [*draw(st.lists(st.integers(0, node - 1), max_size=3) if node else st.just([])), node]
    statements = list(derive(graph, computes))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 3))):
            if statements:
                statements.pop(draw(st.integers(0, len(statements) - 1)))
    amounts = st.floats(0, 1e200, allow_nan=False)
    cost = math.fsum(graph.nodes[i].cost for i in computes)
    return Plan(
        graph=graph,
        statements=tuple(statements),
        budget_bytes=draw(st.none() | st.integers(0, 2**43)),
        claim=Claim(
            draw(st.sampled_from(ClaimStatus)),
            draw(st.just(cost) | amounts),
            draw(st.sampled_from([0.0, cost, cost / 2]) | amounts),
            draw(st.sampled_from(Scope)),
        ),
        strategy=draw(st.sampled_from(["keep-all", "checkmate-ilp{stage_split=2}", "[bold]odd[/bold]"])),
        solver=draw(st.none() | st.just("highs")),
        provenance={"budget": draw(st.sampled_from(["", "80%", "1GB", "[red]"]))},
    )


def report_of(plan: Plan, **options: Any) -> Report:
    return check(plan, **options)
