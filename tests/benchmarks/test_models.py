"""The suite of real models, without its libraries: its list, its processes, its page."""

from __future__ import annotations

import ast
import json
import os
import time
from pathlib import Path

import pytest

from benchmarks.models.forking import command, forked
from benchmarks.models.listing import MODELS
from benchmarks.models.page import page
from benchmarks.models.steps import wanted


def test_every_model_has_a_builder_and_every_builder_is_on_the_list():
    names = [model.name for model in MODELS]
    assert len(names) == len(set(names)) >= 60
    assert {model.library for model in MODELS} >= {"torchvision", "timm", "transformers", "diffusers", "peft"}
    for file in {model.file for model in MODELS}:
        functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        public = {function.name for function in functions if not function.name.startswith("_")}
        assert public == {model.name for model in MODELS if model.file == file}


def test_the_committed_answers_are_of_listed_models_and_make_the_committed_page():
    results = Path(__file__).parents[2] / "benchmarks" / "models" / "results"
    document = json.loads((results / "models.json").read_text())
    assert set(document["rows"]) <= {model.name for model in MODELS}
    assert page(document) == (results / "models.md").read_text()


def test_a_command_runs_in_a_process_of_its_own(tmp_path):
    graph = tmp_path / "chain.json"
    assert command(["export", "zoo:unit-chain{n=5}", "-o", str(graph)], 60).code == 0
    told = command(["solve", str(graph), "--budget", "80%", "--format", "json", "-o", "-"], 60)
    assert told.code == 0
    assert json.loads(told.out)["graph"]["name"] == "unit-chain"
    refused = command(["solve", str(graph), "--budget", "1B"], 60)
    assert refused.code == 1
    assert "no plan fits a budget of 1 byte" in refused.err


def test_processes_end_with_their_exceptions_and_their_time(tmp_path):
    def failing():
        raise RuntimeError("it broke")

    ended = forked(failing, 60)
    assert (ended.code, "it broke" in ended.err) == (70, True)
    late = tmp_path / "late"

    def slow():
        if os.fork() == 0:  # what it started ends with it
            time.sleep(3)
            late.touch()
        time.sleep(60)

    started = time.monotonic()
    assert forked(slow, 0.5).code is None
    assert time.monotonic() - started < 30
    time.sleep(3)
    assert not late.exists()


def answers(**more):
    solved = {"ok": True, "overhead": 0.0123, "status": "optimal"}
    ran = {"ok": True, "identical": True, "exact": True}
    fit = {"ok": True, "eager_bytes": 2_000_000, "budget_bytes": 1_600_000, "share": 0.8, "over": -0.001}
    fit |= {"within": True, "same_as": "eager", "as_eager": True, "differs": ""}
    checkpoint = {"ok": True, "checkpoint_flops": 0.25, "flops": 0.01}
    row = {"export": {"ok": True, "nodes": 1234}, "solve60": solved, "run60": ran, "fit": fit, "checkpoint": checkpoint}
    return row | more


def test_the_page_counts_and_tells_refusals():
    first, second, third = MODELS[:3]
    small = {"ok": False, "problem": "no plan fits a budget of 1 MB (60% of the no-remat peak)"}
    refused = {"ok": False, "problem": "it branches on a number"}
    differs = {"ok": False, "differs": "losses 1 against 2", "budget_bytes": 1, "share": 1.0, "over": 0.02}
    rows = {
        first.name: answers(),
        second.name: answers(solve60=small, run60={"ok": False, "identical": False, "exact": True, "problem": "x|y"}),
        third.name: {
            "export": refused,
            "fullgraph": {"ok": False, "problem": "so says PyTorch", "graphs": 2},
            "fit": differs,
        },
    }
    text = page({"rows": rows})
    assert "exported: 2 of 3, 0 of them in parts" in text
    assert "`torch.compile(fullgraph=True)` refuses 1 of the 1 refused" in text
    assert "predicted to the byte: 1 of 2" in text
    assert "trained within the budget: 2 of 3" in text
    assert "1,234 | 1.23%" in text
    assert "too small" in text
    assert "it branches on a number | 2 graphs: so says PyTorch |" in text
    assert "losses 1 against 2" in text
    assert "x\\|y" in text


@pytest.mark.parametrize(
    ("step", "row", "asked"),
    [
        ("export", {}, True),
        ("fullgraph", {"export": {"ok": True}}, False),
        ("fullgraph", {"export": {"ok": True, "parts": 2}}, True),
        ("fullgraph", {"export": {"ok": False}}, True),
        ("solve60", {"export": {"ok": False}}, False),
        ("run60", {"solve60": {"ok": True}, "solve80": {"ok": False}}, True),
        ("run80", {"solve60": {"ok": True}, "solve80": {"ok": False}}, False),
        ("fit", {"export": {"ok": False}}, True),
    ],
)
def test_steps_are_asked_where_they_can_be(step, row, asked):
    assert wanted(step, row) == asked
