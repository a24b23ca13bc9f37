"""Where every command's answer goes: standard output, the file of ``-o``, and with ``-q`` nowhere but there."""

import json
from pathlib import Path

import pytest
from cli_process import TOY, read

from remat_cli.cli.main import _COMMANDS, cli

TORCH = "step.json"
ASKED = {
    "solve": (TOY, "-b", "80%"),
    "check": ("toy.plan.json",),
    "diff": ("toy.plan.json", "toy.plan.json"),
    "compare": (TOY, "--budgets", "80%,90%", "--strategies", "dtr", "--jobs", "1"),
    "fits": (TOY, "--gpu", "1GB", "--context", "1MB", "--time-limit", "2s"),
    "max-batch": (TOY, "--memory", "300MB", "--batch", "1", "--max-overhead", "1%"),
    "pipeline": (TOY, TOY, "--memory", "900MB", "--microbatches", "2", "--time-limit", "10s"),
    "worth": ("timed.json", "--budgets", "80%", "--links", "pcie4", "--time-limit", "10s", "--jobs", "1"),
    "policy": (TORCH, "-b", "100%", "--to", "torch-tags", "--time-limit", "5s"),
    "show": (TOY,),
    "explain": ("toy.plan.json", "conv1"),
    "export": ("zoo:unit-chain{n=3}",),
    "convert": (TOY, "--to", "json"),
    "profile": (TORCH, "--repeats", "1", "--warmup", "0"),
    "run": ("step.plan.json", "--steps", "1"),
    "strategies": (),
    "solvers": (),
    "warm-up": (),
    "schema": ("graph",),
    "completion": ("bash",),
}
"""Arguments with which each command has an answer."""
MANY = {
    "solve --budgets": ("solve", TOY, "--budgets", "80%,90%"),
    "check of many": ("check", "toy.plan.json", "toy.plan.json"),
    "export --list": ("export", "--list"),
}
NO_REPORT = {"solve", "check", "diff", "pipeline", "run", "warm-up", "solve --budgets", "check of many"}
"""What has its answer in a plan or in the exit code, so that a report stands beside it."""
ALL = {**{name: (name, *words) for name, words in ASKED.items()}, **MANY}


@pytest.fixture
def prepared(remat):
    remat("solve", TOY, "-b", "80%", "-o", "toy.plan.json", "-q")
    timed = remat("convert", TOY).json()
    Path("timed.json").write_text(json.dumps({**timed, "cost_unit": "ns"}))
    Path("train.py").write_text(
        "import torch\n"
        "def build():\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))\n"
        "    return net, (torch.randn(32, 64),), torch.sum\n"
    )
    return remat


@pytest.fixture
def ready(prepared, request):
    """The files that the asked command reads."""
    if request.node.callspec.params["name"] in {"policy", "profile", "run"}:
        prepared("export", "torch:train.py:build", "--cost", "flops", "-o", TORCH, "-q")
        prepared("solve", TORCH, "-b", "none", "-q")
    return prepared


def test_every_command_is_here():
    assert set(ASKED) == set(_COMMANDS)


@pytest.mark.parametrize("name", ALL)
def test_quiet_leaves_the_answer_alone(name, ready):
    done = ready(*ALL[name], "-q")
    assert done.err == ""
    assert (done.out == "") == (name in NO_REPORT), done.out
    assert ready(*ALL[name]).out


def _takes(name: str, option: str) -> bool:
    command = cli.get_command(None, ALL[name][0])
    return any(option in parameter.opts for parameter in command.params)


@pytest.mark.parametrize("name", [name for name in ALL if _takes(name, "-o")])
def test_every_file_that_is_written_is_named_in_one_way(name, ready):
    several = {
        "solve --budgets": [f"folder/toy.{percent}pct.plan.json" for percent in (80, 90)],
        "pipeline": [f"folder/toy.stage{stage}.plan.json" for stage in (0, 1)],
    }
    target = "folder" if name in several else "answer"
    done = ready(*ALL[name], "-o", target)
    wrote = [line for line in done.err.splitlines() if line.startswith("wrote ")]
    if name in several:
        files = several[name]
        assert wrote == [f"wrote {file}" for file in files]
    else:
        files = [target]
        assert [line.partition(":")[0] for line in wrote] == [f"wrote {target}"]
    assert (done.out == "") == (ALL[name][0] not in {"solve", "pipeline"})  # their report stands beside the plan
    before = [Path(file).read_text(encoding="utf-8") for file in files]
    assert all(before)
    for file in files:
        Path(file).unlink()
    quiet = ready(*ALL[name], "-o", target, "-q")
    assert (quiet.out, quiet.err) == ("", "")
    assert all(Path(file).stat().st_size for file in files)


def test_only_what_writes_nothing_has_no_output_option():
    assert [name for name in ALL if not _takes(name, "-o")] == ["warm-up"]
    assert all(_takes(name, "-q") for name in ALL)


@pytest.mark.parametrize(
    "name", ["explain", "fits", "max-batch", "policy", "run", "strategies", "solvers", "worth", "diff"]
)
def test_the_suffix_says_the_format(name, ready):
    ready(*ALL[name], "-o", "answer.json")
    assert read("answer.json")
    assert "writes no .svg files" in ready(*ALL[name], "-o", "answer.svg", code=2).err


def test_quiet_checks_name_what_cannot_be_read(prepared):
    Path("broken.plan.json").write_text("{")
    done = prepared("check", "toy.plan.json", "broken.plan.json", "missing.plan.json", "-q", code=2)
    assert done.out == ""
    lines = done.err.splitlines()
    assert any(line.startswith("remat: error: broken.plan.json:1:") for line in lines)
    assert any(line.startswith("remat: error: missing.plan.json: ") for line in lines)
