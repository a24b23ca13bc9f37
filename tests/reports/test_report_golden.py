"""Reports as people see them, compared to the character.

After a change that is meant, write the files anew with ``REMAT_UPDATE_GOLDEN=1 pytest tests/reports`` and read the
differences.
"""

import dataclasses
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from report_cases import checkpointed, plan_of, training_chain

from remat_cli.control import Outcome
from remat_cli.errors import Problem
from remat_cli.graph.model import Graph, Node
from remat_cli.graph.summary import summarize
from remat_cli.plan.check import Checked, check
from remat_cli.plan.derive import peak
from remat_cli.plan.difference import beyond, compare_plans
from remat_cli.plan.explanation import explain
from remat_cli.plan.model import ClaimStatus, PeakClaim, Plan, Scope
from remat_cli.reports.checks import checks_text
from remat_cli.reports.curve import CurveRow, curve_text
from remat_cli.reports.diff import diff_text
from remat_cli.reports.explanation import explanation_text
from remat_cli.reports.graph import graph_text
from remat_cli.reports.plan import plan_text
from remat_cli.reports.style import Style
from remat_cli.reports.timeline import plan_show

GOLDEN = Path(__file__).parent / "golden"
GRAPH = training_chain()
COMPUTES = checkpointed()
PEAK = peak(GRAPH, COMPUTES)
FITS = plan_of(GRAPH, COMPUTES, PEAK + 300_000_000, bound_share=0.9997, asked="81%")
OVER = plan_of(
    GRAPH, COMPUTES, PEAK - 300_000_000, status=ClaimStatus.FEASIBLE, bound_share=0.9, scope=Scope.DOCUMENT_ORDER
)
KEEP = plan_of(GRAPH, range(25), None, solver=None)
BROKEN = dataclasses.replace(FITS, statements=(*FITS.statements[:40], *FITS.statements[46:]))
UNPROVEN = plan_of(GRAPH, COMPUTES, 3 * PEAK, status=ClaimStatus.FEASIBLE, bound_share=0.0, scope=Scope.RESTRICTED)
LEAST_PEAK = PeakClaim(PEAK - 7, Scope.FRONTIER)
LEAST = dataclasses.replace(
    FITS, budget_bytes=PEAK, provenance={}, claim=dataclasses.replace(FITS.claim, peak=LEAST_PEAK)
)
ODD_GRAPH = Graph(
    "数 [bold]graph[/bold]",
    (
        Node("[red]one[/red]", 3.0, (), (5, 0), workspace=1),
        Node("畳み込み層の出力を正規化する非常に長い名前のノード・バックボーン・その一", 1.0, (0,), (7,)),
        Node("x" * 300, 0.0, (0, 2), (2,)),
        Node("\x1b[31mbell\x07", 2.5, (1, 3), (1,)),
    ),
    (4,),
)
ODD = plan_of(ODD_GRAPH, [0, 1, 0, 1, 2, 0, 3], 14, asked="100%")

WIDTHS = {"60": 60, "80": 80, "120": 120}
LOOKS = {"plain": (False, True), "ascii": (False, False), "color": (True, True), "color-ascii": (True, False)}
RUN = {"wall_s": 12.3, "build_s": 1.2, "solver_s": 10.8}


def solved(plan: Plan) -> Callable[[Style], str]:
    return lambda style: plan_text(check(plan), style, run=RUN)


def checked(plan: Plan) -> Callable[[Style], str]:
    return lambda style: plan_text(check(plan), style, checking=True)


def shown(plan: Plan) -> Callable[[Style], str]:
    return lambda style: plan_show(check(plan), plan, style)


def explained(plan: Plan, node: int) -> Callable[[Style], str]:
    return lambda style: explanation_text(explain(plan, check(plan), node), style)


def differing(old: Plan, new: Plan, percent: int | None) -> Callable[[Style], str]:
    difference = compare_plans(check(old), check(new))
    allowed = None if percent is None else Fraction(percent)
    found = beyond(difference, max_cost_increase=allowed, max_peak_increase=allowed)
    return lambda style: diff_text(difference, found, style)


def drawn(rows: list[CurveRow], outcome: Outcome = Outcome.FINISHED) -> Callable[[Style], str]:
    return lambda style: curve_text(rows_graph(rows), rows, style, outcome, 12.3)


def rows_graph(rows: list[CurveRow]) -> Graph:
    return next((row.report.graph for row in rows if row.report is not None), GRAPH)


def row(asked: str, status: str, plan: Plan) -> CurveRow:
    assert plan.budget_bytes is not None
    path = f"vgg-like.{asked.replace('%', 'pct')}.plan.json"
    return CurveRow(asked, plan.budget_bytes, status, check(plan), path=path)


NO_PLAN = {"reason": "no frontier-advancing schedule fits a budget of 6.931 GB (6931374769 bytes)", "hint": "take more"}
CURVE = [
    CurveRow("40%", 5_545_099_815, "infeasible", reason="no plan fits a budget of 5.545 GB"),
    CurveRow("50%", 6_931_374_769, "infeasible", **NO_PLAN),
    row("81%", "optimal", FITS),
    row("90%", "feasible", plan_of(GRAPH, COMPUTES, PEAK * 10 // 9, bound_share=0.98, scope=Scope.DOCUMENT_ORDER)),
    row("100%", "optimal", plan_of(GRAPH, range(25), peak(GRAPH, range(25)), scope=Scope.ANY_ORDER)),
]
HALF_A_CURVE = [CurveRow("12GB", 12 * 10**9, "unknown", **NO_PLAN), row("25GB", "optimal", FITS)]
ODD_CURVE = [row("[red]14[/red]", "optimal", ODD)]

MANY = [
    Checked("plans/fits.plan.json", check(FITS)),
    Checked("plans/over.plan.json", check(OVER)),
    Checked("plans/keep.plan.json", check(KEEP)),
    Checked("plans/broken.plan.json", check(BROKEN)),
    Checked("-", check(ODD)),
    Checked("[red]none[/red]", problems=(Problem("there is no such file"),)),
]

CASES: dict[str, Callable[[Style], str]] = {
    "solve-fits": solved(FITS),
    "solve-unproven": solved(UNPROVEN),
    "check-fits": checked(FITS),
    "check-over": checked(OVER),
    "check-keep-all": checked(KEEP),
    "check-broken": checked(BROKEN),
    "check-odd": checked(ODD),
    "show-plan": shown(FITS),
    "show-plan-over": shown(OVER),
    "show-plan-odd": shown(ODD),
    "solve-least": solved(LEAST),
    "curve": drawn(CURVE),
    "curve-interrupted": drawn(HALF_A_CURVE, Outcome.INTERRUPTED),
    "curve-odd": drawn(ODD_CURVE),
    "check-many": lambda style: checks_text(MANY, style),
    "explain": explained(FITS, 4),
    "explain-kept": explained(FITS, 1),
    "explain-broken": explained(BROKEN, 7),
    "explain-odd": explained(ODD, 0),
    "diff": differing(KEEP, FITS, None),
    "diff-same": differing(FITS, FITS, 0),
    "diff-beyond": differing(FITS, dataclasses.replace(KEEP, budget_bytes=PEAK), 10),
    "diff-odd": differing(FITS, ODD, None),
    "show-graph": lambda style: graph_text(summarize(GRAPH), style),
    "show-graph-odd": lambda style: graph_text(summarize(ODD_GRAPH), style),
}
EVERYWHERE = ("solve-fits", "show-plan", "show-graph")
WANTED = [
    (case, width, look)
    for case in CASES
    for width in WIDTHS
    for look in LOOKS
    if (case in EVERYWHERE and (look in ("plain", "ascii") or width == "80"))
    or (case not in EVERYWHERE and (width, look) in {("80", "plain"), ("60", "ascii")})
]


@pytest.mark.parametrize(("case", "width", "look"), WANTED, ids=lambda part: part)
def test_report_looks_as_agreed(case: str, width: str, look: str) -> None:
    color, unicode = LOOKS[look]
    text = CASES[case](Style(WIDTHS[width], color, unicode))
    path = GOLDEN / f"{case}.{width}.{look}.txt"
    if os.environ.get("REMAT_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; see the top of this file"


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {".".join((*parts, "txt")) for parts in WANTED}


@pytest.mark.parametrize("case", ["solve-fits", "check-fits", "check-over", "check-keep-all"])
def test_report_is_calm(case: str) -> None:
    lines = CASES[case](Style(80, False, True)).splitlines()
    assert len(lines) <= 37


def test_same_report_whatever_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    style = Style(80, True, True)
    before = CASES["solve-fits"](style)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "20", "TERM": "dumb", "FORCE_COLOR": "1", "LINES": "3"}.items():
        monkeypatch.setenv(name, value)
    assert CASES["solve-fits"](style) == before
