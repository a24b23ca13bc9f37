"""The arithmetic and the page of the benchmark of overheads; its measurements need a framework."""

from __future__ import annotations

from pathlib import Path

import pytest

import remat_cli
from benchmarks.overheads.__main__ import main, measured, planned
from benchmarks.overheads.page import page
from benchmarks.overheads.subject import Subject
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
    row = measured(plan, 0.7, lambda graph: Runner)
    assert row["recomputations"] == 1
    assert (row["recomputed"], row["beyond"], row["extra"]) == (2 / 8, 1 / 8, 3 / 8)


def test_a_plan_is_kept_and_found_again(tmp_path: Path):
    file = tmp_path / "plans" / "chain.plan.json"
    first = planned(file, Subject("a chain", lambda: GRAPH))
    again = planned(file, Subject("a chain", lambda: pytest.fail("it is exported again")))
    assert again[0] == pytest.approx(first[0], abs=0.02)
    assert first[1].statements == again[1].statements


def test_the_page_says_whether_the_target_is_met():
    plan = remat_cli.solve(GRAPH, 35).plan
    row = measured(plan, 0.6, lambda graph: Runner)
    row |= {"spec": "small", "version": "JAX 1", "date": "2026-01-01", "commit": "c"}
    place = {
        "machine": {"cpu": "one", "cores": 1, "memory_bytes": 10**9, "system": "Linux"},
        "versions": {"packages": {}, "python": "3", "remat": "0"},
    }
    assert "the target is met" in page({"jax": place | {"rows": {"chain": row | {"beyond": 0.049}}}})
    assert "the target is missed" in page({"jax": place | {"rows": {"chain": row | {"beyond": 0.051}}}})


def test_unknown_frameworks_are_refused():
    with pytest.raises(SystemExit, match="tensorflow"):
        main(["caffe"])
