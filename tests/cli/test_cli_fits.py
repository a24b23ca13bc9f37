"""``remat fits``: exit codes, the first word of the answer, and its document."""

import json
from pathlib import Path

import jsonschema
import pytest

from remat_cli.planning.fits import BEST, WITHOUT

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "fits-v1.json").read_text())
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
    text = remat(*asked)
    assert text.code == code
    assert text.out.startswith(first)
    done = remat(*asked, "--format", "json")
    assert done.code == code
    document = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["chosen"] == chosen
    assert document["fits"] is (code == 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SOURCE, "--gpu", "h101"), 'did you mean "h100"?'),
        ((SOURCE, "--gpu", "h100", "--batch", "4"), "batch is for models by name"),
        ((SOURCE, "--gpu", "h100", "--optimizer", "sgd"), "does not tell which bytes are parameters"),
        (("nowhere.json", "--gpu", "h100"), "there is no such file"),
    ],
)
def test_bad_input_is_refused_by_name(remat, arguments, message):
    refused = remat("fits", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err
