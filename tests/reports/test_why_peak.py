"""The answer to "why is my peak here?", word for word."""

import pytest
from report_cases import plan_of

from remat_cli.graph.model import Graph, Node
from remat_cli.plan.check import check
from remat_cli.reports.style import Style
from remat_cli.reports.timeline import why_peak


def why(a: Node, b: Node, c: Node) -> str:
    """``a`` and ``b`` wait while ``c`` runs; ``d`` reads all three."""
    graph = Graph("g", (a, b, c, Node("d", 1.0, (0, 1, 2), (1,))), (3,))
    plan = plan_of(graph, [0, 1, 2, 3], None)
    return why_peak(check(plan), plan.statements, Style(80, False, True))


A = Node("a", 8.0, (), (40,))
B = Node("b", 1.0, (), (10,))
C = Node("c", 1.0, (), (5,), workspace=50)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (A, B, "All of them may be recomputed; the cheapest per byte is b:0, 1 unit for 10 B."),
        (
            A,
            Node("b", 3.0, (), (10,)),
            "All of them may be recomputed; the cheapest per byte is a:0, 8 units for 40 B.",
        ),
        (
            A,
            Node("b", 1.0, (), (10,), recompute=False),
            "1 of them (40 B) may be recomputed; the cheapest per byte is a:0, 8 units for 40 B.",
        ),
        (
            Node("a", 8.0, (), (40,), recompute=False),
            Node("b", 1.0, (), (10,), recompute=False),
            "None of them may be recomputed.",
        ),
    ],
)
def test_what_waits_may_go(a: Node, b: Node, words: str) -> None:
    told = why(a, b, C)
    assert told.startswith(
        "Why: c needs 5 B of outputs and 50 B of workspace at once. 2 other values are in memory (50 B)"
    )
    assert words in told


@pytest.mark.parametrize(("again", "words"), [(True, "It may be recomputed, for 8 units."), (False, "It may not be")])
def test_a_single_value_that_waits(again: bool, words: str) -> None:
    a = Node("a", 8.0, (), (40,), recompute=again)
    graph = Graph("g", (a, C, Node("d", 1.0, (0, 1), (1,))), (2,))
    plan = plan_of(graph, [0, 1, 2], None)
    told = why_peak(check(plan), plan.statements, Style(80, False, True))
    assert "1 other value is in memory (40 B); a:0 is read next by d at statement 5. " in told
    assert words in told
