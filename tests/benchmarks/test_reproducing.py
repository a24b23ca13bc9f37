"""The benchmarks behind single claims: what they measure on tiny graphs is what is known of those."""

import json
from dataclasses import replace

import pytest

from benchmarks import captured, frame, lanes, measure, solving, speedup
from benchmarks.__main__ import main, run_one
from benchmarks.families import layered
from benchmarks.page import page
from remat_cli.api import build_graph
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.io import dump_document, graph_to_document, load_graph


def rows_of(name, tmp_path, *options):
    assert main([name, "--quick", "--output", str(tmp_path), *options]) == 0
    result = json.loads((tmp_path / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert frame.load(name).title in (tmp_path / "README.md").read_text(encoding="utf-8")
    return result["rows"]


def scaled_chain(path, bytes_each, fixed):
    """The 17-node chain with values of so many bytes: its optimum is 19 of 17 at 8 values, whatever those weigh."""
    graph = build_graph("unit-chain{n=17}")
    nodes = tuple(replace(node, outputs=(bytes_each,)) for node in graph.nodes)
    graph = replace(graph, nodes=nodes, fixed_memory=fixed)
    path.parent.mkdir(exist_ok=True)
    path.write_text(dump_document(graph_to_document(graph)), encoding="utf-8")
    return path


def test_speedup_has_both_prove_the_same(tmp_path):
    (row,) = rows_of("speedup", tmp_path)
    assert row["proven"] == "both"
    assert row["overhead"] == row["papers_overhead"] > 0
    assert row["ratio"] == measure.rounded(row["papers"] / row["ours"]["median"])


@pytest.mark.parametrize(
    ("papers", "ours", "proven", "ratio"),
    [
        ({"wall_s": 120.0, "claim": "feasible"}, {"wall_s": 2.0, "claim": "optimal"}, "optimal", 60.0),
        ({"wall_s": 2.0, "claim": "optimal"}, {"wall_s": 120.0}, "checkmate-ilp", None),
        (None, {"wall_s": 120.0, "claim": "feasible"}, "neither", None),
    ],
)
def test_speedup_says_who_proved_it(papers, ours, proven, ratio, monkeypatch):
    def said(function, *, strategy, **asked):
        values = papers if strategy == "checkmate-ilp" else ours
        return measure.Called(values, None, "" if values else "killed")

    monkeypatch.setattr(solving, "call", said)
    row = speedup._row("unet", 50, 120.0, 3)
    assert (row["proven"], row["ratio"]) == (proven, ratio)


def test_curve_of_budgets_and_one_of_them(tmp_path):
    (row,) = rows_of("curves", tmp_path)
    assert (row["plans"], row["optimal"], row["ending"]) == (4, 4, "finished")
    assert 0 <= row["gap"] <= 0.01
    assert row["ratio"] == measure.rounded(row["ten"] / row["one"]["median"])


def test_tight_budgets(tmp_path):
    (row,) = rows_of("tight", tmp_path)
    assert row["gap"] <= 0.01
    assert (row["budget"], row["limit_s"]) == ("60%", 5.0)


def test_orders_of_a_graph_given(tmp_path):
    path = tmp_path / "moccasin" / "G.json"
    path.parent.mkdir()
    path.write_text(dump_document(graph_to_document(layered(30, 0))), encoding="utf-8")
    given, free = rows_of("order", tmp_path, "--graphs", str(path), "--limit", "6")
    assert [row["orders"] for row in (given, free)] == ["the document's", "any (--reorder)"]
    assert given["graph"] == free["graph"] == "G"
    # What holds for any order holds for that of the document.
    assert free["scope"] == "any-order"
    assert 0 <= free["bound"] <= given["overhead"]
    assert given["claim"] == "optimal"


@pytest.mark.parametrize(
    ("gaps", "long_s", "solves"),
    [([0.4], 300.0, 1), ([0.6, 0.2], 300.0, 2), ([None, 0.2], 300.0, 2), ([None, None], 300.0, 2), ([0.6], None, 1)],
)
def test_what_stays_open_is_solved_again_for_longer(gaps, long_s, solves, monkeypatch):
    asked = []

    def said(table, case, *, time_limit_s, **arguments):
        asked.append(time_limit_s)
        gap = gaps[len(asked) - 1]
        return {"gap": gap, "overhead": gap and 10 + gap, "long_overhead": None, "long_gap": None}

    monkeypatch.setattr(solving, "solved_row", said)
    row = solving.solved_longer(None, {}, limits_s=(30.0, long_s), enough=0.5)
    assert asked == [30.0, long_s][:solves]
    assert row["gap"] == gaps[0]
    assert row["long_gap"] == (gaps[1] if solves == 2 else None)
    assert row["long_overhead"] == (gaps[1] and 10 + gaps[1] if solves == 2 else None)


def test_captured_budgets_leave_fixed_memory_out(tmp_path):
    path = scaled_chain(tmp_path / "torch-unet.json", 250_000, 7_000_000)
    point, least = rows_of("captured", tmp_path, "--graphs", str(path))
    assert point["fixed"] == 7_000_000
    assert point["budget_mb"] == 2
    assert point["ratio"] == round(19 / 17, 5)
    assert point["bound"] == pytest.approx(19 / 17, rel=1e-4)
    # A chain has one order only.
    assert (least["document_mb"], least["reordered_mb"], least["less"]) == (2.5, 2.5, 0)


def test_captured_exports_by_itself(tmp_path):
    path = tmp_path / "torch-unet.json"
    (spec,) = captured._QUICK_SPECS.values()
    facts = captured.exported(str(path), spec)
    graph = load_graph(str(path))
    assert graph.metadata["frontend"] == "torch"
    assert facts == captured.exported(str(path), None)
    assert facts["fixed"] == graph.fixed_memory > 0
    assert facts["values"] == no_remat_peak(graph) - graph.fixed_memory


def test_what_is_missing_is_said_and_fails_only_where_it_was_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(captured, "find_spec", lambda name: None)
    assert main(["captured", "--output", str(tmp_path)]) == 1
    assert "captured: failed: PyTorch is missing" in capsys.readouterr().err
    assert main(["order", "--output", str(tmp_path)]) == 1
    assert "give them with --graphs" in capsys.readouterr().err
    assert run_one(frame.load("tight"), tmp_path, quick=False, named=False)
    assert "tight: left out: it measures checkmate/unet.json" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_no_plan_is_an_answer():
    values = solving.solved("linear{n=6}", 1)
    assert values["impossible"] is True
    assert "no plan fits" in values["ending"]
    row = frame.load("networks").tables[0].row({"graph": "linear"}, values)
    assert row["overhead"] is None
    assert row["nodes"] == 13


SCALING = frame.load("scaling")


def scaling_row(family, nodes, gap):
    return SCALING.tables[0].row({"family": family, "nodes": nodes, "strategy": "auto", "gap": gap}, {})


def result(rows, **said):
    place = {
        "load": {"average_before": 0.1, "others_cores": 0.0, "shared": False},
        "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 10**9, "system": "Linux"},
        "versions": {"commit": "abc", "python": "CPython 3.11", "remat": "1.0", "packages": {}},
    }
    return {"benchmark": "scaling", "date": "2026-01-01", "quick": False, "wall_s": 1.0, "rows": rows} | place | said


def test_rows_measured_again_take_their_places_and_say_so():
    old = result([scaling_row("layered", 100, 1.0), scaling_row("layered", 300, 1.0), scaling_row("wild", 100, 1.0)])
    first = frame.merged(SCALING, old, result([scaling_row("layered", 300, 2.0), scaling_row("layered", 999, 2.0)]))
    assert [(row["nodes"], row["gap"]) for row in first["rows"]] == [(100, 1.0), (300, 2.0), (999, 2.0), (100, 1.0)]
    second = frame.merged(SCALING, first, result([scaling_row("layered", 300, 3.0)], date="2026-01-02", limit_s=5.0))
    assert [row["gap"] for row in second["rows"]] == [1.0, 3.0, 2.0, 1.0]
    assert [record["rows"] for record in second["again"]] == [["layered 999 auto"], ["layered 300 auto"]]
    assert second["date"] == "2026-01-01"
    frame.check_rows(SCALING, second["rows"])
    text = page([SCALING], {"scaling": second})
    assert "Measured again: layered 300 auto. 2026-01-02 at commit abc" in text
    assert "each solve had 5 s" in text
    # All of it measured again: nothing is left of the first record.
    assert len(frame.merged(SCALING, first, first)["again"]) == 1


def test_only_some_rows_of_a_stored_result(tmp_path, capsys):
    asked = ["targets", "--quick", "--output", str(tmp_path), "--only", "linear"]
    assert main(asked) == 1
    assert "measure all rows first" in capsys.readouterr().err
    assert main(asked[:-2]) == 0
    assert main(asked) == 0
    stored = json.loads((tmp_path / "results" / "targets.json").read_text(encoding="utf-8"))
    assert len(stored["rows"]) == 1
    assert [record["rows"] for record in stored["again"]] == [["linear{n=6} 60% auto"]]
    capsys.readouterr()
    assert main([*asked[:-1], "no such row"]) == 1
    assert "there are:\n  linear{n=6} at 60%, auto" in capsys.readouterr().err
    assert main(["targets", *asked[2:]]) == 1
    assert "is a quick run" in capsys.readouterr().err


def test_options_that_a_benchmark_does_not_take_are_refused(capsys):
    for options, said in (
        (["startup", "--only", "help"], "--only is not for startup"),
        (["targets", "--limit", "5"], "--limit is not for targets"),
        (["order", "--limit", "never"], "never is not a number of seconds"),
        (["order", "--limit", "0"], "0 is not a number of seconds"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(options)
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err


def test_cells_keep_their_order_and_a_failure_ends_the_run(tmp_path):
    kept = []
    session = frame.Session(True, tmp_path, lambda text: None, lambda rows: kept.append(len(rows)))
    cells = [lanes.Cell(f"cell {k}", lambda k=k: {"k": k}) for k in range(5)]
    assert lanes.rows_of(session, cells, lanes=2) == [{"k": k} for k in range(5)]
    assert kept == [1, 2, 3, 4, 5]
    some = replace(session, only=("cell 3", "cell 1"))
    assert lanes.rows_of(some, cells) == [{"k": 1}, {"k": 3}]

    def broken():
        raise measure.BenchmarkError("it broke")

    with pytest.raises(measure.BenchmarkError, match="it broke"):
        lanes.rows_of(session, [lanes.Cell("broken", broken), *cells])
