"""The first line of the answer of ``remat fits``."""

from dataclasses import replace

import pytest

from remat_cli.plan.model import Scope
from remat_cli.reports.buckets import ChoiceFacts
from remat_cli.reports.fits import FitsFacts, verdict

GB = 10**9
EAGER = ChoiceFacts(name="no recomputation", parts={}, total_bytes=87 * GB, cost=100.0, lower_bound=None)
BEST = ChoiceFacts(name="best plan", parts={}, total_bytes=84 * GB, cost=100.0, lower_bound=None)
FACTS = FitsFacts(
    *(
        "Net",
        "1 x 8",
        "AdamW",
        "85 GB",
        "",
        85 * GB,
        0,
        "flops",
        100.0,
        (EAGER, BEST),
        {},
        GB,
        Scope.ANY_ORDER,
        (),
        (),
        {},
    )
)


@pytest.mark.parametrize(
    ("changed", "answer", "why"),
    [
        ({}, "yes", "by a plan at no extra cost it takes 84 GB of 85 GB; without a plan 87 GB"),
        ({"memory_bytes": 90 * GB}, "yes", "without recomputation it takes 87 GB of 90 GB"),
        (
            {"choices": (EAGER, replace(BEST, cost=103.0))},
            "yes",
            "with recomputation (best plan) it takes 84 GB of 85 GB, at +3%",
        ),
        (
            {"choices": (EAGER, replace(BEST, regions={"loss": 8}))},
            "yes",
            "with the loss in 8 parts it takes 84 GB of 85 GB, at +0%; with whole operations none was found",
        ),
        ({"memory_bytes": 2 * GB}, "not known", "the least that was found takes 84 GB, and 2 GB is not refuted"),
        (
            {"memory_bytes": GB // 2},
            "no",
            "no plan fits, since each takes 1 GB or more, 500 MB too much for 500 MB",
        ),
    ],
)
def test_the_answer_says_how_training_fits(changed, answer, why):
    assert verdict(replace(FACTS, **changed))[:2] == (answer, why)
