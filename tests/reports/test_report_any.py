"""No report fails, breaks out of its width, or lets a document draw on the terminal, whatever plan it is about."""

import dataclasses
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from families import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import STYLES, checkpointed, plan_of, plans, training_chain
from rich.cells import cell_len
from seeded import seeded

from remat_cli.control import Ending, Outcome
from remat_cli.graph.model import Graph, Node
from remat_cli.graph.summary import summarize
from remat_cli.plan.check import Checked, Report, check
from remat_cli.plan.difference import compare_plans
from remat_cli.plan.explanation import explain
from remat_cli.plan.model import Plan
from remat_cli.reports.checks import checks_junit, plan_github
from remat_cli.reports.diff import diff_text
from remat_cli.reports.documents import document_json, report_document
from remat_cli.reports.explanation import explanation_text
from remat_cli.reports.graph import graph_summary_document, graph_text
from remat_cli.reports.plan import plan_text
from remat_cli.reports.style import Mark, Style, ruler
from remat_cli.reports.timeline import plan_show

VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[2] / "schemas" / "report-v1.json").read_text())
)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def assert_fits(text: str, style: Style) -> None:
    assert text.endswith("\n")
    bare = ANSI.sub("", text) if style.color else text
    assert all(c == "\n" or c.isprintable() for c in bare)
    assert style.unicode or bare.isascii()
    widest = max(bare.split("\n"), key=cell_len)
    assert cell_len(widest) <= style.columns, widest


def assert_reports_fit(plan: Plan, style: Style) -> Report:
    """The reports on a plan and on its graph fit; the report."""
    report = check(plan)
    for text in (plan_text(report, style), plan_show(report, plan, style), graph_text(summarize(plan.graph), style)):
        assert_fits(text, style)
    return report


@settings(max_examples=150)
@given(plan=plans(), style=STYLES)
def test_text_reports_stay_in_their_width(plan: Plan, style: Style) -> None:
    report = check(plan)
    run = {"wall_s": 1e9, "n": 3, "odd_s": "x"}
    ending = Ending(Outcome.SOLVER_FAILED, "x " * 99)
    for checking in (False, True):
        assert_fits(plan_text(report, style, run=run, ending=ending, checking=checking), style)
    assert_fits(plan_show(report, plan, style), style)
    assert_fits(graph_text(summarize(plan.graph), style), style)


@settings(max_examples=150)
@given(plan=plans())
def test_machine_reports_are_well_formed(plan: Plan) -> None:
    report = check(plan)
    VALIDATOR.validate(report_document(report))
    json.loads(document_json(report_document(report)))
    json.loads(document_json(graph_summary_document(summarize(plan.graph))))
    ElementTree.fromstring(checks_junit([Checked("p", report)]).encode())
    lines = plan_github(report, plan_path="p", line_of=lambda statement: statement + 1).split("\n")
    assert lines.pop() == ""
    assert lines
    assert all(re.match(r"::(error|warning|notice) file=p,", line) for line in lines)


@seeded(range(5))
def test_large_plans(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(
        rng, 400, max_outputs=3, max_size=2**40, zero_outputs=True, workspace=True, random_outputs=True, phases=True
    )
    computes = [k for i in range(400) for k in (*(rng.randrange(i) for _ in range(rng.randint(0, min(i, 3)))), i)]
    for width in (60, 80, 120):
        assert_reports_fit(plan_of(graph, computes, 2**44), Style(width, False, True))


@pytest.mark.parametrize(
    "graph",
    [
        Graph("nothing", (), ()),
        Graph("no bytes", (Node("a", 0.0, (), ()), Node("b", 0.0, (), (0,), recompute=False)), ()),
        Graph("fixed only", (), (), fixed_memory=10**15),
        Graph("huge", (Node("a", 1e300, (), (2**70,), workspace=2**80), Node("b", 1e-300, (0,), (1,))), (0, 1)),
    ],
    ids=lambda graph: graph.name,
)
@pytest.mark.parametrize("budget", [None, 0, 1, 2**90])
def test_extreme_graphs(graph: Graph, budget: int | None) -> None:
    plan = plan_of(graph, range(len(graph.nodes)), budget)
    for style in (Style(40, True, True), Style(80, False, False)):
        report = assert_reports_fit(plan, style)
    VALIDATOR.validate(report_document(report))
    ElementTree.fromstring(checks_junit([Checked("p", report)]))


@given(
    marks=st.lists(
        st.builds(Mark, st.integers(0, 39), st.text("ab ", max_size=60), leftward=st.booleans()), max_size=6
    ),
    unicode=st.booleans(),
)
def test_ruler_points_at_its_columns(marks: list[Mark], unicode: bool) -> None:
    lines = [line.plain for line in ruler(marks, 40, Style(40, False, unicode))]
    assert all(len(line) <= 40 for line in lines)
    corners = {i for line in lines for i, c in enumerate(line) if c in ("╯╰│" if unicode else "^|")}
    assert corners == {mark.column for mark in marks}


@pytest.mark.parametrize("unit", ["", "\x1b[31m", "a very long unit of cost that nobody would think of", "数" * 50])
@pytest.mark.parametrize("width", [40, 80])
def test_odd_cost_units(unit: str, width: int) -> None:
    graph = dataclasses.replace(training_chain(), cost_unit=unit)
    plan = plan_of(graph, checkpointed(), 10**10)
    style = Style(width, False, True)
    report = assert_reports_fit(plan, style)
    assert_fits(explanation_text(explain(plan, report, 1), style), style)
    kept = check(plan_of(graph, range(25), None))
    assert_fits(diff_text(compare_plans(kept, report), (), style), style)


def test_markup_in_ids_is_only_text() -> None:
    graph = Graph("[red]g", (Node("[bold]a[/bold]", 1.0, (), (1,)), Node("[/]", 1.0, (0,), (1,))), (1,))
    plan = plan_of(graph, [0, 0, 1], 5)
    style = Style(80, True, True)
    for text in (plan_show(check(plan), plan, style), graph_text(summarize(graph), style)):
        bare = ANSI.sub("", text)
        assert "[red]g" in bare
        assert "[bold]a[/bold]" in bare
        assert "[/]" in bare


def test_names_are_cut_in_the_middle() -> None:
    style = Style(80, False, True)
    assert style.short("abcdefghij", 10) == "abcdefghij"
    assert style.short("abcdefghijk", 9) == "abcd…hijk"
    assert Style(80, False, False).short("abcdefghijk", 8) == "abc..ijk"
    assert cell_len(style.short("数" * 30, 11)) <= 11
    assert style.clean("a\x1b[31m\u202eb\n") == "a\\x1b[31m\\u202eb\\n"
    assert Style(80, False, False).clean("é") == "\\xe9"


def test_rich_is_loaded_only_when_something_is_drawn() -> None:
    code = (
        "import sys, remat_cli.reports.plan, remat_cli.reports.timeline, remat_cli.reports.graph,"
        " remat_cli.reports.checks, remat_cli.reports.checks, remat_cli.reports.documents;"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('rich', 'numpy', 'pyomo', 'highspy', 'click')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
