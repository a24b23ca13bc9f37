"""The benchmark of predicted and measured times, on a model without transformers."""

from pathlib import Path

import pytest
import torch

from benchmarks.torch import times
from remat_cli.frontends.rates import read_rates


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
