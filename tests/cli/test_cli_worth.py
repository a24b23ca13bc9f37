"""``remat worth``: times by link and budget, and their slopes."""

import csv
import io
import json
import math
import random
from pathlib import Path

import jsonschema
import pytest

from remat_cli.graph.model import Graph, Node
from remat_cli.plan.comparison import Slope, Worth, offers
from remat_cli.plan.host import Host

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "worth-v1.json").read_text())
GRAPH = """\
schema: remat-graph/1
cost_unit: s
nodes:
  - {id: a, inputs: [], cost: 1, memory: 8}
  - {id: b, inputs: [a], cost: 9, memory: 4, recompute: false}
  - {id: c, inputs: [b], cost: 9, memory: 4, recompute: false}
  - {id: d, inputs: [c], cost: 9, memory: 2, recompute: false}
  - {id: e, inputs: [a, d], cost: 1, memory: 1}
"""


@pytest.fixture
def graph(tmp_path: Path) -> str:
    path = tmp_path / "step.yaml"
    path.write_text(GRAPH)
    return str(path)


def test_links_and_budgets_with_their_slopes(remat, graph: str, tmp_path: Path) -> None:
    results = str(tmp_path / "rows.jsonl")
    rest = ("--links", "1B/s,4B/s:1B/s", "--time-limit", "6s", "--jobs", "1", "--results", results)
    done = remat("worth", graph, "--budgets", "12B,14B,16B", *rest, "--format", "json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    jsonschema.validate(document, SCHEMA)
    rows = {(row["link"], row["budget"]): row for row in document["rows"]}
    assert [key for key, _ in rows] == ["1B/s"] * 3 + ["4B/s:1B/s"] * 3
    assert rows["1B/s", "14B"]["recompute"] == 30
    assert rows["4B/s:1B/s", "14B"]["copy"] == rows["4B/s:1B/s", "14B"]["both"] == 29
    assert {row["both"] for row in rows.values() if row["budget"] == "16B"} == {29}
    for row in rows.values():
        assert row["lower_bound"] <= row["both"] <= min(row["recompute"] or math.inf, row["copy"] or math.inf)
    for format in ("text", "csv"):  # from the saved rows
        done = remat("worth", graph, "--budgets", "12B,14B,16B", *rest, "--format", format)
        assert done.code == 0, done.err
        if format == "csv":
            assert [row["link"] for row in csv.DictReader(io.StringIO(done.out))] == [key for key, _ in rows]
        else:
            assert "a step takes 29 s" in done.out
            assert "next GB" in done.out
            assert "from, to" in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--links", "pcie6"], '"pcie6" is not a bandwidth'),
        (["--links", "pcie4,pcie4"], "links need names of their own"),
        (["--links", ","], "is not a bandwidth"),
    ],
)
def test_links_that_make_no_sense_are_refused(remat, graph: str, options: list[str], message: str) -> None:
    done = remat("worth", graph, "--budgets", "14B", *options)
    assert done.code == 2, done.err
    assert message in done.err


def test_costs_have_to_be_times(remat, tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(GRAPH.replace("cost_unit: s", "cost_unit: flops"))
    done = remat("worth", str(path), "--budgets", "14B")
    assert done.code == 2, done.err
    assert "costs are flops, and copies take time" in done.err


def test_a_link_has_a_name_everywhere(remat, graph: str) -> None:
    done = remat("solve", graph, "-b", "14B", "--host-bandwidth", "PCIe4", "--time-limit", "5s", "-o", "-", "-q")
    assert done.code == 0, done.err
    assert json.loads(done.out)["host"]["bandwidth_out"] == 25_000_000_000


def test_what_is_known_of_one_offer_serves_the_others() -> None:
    """Random times and bounds: offers get better with memory and speed, and hold what each alone says."""
    rng = random.Random(0)
    budgets = [("1GB", 10**9), ("2GB", 2 * 10**9), ("4GB", 4 * 10**9)]
    links = [("a", Host(1e9, 1e9)), ("b", Host(4e9, 0.5e9)), ("c", Host(4e9, 4e9))]

    def times() -> list[list[float | None]]:
        return [[rng.choice((None, rng.uniform(10, 20))) for _ in budgets] for _ in links]

    for _ in range(50):
        [again], copy, both = times()[:1], times(), times()
        bound = [[rng.uniform(0, 10) for _ in budgets] for _ in links]
        made = offers(links, budgets, again, copy, both, bound)
        worth = Worth(Graph("g", (Node("a", 1.0, (), (1,)),), (0,), cost_unit="s"), tuple(links), tuple(budgets), made)
        for at in range(3):
            for place in range(3):
                offer = worth.offer(at, place)
                known = [time for time in (offer.recompute, offer.copy) if time is not None]
                assert offer.both is not None or not known
                assert offer.both is None or offer.bound <= offer.both <= min(known, default=math.inf)
                assert offer.bound >= bound[at][place]
                if place:
                    smaller = worth.offer(at, place - 1)
                    assert smaller.both is None or offer.both <= smaller.both
                    assert smaller.bound >= offer.bound
        # a is slower than c in both directions, b only in one of them than a.
        assert worth.offer(2, 0).bound <= min(worth.offer(0, 0).bound, worth.offer(1, 0).bound)
        slope = worth.memory(0, 1)
        if slope is not None:
            assert 0 <= slope.least <= slope.found + 1e-9 <= slope.most + 2e-9
            found = (worth.offer(0, 1).both - worth.offer(0, 2).both) / 2
            assert slope.found == pytest.approx(found)
        assert worth.memory(0, 2) is None
        assert worth.speed(2, 0) is None
        if (faster := worth.speed(0, 0)) is not None:
            assert isinstance(faster, Slope)
