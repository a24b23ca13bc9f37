"""The comparison with PyTorch's own tools, on a tiny model."""

import torch

from benchmarks.__main__ import main
from benchmarks.frame import Session, check_rows, load
from benchmarks.torch import peers


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
