"""Comparisons with PyTorch on a CPU, in small: under torch.compile, with its own tools, and of predicted times."""

import copy
import time
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.frame import Session, check_rows, load
from benchmarks.torch import compiled, compiled_ways, peers, times
from benchmarks.torch.compiled_models import MODELS
from remat_cli.frontends.rates import read_rates


def gradients(module, inputs):
    torch.manual_seed(3)
    module(*inputs).backward()
    return [parameter.grad for parameter in module.parameters()]


def test_checkpointed_models_compute_the_same_a_second_time():
    for name in ("gpt_dropout", "unet"):
        torch.manual_seed(0)
        module, inputs = MODELS[name](depth=2, width=8, batch=2)
        wanted = gradients(copy.deepcopy(module), inputs)
        for selective in (False, True):
            other = copy.deepcopy(module)
            compiled_ways.checkpointed(other, selective=selective)
            assert all(map(torch.equal, gradients(other, inputs), wanted))


def test_every_model_returns_a_loss():
    sizes = {"resnet": {"width": 2, "batch": 2}, "deep": {"depth": 2, "width": 16, "batch": 1, "length": 8}}
    small = {"depth": 1, "width": 16, "batch": 1}
    for name, make in MODELS.items():
        module, inputs = make(**sizes.get(name, small))
        assert module(*inputs).shape == ()


def test_gradients_are_compared_bit_by_bit():
    x = torch.randn(8)
    assert compiled_ways.same([x], [x.clone()]) == "bit for bit"
    assert compiled_ways.same([x * (1 + 1e-6)], [x]).startswith("within ")


def row(way, peak, ratio, **more):
    keys = [column.key for column in compiled.TABLES[1].columns]
    found = dict.fromkeys(keys) | {"table": "compiled", "model": "m", "way": way, "peak_bytes": peak, "ratio": ratio}
    return found | {"gradients": "bit for bit", "predicted_bytes": peak} | more


def test_what_is_reached_is_at_the_peaks_of_others():
    rows = [
        row("plain", 100, 1.0),
        row("knob dp 0.5", 60, 1.1),
        row("remat 70%", 70, 1.01, predicted_bytes=68),
        row("remat at 60", 60, 1.133, gradients="within 1e-07"),
        row("remat 30%", 30, 1.4),
        row("remat eager 40%", 20, 1.5),
        row("remat 20%", None, None, problem="Infeasible"),
    ]
    found = compiled.reached("m", rows)
    assert (found["torch_bytes"], found["remat_bytes"], found["less"]) == (60, 30, 50.0)
    assert (found["peaks"], found["met"], round(found["worst"], 3)) == (2, 1, 1.03)
    assert (found["off"], found["gradients"]) == (2.9, "within 1e-07")


class Answers:
    """Stands for the process that measures."""

    def __init__(self):
        self.asked = []

    def ask(self, line):
        self.asked.append(line)
        if line == "splits":
            knobs = [f"knob {solver} {k:g}" for solver in compiled.SOLVERS for k in compiled.KNOBS]
            return [knobs[:1], knobs[1:]]
        return {"peak_bytes": 40 if line.startswith("knob") else 50, "ratio": 1.0}

    def end(self):
        pass


def test_a_run_goes_on_where_one_ended():
    first, later = Answers(), time.monotonic() + 600
    rows = list(compiled.measured_rows("m", first, [], lambda text: None, later))
    ways = [found["way"] for found in rows]
    assert ways[0] == "plain"
    # At 50 there are plans already; that for 40 takes 50, so less is asked for.
    assert ways[-4:] == ["remat 30%", "remat least", "remat at 40", "remat at 20"]
    assert rows[5]["also"].startswith("dp 0.2, dp 0.3")
    second = Answers()
    assert list(compiled.measured_rows("m", second, rows[:-1], lambda text: None, later)) == rows
    assert second.asked == ["remat at 20"]
    third = Answers()
    assert list(compiled.measured_rows("m", third, rows[:3], lambda text: None, 0.0)) == rows[:3]
    assert third.asked == []


def test_a_process_that_fails_says_why(tmp_path):
    process = compiled.Process("no such model", "cpu", tmp_path, 120.0)
    assert process.ask("plain") == {"problem": "KeyError: 'no such model'"}
    process.end()


# Its own tools, on a tiny model


def test_every_way_is_measured_and_remat_keeps_to_its_budget(tmp_path):
    rows = peers.run(Session(True, tmp_path, lambda text: None))
    torch.compiler.reset()
    check_rows(load("torch.peers", "cpu"), rows)
    found = {row["method"]: row for row in rows if row["method"] != "remat"}
    assert found["eager"]["gradients"] == "bit for bit"
    assert found["eager"]["extra_flops"] == 0
    for title in peers._WAYS.values():
        assert found[title]["gradients"] == "bit for bit"
    assert found["checkpoint, each block"]["extra_flops"] > found["selective checkpoint"]["extra_flops"]
    assert all(row["peak_bytes"] > 0 and row["step_s"] > 0 for row in rows if not row["problem"])
    ours = [row for row in rows if row["method"] == "remat"]
    assert [row["like"] for row in ours] == ["eager", "checkpoint, each block"]
    assert not [row for row in ours if not row["problem"] and row["gradients"] != "bit for bit"]
    assert any(not row["problem"] for row in ours)
    # Both counts of what is recomputed are of the same operations, so neither sees any where there is none.
    assert {row["extra_flops"] for row in ours if not row["problem"] and row["extra_cost"] == 0} == {0}


def test_a_device_that_is_not_there_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert main(["torch.peers", "--on", "cuda", "--quick"]) == 1
    assert "without CUDA" in capsys.readouterr().err


# Predicted and measured times, on a model without transformers


class Net(torch.nn.Module):
    """Layers, each of which can be checkpointed."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(32, 32) for _ in range(4)])
        self.checkpointing = False

    def gradient_checkpointing_enable(self):
        self.checkpointing = True

    def gradient_checkpointing_disable(self):
        self.checkpointing = False

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        for layer in self.layers:
            call = lambda y, layer=layer: torch.nn.functional.dropout(layer(y).tanh(), 0.1)  # noqa: E731
            x = checkpoint(call, x, use_reentrant=False) if self.checkpointing else call(x)
        return x.square().mean()


def test_plans_are_predicted_and_measured():
    rows = times._rows("net", times._loss_only(Net()), {"x": torch.randn(256, 32)}, 1, 1.0)
    *plans, checkpointing = rows
    assert [row["planned"] for row in plans][:2] == ["FLOPs", "times"]
    for row in plans:
        if row["ratio"] is not None:
            rounding = 0.006 * (1 + abs(row["measured"]))
            assert row["ratio"] * row["measured"] == pytest.approx(row["predicted"], abs=rounding)
    assert any(row["predicted"] is not None for row in plans)
    assert checkpointing["planned"] == "checkpointing"
    columns = {column.key for column in times.TABLES[0].columns} | {"table"}
    assert all(set(row) == columns for row in rows)


def test_how_much_longer_is_told_by_rounds():
    # The machine was twice as fast in the last round.
    assert times._longer([0.012, 0.0125, 0.006], [0.01, 0.01, 0.005]) == {
        "measured": 2.0,
        "share": 20.0,
        "step_ms": 10.0,
    }


def test_rates_of_this_moment_can_be_read(tmp_path):
    path = times._rates(tmp_path)
    assert read_rates(Path(path).read_text(encoding="utf-8"), path).launch_us > 0
