"""``remat fits``: exit codes, the first word of the answer, and its document."""

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
        ((SOURCE, "--gpu", "h100", "--buckets", "512:256:128"), "is no range that rises"),
        ((SOURCE, "--gpu", "h100", "--buckets", "512,1k"), "is no list of lengths"),
        ((SOURCE, "--gpu", "h100", "--buckets", "1:9999:1"), "makes more than 64 lengths"),
    ],
)
def test_bad_input_is_refused_by_name(remat, arguments, message):
    refused = remat("fits", *arguments, code=2)
    assert refused.out == ""
    assert message in refused.err
