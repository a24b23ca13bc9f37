"""The ways by hand in the benchmark of regions in parts, and its rows, in small."""

import pytest
import torch
from torch import nn

from benchmarks import frame
from benchmarks.splitting import chunks
from benchmarks.splitting.models import CASES, Language, Mlp, Segmentation

MODELS = {
    "language": (lambda: Language(50, 32, 1, gated=False), lambda: [torch.randint(0, 50, (2, 6)) for _ in range(2)]),
    "gated": (lambda: Language(50, 32, 1, gated=True), lambda: [torch.randint(0, 50, (2, 6)) for _ in range(2)]),
    "mlp": (lambda: Mlp(8, 32, 2), lambda: [torch.randn(12, 8, dtype=torch.float64) for _ in range(2)]),
    "segmentation": (
        lambda: Segmentation(8, 5, 1),
        lambda: [torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.randint(0, 5, (4, 8, 8))],
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_ways_by_hand_have_the_gradients_of_the_plain_model(kind):
    torch.manual_seed(0)
    build, batch_of = MODELS[kind]
    model, batch = build().double(), batch_of()
    ways = ["plain", "hand:4", *(["torch:4", "torch:auto"] if isinstance(model, Language) else [])]
    found = {}
    for way in ways:
        model.way = way
        model.zero_grad()
        loss = 3 * model(*batch)
        loss.backward()
        found[way] = [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    for way in ways[1:]:
        for one, other in zip(found[way], found["plain"], strict=True):
            assert (one - other).abs().max() <= 1e-12 * other.abs().max(), way


def test_rows_are_of_one_run_and_a_method_that_fails_says_why(monkeypatch):
    def refused(owner):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(chunks, "_chunked", refused)
    torch.manual_seed(0)
    case = CASES[0]
    module, batch = case.build(True)
    rows = chunks._Comparison(case, module, batch, 1, 3.0).rows()
    frame.check_rows(frame.load("splitting.chunks"), rows)
    [least] = [row for row in rows if row["table"] == "least"]
    assert least["parts"] < least["whole"] < least["once"]
    assert least["parts_ran"] <= least["parts"] + 8  # the loss itself, where the loop has it
    assert least["whole_ran"] <= least["whole"] + 8
    sides = {(row["method"], row["like"]): row for row in rows if row["table"] == "sides"}
    assert sides["AutoChunker", ""]["problem"] == "RuntimeError: no compiler here"
    assert sides["AutoChunker", ""]["peak"] is None
    measured = [row for row in sides.values() if row["problem"] == ""]
    assert len(measured) > 5
    assert all(row["step_s"] is not None for row in measured)
    for (method, like), row in sides.items():
        if method == "remat" and row["problem"] == "":
            assert row["peak"] <= sides[like, ""]["peak"] + 8


def test_every_case_is_a_cell():
    assert [case.name for case in CASES] == list(chunks._NAMES)
    assert all(isinstance(case.build(True)[0], nn.Module) for case in CASES)
