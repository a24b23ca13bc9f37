"""Comparisons: cells, resuming, bounds across strategies, executors on real processes and a real Dask cluster."""

import csv
import io
import json
import os
import time
from concurrent.futures import Future
from multiprocessing import get_context
from pathlib import Path

import bruteforce
import jsonschema
import pytest
from pebble import ProcessPool

from remat_cli.control import Control
from remat_cli.errors import InputError, UsageError
from remat_cli.plan.comparison import Cell, Comparison, Ended, Row
from remat_cli.planning.comparison import Execution, compare
from remat_cli.planning.executors import LocalExecutor, _row_of, run_cell
from remat_cli.planning.options import Limits
from remat_cli.reports.comparison import comparison_csv, comparison_document, comparison_text
from remat_cli.reports.documents import document_json
from remat_cli.reports.figures import comparison_figure
from remat_cli.reports.style import Style
from remat_cli.units import parse_budgets
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=9}")
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "comparison-v1.json").read_text())


class Here:
    """Runs cells in this process, and counts them."""

    def __init__(self):
        self.seen = []

    def run(self, cells, graph, limits, control):
        for cell in cells:
            self.seen.append(cell)
            yield run_cell(cell, graph, limits)


def small(executor=None, limits=None, **more):
    execution = Execution(executor or Here(), **more)
    return compare(CHAIN, parse_budgets("3:6:1"), ["auto", "keep-all", "checkmate-ilp"], limits, execution)


def test_rows_say_what_brute_force_says():
    comparison = small()
    assert [row.strategy for row in comparison.rows] == [s for s in comparison.strategies for _ in range(4)]
    for row in comparison.by_strategy()["auto"]:
        assert row.ended is Ended.PLAN
        assert row.cost == bruteforce.cheapest(CHAIN, row.budget_bytes)
        assert row.peak_bytes <= row.budget_bytes
        assert row.overhead == pytest.approx(row.cost / 9 - 1)
        assert row.computes == row.cost
    keep = comparison.by_strategy()["keep-all"]
    assert [row.ended for row in keep] == [Ended.NONE] * 3 + [Ended.PLAN]
    assert comparison.contradictions() == []
    assert all(comparison.bound(row.budget_bytes) <= row.cost for row in comparison.rows if row.cost is not None)


def test_a_bound_holds_for_smaller_budgets_and_shows_contradictions():
    def row(budget, cost, bound, scope):
        return Row("x", str(budget), budget, Ended.PLAN, cost=cost, lower_bound=bound, scope=scope, overhead=0.0)

    rows = (row(3, 20.0, 9.0, "frontier"), row(4, 12.0, 12.0, "document-order"), row(5, 9.0, 11.0, "frontier"))
    comparison = Comparison(CHAIN, 6, ("x",), (("3", 3), ("4", 4), ("5", 5)), {}, rows)
    assert [comparison.bound(b) for b in (3, 4, 5)] == [12.0, 12.0, 9.0]
    assert comparison.contradictions() == []
    cheap = Comparison(CHAIN, 6, ("x",), (("3", 3), ("4", 4)), {}, (row(3, 11.0, 9.0, "frontier"), rows[1]))
    assert len(cheap.contradictions()) == 1
    assert "CONTRADICTION" in comparison_text(cheap, Style(100, color=False, unicode=True))


def test_what_goes_wrong_is_a_row():
    refused = run_cell(Cell("moccasin{starts=nothing}", 4, "4"), CHAIN, Limits())
    assert refused.ended is Ended.REFUSED
    assert "starts" in refused.message
    gone = run_cell(Cell("checkmate-ilp", 4, "4"), CHAIN, Limits(solver="gurobi{no=1}"))
    assert gone.ended is Ended.REFUSED
    late = run_cell(Cell("checkmate-ilp", 4, "4"), CHAIN, Limits(time_limit_s=1e-3))
    assert late.ended is Ended.LIMIT


def test_a_defect_of_a_strategy_is_a_row(monkeypatch):
    def broken(self, task, context):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("remat_cli.strategies.keep_all.KeepAll.solve", broken)
    comparison = small()
    assert {row.ended for row in comparison.by_strategy()["keep-all"]} == {Ended.FAILED}
    assert {row.ended for row in comparison.by_strategy()["auto"]} <= {Ended.PLAN, Ended.FAILED}
    assert "by zero" in comparison_text(comparison, Style(100, color=False, unicode=False))


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path):
    results = tmp_path / "rows.jsonl"
    control = Control.within(None)
    first = small(
        results=results,
        control=control,
        listener=lambda row, done, whole: control.cancelled.set() if done == 5 else None,
    )
    assert first.interrupted
    assert sum(row.ended is Ended.INTERRUPTED for row in first.rows) == 7
    with results.open("a") as stream:
        stream.write('{"key": "cut off in the mid')  # as a crash leaves it
    executor = Here()
    second = small(results=results, executor=executor)
    assert len(executor.seen) == 7
    assert not second.interrupted
    executor = Here()
    third = small(results=results, executor=executor)
    assert executor.seen == []
    assert third.rows == second.rows
    executor = Here()
    small(results=results, executor=executor, limits=Limits(seed=1))
    assert len(executor.seen) == 12  # rows made with other limits do not count


DAMAGES = {
    b"\xff\xfe not UTF-8": "it is not UTF-8",
    b'{"key": "cut off in the mid': "it is not JSON",
    b"[" * 100_000: "it is not JSON",
    b"[1, 2]": "it lacks the field key or row",
    b'{"key": [], "row": {}}': "it lacks the field key or row",
    b'{"key": "k", "row": []}': "it has not the fields of a row",
}
LIES = {
    "strategy": [None, 3, ["auto"]],
    "budget_bytes": [[5], -1, True, 1.5, 2**63, "5"],
    "ended": ["well", None, []],
    "peak_bytes": ["x", -1, None, float("nan"), 10**6],
    "cost": [-5, float("nan"), float("inf"), "1", None, 10**400],
    "overhead": [float("nan"), [], "0", 10**400],
    "computes": [1.5, -1],
    "lower_bound": [float("-inf"), {}],
    "scope": ["everything", None, []],
    "optimal": [1, None],
    "wall_s": [-1, "fast"],
    "message": [None, 1],
}


def test_damaged_lines_are_left_out_and_reported_wherever_they_are(tmp_path):
    results = tmp_path / "rows.jsonl"
    whole = small(results=results)
    lines = results.read_bytes().splitlines()
    damaged = dict(DAMAGES)
    for name, values in LIES.items():
        for value in values:
            entry = json.loads(lines[0])
            assert entry["row"]["cost"] is not None
            entry["row"][name] = value
            damaged[json.dumps(entry).encode()] = f"{name} is "
    above = json.loads(lines[0])
    above["row"]["peak_bytes"] = above["row"]["budget_bytes"] + 1
    damaged[json.dumps(above).encode()] = "peak_bytes is above budget_bytes"
    for number, (bad, reason) in enumerate(damaged.items()):
        at = (0, 5, len(lines) - 1)[number % 3]  # the first line, one in the middle, the last
        results.write_bytes(b"\n".join([*lines[:at], bad, *lines[at + 1 :]]) + b"\n" * (number % 2))
        executor, notes = Here(), []
        again = small(results=results, executor=executor, note=notes.append)
        assert len(executor.seen) == 1, bad
        assert [row.cost for row in again.rows] == [row.cost for row in whole.rows]
        [note] = notes
        told = f"{results}:{at + 1}: this line is not a row of a comparison and is left out: {reason}"
        assert note.startswith(told), bad
        executor = Here()
        small(results=results, executor=executor)
        assert executor.seen == []  # what was solved again stands on a line of its own
    assert number > 30


def test_many_damaged_lines_are_counted(tmp_path):
    results, notes = tmp_path / "rows.jsonl", []
    small(results=results)
    with results.open("a") as stream:
        stream.write("x\n" * 10)
    small(results=results, note=notes.append)
    assert [note.split(":")[1] for note in notes] == ["13", "14", "15", " and 7 more lines"]


def test_a_file_whose_first_line_was_cut_off_is_resumed_from(tmp_path):
    results = tmp_path / "rows.jsonl"
    results.write_text('{"key": "c22')
    small(results=results)
    executor = Here()
    small(results=results, executor=executor)
    assert executor.seen == []


def test_a_file_of_something_else_is_refused(tmp_path):
    other = tmp_path / "graph.json"
    for content in (b"{\n}\n", os.urandom(3000), b"\xff" * 10):
        other.write_bytes(content)
        with pytest.raises(InputError, match=r"graph.json:1: is not a row of a comparison \(give another file"):
            small(results=other)
        assert other.read_bytes() == content


def test_nothing_to_compare():
    with pytest.raises(UsageError, match="nothing to compare"):
        compare(CHAIN, [], ["auto"], execution=Execution(Here()))
    with pytest.raises(UsageError, match="no strategy"):
        compare(CHAIN, parse_budgets("4"), ["autoo"], execution=Execution(Here()))


def test_documents():
    comparison = small()
    document = json.loads(document_json(comparison_document(comparison)))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
    assert [row["strategy"] for row in rows] == [row["strategy"] for row in document["rows"]]
    assert [row["cost"] for row in rows if row["ended"] != "plan"] == ["", "", ""]
    assert Row.of_document(document["rows"][0]) == comparison.rows[0]


def test_the_table_in_every_width():
    comparison = small()
    for width in (40, 60, 200):
        text = comparison_text(comparison, Style(width, color=False, unicode=False))
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= width
        assert text.count("keep-all") == (1 if width == 200 else text.count("\nauto") + text.startswith("auto"))
        assert "no fit: the strategy has no plan within the budget" in " ".join(text.split())


def test_a_claim_that_holds_for_few_plans_says_so():
    comparison = compare(build_graph("linear{n=8}"), parse_budgets("60%"), ["rotor", "auto"], limits=Limits())
    text = comparison_text(comparison, Style(200, color=False, unicode=False))
    assert "rotor: only among memory-persistent schedules of the chain (chain-persistent)" in text
    assert "auto: only" not in text


@pytest.mark.parametrize("form", ["svg", "png"])
def test_figures_do_not_change_from_run_to_run(form):
    comparison = small()
    figure = comparison_figure(comparison, form)
    assert figure == comparison_figure(comparison, form)
    assert figure.startswith(b"\x89PNG" if form == "png" else b"<?xml")


def test_local_processes():
    rows = list(
        LocalExecutor(2).run(
            [Cell("keep-all", 6, "6"), Cell("checkpoint-all", 2, "2")],
            CHAIN,
            Limits(),
            Control.within(None),
        )
    )
    assert {row.strategy: row.ended for row in rows} == {"keep-all": Ended.PLAN, "checkpoint-all": Ended.NONE}


def test_a_process_that_dies_is_a_row():
    cell = Cell("auto", 4, "4")
    with ProcessPool(max_workers=1, context=get_context("spawn")) as pool:
        assert _row_of(pool.schedule(os._exit, (3,)), cell).ended is Ended.FAILED
        late = _row_of(pool.schedule(time.sleep, (60,), timeout=0.2), cell)
    assert late.ended is Ended.LIMIT
    done: Future[Row] = Future()
    done.set_result(late)
    assert _row_of(done, cell) is late
