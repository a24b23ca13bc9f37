"""A graph in numbers."""

import random

import pytest
from families import graphs, random_graph
from hypothesis import given

from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.summary import BudgetHint, OpShare, Sized, budgets_worth_trying, summarize
from remat_cli.units import parse_budget

DIAMOND = Graph(
    "diamond",
    (
        Node("a", 1.0, (), (10,), op="conv", phase=Phase.FORWARD),
        Node("b", 2.0, (0,), (20, 0), op="conv", phase=Phase.FORWARD),
        Node("c", 0.0, (0,), (30,), workspace=5, phase=Phase.LOSS),
        Node("d", 4.0, (1, 3), (1,), op="add", phase=Phase.BACKWARD, recompute=False),
    ),
    (4,),
    cost_unit="us",
    fixed_memory=100,
)


def test_diamond() -> None:
    summary = summarize(DIAMOND)
    assert (summary.nodes, summary.values, summary.edges) == (4, 5, 4)
    assert summary.phases == ((Phase.FORWARD, 2), (Phase.LOSS, 1), (Phase.BACKWARD, 1))
    assert (summary.total_cost, summary.value_bytes, summary.fixed_bytes) == (7.0, 61, 100)
    assert (summary.outputs, summary.output_bytes) == (1, 1)
    assert (summary.no_remat_peak_bytes, summary.no_remat_peak_node) == (165, "c")
    assert (summary.bound_bytes, summary.bound_node) == (151, "d")
    assert summary.working_sets == (Sized("d", 51), Sized("c", 45), Sized("b", 30), Sized("a", 10))
    assert summary.largest_values == (Sized("c:0", 30), Sized("b:0", 20), Sized("a:0", 10), Sized("d:0", 1))
    assert summary.ops == (OpShare("add", 1, 4.0, 1), OpShare("conv", 2, 3.0, 30), OpShare(None, 1, 0.0, 30))
    assert [item.name for item in summary.costliest] == ["d", "b", "a"]
    assert (summary.zero_cost_nodes, summary.only_once_nodes) == (1, 1)
    assert (summary.longest_path, summary.is_chain) == (3, False)


def test_chains() -> None:
    chain = Graph("chain", tuple(Node(f"n{i}", 1.0, (i - 1,) if i else (), (1,)) for i in range(5)), (4,))
    assert summarize(chain).is_chain
    assert summarize(chain).longest_path == 5
    assert not summarize(Graph("two", (Node("a", 1.0, (), (1,)), Node("b", 1.0, (), (1,))), (1,))).is_chain
    assert not summarize(Graph("none", (), ())).is_chain


def test_empty_graph() -> None:
    summary = summarize(Graph("none", (), (), fixed_memory=7))
    assert (summary.no_remat_peak_bytes, summary.no_remat_peak_node, summary.bound_bytes) == (7, None, 7)
    assert summary.budgets == ()


def test_budgets_go_down_to_the_bound_and_one_step_further() -> None:
    assert budgets_worth_trying(1000, 650) == (
        BudgetHint(95.0, 950, True),
        BudgetHint(90.0, 900, True),
        BudgetHint(80.0, 800, True),
        BudgetHint(70.0, 700, True),
        BudgetHint(65.0, 650, True),
        BudgetHint(60.0, 600, False),
    )


def test_budgets_between_a_high_bound_and_the_peak() -> None:
    hints = budgets_worth_trying(10_000, 9_600)
    assert [hint.bytes for hint in hints] == [9900, 9800, 9700, 9600, 9500]
    assert [hint.percent for hint in hints] == [99.0, 98.0, 97.0, 96.0, 95.0]
    assert [hint.possible for hint in hints] == [True, True, True, True, False]


def test_no_budget_is_worth_trying_when_nothing_can_be_saved() -> None:
    assert budgets_worth_trying(10, 10) == ()
    assert budgets_worth_trying(0, 0) == ()


@pytest.mark.parametrize("bound", [1, 3, 499, 500, 501, 899, 999])
@pytest.mark.parametrize("peak", [1000, 1001, 13_862_749_539])
def test_budgets_can_be_asked_for_as_shown(peak: int, bound: int) -> None:
    bound = bound * peak // 1000
    for hint in budgets_worth_trying(peak, bound):
        assert hint.possible == (hint.bytes >= bound)
        assert hint.bytes < peak
        if hint.percent * 10 == int(hint.percent * 10):
            assert parse_budget(f"{hint.percent:.4g}%").bytes_for(peak) == hint.bytes


@given(graph=graphs(payloads=False))
def test_any_graph(graph: Graph) -> None:
    summary = summarize(graph)
    assert summary.no_remat_peak_bytes == no_remat_peak(graph)
    assert summary.bound_bytes == peak_bound(graph).bytes <= summary.no_remat_peak_bytes
    assert sum(number for _, number in summary.phases) == summary.nodes
    assert sum(share.nodes for share in summary.ops) == summary.nodes
    assert sum(share.bytes for share in summary.ops) == summary.value_bytes
    assert [hint.bytes for hint in summary.budgets] == sorted({h.bytes for h in summary.budgets}, reverse=True)


def test_20000_nodes_are_quick() -> None:
    summary = summarize(random_graph(random.Random(1), 20_000))
    assert summary.nodes == 20_000
