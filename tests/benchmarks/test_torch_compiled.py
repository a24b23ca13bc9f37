"""The comparison under torch.compile: what its ways do to a module, and rows that fail."""

from __future__ import annotations

import copy

import torch

from benchmarks.torch import compiled
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
            compiled._checkpointed(other, selective=selective)
            assert all(map(torch.equal, gradients(other, inputs), wanted))


def test_every_model_returns_a_loss():
    sizes = {"resnet": {"width": 2, "batch": 2}, "deep": {"depth": 2, "width": 16, "batch": 1, "length": 8}}
    small = {"depth": 1, "width": 16, "batch": 1}
    for name, make in MODELS.items():
        module, inputs = make(**sizes.get(name, small))
        assert module(*inputs).shape == ()


def test_gradients_are_compared_bit_by_bit():
    x = torch.randn(8)
    assert compiled._same([x], [x.clone()]) == "bit for bit"
    assert compiled._same([x * (1 + 1e-6)], [x]).startswith("within ")


def test_a_row_that_fails_says_why(tmp_path):
    row = compiled._apart("no such model", "plain", "cpu", lambda text: None, str(tmp_path), 120.0)
    assert set(row) == {column.key for column in compiled.TABLES[0].columns}
    assert row["problem"] == "KeyError: 'no such model'"
