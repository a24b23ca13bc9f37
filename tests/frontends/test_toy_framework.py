"""The framework of docs/extending.md: one file and one entry are enough to export, profile, solve and run."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

import remat_cli as remat
from remat_cli.cli.main import run
from remat_cli.frontends.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[2]
TOY = ROOT / "docs/examples/toy_framework.py"
STEP = """
def build():
    forward = [("random",), *(("tanh", k) for k in range(8))]
    backward = [("multiply", 8, 7), *(("matmul", 9 + k, 6 - k) for k in range(7))]
    return 64, forward + backward
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """An entry point for one more framework; the step of a user in the current folder."""
    spec = importlib.util.spec_from_file_location("toy_framework", TOY)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "toy_framework", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(FRAMEWORKS.entries, "toy", "toy_framework:Toy")
    monkeypatch.chdir(tmp_path)
    Path("step.py").write_text(STEP, encoding="utf-8")
    return module.Toy()


def test_the_page_shows_the_file():
    text = TOY.read_text(encoding="utf-8")
    assert f"```python\n{text}```" in (ROOT / "docs/extending.md").read_text(encoding="utf-8")


def test_a_fourth_framework_exports_profiles_solves_and_runs(toy, capsys):
    assert run(["export", "toy:step.py:build", "-o", "step.json"]) == 0
    assert run(["profile", "step.json", "--repeats", "2", "-o", "measured.json"]) == 0
    assert remat.load_graph("measured.json").metadata["profile"]["kinds"] == 4
    assert run(["solve", "step.json", "--budget", "80%", "-o", "plan.json"]) == 0
    assert run(["run", "plan.json", "--graph", "step.json"]) == 0
    ran = remat.run_plan("plan.json")
    assert ran.identical
    assert ran.recomputations > 0
    assert ran.memory.measured == ran.memory.predicted < ran.reference_peak
    assert "identical" in capsys.readouterr().out


def test_what_the_template_checks_holds_for_it_too(toy):
    [graph] = toy.export("step.py:build", device="cpu", cost="flops", tell=print)
    plan = remat.solve(graph, None).plan
    other = replace(graph, metadata=graph.metadata | {"side": 32})
    for call, message in (
        (lambda: toy.run(plan, device="cuda"), "Toy knows no device cuda"),
        (lambda: toy.run(plan, steps=0), "at least one step"),
        (lambda: toy.run(plan, graph=other), "its matrices have 64 rows, and these have 32"),
        (lambda: toy.run(plan, libraries=["os"]), "Toy has no libraries"),
        (lambda: toy.profile(graph, repeats=0), "at least one repeat"),
        (lambda: toy.profile(replace(graph, metadata={})), "was not made by the Toy frontend"),
        (lambda: toy.profile(replace(graph, metadata=graph.metadata | {"numpy": "1.0"})), "exported with numpy 1.0"),
        (lambda: toy.require_options({"compiler": "eager"}), "compiler is not for Toy"),
    ):
        with pytest.raises(remat.UsageError, match=message):
            call()
    harmful = replace(
        graph, nodes=(replace(graph.nodes[0], payload={"function": "system", "reads": []}), *graph.nodes[1:])
    )
    damaged = graph.nodes[3].payload | {"reads": [99]}
    with pytest.raises(remat.UsageError, match=r"node tanh\.3: reads\[0\]: there is no number 99: there are 17"):
        toy.profile(
            replace(graph, nodes=(*graph.nodes[:3], replace(graph.nodes[3], payload=damaged), *graph.nodes[4:]))
        )
    with pytest.raises(remat.ExecutionFailed, match="calls system, which is none of Toy's functions"):
        toy.profile(harmful)
