"""The papers' tables: their numbers where they are exact, pictures, pages, and what becomes of a cell that fails."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import frame, measure
from benchmarks.machine import ROOT
from benchmarks.paper import budgets, chains, gaps, treewidth
from benchmarks.paper.__main__ import PARTS, main, part, written
from benchmarks.paper.cells import compared, geometric_ratio
from benchmarks.paper.plots import Panel, draw_bars, draw_curves
from benchmarks.paper.published import CHECKMATE, FIGURES, PAPERS, published
from benchmarks.scale import build as scale_graph
from remat_cli.graph.analysis import no_remat_peak


def test_the_gaps_of_appendix_a_are_the_published_ones(tmp_path):
    rows = gaps.run(frame.Session(False, tmp_path, print))
    assert [row["gap"] for row in rows] == [row["published"] for row in gaps.completed(rows)] == [1.18, 21.56]


def test_every_published_figure_has_its_source():
    for figure in FIGURES:
        assert figure.part in PARTS
        assert figure.paper in PAPERS
        assert re.search(r"(section|table|figure|appendix|algorithm|introduction|abstract)", figure.place), figure
        assert figure.subject
        assert figure.quantity
        assert re.fullmatch(r"\d{1,3}(,\d{3})+|\d+(\.\d+)?", figure.digits), figure
        assert figure.value > 0
    names = [(figure.part, figure.subject, figure.quantity, figure.paper) for figure in FIGURES]
    assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match="several published figures for unet, batch"):
        published("batches", "unet", "batch, Checkmate")
    assert published("batches", "unet", "batch, Checkmate", CHECKMATE) == 61
    assert published("batches", "segnet", "batch, Checkmate") is None


@pytest.mark.parametrize("name", PARTS)
def test_whatever_the_page_calls_published_is_a_figure_of_its_part(name):
    result = json.loads((ROOT / "benchmarks" / "paper" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    known = {figure.value for figure in FIGURES if figure.part == name}
    seen, columns = set(), []
    for line in written(name, result).splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if any("published" in cell for cell in cells) and "where" not in cells:
            columns = [k for k, cell in enumerate(cells) if "published" in cell]
        elif "where" in cells:
            columns = [cells.index("published")]
        elif not cells:
            columns = []
        elif not set(line) <= set("|-: "):
            seen.update(float(cells[k].replace(",", "")) for k in columns if cells[k])
    assert seen == known


def test_the_stored_page_is_that_of_the_stored_results():
    folder = ROOT / "benchmarks" / "paper"
    page = (folder / "README.md").read_text(encoding="utf-8")
    for name in PARTS:
        result = json.loads((folder / "results" / f"{name}.json").read_text(encoding="utf-8"))
        assert written(name, result) in page


@pytest.mark.parametrize("name", ["batches", "chains", "rounding", "treewidth"])
def test_quick_run_makes_result_page_and_pictures(name, tmp_path):
    assert main([name, "--quick", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    assert any(row.get("overhead") or row.get("batch") or row.get("length") for row in rows)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    for picture in part(name).pictures:
        drawn = tmp_path / "results" / f"{name}-{picture.key}.svg"
        assert drawn.read_bytes().startswith(b"<?xml")
        assert f"](results/{drawn.name})" in page
    assert all(f"benchmarks.paper {other}`" in page for other in PARTS if other != name)


def test_cells_say_what_the_strategies_found_and_what_failed():
    rows = compared("unit-chain{n=17}", [100.0, 40.0, 10.0], ["keep-all", "checkmate-ilp"], 10.0)
    found = {(row["strategy"], row["percent"]): row["overhead"] for row in rows}
    assert found["checkmate-ilp", 40.0] == pytest.approx(100 * 9 / 17, abs=1e-3)  # 26 computes at budget 4
    assert found["keep-all", 100.0] == 0
    assert found["keep-all", 40.0] is found["checkmate-ilp", 10.0] is None
    assert all(row["ending"] for row in rows)


def test_geometric_ratio_is_over_the_budgets_of_both():
    def cell(strategy, percent, overhead):
        return {"graph": "g", "strategy": strategy, "percent": percent, "overhead": overhead, "bound": 0.0}

    cells = [cell("ap-sqrt", 80, 100.0), cell("ap-sqrt", 60, 300.0), cell("ap-sqrt", 40, None), cell("auto", 80, 0.0)]
    cells += [cell("auto", 60, 100.0), cell("auto", 40, 300.0)]
    assert geometric_ratio(cells, "ap-sqrt", "auto") == (2.0, 2)
    assert geometric_ratio(cells, "ap-greedy", "auto") == (None, 0)
    (row,) = budgets.ratios(cells)
    assert (row["ratio"], row["budgets"], row["best_gap"]) == (2.0, 2, 75.0)


def test_tree_recursion_takes_less_memory_the_smaller_its_parts():
    told = treewidth.measured("linear{n=30}", "TWRemat")
    shares = [point["share"] for point in told["bags"]]
    lengths = [point["length"] for point in told["bags"]]
    assert told["bags"][0]["k"] == 1
    assert shares[-1] == 100
    assert lengths[-1] == 1
    assert min(shares) < 40
    assert lengths == sorted(lengths, reverse=True)
    assert told["graph"] == {"nodes": 61, "edges": told["graph"]["edges"], "width": 2}
    one = treewidth.measured("linear{n=30}", treewidth._GREEDY)["row"]
    blocks = treewidth.measured("linear{n=30}", treewidth._BLOCKS)["row"]
    assert blocks["share"] < one["share"] < 100


def test_a_process_that_fails_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(treewidth, "call", lambda function, **case: measure.Called(None, None, "it broke"))
    rows = treewidth.run(frame.Session(True, tmp_path, print))
    assert {row["ending"] for row in rows} == {"it broke"}
    frame.check_rows(part("treewidth"), rows)
    treewidth.draw(rows, tmp_path)


def test_pictures_are_the_same_bytes_every_time(tmp_path):
    for name in ("first", "second"):
        draw_curves([Panel("a", {"x": [(1, 2.0)], "y": []})], "across", "up", tmp_path / f"{name}.svg", falling=True)
        draw_bars({"g": {"x": 1.0, "y": 2.0}, "h": {"y": 1.5}}, "up", tmp_path / f"{name}-bars.svg")
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
    assert (tmp_path / "first-bars.svg").read_bytes() == (tmp_path / "second-bars.svg").read_bytes()


def test_chains_count_the_budgets_that_only_rotor_has():
    cells = [
        {"graph": "g", "strategy": s, "percent": p, "overhead": o}
        for s, p, o in [("sequential", 80, 21.0), ("sequential", 60, None), ("rotor", 80, 10.0), ("rotor", 60, 20.0)]
    ]
    (row,) = chains._ratios(cells)
    assert (row["ratio"], row["budgets"], row["alone"]) == (1.1, 1, 1)


@pytest.mark.parametrize("kind", ["chain", "residual"])
def test_graphs_of_scale_have_the_nodes_asked_for(kind):
    graph = scale_graph(kind, 300)
    assert len(graph.nodes) in {299, 300}
    assert no_remat_peak(graph) > 0
