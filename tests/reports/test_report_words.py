"""Exactly what is claimed, and no more."""

import dataclasses

import pytest
from report_cases import checkpointed, plan_of, training_chain

from remat_cli.control import Ending, Outcome
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.check import check
from remat_cli.plan.derive import peak
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.reports.plan import plan_text
from remat_cli.reports.style import Style
from remat_cli.reports.words import certainty, cost_column, cost_words, share_column, size_column, verdict

GRAPH = training_chain()
COMPUTES = checkpointed()
PEAK = peak(GRAPH, COMPUTES)
FREE = Graph("free", (Node("a", 0.0, (), (4,)), Node("b", 2.0, (0,), (4,))), (1,))


def test_costs_that_are_times_have_the_unit_of_a_time():
    for amount, unit, words in (
        (513_000, "us", "513 ms"),
        (29145, "us", "29.14 ms"),
        (0.5, "us", "500 ns"),
        (999.97, "us", "1 ms"),
        (4321, "s", "4321 s"),
        (0, "ms", "0 ms"),
        (0.25, "ns", "0.25 ns"),
        (513_000, "flops", "513 k flops"),
    ):
        assert cost_words(amount, unit) == words
    assert cost_column([29145.0, 1200.0, 3.0], "us") == ["+29.14 ms", "+1.20 ms", "+<0.01 ms"]


@pytest.mark.parametrize(
    ("status", "share", "scope", "words"),
    [
        (
            "optimal",
            1.0,
            "frontier",
            "proven optimal among frontier-advancing schedules (frontier); others may be cheaper",
        ),
        ("optimal", 1.0, "any-order", "proven optimal among all schedules, in any order (any-order)"),
        (
            "optimal",
            0.9997,
            "document-order",
            "proven optimal among all schedules in document order (document-order) up to a gap of "
            "0.03% (lower bound 8.497 T flops)",
        ),
        (
            "feasible",
            0.9997,
            "document-order",
            "no schedule in document order (document-order) is more than 0.03% cheaper (lower bound 8.497 T flops)",
        ),
        (
            "feasible",
            0.875,
            "restricted",
            "no proof: the lower bound 7.438 T flops (gap 12.5%) holds only among the schedules that the strategy "
            "searched (restricted)",
        ),
        (
            "feasible",
            0.0,
            "any-order",
            "no proof: the only known bound is the cost without recomputation, 7.2 T flops",
        ),
        (
            "feasible",
            0.5,
            "any-order",
            "no proof: the only known bound is the cost without recomputation, 7.2 T flops",
        ),
        (
            "feasible",
            1.0,
            "chain-persistent",
            "as cheap as the lower bound: no memory-persistent schedule of the chain (chain-persistent) is cheaper; "
            "others may be cheaper",
        ),
        ("optimal", 1.5, "any-order", "contradictory: the claimed lower bound 12.75 T flops is above the cost"),
    ],
)
def test_certainty(status: str, share: float, scope: str, words: str) -> None:
    plan = plan_of(GRAPH, COMPUTES, PEAK, status=ClaimStatus(status), bound_share=share, scope=Scope(scope))
    assert certainty(check(plan)) == words


def test_tiny_gaps_are_not_spelled_out() -> None:
    plan = plan_of(GRAPH, COMPUTES, PEAK, bound_share=1 - 1e-8, scope=Scope.ANY_ORDER)
    assert "up to a gap of less than 0.0001% (lower bound" in certainty(check(plan))


def test_nothing_recomputed_is_certain_whatever_is_claimed() -> None:
    plan = plan_of(GRAPH, range(25), None, status=ClaimStatus.FEASIBLE, bound_share=0.0, scope=Scope.RESTRICTED)
    assert certainty(check(plan)).startswith("certainly optimal")
    assert "nothing is recomputed" in plan_text(check(plan), Style(80, False, True))


def test_free_recomputation_says_so() -> None:
    report = check(plan_of(FREE, [0, 0, 1], None))
    assert "recomputation costs nothing" in plan_text(report, Style(80, False, True))


def test_a_check_says_whose_claim_it_is() -> None:
    report = check(plan_of(GRAPH, COMPUTES, PEAK))
    assert "not verified" in " ".join(plan_text(report, Style(80, False, True), checking=True).split())
    assert "not verified" not in " ".join(plan_text(report, Style(80, False, True)).split())


def test_verdicts() -> None:
    def words(budget: int | None, computes: list[int] = COMPUTES) -> str:
        return verdict(check(plan_of(GRAPH, computes, budget)))

    assert words(PEAK) == "fits"
    assert words(None) == "valid plan"
    assert words(PEAK - 1) == "OVER BUDGET by 1 B"
    assert words(None, COMPUTES[:-1]) == "INVALID PLAN"
    assert words(10**9, COMPUTES[:-1]) == "INVALID PLAN and OVER BUDGET by 9.844 GB"


def test_columns_share_a_unit() -> None:
    assert size_column([3_300_000_000, 868_400_000, 4, 0]) == ["3.300 GB", "0.868 GB", "<0.001 GB", "0.000 GB"]
    assert size_column([999, 0]) == ["999 B", "0 B"]
    assert size_column([12_345_678]) == ["12.35 MB"]
    assert size_column([10**19]) == ["10000 PB"]
    assert size_column([]) == []
    assert cost_column([3e11, 1e9], "flops") == ["+300.0 G flops", "+1.0 G flops"]
    assert cost_column([12, 1], "unit") == ["+12 units", "+1 unit"]
    assert cost_column([1e200], "us") == ["+1.000e+194 s"]


def test_shares() -> None:
    assert share_column([1, 0, 2999], 3000) == ["<0.1%", "0.0%", "100.0%"]
    assert share_column([1.0], 0) == [""]


def test_the_rest_is_counted() -> None:
    graph = Graph(
        "wide",
        (*(Node(f"n{i}", 1.0, (), (10 + i,)) for i in range(30)), Node("sum", 1.0, tuple(range(30)), (1,))),
        (30,),
    )
    text = plan_text(check(plan_of(graph, [*range(29), *range(28), 29, 30], None)), Style(80, False, True))
    assert "and 23 more" in text
    assert "Recomputed: 28 nodes, 28 extra computations" in text
    assert "and 20 more" in text


def test_findings_are_limited() -> None:
    plan = plan_of(GRAPH, COMPUTES, PEAK)
    report = check(dataclasses.replace(plan, statements=plan.statements[:3]))
    text = plan_text(report, Style(80, False, True))
    assert text.count("[never-computed]") == 20
    assert f"  and {len(report.findings) - 20} more" in text
    assert "void: the plan is invalid" in text


def test_the_verdict_alone_says_over_budget() -> None:
    text = plan_text(check(plan_of(GRAPH, COMPUTES, PEAK - 1)), Style(80, False, True))
    assert "OVER BUDGET by 1 B" in text
    assert "Findings" not in text


def test_budget_is_shown_as_asked_and_in_both_parts() -> None:
    text = plan_text(check(plan_of(GRAPH, COMPUTES, 12_476_474_585, asked="90%")), Style(120, False, True))
    assert "90% of no-remat 13.86 GB = 12.48 GB (12,476,474,585 bytes)" in text
    assert "1.23 GB fixed memory + 11.25 GB for values and workspace" in text
    text = plan_text(check(plan_of(GRAPH, COMPUTES, 10**9, asked="1GB")), Style(80, False, True))
    assert "1GB = 1 GB (1,000,000,000 bytes)" in text
    assert "fixed memory alone takes 1.23 GB" in text
    text = plan_text(check(plan_of(FREE, [0, 1], 100)), Style(80, False, True))
    assert "no fixed memory" in text


@pytest.mark.parametrize(
    ("ending", "line"),
    [
        (Ending(Outcome.FINISHED), ""),
        (None, ""),
        (Ending(Outcome.TIME_LIMIT), "stopped at the time limit; this is the best plan found until then"),
        (Ending(Outcome.INTERRUPTED), "interrupted; this is the best plan found until then"),
        (Ending(Outcome.SOLVER_FAILED, "it rained"), "solver failed: it rained"),
    ],
)
def test_the_ending_is_told_where_it_matters(ending: Ending | None, line: str) -> None:
    report = check(plan_of(GRAPH, COMPUTES, PEAK))
    assert plan_text(report, Style(80, False, True), ending=ending).splitlines()[1] == line


def test_timings_are_named() -> None:
    text = plan_text(
        check(plan_of(GRAPH, COMPUTES, PEAK)),
        Style(80, False, True),
        run={"outcome": "finished", "build_s": 1, "wall_s": 75.5},
    )
    assert "time      1 min 16 s (build 1.00 s)\n" in text
