"""Every package that may be missing, missing: the error names the extra that installs it, and no exit code is 70."""

import json
import re
import tomllib

import networkx
import pytest
import yaml
from absent import ROOT, all_but, normal, remat_without

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GATHERING = {"all-solvers", "dev"}
TOY = str(ROOT / "graphs" / "toy.yaml")
UNET = str(ROOT / "graphs" / "unet.json")
"""Not so small that it is solved without a solver."""


def names_of(requirements: list[str]) -> list[str]:
    return [normal(re.match(r"[\w.-]+", one)[0]) for one in requirements]


CORE = names_of(PROJECT["dependencies"])
EXTRAS = {
    extra: names_of(packages) for extra, packages in PROJECT["optional-dependencies"].items() if extra not in GATHERING
}

MODEL = "import torch\ndef build():\n    return torch.nn.Linear(4, 4), (torch.zeros(2, 4),)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the commands read: models, graphs and plans."""
    place = tmp_path_factory.mktemp("missing")
    (place / "train.py").write_text(MODEL, encoding="utf-8")
    (place / "model.onnx").write_bytes(b"\x08\x08")
    (place / "bad.json").write_text('{"schema": "remat-graph/1", "nodes": 3}', encoding="utf-8")
    networkx.write_graphml_xml(networkx.path_graph(2, create_using=networkx.DiGraph), place / "g.graphml")
    for line in (
        "export torch:train.py:build -q -o step.json",
        "solve step.json -b none -q -o step.plan.json",
        f"solve {TOY} -b 80% -q -o toy.plan.json",
        f"solve {TOY} -b none -q -o old.plan.json",
    ):
        done = remat_without(set(), place, line)
        assert done.code == 0, done.err
    return place


NEEDING = [
    ("torch", ("torch",), "export torch:train.py:build", 2),
    ("torch", ("torch",), "export zoo:torch/gpt2", 2),
    ("torch", ("torch",), "run step.plan.json", 2),
    ("torch", ("torch",), "profile step.json", 2),
    ("jax", ("jax",), "export jax:train.py:build", 2),
    ("jax", ("jax",), "export zoo:jax/vgg16", 2),
    ("tensorflow", ("tensorflow",), "export tf:train.py:build", 2),
    ("tensorflow", ("tensorflow",), "export zoo:tf/vgg16{batch=1}", 2),
    ("onnx", ("onnx",), "convert model.onnx -o graph.json", 2),
    ("plot", ("plotly",), f"show {TOY} --format html", 2),
    ("plot", ("jinja2",), f"show {TOY} --format html", 2),
    ("plot", ("plotly",), "show toy.plan.json --format html -o plan.html", 2),
    ("plot", ("jinja2", "plotly"), "show toy.plan.json --format html", 2),
    ("plot", ("matplotlib",), f"show {TOY} --format svg", 2),
    ("plot", ("matplotlib",), "show toy.plan.json --format png -o plan.png", 2),
    ("plot", ("plotly",), f"compare {TOY} --budgets 80% --strategies dtr --format html", 2),
    ("plot", ("jinja2",), f"compare {TOY} --budgets 80% --strategies dtr -o compared.html", 2),
    ("plot", ("matplotlib",), f"compare {TOY} --budgets 80% --strategies dtr --format svg", 2),
    ("glpk", ("swiglpk",), f"solve {UNET} -b 60% --solver glpk{{via=swiglpk}}", 3),
    ("glpk", ("swiglpk",), f"compare {UNET} --budgets 60% --solver glpk{{via=swiglpk}}", 3),
    ("gurobi", ("gurobipy",), f"solve {UNET} -b 60% --solver gurobi", 3),
    ("gurobi", ("scipy",), f"solve {UNET} -b 60% --solver gurobi", 3),
    ("gurobi", ("scipy",), f"compare {UNET} --budgets 60% --solver gurobi", 3),
    ("gurobi", ("scipy",), "solvers --check", 3),
    ("cpsat", ("ortools",), f"solve {UNET} -b 60% --strategy moccasin", 3),
    ("dask", ("distributed",), f"solve {UNET} -b 60% --dask tcp://127.0.0.1:1", 3),
    ("dask", ("distributed",), f"solve {UNET} --budgets 60%,70% --dask tcp://127.0.0.1:1", 3),
    ("dask", ("distributed",), f"compare {UNET} --budgets 60% --dask tcp://127.0.0.1:1", 3),
]


@pytest.mark.parametrize(("extra", "hidden", "line", "code"), NEEDING, ids=lambda v: str(v).replace(str(ROOT), ""))
def test_the_error_names_the_extra(folder, extra, hidden, line, code):
    done = remat_without(set(hidden), folder, line)
    said = done.err + (done.out if "--check" in line else "")
    assert (done.code, re.search(rf"pip install .*\[{extra}\]", said) is not None) == (code, True), said
    assert "Traceback" not in said


def test_jax_without_flatbuffers(folder):
    """JAX does not ask for it, so an environment with another JAX may lack it."""
    told = folder / "hiding" / "jax-0.10.2.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.10.2\n", encoding="utf-8")
    done = remat_without({"flatbuffers"}, folder, "export jax:train.py:build")
    assert (done.code, "flatbuffers, which is not installed" in done.err) == (2, True), done.err
    assert "[jax]" in done.err


def test_every_package_of_every_extra_is_missing_in_one_of_these_tests():
    missing = {(extra, name) for extra, hidden, _, _ in NEEDING for name in hidden} | {("jax", "flatbuffers")}
    assert missing == {(extra, name) for extra, names in EXTRAS.items() for name in names}


@pytest.mark.parametrize(
    "line",
    [
        f"solve {UNET} -b 60% --strategy optimal -q -o plan.json",
        f"solve {TOY} -b 80% --strategy checkmate-lp --solver cbc -q -o plan.json",
        f"compare {TOY} --budgets 80% --format csv",
        f"max-batch {TOY} --batch 1 --memory 1GB",
        f"show {TOY}",
        "show toy.plan.json --format trace -o plan.trace.json",
        "check toy.plan.json old.plan.json --format sarif",
        "diff toy.plan.json old.plan.json --format markdown",
        "explain toy.plan.json conv1",
        f"convert {TOY} --to node-link",
        "export --list",
        "solvers --check",
        "strategies",
    ],
    ids=lambda line: " ".join(line.replace(str(ROOT), "").split()[:4]),
)
def test_a_default_installation_needs_no_extra(folder, line):
    """All that is there is what remat itself asks for, and what that asks for."""
    done = remat_without(all_but([*CORE, "remat"]), folder, line)
    assert done.code == 0, done.err


def test_pytorch_needs_no_other_extra(folder):
    hidden = all_but([*CORE, "remat", "torch"])
    assert {"plotly", "matplotlib", "scipy", "onnx", "ortools", "distributed"} <= hidden
    (folder / "alone").mkdir()
    for line in (
        "export torch:train.py:build -q -o alone/step.json",
        "solve alone/step.json -b none -q -o alone/step.plan.json",
        "profile alone/step.json --repeats 1 -o alone/profiled.json",
    ):
        done = remat_without(hidden, folder, line)
        assert done.code == 0, done.err
    ran = remat_without(hidden, folder, "run alone/step.plan.json --steps 1 --format json")
    assert (ran.code, json.loads(ran.out)["identical"]) == (0, True), ran.err
    shown = remat_without(hidden, folder, "show alone/step.json --format html")
    assert (shown.code, "[plot]" in shown.err) == (2, True), shown.err
    fit = "import remat_cli as remat; from train import build; remat.fit(*build(), '1GB')"
    fitted = remat_without(hidden, folder, code=fit)
    assert fitted.code == 0, fitted.err


@pytest.mark.parametrize(
    ("missing", "line", "code"),
    [
        ("click", "--help", 1),
        ("pyyaml", f"show {TOY}", 2),
        ("fastjsonschema", f"show {UNET}", 2),
        ("jsonschema", "show bad.json", 2),
        ("rich", f"show {TOY}", 2),
        ("numpy", f"solve {UNET} -b 60% -o plan.json", 2),
        ("pyomo", f"solve {UNET} -b 60% --strategy checkmate-lp -o plan.json", 2),
        ("highspy", f"solve {UNET} -b 60% --strategy optimal -o plan.json", 3),
        ("highspy", "solvers --check", 3),
        ("numba", f"solve {UNET} -b 60% --strategy min-cut -o plan.json", 2),
        ("networkx", "convert g.graphml -o graph.json", 2),
        ("pulp", f"solve {UNET} -b 60% --strategy optimal --solver cbc -o plan.json", 3),
        ("platformdirs", f"solve {UNET} -b 60% --cache -o plan.json", 2),
        ("pebble", f"compare {UNET} --budgets 60%,70% --strategies dtr --jobs 2", 2),
    ],
    ids=lambda value: str(value).replace(str(ROOT), ""),
)
def test_an_installation_that_lacks_what_remat_needs_says_so(folder, missing, line, code):
    done = remat_without({missing}, folder, line)
    assert done.code == code, done.err
    assert re.search(missing.removeprefix("py"), done.err + done.out, re.IGNORECASE)


def test_what_is_listed_for_checking_is_all_that_it_needs(folder):
    """requirements-check.txt, installed without what else its packages ask for: all that is not listed is hidden."""
    lines = (ROOT / "requirements-check.txt").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert set(listed) < set((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["additional_dependencies"] == ["--no-deps", *listed]
    hidden = all_but([]) - set(names_of(listed)) - {"remat"}
    assert {"numpy", "pyomo", "numba", "highspy", "pulp"} <= hidden
    for line, code in (
        ("check toy.plan.json old.plan.json --format github", 0),
        ("check toy.plan.json bad.json --format github --budget 80%", 2),
        ("diff toy.plan.json old.plan.json --format github", 0),
        ("diff toy.plan.json old.plan.json --format markdown", 0),
        *((f"check toy.plan.json --format {format}", 0) for format in ("text", "json", "junit", "sarif")),
    ):
        done = remat_without(hidden, folder, line)
        assert (done.code, done.err) == (code, ""), done.err
    solved = remat_without(hidden, folder, f"solve {UNET} -b 60%")
    assert (solved.code, "is not installed" in solved.err) == (2, True)
