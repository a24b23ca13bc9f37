"""Exports say which line of the user's code every operation comes from."""

import json
from pathlib import Path

import pytest

from remat_cli.cli.main import run

CODE = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.layer(x)
        return torch.tanh(hidden)

def build():
    return Net(), torch.randn(4, 8), lambda made: made.sum()
"""


def exported() -> dict:
    assert run(["export", "torch:train.py:build", "--cost", "flops", "-q", "-o", "step.json"]) == 0
    return json.loads(Path("step.json").read_text(encoding="utf-8"))


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(CODE)
    return path


def test_operations_of_both_passes_have_their_line(script):
    lines = exported()["metadata"]["lines"]
    assert lines["layer/addmm"] == lines["grad/layer/mm"] == "train.py:9 in forward"
    assert lines["tanh"] == lines["grad/tanh_backward"] == "train.py:10 in forward"
    assert lines["sum"] == "train.py:13"
    assert "tangents" not in lines


def test_a_plan_stays_that_of_its_graph_when_lines_move(script, capsys):
    exported()
    assert run(["solve", "step.json", "-b", "none", "-q"]) == 0
    script.write_text(f"# a comment\n{CODE}")
    assert exported()["metadata"]["lines"]["tanh"] == "train.py:11 in forward"
    assert run(["check", "step.plan.json", "--graph", "step.json", "-q"]) == 0
    assert run(["run", "step.plan.json", "--graph", "step.json", "--steps", "1", "-q"]) == 0
    assert run(["explain", "step.plan.json", "tanh"]) == 0
    assert "line     train.py:10 in forward\n" in capsys.readouterr().out


def test_code_that_is_not_the_user_s_has_no_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["export", "zoo:torch/unet{batch=1,cost=flops}", "-q", "-o", "unet.json"]) == 0
    assert "lines" not in json.loads(Path("unet.json").read_text(encoding="utf-8"))["metadata"]
