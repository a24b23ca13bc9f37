"""The comparison under torch.compile: what its ways do to a module, what rows say, and processes that fail."""

import copy
import time

import torch

from benchmarks.torch import compiled, compiled_ways
from benchmarks.torch.compiled_models import MODELS


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
