"""Documents alone on standard output, and what is said where TensorFlow is missing."""

import json
from pathlib import Path

import pytest
import steps
from absent import remat_without

PACKAGES = {"tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, the graph of its step and a plan, as the commands printed them."""
    place = tmp_path_factory.mktemp("alone")
    (place / "train.py").write_text(Path(steps.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    for line, file in (
        ("export tf:train.py:cnn -q -o -", "step.json"),
        ("solve step.json --budget 75% --time-limit 5s -q -o -", "step.plan.json"),
    ):
        done = remat_without(set(), place, line)
        assert done.code == 0, done.err
        (place / file).write_text(done.out, encoding="utf-8")
    return place


def test_documents_are_all_that_commands_print(folder):
    assert json.loads((folder / "step.json").read_text(encoding="utf-8"))["schema"] == "remat-graph/1"
    profiled = remat_without(set(), folder, "profile step.json --repeats 1 -o -")
    assert (profiled.code, json.loads(profiled.out)["cost_unit"]) == (0, "us"), profiled.err
    ran = remat_without(set(), folder, "run step.plan.json --steps 1 --format json")
    assert (ran.code, json.loads(ran.out)["identical"]) == (0, True), ran.err


@pytest.mark.parametrize(
    "line",
    [
        "export tf:train.py:cnn",
        "export zoo:tf/vgg16{batch=1}",
        "profile step.json -o measured.json",
        "run step.plan.json",
    ],
)
def test_the_error_names_the_extra(folder, line):
    done = remat_without(PACKAGES, folder, line)
    assert (done.code, done.out) == (2, "")
    assert "TensorFlow, which is not installed" in done.err
    assert "[tensorflow]" in done.err
