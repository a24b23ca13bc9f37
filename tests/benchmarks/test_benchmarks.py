"""The frame of the benchmarks. No time is asserted: that is what ``make bench`` is for."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import frame, measure
from benchmarks.__main__ import apart, main
from benchmarks.anytime import worse_by
from benchmarks.inputs import case, plan_of
from benchmarks.machine import Load
from benchmarks.page import own_page, page, written
from remat_cli.plan.check import check

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = [frame.load(name) for name in frame.NAMES]


def test_quick_run_writes_result_and_page(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "startup", "--quick", "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    text = (tmp_path / "results" / "startup.json").read_text(encoding="utf-8")
    result = json.loads(text)
    assert frame.dump(result) == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "results"]
    assert result["quick"] is True
    rows = {row["command"]: row for row in result["rows"]}
    assert rows["remat --help"]["wall"]["runs"] == 1
    assert rows["remat --help"]["large"] == "none"
    assert rows["remat --help"]["modules"] > rows["python -c pass"]["modules"] > 0
    # Had the memory of this process leaked into what it starts, a bare Python would look as large as remat.
    assert rows["python -c pass"]["peak_bytes"] < rows["remat --help"]["peak_bytes"]
    assert result["machine"]["cores"] >= 1
    assert result["versions"]["packages"]["pyomo"]
    made = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "remat check unit-chain17.plan.json" in made
    assert "remat check unit-chain17.plan.json" in done.stdout
    assert "Not measured yet: `python -m benchmarks replay`" in made
    for private in (os.uname().nodename, str(tmp_path), str(ROOT), sys.prefix):
        assert private not in text + made


def test_committed_page_is_made_from_committed_results():
    results = frame.stored(ROOT / "benchmarks" / "results")
    assert {benchmark.name for benchmark in BENCHMARKS} == set(results)
    for benchmark in BENCHMARKS:
        assert results[benchmark.name]["quick"] is False
        frame.check_rows(benchmark, results[benchmark.name]["rows"])
    assert (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8") == page(BENCHMARKS, results)


def test_committed_pages_of_their_own_are_made_from_committed_results():
    found = list(apart(ROOT / "benchmarks"))
    assert {path.parents[1].name for _, path in found} == {name.partition(".")[0] for name in frame.APART}
    for benchmark, path in found:
        result = json.loads(path.read_text(encoding="utf-8"))
        frame.check_rows(benchmark, result["rows"])
        assert path.with_suffix(".md").read_text(encoding="utf-8") == own_page(benchmark, result)


@pytest.mark.parametrize("target", [target for benchmark in BENCHMARKS for target in benchmark.targets])
def test_every_target_has_a_committed_number(target):
    results = frame.stored(ROOT / "benchmarks" / "results")
    rows = [row for result in results.values() for row in result["rows"]]
    assert measure.median(target.measured(rows)) > 0


def test_list_and_unknown_name(capsys):
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*frame.NAMES, *frame.APART]
    with pytest.raises(SystemExit) as stopped:
        main(["startpu"])
    assert stopped.value.code == 2
    assert "there is no benchmark startpu" in capsys.readouterr().err


def test_a_failing_benchmark_keeps_the_old_result_and_fails(tmp_path, monkeypatch, capsys):
    def broken(session):
        raise measure.BenchmarkError("it broke")

    monkeypatch.setattr("benchmarks.startup.run", broken)
    kept = tmp_path / "results" / "startup.json"
    kept.parent.mkdir()
    kept.write_text((ROOT / "benchmarks" / "results" / "startup.json").read_text(encoding="utf-8"), encoding="utf-8")
    before = kept.read_bytes()
    assert main(["startup", "--quick", "--output", str(tmp_path)]) == 1
    assert kept.read_bytes() == before
    assert "startup: failed: it broke" in capsys.readouterr().err


def test_process_that_takes_too_long_is_killed():
    ended = measure.run_process([sys.executable, "-c", "import time; time.sleep(60)"], limit_s=0.3)
    assert ended.killed
    assert ended.peak_bytes is None
    assert "no end after" in ended.problem()
    with pytest.raises(measure.BenchmarkError, match="a nap: no end after"):
        measure.succeeded(ended, "a nap")


def test_process_that_fails_says_why():
    ended = measure.run_process([sys.executable, "-c", "raise SystemExit('no luck')"])
    assert ended.code == 1
    assert ended.problem() == "exit status 1: no luck"
    with pytest.raises(measure.BenchmarkError, match="no-such-program cannot be started"):
        measure.run_process(["no-such-program"])


def test_memory_is_that_of_the_process():
    small = measure.run_process([sys.executable, "-c", "pass"])
    large = measure.run_process([sys.executable, "-c", "x = bytes(range(256)) * 400_000"])
    assert small.peak_bytes < 50e6 < 100e6 < large.peak_bytes


def test_options_of_remat_in_the_environment_do_not_leak(monkeypatch):
    monkeypatch.setenv("REMAT_SOLVE_BUDGET", "1GB")
    ended = measure.run_process([sys.executable, "-c", "import os; print('REMAT_SOLVE_BUDGET' in os.environ)"])
    assert ended.out == "False\n"


def test_call_returns_values_or_a_problem(tmp_path):
    called = measure.call("benchmarks.documents:make", path=str(tmp_path / "graph.json"), n=5)
    assert called.problem == ""
    assert called.peak_bytes > 0
    failed = measure.call("benchmarks.documents:load", path=str(tmp_path / "none.json"))
    assert failed.values is None
    assert "none.json" in failed.problem
    with pytest.raises(measure.BenchmarkError, match="documents:load"):
        measure.call_or_fail("benchmarks.documents:load", path=str(tmp_path / "none.json"))


def test_spread():
    assert measure.spread([3.0, 1.0, 2.00049]) == {"max": 3.0, "median": 2.0, "min": 1.0, "runs": 3}
    assert measure.together([{"a": 1.0}, {"a": 2.0}])["a"]["median"] == 1.5
    assert measure.median(None) is None


def test_repeated_stops_when_it_is_enough():
    assert len(measure.repeated(lambda: None, 3)) == 3
    assert len(measure.repeated(lambda: None, 3, enough_s=0.0, collect=False)) == 1


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "seconds", ""),
        (0.0464, "seconds", "46.4 ms"),
        ({"median": 1.5, "min": 0.95, "max": 2.0, "runs": 3}, "seconds", "1.5 s (0.95–2)"),
        (2e-7, "seconds", "0.2 µs"),
        (0.9999, "seconds", "1 s"),
        (0, "seconds", "0 µs"),
        (999.6, "bytes", "1 kB"),
        (25_300_000_000, "bytes", "25.3 GB"),
        (20_000, "count", "20,000"),
        (16.9, "ratio", "17×"),
        (0.0164, "ratio", "0.016×"),
        (47.0, "number", "47"),
        ("a", "text", "a"),
    ],
)
def test_cells(value, kind, text):
    assert written(value, frame.Column("key", "heading", kind)) == text


def test_rows_must_fit_their_table():
    benchmark = frame.load("startup")
    with pytest.raises(ValueError, match="no table"):
        frame.check_rows(benchmark, [{"table": "other"}])
    with pytest.raises(ValueError, match="table startup has"):
        frame.check_rows(benchmark, [{"table": "startup", "command": "x"}])


def test_missed_and_ambiguous_targets():
    benchmark = frame.load("startup")
    target = benchmark.targets[0]
    result = frame.stored(ROOT / "benchmarks" / "results")["startup"]
    slow = [{**row, "wall": measure.spread([0.5])} for row in result["rows"]]
    assert "| 500 ms | **no** |" in page([benchmark], {"startup": {**result, "rows": slow}})
    assert "| not measured |" in page([benchmark], {})
    with pytest.raises(ValueError, match="2 rows answer"):
        target.measured([row for row in slow if row["command"] == "remat --help"] * 2)


def test_load_says_when_the_machine_is_shared(monkeypatch):
    monkeypatch.setattr("benchmarks.machine.cores", os.cpu_count)  # also where the tests are confined to some cores
    now = Load.now()
    assert Load(3.0, now.wall_s, now.busy_s, now.own_s).until_now()["shared"] is True
    busy = Load(0.0, now.wall_s - 10, 0.0, now.own_s).until_now()
    assert busy["shared"] is True
    assert Load(0.0, now.wall_s, None, now.own_s).until_now() == {
        "average_before": 0.0,
        "others_cores": None,
        "shared": False,
    }


@pytest.mark.parametrize("family", ["training chain", "random DAG"])
@pytest.mark.parametrize("n", [2, 10, 50, 200])
def test_plans_to_measure_with_are_valid_and_recompute(family, n):
    graph, computes = case(family, n)
    assert len(graph.nodes) == n
    report = check(plan_of(graph, computes))
    assert not report.findings
    assert report.replay.cost == math.fsum(graph.nodes[k].cost for k in computes)
    assert len(computes) > n or n == 2
    assert case(family, n) == (graph, computes)


def test_by_how_much_a_longer_limit_is_worse_than_a_shorter_one():
    assert worse_by([None, 2.0, 1.0, 1.0]) == 0
    assert worse_by([None, 0.0, 3.0, 1.0]) == 3
    assert worse_by([1.0, None]) == 100
