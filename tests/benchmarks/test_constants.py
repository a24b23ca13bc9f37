"""The sweep of constants: what is a constant, that a replaced one is seen by all users, and what is left to measure."""

import math
import subprocess
import sys

import pytest

from benchmarks.constants.__main__ import _missing, page
from benchmarks.constants.patching import Constant, constants
from benchmarks.machine import ROOT


def test_the_list_has_plain_numbers_pairs_and_tuples() -> None:
    labels = {one.label: one.value for one in constants()}
    assert labels["remat_cli.strategies.engine._UNDISTURBED_S"] == 2.0
    assert labels["remat_cli.strategies.conditions.LARGE"] == 3_000, "one of several on a line"
    assert labels["remat_cli.strategies.copying.annealing._HEAT[0][1]"] == 1e-5, "in nested tuples"
    assert any(label.startswith("remat_cli.kernels.") for label in labels)
    assert len(labels) == len(constants()) > 300


def test_variants_that_change_nothing_are_left_out() -> None:
    assert [Constant("m", "A", (), 8).variant(how) for how in ("off", "halved", "doubled")] == [0, 4, 16]
    assert [Constant("m", "A", (), 1).variant(how) for how in ("off", "halved", "doubled")] == [0, None, 2]
    assert Constant("m", "A", (), math.inf).variant("doubled") is None


@pytest.mark.parametrize(
    ("label", "value", "shown"),
    [
        ("remat_cli.strategies.conditions.LARGE", 7, "conditions.LARGE, pipeline.LARGE, conditions.SMALL"),
        ("remat_cli.strategies.copying.annealing._HEAT[1][0]", 7.0, "annealing._HEAT[1][0], annealing._RUNS"),
    ],
)
def test_a_replaced_constant_is_seen_by_every_user(label: str, value: float, shown: str) -> None:
    code = (
        f"from benchmarks.constants.patching import patch; patch({label!r}, {value!r})\n"
        "from remat_cli.strategies import conditions, pipeline\n"
        "from remat_cli.strategies.copying import annealing\n"
        f"print({shown})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    numbers = done.stdout.split()
    assert float(numbers[0]) == 7
    assert float(numbers[-1]) != 7, "another constant of the module stays"
    if "pipeline" in shown:
        assert numbers[:2] == ["7", "7"], "also where it is imported by name"


def test_a_constant_that_is_not_there_is_refused() -> None:
    code = "from benchmarks.constants.patching import patch; patch('remat_cli.milp.NONE', 1)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "there is no constant remat_cli.milp.NONE" in done.stderr


def test_only_what_is_missing_is_measured_and_the_noise_decides() -> None:
    chosen = [Constant("remat_cli.strategies.m", "A", (), 8.0)]
    rows = _missing(chosen, [], 2)
    assert [(row["constant"], row["variant"]) for row in rows] == [
        ("none", "0"),
        ("none", "1"),
        *(("remat_cli.strategies.m.A", how) for how in ("off", "halved", "doubled")),
    ]
    means = (10.0, 10.4, 12.0, 10.3, 10.1)
    done = [row | {"mean": mean} for row, mean in zip(rows, means, strict=True)]
    assert _missing(chosen, done, 2) == []
    assert len(_missing(chosen, done[:-1], 2)) == 1
    text = page(done, 10.0)
    assert "| `strategies.m.A` | off | 8 to 0 | 12.000% | +1.800 | yes |" in text
    assert "| `strategies.m.A` | doubled | 8 to 16 | 10.100% | -0.100 | no |" in text
