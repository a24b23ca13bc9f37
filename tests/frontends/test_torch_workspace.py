"""Plans count the workspace of operations: against what PyTorch's allocator hands out in a step."""

import gc
import json

import pytest
import torch
from torch import nn
from torch_plans import most_bytes

import remat_cli as remat
from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.measure import memory
from remat_cli.frontends.torch.measure.memory import with_workspaces
from remat_cli.graph.analysis import no_remat_peak

_OTHER_BYTES = 256
"""What a step holds beside its tensors: the gradient 1 of the loss, and the like."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache folder, and no memory of other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(memory, "_SEEN", {})
    return tmp_path / "remat" / "workspaces"


class Loss(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).abs().square().mean()


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.weight = nn.Parameter(torch.randn(1, 33, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(self.linear(x)) * self.weight, n=64).tanh()


class Scattered(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        y = self.linear(x)
        rows = torch.arange(0, len(x), 2)
        return torch.zeros_like(y).index_put((rows,), y[rows].tanh(), accumulate=True) + y.sin()


def images(*layers):
    return Loss(*layers), torch.randn(4, 3, 32, 32)


def rows(*layers):
    return Loss(*layers), torch.randn(512, 64)


def half():
    module, batch = rows(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))
    return module.bfloat16(), batch.bfloat16()


CASES = {
    "convolution": lambda: images(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3)),
    "convolution in three dimensions": lambda: (
        Loss(*(part for i in (1, 4, 4) for part in (nn.Conv3d(i, 4, 3, padding=1), nn.InstanceNorm3d(4), nn.ReLU()))),
        torch.randn(1, 1, 12, 12, 12),
    ),
    "transposed and grouped": lambda: images(nn.ConvTranspose2d(3, 16, 4, 2), nn.Conv2d(16, 8, 5, groups=4), nn.SiLU()),
    "dropout": lambda: rows(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64), nn.Dropout(0.1)),
    "pooling": lambda: images(
        nn.Conv2d(3, 8, 1), nn.MaxPool2d(2), nn.AvgPool2d(3, 1, 1), nn.Upsample(scale_factor=3, mode="bilinear")
    ),
    "complex": lambda: rows(Filter(), Filter(), Filter()),
    "index_put": lambda: rows(Scattered(), Scattered(), Scattered()),
    "attention": lambda: (Loss(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)), torch.randn(4, 64, 64)),
    "normalisation": lambda: images(nn.Conv2d(3, 16, 1), nn.GroupNorm(4, 16), nn.Softmax(1), nn.LogSoftmax(1)),
    "bfloat16": half,
}


def peak_bytes(module, batch):
    """Most bytes in use in a step; parameters and inputs included."""
    module.zero_grad(set_to_none=True)
    gc.collect()
    return most_bytes(lambda: module(batch).backward(), [*module.parameters(), *module.buffers(), batch])


@pytest.mark.parametrize("case", CASES)
def test_a_step_takes_what_its_plan_says(case):
    torch.manual_seed(0)
    module, batch = CASES[case]()
    fitted = 0
    for budget in ("100%", "92%"):
        try:
            remat.fit(module, batch, budget, cache="", options=remat.SolveOptions(time_limit_s=20))
        except remat.Infeasible:
            continue
        module(batch).backward()
        need = remat.fitted(module)
        assert need.counts_workspace
        assert need.plan_bytes - _OTHER_BYTES <= peak_bytes(module, batch) <= need.plan_bytes + _OTHER_BYTES
        fitted += 1
    assert fitted


def exported():
    def build():
        module, batch = CASES["dropout"]()
        return module, (batch,)

    return export_model(build, "net", "torch:net")


def test_each_form_of_an_operation_is_measured_once_and_kept(folder, monkeypatch):
    graph = exported()
    counted = with_workspaces(graph)
    assert no_remat_peak(counted) > no_remat_peak(graph)
    [path] = folder.iterdir()
    monkeypatch.setattr(memory, "workspaces", lambda *_: pytest.fail("it is measured again"))
    assert with_workspaces(graph) == counted  # this process has seen it
    monkeypatch.setattr(memory, "_SEEN", {})
    assert with_workspaces(graph) == counted  # another one has
    assert len(json.loads(path.read_text())) < len(graph.nodes)


@pytest.mark.parametrize("damage", ["", "[1]", "{", '{"a": -1}'])
def test_a_damaged_file_is_measured_again(folder, monkeypatch, damage):
    graph = exported()
    counted = with_workspaces(graph)
    [path] = folder.iterdir()
    known = path.read_text()
    path.write_text(damage)
    monkeypatch.setattr(memory, "_SEEN", {})
    assert with_workspaces(graph) == counted
    assert path.read_text() == known


def test_what_cannot_run_alone_is_named(monkeypatch):
    def fails(operations, indices):
        if any(operations.step.operations[index].call == "aten.native_dropout.default" for index in indices):
            raise ExecutionFailed("it fails")
        return [0] * len(indices)

    monkeypatch.setattr(memory, "workspaces", fails)
    with pytest.warns(UserWarning, match=r"the workspace of aten\.native_dropout\.default could not be measured"):
        with_workspaces(exported())
