"""What ``remat fits`` and other tools predict for the suite, without its libraries: an answer, and the page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fits import page
from benchmarks.models.__main__ import Kept
from benchmarks.models.listing import MODELS
from remat_cli.planning.fits import BEST, BLOCKS, WITHOUT

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "fits" / "results"


ANSWER = """
import json
from benchmarks.fits.answers import own
from benchmarks.models.listing import FOREIGN
from benchmarks.models.training import Subject
[model] = [model for model in FOREIGN if model.name == "coupling_flow"]
print(json.dumps(own(Subject(model), model, 3)))
"""


def test_a_model_is_measured_to_take_what_is_predicted() -> None:
    # In a process of its own, and no fork: this one may have threads of PyTorch, which a fork waits for in vain.
    done = subprocess.run(
        [sys.executable, "-c", ANSWER], cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ok"]
    assert found["by_graph"][WITHOUT] == pytest.approx(found["gpu_dropout"], rel=0.01)
    assert {WITHOUT, BEST} <= found["predicted"].keys()
    for name, predicted in found["predicted"].items():
        measured = found["gpu_dropout"] if name == WITHOUT else found["measured"][name]
        assert measured == pytest.approx(predicted, rel=0.01)
    assert found["predicted"][BEST] <= found["share"] * found["predicted"][WITHOUT]


def test_errors_are_against_the_same_way_to_train() -> None:
    row = {
        "ok": True,
        "update": False,
        "share": 0.6,
        "by_graph": {WITHOUT: 99, BLOCKS: 50},
        "predicted": {WITHOUT: 101, BLOCKS: 50, BEST: 60},
        "measured": {"eager": 110, BLOCKS: 50, BEST: "it broke"},
        "gpu_dropout": 100,
        "others": {"accelerate": 55, "kitsune": 220, "kitsune_margin": 20, "kitsune_formulas": True},
        "commit": "0",
    }
    refused = {"ok": False, "problem": "no", "measured": {"eager": 100}, "commit": "0"}
    refused["others"] = row["others"] | {"accelerate": 150}
    found = {(line["tool"], line["against"]): line for line in page.summary([row, refused])}
    assert found["remat fits", "eager mode as on a GPU"]["low"] == "-1.00%"
    assert found["remat fits", "eager mode on a CPU"]["worst"] == "10.0%"
    assert found["with workspace", f"by plan: {BLOCKS}"]["worst"] == "0.00%"
    assert ("with workspace", f"by plan: {BEST}") not in found
    accelerate = found["accelerate", "eager mode on a CPU"]
    assert [accelerate[key] for key in ("models", "low", "high", "near")] == [2, "-50.0%", "+50.0%", "0 of 2"]
    assert found["torch-kitsune", "eager mode on a CPU"]["high"] == "+120.0%"
    text = page.page({"rows": {MODELS[0].name: {"fits": row}, MODELS[1].name: {"fits": refused}}})
    assert f"{MODELS[0].name} (best plan) did not run: it broke" in text
    assert f"| {MODELS[1].name} | no |" in text
    assert "**failed**" in text


def test_the_committed_answers_make_the_committed_page_and_the_table_of_the_manual() -> None:
    document = json.loads((RESULTS / "fits.json").read_text())
    assert set(document["rows"]) <= {model.name for model in MODELS}
    text = page.page(document)
    assert text == (RESULTS / "fits.md").read_text()
    table = page.errors_table([row["fits"] for row in document["rows"].values()])
    assert table in text
    assert table in (ROOT / "docs" / "fits.md").read_text()


def test_errors_on_cuda_are_of_tensors_and_of_the_least_limit() -> None:
    row = {
        "ok": True,
        "predicted": {"total": 180_000_000, "gaps": 80_000_000, "update": False},
        "measured": {"allocated": 105_000_000, "libraries": 5_000_000, "reserved": 250_000_000, "limit": 200_000_000},
        "commit": "0",
    }
    refused = {"ok": False, "problem": "no", "commit": "0"}
    text = page.cuda_page({"rows": {MODELS[0].name: {"cuda": row}, MODELS[1].name: {"cuda": refused}}})
    assert "- tensors: of 1 models, the median error is 0.00%" in text
    assert "- whole: of 1 models, the median error is 10.0% and the worst 10.0% (from -10.0% to -10.0%)" in text
    assert "| +0.00% | -10.0% |" in text
    assert f"| {MODELS[1].name} | no |" in text


def test_the_committed_answers_on_cuda_make_the_committed_page() -> None:
    document = json.loads((RESULTS / "cuda.json").read_text())
    assert set(document["rows"]) <= {model.name for model in MODELS}
    assert page.cuda_page(document) == (RESULTS / "cuda.md").read_text()


def test_answers_of_another_folder_take_the_place_of_those_that_are_there(tmp_path) -> None:
    first, second = MODELS[:2]
    kept, other = (Kept(tmp_path / name / "fits.json", 1.0, MODELS, ()) for name in ("kept", "other"))
    kept.document["rows"] = {second.name: {"fits": {"ok": True}}}
    other.document["rows"] = {second.name: {"fits": {"ok": False}}, first.name: {"cuda": {"ok": True}}}
    other.write()
    kept.take(other.path)
    found = json.loads(kept.path.read_text())["rows"]
    assert list(found) == [first.name, second.name]
    assert found[second.name] == {"fits": {"ok": False}}
