"""The suite of real models, without its libraries: its list, its processes, its page."""

import ast
import json
import os
import time
from pathlib import Path

import pytest

from benchmarks.models import foreign_page, tasks
from benchmarks.models.forking import command, forked
from benchmarks.models.listing import FOREIGN, MODELS
from benchmarks.models.page import page
from benchmarks.models.steps import wanted
from remat_cli.errors import UsageError
from remat_cli.frontends.source import load_function


def test_every_model_has_a_builder_and_every_builder_is_on_the_list():
    names = [model.name for model in MODELS]
    assert len(names) == len(set(names)) >= 60
    assert {model.library for model in MODELS} >= {"torchvision", "timm", "transformers", "diffusers", "peft"}
    assert len(FOREIGN) == len({model.name for model in FOREIGN}) == 100
    assert not {model.name for model in FOREIGN} & set(names)
    described = [model for model in (*MODELS, *FOREIGN) if model.make]
    for file in {model.file for model in (*MODELS, *FOREIGN) if not model.make}:
        functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        public = {function.name for function in functions if not function.name.startswith("_")}
        assert public == {model.name for model in (*MODELS, *FOREIGN) if model.file == file}
    for model in described:
        assert callable(load_function(f"{model.file}:{model.name}", "torch"))
        functions = [model.make.get("task", ["supervised"]), *model.make.get("inputs", {}).values()]
        assert all(callable(getattr(tasks, called[0])) for called in functions if isinstance(called, list))
    with pytest.raises(UsageError, match="there is no function resnet51"):
        load_function(f"{described[0].file}:resnet51", "torch")


def test_a_foreign_model_trains_with_the_bits_of_eager_mode_and_by_its_budget():
    from benchmarks.models.foreign import answer

    [model] = [model for model in FOREIGN if model.name == "coupling_flow"]
    found = answer("told", model, 30)
    assert (found["outcome"], found["same_as"]) == ("trained", "eager")
    assert found["peak_bytes"] <= found["budget_bytes"] == int(found["share"] * found["eager_bytes"])
    assert found["fixed_bytes"] < 2e6 < 10e6 < found["predicted_bytes"]


def test_a_foreign_model_over_its_budget_is_silent_unless_something_was_said():
    from benchmarks.models.foreign import _judged

    found = {"peak_bytes": 110, "budget_bytes": 100, "same_as": "eager", "differs": "", "said": []}
    assert _judged(found)["outcome"] == "silent"
    assert _judged(found | {"said": ["remat: more than the plan"]})["outcome"] == "announced"
    assert _judged(found | {"peak_bytes": 100})["outcome"] == "trained"
    assert _judged(found | {"peak_bytes": 90, "same_as": "", "differs": "1 of 2 parameters"})["outcome"] == "failed"


def test_the_page_of_foreign_models_counts_outcomes():
    trained = {"outcome": "trained", "eager_bytes": 100, "budget_bytes": 60, "tried": [60], "over": -0.1}
    silent = trained | {"outcome": "silent", "tried": [60, 70], "budget_bytes": 70, "over": 0.25}
    first, second, third = FOREIGN[:3]
    rows = {
        first.name: {"told": trained | {"same_as": "eager"}},
        second.name: {"told": silent | {"same_as": "aot_eager"}},
        third.name: {"told": {"outcome": "refused", "problem": "no plan fits"}, "untold": {"problem": "late"}},
    }
    text = foreign_page.page({"rows": rows})
    assert "models measured: 3 of 100" in text
    assert "loss told: trained 1, silent 1, refused 1; bits of eager mode 1, of aot_eager 1, others 0" in text
    assert "largest excess 25.0%" in text
    assert "loss untold: failed 1" in text
    assert "| 70%* |" in text
    assert "| refused | no plan fits |" in text


def test_the_committed_answers_are_of_listed_models_and_make_the_committed_page():
    results = Path(__file__).parents[2] / "benchmarks" / "models" / "results"
    document = json.loads((results / "models.json").read_text())
    assert set(document["rows"]) <= {model.name for model in MODELS}
    assert page(document) == (results / "models.md").read_text()


def test_the_committed_answers_of_foreign_models_are_of_all_and_make_the_committed_page():
    results = Path(__file__).parents[2] / "benchmarks" / "models" / "results"
    document = json.loads((results / "foreign.json").read_text())
    assert list(document["rows"]) == [model.name for model in FOREIGN]
    assert foreign_page.page(document) == (results / "foreign.md").read_text()


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
