"""The benchmark of growing graphs: its graphs, its pictures, and what becomes of a cell that fails."""

import json

import pytest

from benchmarks import frame, measure, scaling, solving
from benchmarks.__main__ import main
from benchmarks.families import FAMILIES
from benchmarks.plots import Panel, draw_panels
from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.io import graph_sha256
from remat_cli.plan.derive import peak
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers import prices
from remat_cli.strategies.openers.clearing import Clearings


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [100, 1000])
def test_families_are_of_the_size_asked_for_and_depend_on_the_seed_alone(family, n):
    graph = FAMILIES[family](n, 0)
    assert n - 1 <= len(graph.nodes) <= n
    assert graph_sha256(FAMILIES[family](n, 0)) == graph_sha256(graph)
    assert graph_sha256(FAMILIES[family](n, 1)) != graph_sha256(graph)
    # There is something to do at the budget of the benchmark, and it is not hopeless.
    budget = no_remat_peak(graph) * scaling._BUDGETS[family] // 100
    assert peak_bound(graph).bytes <= budget < no_remat_peak(graph)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_thousand_nodes_get_a_plan_from_the_start(family, monkeypatch):
    monkeypatch.setattr(prices, "_CREDITS", (0.5,))  # one run is enough to have a plan
    graph = FAMILIES[family](2000, 0)
    budget = no_remat_peak(graph) * scaling._BUDGETS[family] // 100
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
    for engine in (Clearings(best), prices.Prices(best)):
        engine.turn(Control())
    assert best.computes is not None
    assert peak(graph, best.computes) <= budget


def test_quick_run_draws_its_pictures_and_leaves_no_partial_result(tmp_path):
    assert main(["scaling", "--quick", "--output", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "results" / "scaling.json").read_text(encoding="utf-8"))
    assert {row["family"] for row in result["rows"]} == set(FAMILIES)
    assert sum(row["gap"] is not None for row in result["rows"]) >= 2
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {"scaling.json", *(f"scaling-{picture.key}.svg" for picture in scaling.PICTURES)}
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    for picture in scaling.PICTURES:
        assert f"![{picture.shows}](results/scaling-{picture.key}.svg)" in page


def test_a_cell_that_fails_says_why_and_the_others_go_on(tmp_path, monkeypatch):
    def broken(function, *, limit_s, **case):
        return measure.Called(None, None, f"no end after {limit_s:.0f} s")

    monkeypatch.setattr(solving, "call", broken)
    kept = []
    rows = scaling.run(frame.Session(True, tmp_path, print, lambda rows: kept.append(len(rows))))
    assert [row["ending"] for row in rows] == ["no end after 95 s"] * len(FAMILIES)
    assert kept == [1, 2, 3]
    frame.check_rows(frame.load("scaling"), rows)
    scaling.draw(rows, tmp_path)


def test_partial_results_outlive_a_run_that_is_broken_off(tmp_path, monkeypatch):
    def breaks(session):
        session.keep([{"table": "startup"}])
        raise measure.BenchmarkError("it broke")

    monkeypatch.setattr("benchmarks.startup.run", breaks)
    partial = tmp_path / "results" / "startup.partial.json"
    with pytest.raises(measure.BenchmarkError):
        frame.perform(frame.load("startup"), quick=True, partial=partial)
    assert json.loads(partial.read_text(encoding="utf-8"))["rows"] == [{"table": "startup"}]


def test_pictures_are_the_same_bytes_every_time(tmp_path):
    panels = [Panel("a", {"x": [(1, 2.0), (10, 3.0)], "y": []}), Panel("b", {"x": [(1, 1.0)]})]
    for name in ("first.svg", "second.svg"):
        draw_panels(panels, "nodes", "time, s", tmp_path / name)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
