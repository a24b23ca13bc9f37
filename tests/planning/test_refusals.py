"""What is said when there is no plan."""

from dataclasses import replace

from remat_cli.control import Control, Outcome
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.model import Scope
from remat_cli.planning.refusals import no_plan
from remat_cli.reports.curve import CurveRow, curve_text
from remat_cli.reports.style import Style
from remat_cli.strategies.base import Bound, NotFound, Schedule
from remat_cli.zoo.registry import build_graph

GRAPH = build_graph("unit-chain{n=17}")


def test_a_bound_is_told_in_the_unit_of_the_graph():
    answer = NotFound("the limit came", bounds=(Bound(6.328212634e12, Scope.FRONTIER),))
    refusal = no_plan(replace(GRAPH, cost_unit="flops"), None, 3, answer, Control())
    assert refusal.message == "no plan: the limit came; every frontier-advancing plan costs at least 6.328 T flops"


def test_a_smaller_peak_is_looked_for_only_where_there_may_be_one():
    least = no_remat_peak(GRAPH)
    for needs, looks in ((least - 1, True), (least, False)):
        answer = NotFound("none fits", Scope.FRONTIER, Schedule(tuple(range(17))), peak_bound_bytes=needs)
        refusal = no_plan(GRAPH, None, 2, answer, Control())
        assert ("solve_smallest looks for a smaller one" in refusal.hint) is looks


def test_a_method_that_finds_none_names_what_does():
    answer = NotFound("no plan that checkmate-lp makes fits", Scope.RESTRICTED)
    refusal = no_plan(GRAPH, None, no_remat_peak(GRAPH), answer, Control())
    assert refusal.hint.endswith('is known to work: take strategy="auto", or strategy="keep-all" to recompute nothing')


def test_without_any_plan_none_is_called_the_best():
    rows = [CurveRow("50%", 9, "unknown", reason="interrupted", hint="")]
    text = curve_text(GRAPH, rows, Style(80, color=False, unicode=False), Outcome.INTERRUPTED, 1.0)
    assert "interrupted; no plan was found until then" in text
    assert "best plans" not in text
