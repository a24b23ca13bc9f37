"""What is particular to each strategy."""

from __future__ import annotations

import pytest

from remat_cli.errors import Infeasible, LimitReached, SolverFailed, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.plan.model import ClaimStatus, Compute, Scope
from remat_cli.planning.solving import Solved, SolveOptions, solve
from remat_cli.strategies.base import Context, Found, Schedule, Task
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.published.checkmate_ilp import CheckmateIlp
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

UNIT = build_graph("unit-chain{n=17}")
RISING = build_graph("linear{n=8,sizes=1:2:3:4:5:6:7:8}")
"""A chain whose structure alone does not give the optimum: 32 at a budget of 32 bytes."""
TRAINING = Graph(
    "training",
    (
        Node("a", 1.0, (), (10,), phase=Phase.FORWARD),
        Node("b", 1.0, (0,), (20,), phase=Phase.FORWARD),
        Node("loss", 1.0, (1,), (4,), phase=Phase.LOSS),
        Node("gb", 1.0, (2,), (20,), phase=Phase.BACKWARD),
        Node("ga", 1.0, (3,), (10,), phase=Phase.BACKWARD),
    ),
    outputs=(4,),
)

TWIN = Graph("twin", (*TRAINING.nodes, Node("last", 1.0, (0,), (4,), phase=Phase.BACKWARD)), (4, 5), TRAINING.cost_unit)
"""The same, with the first value read again at the end: no-remat needs 44 bytes where 34 would do."""


def test_checkpoint_all_frees_after_gradients_or_at_the_end() -> None:
    lean = solve(TRAINING, None, SolveOptions(strategy="keep-all"))
    full = solve(TRAINING, None, SolveOptions(strategy="checkpoint-all{to_end=true}"))
    assert lean.report.replay.peak_bytes == no_remat_peak(TRAINING) == 30
    assert full.report.replay.peak_bytes == 10 + 20 + 20 + 10
    assert lean.report.replay.cost == full.report.replay.cost == 5
    assert solve(TRAINING, None, SolveOptions(strategy="checkpoint-all")).plan.statements == lean.plan.statements


@pytest.mark.parametrize("name", ["vgg16", "unet", "mobilenet-v1"])
def test_checkpoint_all_takes_what_a_framework_takes(name: str) -> None:
    """Activations are there from their forward node to the last backward node that reads them."""
    graph = build_graph(f"{name}{{batch=1}}")
    change = [0] * (len(graph.nodes) + 1)
    for v, size in enumerate(graph.size):
        last = max((j for j in graph.readers[v]), default=graph.producer[v])
        change[graph.producer[v]] += size
        change[len(graph.nodes) if v in graph.outputs else last + 1] -= size
    used = [sum(change[: k + 1]) + node.workspace for k, node in enumerate(graph.nodes)]
    solved = solve(graph, None, SolveOptions(strategy="checkpoint-all"))
    assert solved.report.replay.peak_bytes == graph.fixed_memory + max(used)
    kept = solve(graph, None, SolveOptions(strategy="checkpoint-all{to_end=true}")).report.replay.peak_bytes
    assert kept > solved.report.replay.peak_bytes


def test_checkpoint_all_needs_phases() -> None:
    with pytest.raises(StrategyMismatch, match="node n0 has no phase"):
        solve(Graph("g", (Node("n0", 1.0, (), (1,)),), (0,)), None, SolveOptions(strategy="checkpoint-all"))


@pytest.mark.parametrize("strategy", ["keep-all", "checkpoint-all{to_end=true}"])
def test_a_strategy_that_pays_no_heed_to_the_budget_says_so(strategy: str) -> None:
    with pytest.raises(Infeasible, match=f"the plan of {strategy} needs"):
        solve(TWIN if strategy == "keep-all" else TRAINING, 35, SolveOptions(strategy=strategy))


def test_auto_takes_keep_all_when_it_fits() -> None:
    solved = solve(UNIT, "100%")
    assert solved.plan.strategy == "keep-all"
    assert solved.plan.solver is None
    assert (solved.plan.claim.status, solved.plan.claim.scope) == (ClaimStatus.OPTIMAL, Scope.ANY_ORDER)
    assert solved.report.overhead == 0


def test_auto_takes_the_milp_when_it_does_not() -> None:
    solved = solve(RISING, 32)
    assert solved.plan.strategy == "optimal"
    assert solved.plan.solver == "highs"
    assert solved.plan.claim.cost == 32
    assert solved.plan.claim.lower_bound == 32
    assert (solved.plan.claim.status, solved.plan.claim.scope) == (ClaimStatus.OPTIMAL, Scope.DOCUMENT_ORDER)
    assert solved.outcome == "finished"


@pytest.mark.parametrize("solver", ["cbc", "glpk", "gurobi"])
def test_every_solver_finds_the_same_optimum(solver: str) -> None:
    solved = solve(RISING, 32, SolveOptions(solver=solver))
    assert (solved.plan.claim.cost, solved.plan.solver) == (32, solver)
    assert solved.plan.claim.status is ClaimStatus.OPTIMAL


def test_relaxation_gives_a_bound_and_no_plan() -> None:
    with pytest.raises(
        LimitReached, match=r"(?m)only the bound .* every frontier-advancing plan costs at least 22 units$"
    ):
        solve(UNIT, 4, SolveOptions(strategy="checkmate-ilp{relax=true}"))


def test_infeasible_names_the_node_and_the_missing_bytes() -> None:
    with pytest.raises(Infeasible) as caught:
        solve(TRAINING, 29)
    assert caught.value.message == (
        "no plan fits a budget of 29 bytes: node b alone needs 30 B (its inputs, outputs and workspace), "
        "1 byte too much"
    )
    assert caught.value.hint == "recomputation cannot help: 30 bytes is needed, and is enough without any"


def test_infeasible_for_the_milp_gives_the_smallest_budget_that_works() -> None:
    # Least peak of the unit training chain is 3, its working sets are 3; a wide join forces more.
    nodes = (
        *(Node(f"s{i}", 1.0, (), (1,), recompute=False) for i in range(4)),
        *(Node(f"r{i}", 1.0, (i,), (1,)) for i in range(4)),
    )
    graph = Graph("g", nodes, (7,))
    with pytest.raises(Infeasible) as caught:
        solve(graph, 4)
    assert caught.value.message.startswith("no schedule in document order fits a budget of 4 bytes")
    assert "every plan in document order needs at least 5 bytes" in caught.value.hint
    with pytest.raises(Infeasible) as caught:
        solve(graph, 4, SolveOptions(strategy="checkmate-ilp"))
    assert caught.value.message == "no frontier-advancing schedule fits a budget of 4 bytes"
    assert caught.value.hint == (
        "the smallest budget known to work is 5 bytes; every frontier-advancing plan needs at least 5 bytes"
    )


def test_time_limit_without_a_plan() -> None:
    with pytest.raises(LimitReached, match="no plan"):
        solve(build_graph("linear{n=300}"), "30%", SolveOptions(strategy="checkmate-ilp", time_limit_s=0.2))


def test_a_solver_that_fails_after_a_first_plan_does_not_take_it_along(monkeypatch: pytest.MonkeyPatch) -> None:
    found = solve(UNIT, 6)

    def after_a_plan(self: CheckmateIlp, task: Task, context: Context) -> Found:
        context.publish(Found(Schedule(_computes(found)), exhausted=False))
        raise SolverFailed("HiGHS crashed: last words")

    monkeypatch.setattr(CheckmateIlp, "solve", after_a_plan)
    kept = solve(UNIT, 6, SolveOptions(strategy="checkmate-ilp"))
    assert str(kept.ending) == "solver failed: HiGHS crashed: last words"
    assert kept.plan.claim.cost == 21
    assert kept.plan.claim.status is ClaimStatus.FEASIBLE


def _computes(solved: Solved) -> tuple[int, ...]:
    return tuple(s.node for s in solved.plan.statements if isinstance(s, Compute))


def test_option_values_that_mean_nothing() -> None:
    with pytest.raises(UsageError, match="stage needs at least one pass"):
        strategy_from_spec("checkmate-ilp{stage_split=0}")
    with pytest.raises(UsageError, match='no option "split"'):
        strategy_from_spec("checkmate-ilp{split=2}")
    for bad in ({"gap": 1.0}, {"gap": -0.1}, {"time_limit_s": 0.0}, {"threads": 0}):
        with pytest.raises(UsageError):
            SolveOptions(**bad)  # type: ignore[arg-type]


def test_bounds_are_rounded_up_only_as_far_as_costs_allow() -> None:
    assert safe_bound(UNIT, None) == 17
    assert safe_bound(UNIT, 3.0) == 17
    assert safe_bound(UNIT, 21.5) == 22
    assert safe_bound(UNIT, 22.0000001) == 22, "a solver's tolerance must not push the bound up"
    even = Graph("g", tuple(Node(f"n{i}", 2.0, (), (1,)) for i in range(10)), (9,))
    assert safe_bound(even, 20.5) == 22
    broken = Graph("g", (Node("a", 0.5, (), (1,)), Node("b", 1.0, (0,), (1,))), (1,))
    assert safe_bound(broken, 2.25) == pytest.approx(2.25, rel=1e-5)
    assert safe_bound(broken, 2.25) < 2.25
