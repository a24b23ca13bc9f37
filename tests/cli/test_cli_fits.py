"""``remat fits``: exit codes, the first word of the answer, and its document."""

from pathlib import Path

import pytest

from remat_cli.planning.fits import BEST, WITHOUT

SOURCE = "zoo:resnet18{batch=8}"


@pytest.mark.parametrize(
    ("memory", "code", "first", "chosen"),
    [
        ("4GB", 0, "yes: without recomputation it takes ", WITHOUT),
        ("900MB", 0, "yes: with recomputation (best plan) it takes ", BEST),
        ("700MB", 1, "no: no plan fits, since each takes ", None),
    ],
)
def test_the_answer_comes_first_and_the_exit_code_says_the_same(remat, memory, code, first, chosen):
    asked = ("fits", SOURCE, "--gpu", memory, "--time-limit", "10s")
    assert remat(*asked, code=code).out.startswith(first)
    document = remat(*asked, "--format", "json", code=code).json("fits")
    assert document["chosen"] == chosen
    assert document["fits"] is (code == 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SOURCE, "--gpu", "h101"), 'did you mean "h100"?'),
        ((SOURCE, "--gpu", "h100", "--batch", "4"), "batch is for models by name"),
        ((SOURCE, "--gpu", "h100", "--optimizer", "sgd"), "does not tell which bytes are parameters"),
        (("nowhere.json", "--gpu", "h100"), "there is no such file"),
        ((SOURCE, "--gpu", "h100", "--buckets", "512,1024"), "only a model by name can be captured"),
        ((SOURCE, "--gpu", "h100", "--global-batch", "8"), "only a model by name can be captured"),
        ((SOURCE, "--gpu", "h100", "--ranks", "8"), "ranks is for models by name"),
        ((SOURCE, "--gpu", "24GB", "--ranks", "8"), "of the card only its memory is known"),
        ((SOURCE, "--gpu", "h100", "--shard", "full"), "shard is for several ranks"),
        ((SOURCE, "--gpu", "h100", "--ranks", "8", "--shard", "half"), "'half' is not one of 'full', 'grad', 'none'"),
        ((SOURCE, "--gpu", "h100", "--buckets", "512:256:128"), "is no range that rises"),
        ((SOURCE, "--gpu", "h100", "--buckets", "512,1k"), "is no list of lengths"),
        ((SOURCE, "--gpu", "h100", "--buckets", "1:9999:1"), "makes more than 64 lengths"),
    ],
)
def test_bad_input_is_refused_by_name(remat, arguments, message):
    refused = remat("fits", *arguments, code=2)
    assert refused.out == ""
    assert message in refused.err


RANKED = """
import torch
from torch import nn


def build():
    layers = [nn.Sequential(nn.Linear(32, 65), nn.GELU(), nn.Linear(65, 32)) for _ in range(3)]
    return nn.Sequential(*layers), (torch.randn(16, 32),), lambda y: y.square().mean()
"""


def test_one_of_several_ranks(remat, tmp_path):
    (tmp_path / "train.py").write_text(RANKED)
    asked = ("fits", f"torch:{tmp_path}/train.py:build", "--gpu", "h100", "--ranks", "8", "--time-limit", "5s")
    report = " ".join(remat(*asked).out.split())
    assert "one of 8 ranks (parameters, gradients and state divided) at 450 GB/s (fsdp)" in report
    assert "parameters gathered again" in report
    document = remat(*asked, "--shard", "grad", "--interconnect", "25GB/s", "--format", "json").json("fits")
    assert document["ranks"] == {"count": 8, "shard": "grad", "tp": 1, "bytes_per_s": {"fsdp": 25e9}}
    parameters = 4 * 3 * (2 * 32 * 65 + 65 + 32)
    assert document["choices"][0]["parts"]["parameters"] == parameters
    for format, where in (("markdown", "fits.md"), ("html", "fits.html")):
        remat(*asked, "--shard", "none", "--format", format, "-o", where)
        page = Path(where).read_text(encoding="utf-8")
        assert "one of 8 ranks (everything whole)" in page
        assert "communication buffers" in page
