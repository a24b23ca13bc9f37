"""The papers' tables: their numbers where they are exact, pictures, pages, and what becomes of a cell that fails."""

import gc
import itertools
import json
import random
import re

import pytest

from benchmarks import frame, measure
from benchmarks.machine import ROOT
from benchmarks.page import measured_on
from benchmarks.paper import batches, budgets, chains, gaps, long, memory, placing, plots, treewidth
from benchmarks.paper.__main__ import (
    LONG,
    PAGES,
    PARTS,
    _from_interrupted,
    as_csv,
    beside,
    completed,
    long_tables,
    main,
    paged,
    part,
    written,
)
from benchmarks.paper.cells import compared, distance, geometric_ratio, with_distances
from benchmarks.paper.keras_graphs import FOLDER, exported
from benchmarks.paper.plots import Panel, draw_bars, draw_curves
from benchmarks.paper.published import CHECKMATE, FIGURES, PAPERS, published
from benchmarks.paper.summary import anchor, joined
from benchmarks.solving import graph_of
from remat_cli.api import SolveOptions, solve
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.derive import peak
from remat_cli.planning import executors
from remat_cli.planning.executors import run_cell
from remat_cli.zoo.registry import build_graph


def test_the_gaps_of_appendix_a_are_the_published_ones(tmp_path):
    rows = gaps.run(frame.Session(True, tmp_path, print))
    assert [row["gap"] for row in rows] == [row["published"] for row in gaps.completed(rows)] == [1.18, 21.56]


def test_every_published_figure_has_its_source():
    for figure in FIGURES:
        assert figure.part in (*PARTS, LONG)
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


@pytest.fixture(scope="module")
def results():
    folder = ROOT / "benchmarks" / "paper" / "results"
    return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in (*PARTS, LONG)}


@pytest.mark.parametrize("name", PARTS)
def test_whatever_the_page_calls_published_is_a_figure_of_its_part(name, results):
    known = {figure.value for figure in FIGURES if figure.part == name}
    seen, columns = set(), []
    for line in written(name, results).splitlines():
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


def test_the_stored_pages_are_those_of_the_stored_results(results):
    folder = ROOT / "benchmarks" / "paper"
    for page in PAGES:
        assert paged(page, results) == (folder / f"{page.name}.md").read_text(encoding="utf-8")
    first = (folder / "README.md").read_text(encoding="utf-8")
    for name in results:
        for table, rows in long_tables(name, results):
            file = folder / "results" / f"{name}-{table.key}.csv"
            assert as_csv(table, rows) == file.read_text(encoding="utf-8")
        assert all(line in first for line in summarised(beside(name, results)) if name != "keras")
    pages = [(folder / file).read_text(encoding="utf-8") for file in ("README.md", *(f"{p.name}.md" for p in PAGES))]
    assert max(text.count("\n") for text in pages) < 600


def test_a_page_names_each_machine_once(results):
    for page in PAGES:
        text = paged(page, results)
        letters = re.findall(r"^Measured on ([A-Z])\.$", text, flags=re.MULTILINE)
        told = dict(re.findall(r"^- ([A-Z]): (.*)$", text.partition("## Machines")[2], flags=re.MULTILINE))
        assert set(letters) == set(told)
        assert all(text.count(machine) == 1 for machine in told.values())
        assert measured_on(results[page.parts[0]]) in told.values()


def summarised(rows):
    return [f"| {row['digits']} | {row['ours']} |" for row in joined(rows)]


def test_links_between_the_pages_lead_to_headings(results):
    folder = ROOT / "benchmarks" / "paper"
    first = (folder / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\w+\.md)#([\w-]+)\)", first)
    assert len(links) == len(PARTS) + 1
    for file, fragment in links:
        headings = re.findall(r"^##? (.*)$", (folder / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert fragment in {anchor(heading) for heading in headings}


def test_table_2_takes_the_cheaper_of_the_short_and_the_long_run(results):
    rows = completed("budgets", results)
    ratios = {(row["graph"], row["strategy"]): row for row in rows if row["table"] == "ratios"}
    assert ratios["vgg-unet{fused=true}", "checkmate-ilp"]["ratio"] == 1
    rounded = "checkmate-lp{epsilon=0.1,threshold=0.5}"
    assert ratios["resnet50", rounded]["budgets"] >= 1
    assert ratios["vgg16{fused=true}", rounded]["budgets"] == 6
    assert ratios["vgg19{fused=true}", rounded]["budgets"] == 9


def test_twremat_is_the_full_recursion(results):
    rows = results["treewidth"]["rows"]
    full = {row["graph"]: (row["share"], row["length"]) for row in rows if row["table"] == "bags" and row["k"] == 1}
    specs = {(family, depth): spec for family, members in treewidth._FAMILIES.items() for depth, spec in members}
    told = {specs[r["family"], r["depth"]]: (r["share"], r["length"]) for r in rows if r.get("way") == "TWRemat"}
    assert told == full
    assert len(told) == 13


def test_sequential_is_what_the_strategy_gives():
    graph = chains._graph("resnet18", 64, 1)
    plans = chains._sequential(graph)[1]
    assert [segments for _, _, segments in plans] == chains._segments(22)
    for cost, used, segments in plans:
        solved = solve(graph, used, SolveOptions(strategy=f"sequential{{segments={segments}}}"))
        assert (solved.plan.claim.cost, solved.report.replay.peak_bytes) == (pytest.approx(cost), used)


@pytest.mark.parametrize("name", ["memory", "budgets", "batches", "keras", "chains", "rounding", "treewidth"])
def test_quick_run_makes_result_page_and_pictures(name, tmp_path):
    assert main([name, "--quick", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    assert any(row.get("overhead") or row.get("batch") or row.get("length") for row in rows)
    pages = [(tmp_path / f"{page.name}.md").read_text(encoding="utf-8") for page in PAGES]
    page = "".join(pages)
    for picture in part(name).pictures:
        drawn = tmp_path / "results" / f"{name}-{picture.key}.svg"
        if name == "chains" and picture.key in {"figure3", "figure4"}:
            continue  # of networks that are too large for a quick run
        assert drawn.read_bytes().startswith(b"<?xml")
        assert f"](results/{drawn.name})" in page
    assert all(f"benchmarks.paper {other}`" in page for other in PARTS if other != name)


def test_cells_say_what_the_strategies_found_and_what_failed():
    rows = compared("unit-chain{n=17}", [100.0, 40.0, 10.0], ["keep-all", "checkmate-ilp"], 60.0)
    found = {(row["strategy"], row["percent"]): row["overhead"] for row in rows}
    assert found["checkmate-ilp", 40.0] == pytest.approx(100 * 9 / 17, abs=1e-3)  # 26 computes at budget 4
    assert found["keep-all", 100.0] == 0
    assert found["keep-all", 40.0] is found["checkmate-ilp", 10.0] is None
    assert all(row["ending"] for row in rows)


def cell(strategy, percent, overhead, bound=0.0):
    return {"graph": "g", "strategy": strategy, "percent": percent, "overhead": overhead, "bound": bound}


def test_geometric_ratio_is_over_the_budgets_of_both():
    cells = [cell("ap-sqrt", 80, 100.0), cell("ap-sqrt", 60, 300.0), cell("ap-sqrt", 40, None), cell("auto", 80, 0.0)]
    cells += [cell("auto", 60, 100.0), cell("auto", 40, 300.0)]
    assert geometric_ratio(cells, "ap-sqrt", "auto") == (2.0, 2)
    assert geometric_ratio(cells, "ap-greedy", "auto") == (None, 0)
    row, auto = budgets.ratios(with_distances(cells, "auto"))
    assert (row["ratio"], row["budgets"], row["best_gap"]) == (2.0, 2, 300.0)
    assert row["at_most"] == pytest.approx((2 * 4) ** 0.5, abs=1e-4)  # auto proved no more than the cost without
    assert (auto["ratio"], auto["budgets"]) == (1.0, 3)


def test_distances_are_to_what_auto_proves_at_the_same_budget():
    cells = [cell("ap-sqrt", 80, 21.0, 0.0), cell("auto", 80, 12.0, 10.0), cell("ap-sqrt", 60, None, 0.0)]
    cells += [cell("auto", 60, None, None), cell("ap-sqrt", 40, 50.0, 40.0)]
    told = with_distances(cells, "auto")
    assert [(row["least"], row["above"]) for row in told] == [
        (10.0, 10.0),
        (10.0, pytest.approx(100 * (1.12 / 1.1 - 1), abs=1e-4)),
        (0.0, None),
        (0.0, None),
        (None, None),
    ]
    assert distance(told, "ap-sqrt") == 1.1
    assert distance(told, "dtr") is None


def test_budgets_can_be_bytes_and_costs_times():
    timed = compared("resnet18{batch=1}", [80.0, "100MB"], ["keep-all"], 5.0, cost="roofline:v100")
    peak = no_remat_peak(build_graph("resnet18{batch=1}"))
    assert {row["percent"] for row in timed} == {80.0, round(1e10 / peak, 3)}


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


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    table = frame.Table("t", "", (frame.Column("cell", "cell"),), named_by=("cell",))
    measured = []

    def run(session):
        rows = []
        for cell in "abc":
            if session.wants(cell):
                if cell == "b" and not measured.count("stopped"):
                    measured.append("stopped")
                    raise KeyboardInterrupt
                measured.append(cell)
                rows.append({"table": "t", "cell": cell})
                session.measured.append(cell)
                session.keep(rows)
        return rows

    benchmark = frame.Benchmark("x", "", "", (table,), run)
    partial = tmp_path / "results" / "treewidth.partial.json"
    with pytest.raises(KeyboardInterrupt):
        frame.perform(benchmark, quick=True, partial=partial)
    assert _from_interrupted(list(PARTS), tmp_path) == list(PARTS[PARTS.index("treewidth") :])
    result = frame.perform(benchmark, quick=True, partial=partial, resume=True)
    assert [row["cell"] for row in result["rows"]] == ["a", "b", "c"]
    assert measured == ["a", "stopped", "b", "c"]
    assert not partial.exists()
    assert _from_interrupted(list(PARTS), tmp_path) == list(PARTS)
    frame.perform(benchmark, quick=True, partial=partial, resume=True)
    assert measured[4:] == ["a", "b", "c"]


class One:
    """Runs one cell, as if it were interrupted then."""

    def run(self, cells, graph, limits, control):
        yield run_cell(cells[0], graph, limits)


def test_the_long_run_goes_on_from_its_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(executors, "LocalExecutor", lambda jobs: One())
    folder = ("--quick", "--output", str(tmp_path))
    for done in (1, 2, 3):
        assert long.main([*folder]) == 130
        assert f"{done} of 4 cells are measured; the same command goes on" in capsys.readouterr().out
    assert long.main([*folder]) == 0
    lines = (tmp_path / "results" / "long.rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    monkeypatch.setattr(executors, "LocalExecutor", lambda jobs: long.Nobody())
    assert long.main([*folder]) == 0
    (tmp_path / "results" / "long.rows.jsonl").write_text(lines[0] + "\n", encoding="utf-8")
    assert long.main([*folder, "--page"]) == 0
    assert "| linear{n=6} | FLOPs | 4 | 1 |" in (tmp_path / "checkmate.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        long.main(["--dask", "tcp://127.0.0.1:9", "--jobs", "2"])


@pytest.mark.filterwarnings("ignore")  # Dask's own: busy ports
def test_a_cluster_shares_the_long_run(tmp_path):
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        rows = tmp_path / "rows.jsonl"
        assert long.main(["--quick", "--dask", cluster.scheduler_address, "--results", str(rows)]) == 0
    gc.collect()  # what Dask leaves open is said here, and not in a later test
    told = [json.loads(line)["row"] for line in rows.read_text(encoding="utf-8").splitlines()]
    assert {(row["strategy"], row["budget"]) for row in told} == {
        (strategy, budget) for strategy in ("auto", "checkmate-ilp") for budget in ("60%", "80%")
    }
    assert {row["ended"] for row in told} == {"plan"}


def test_open_batches_are_asked_about_at_the_budgets_that_fit_them(monkeypatch):
    monkeypatch.setattr(long, "_STEPS", 6)

    def row(strategy, batch, impossible):
        return {"table": "batches", "graph": "unet", "strategy": strategy, "batch": batch, "impossible": impossible}

    assert not list(long._open_batches([row("keep-all", 24, 62), row("auto", 61, 62)]))
    (grid,) = long._open_batches([row("keep-all", 24, 62), row("auto", 40, 62)])
    asked = [batch for _, batch in grid.batches]
    assert asked == sorted(set(asked))
    assert (asked[0], asked[-1]) == (44, 61)
    graph = build_graph(grid.graph)
    for budget, batch in grid.batches:
        values = int(budget.removesuffix("B")) - graph.fixed_memory
        assert (16 * 10**9 - graph.fixed_memory) * 8 // values >= batch
    cells = [
        {"graph": grid.graph, "strategy": "auto", "percent": long.share_of(graph, budget), "overhead": over, "bound": b}
        | {"wall_s": 1.0, "ending": "finished"}
        for (budget, _), over, b in zip(
            grid.batches, (10.0, 50.0, None, 90.0, 40.0, None), (0, 0, 60.0, 80.0, 9, None), strict=True
        )
    ]
    verdicts = [row["verdict"] for row in long._of_batches(grid, cells)]
    assert verdicts == ["possible", "open", "impossible", "impossible", "open", "open"]


def least_block(lives):
    """The least memory at fixed offsets: some order of placing each life as low as it goes leads to it."""

    def block(order):
        placed = []
        for first, last, size in order:
            beside = [(low, high) for low, high, begin, end in placed if begin <= last and first <= end]
            lowest = min(
                c for c in (0, *(high for _, high in beside)) if all(c + size <= a or b <= c for a, b in beside)
            )
            placed.append((lowest, lowest + size, first, last))
        return max(high for _, high, _, _ in placed)

    return min(block(order) for order in itertools.permutations(lives))


def test_fixed_offsets_never_clash_and_are_often_the_best():
    rng = random.Random(4)
    best = 0
    for _ in range(60):
        begins = [rng.randint(0, 7) for _ in range(6)]
        lives = [(first, first + rng.randint(0, 4), rng.randint(1, 5)) for first in begins]
        places = placing.offsets(lives)
        spans = [(place, place + life[2]) for place, life in zip(places, lives, strict=True)]
        for (a, one), (b, other) in itertools.combinations(zip(spans, lives, strict=True), 2):
            apart = one[1] < other[0] or other[1] < one[0]
            assert apart or a[1] <= b[0] or b[1] <= a[0]
        block, least = max(high for _, high in spans), least_block(lives)
        live = max(sum(size for first, last, size in lives if first <= t <= last) for t in range(12))
        assert live <= least <= block
        best += block == least
    assert best > 40
    graph = build_graph("vgg16{batch=1,backward=operator}")
    order = tuple(range(len(graph.nodes)))
    assert placing.placed_bytes(graph, order) >= peak(graph, order) - graph.fixed_memory


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_networks_of_keras_lie_on_the_lines_through_what_was_exported(file):
    told = json.loads(file.read_text(encoding="utf-8"))
    network = exported(file.stem)
    paper, small = network.at(), network.at(told["small"]["batch"])
    assert [node.cost for node in paper.nodes] == [node["cost"] for node in told["graph"]["nodes"]]
    assert [list(node.outputs) for node in small.nodes] == told["small"]["outputs"]
    assert no_remat_peak(small) < no_remat_peak(paper) / 2
    low, high = network.profiled
    timed = [network.at(batch, cost="us") for batch in (low, high, network.batch)]
    assert [node.cost for node in timed[0].nodes] == told["microseconds"][str(low)]
    for one, other, far, measured in zip(*(g.nodes for g in timed), told["microseconds"][str(high)], strict=True):
        assert other.cost == max(one.cost, measured)
        line = one.cost + (other.cost - one.cost) * (network.batch - low) / (high - low)
        assert far.cost == pytest.approx(line)
    assert [node.outputs for node in timed[2].nodes] == [node.outputs for node in paper.nodes]
    assert timed[2].cost_unit == "us"


def test_a_process_that_fails_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(treewidth, "call", lambda function, **case: measure.Called(None, None, "it broke"))
    rows = treewidth.run(frame.Session(True, tmp_path, print))
    assert {row["ending"] for row in rows} == {"it broke"}
    frame.check_rows(part("treewidth"), rows)
    treewidth.draw(rows, tmp_path)


def test_coinciding_lines_bounds_and_published_values_are_in_a_picture(tmp_path):
    one, same, other = [(1, 2.0), (2, 3.0)], [(1, 2.0), (2, 3.0)], [(1, 4.0), (2, 5.0)]
    assert plots._meet(one, same)
    assert not plots._meet(one, other)
    crossing = [(1, 2.0), (2, 9.0), (3, 9.0)]
    assert not plots._meet([*one, (3, 4.0)], crossing), "they meet at one of three places"
    panel = Panel("p", {"x": one, "y": same, "none": []}, [(1, 1.0), (2, 1.0)], {"told": [(1, 3.0)]}, {"16 GB": 1.5})
    draw_curves([panel], "across", "up", tmp_path / "whole.svg", columns=2)
    text = (tmp_path / "whole.svg").read_text(encoding="utf-8")
    for words in ("proven impossible", "told", "16 GB", "x", "y"):
        assert f"<!-- {words} -->" in text
    assert "<!-- none -->" not in text


def test_memory_over_time_ends_where_the_peak_is():
    graph = build_graph("linear{n=6}")
    order = list(range(len(graph.nodes)))
    assert max(memory.residents(graph, order)) == peak(graph, order)


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


@pytest.mark.parametrize("n", [2, 6])
def test_the_counterexample_costs_what_the_paper_says(n):
    told = chains.persistence(n)
    assert told["rotor"] == told["persistent"] == 3 * n + 1
    assert told["auto"] == told["free"] == 2 * n + 2


def test_rotor_is_faster_with_the_memory_of_the_best_segments():
    told = chains.measured("resnet50", 224, 8)
    assert told["segments"] >= 2
    assert told["rate"] < told["rotor_rate"] < told["kept_rate"]
    assert told["gain"] == pytest.approx(100 * (told["rotor_rate"] / told["rate"] - 1), abs=0.02)
    assert chains._segments(72) == sorted({round(2 + 15 * k / 9) for k in range(10)})


def test_the_strategies_are_what_table_1_says_of_the_methods():
    rows = memory._methods()
    assert len(rows) == 10
    for row in rows:
        assert row["costs"] == row["costs_told"], row
        assert (row["sizes"] == "no") == (row["sizes_told"] == "no"), row
        assert (row["graphs"] == "chain") == (row["graphs_told"] == "no"), row


def test_what_figure_1_saves_is_saved_at_a_proven_cost():
    kept, saved = [row for row in memory._saved() if row["table"] == "saved"]
    assert kept["peak_bytes"] == pytest.approx(30e9, rel=1e-6)
    assert (kept["saved_bytes"], kept["overhead"]) == (0, 0)
    assert saved["saved_bytes"] >= 21e9
    assert 0 < saved["bound"] <= saved["overhead"]


def test_the_batch_of_keep_all_does_not_depend_on_costs():
    linear, timed = batches.largest("resnet50", "keep-all"), batches.largest_timed("resnet50", "keep-all")
    assert linear["batch"] == pytest.approx(timed["batch"], rel=0.02)  # one counts eight images, the other all of them


@pytest.mark.parametrize("kind", ["chain", "residual"])
def test_graphs_of_scale_have_the_nodes_asked_for(kind):
    graph = graph_of(f"{kind}-300")
    assert len(graph.nodes) in {299, 300}
    assert no_remat_peak(graph) > 0
