"""The arithmetic and the page of the benchmark of overheads; its measurements need a framework."""

from pathlib import Path

import pytest

import remat_cli
from benchmarks import frame
from benchmarks.__main__ import main
from benchmarks.overheads.steps import Subject, conclude, measured, planned
from benchmarks.page import own_page
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.model import Compute

GRAPH = Graph(
    "chain",
    (
        Node("a", 1.0, (), (20,)),
        Node("b", 1.0, (), (30,)),
        Node("c", 1.0, (1,), (1,)),
        Node("d", 1.0, (0, 2), (1,)),
    ),
    (3,),
)


class Runner:
    """A machine on which each computation takes two seconds, and a step one second more by plan."""

    def __init__(self, statements):
        self.count = sum(isinstance(statement, Compute) for statement in statements)

    def step(self):
        return 2.0 * self.count + (self.count > len(GRAPH.nodes))

    def computes(self):
        return [2.0] * self.count


def test_what_is_beyond_the_recomputed_operations_is_told_apart():
    plan = remat_cli.solve(GRAPH, 35).plan
    row = measured(plan, lambda graph: Runner)
    assert row["recomputations"] == 1
    assert (row["recomputed"], row["beyond"], row["extra"]) == (25.0, 12.5, 37.5)


def test_a_plan_is_kept_and_found_again(tmp_path: Path):
    file = tmp_path / "plans" / "chain.plan.json"
    first = planned(file, Subject("a chain", lambda: GRAPH))
    again = planned(file, Subject("a chain", lambda: pytest.fail("it is exported again")))
    assert again[0] == pytest.approx(first[0], abs=0.02)
    assert first[1].statements == again[1].statements


@pytest.mark.parametrize(("beyond", "met"), [(4.9, "yes"), (5.1, "**no**")])
def test_the_page_says_whether_the_target_is_met(beyond, met):
    benchmark = frame.load("overheads.steps", "jax")
    plan = remat_cli.solve(GRAPH, 35).plan
    case = {"model": "chain", "spec": "small", "budget": "60%", "version": "JAX 1", "beyond": beyond}
    rows = conclude([benchmark.tables[0].row(case, measured(plan, lambda graph: Runner))])
    frame.check_rows(benchmark, rows)
    versions = {"packages": {}, "python": "3", "remat": "0", "commit": "c"}
    facts = {"date": "2026-01-01", "load": None, "machine": None, "quick": False, "wall_s": None}
    text = own_page(benchmark, {"rows": rows, "versions": versions} | facts)
    assert text.startswith("# What running by plan costs (jax)\n")
    assert f"| {beyond} | {met} |" in text


def test_only_frameworks_that_are_there_are_taken(capsys):
    for options in (["overheads.steps", "--on", "caffe"], ["startup", "--on", "jax"]):
        with pytest.raises(SystemExit) as stopped:
            main(options)
        assert stopped.value.code == 2
        assert f"--on {options[2]} is not for" in capsys.readouterr().err
