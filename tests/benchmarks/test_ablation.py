"""The ablation of the search: what is a constant, that a scaled one is seen by all users, and what is compared."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.ablation import __main__ as ablation
from benchmarks.ablation.patching import Constant, constants
from benchmarks.machine import ROOT


def test_the_list_has_plain_numbers_pairs_and_tuples() -> None:
    values = {(one.module.removeprefix("remat_cli."), one.name, one.place): one.value for one in constants()}
    assert values["strategies.engine", "_UNDISTURBED_S", ()] == 2.0
    assert values["strategies.conditions", "LARGE", ()] == 3_000, "one of several on a line"
    assert values["strategies.copying.annealing", "_HEAT", (0, 1)] == 1e-5, "in nested tuples"
    assert any(module.startswith("kernels.") for module, *_ in values)
    assert len(values) == len(constants())


def test_whole_numbers_stay_whole() -> None:
    assert [Constant("m", "A", (), value).scaled(0.5) for value in (8, 1, 3.0)] == [4, 1, 1.5]


@pytest.mark.parametrize("label", ["strategies.conditions.", "strategies.conditions.LARGE"])
def test_a_scaled_constant_is_seen_by_every_user(label: str) -> None:
    code = (
        f"from benchmarks.ablation.patching import scale; scale(['remat_cli.{label}'], 2.0)\n"
        "from remat_cli.strategies import conditions, pipeline\n"
        "print(conditions.LARGE, pipeline.LARGE, conditions.SMALL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["6000", "6000", "120" if label.endswith("LARGE") else "240"]


def test_a_module_that_is_there_already_is_refused() -> None:
    code = (
        "import remat_cli.strategies.engine\n"
        "from benchmarks.ablation.patching import scale; scale(['remat_cli.strategies.engine.'], 2.0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "remat_cli.strategies.engine was imported already" in done.stderr


def test_a_solve_says_what_stages_did_and_leaves_some_out() -> None:
    code = (
        "import json; from benchmarks.ablation.running import measured\n"
        "print(json.dumps(measured('linear{n=12}', '60%', 5.0, without=['chain-first'])))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert '"quick-method", ' in done.stdout
    assert "chain-first" not in done.stdout


def test_a_case_is_run_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "CASES", {"tiny": ("linear{n=6}", "60%", 2.0)})
    row = ablation._run({"change": "without chain-first", "case": "tiny", "seed": 0})
    assert row["nodes"] == 13
    assert "chain-first" not in {name for name, *_ in row["stages"]}


def test_a_change_is_compared_on_the_cases_where_it_matters_with_their_noise() -> None:
    def run(change: str, case: str, seed: int, integral: float, *stage: object) -> ablation.Row:
        return {"change": change, "case": case, "seed": seed, "integral": integral, "stages": [list(stage)]}

    base = [run("as it is", "unet", k, of, "prices", 2.0, True, False) for k, of in enumerate((10.0, 10.4, 10.1))]
    base += [run("as it is", "bert", k, 1.0, "polish", None, False, False) for k in range(3)]
    assert ablation.changes(base)[:3] == ["without prices", "without polish", "annealing halved"]
    assert [row["case"] for row in ablation.missing("without prices", base)] == ["unet"]
    assert [row["case"] for row in ablation.missing("retention doubled", base)] == [*ablation.PARTS["retention"][1]]
    missing = ablation.missing("as it is", base)
    assert len(missing) == 3 * (len(ablation.CASES) - 2), "what is there is not measured again"
    changed = run("without prices", "unet", 0, 12.0, "polish", 1.0, True, True)
    cases, before, noise, difference = ablation.compare("without prices", [*base, changed])
    assert (cases, round(before, 6), round(noise, 6), round(difference, 6)) == (1, 10.166667, 0.4, 1.833333)
    crash = {"change": "kernels halved", "case": "unet", "seed": 0, "problem": "killed"}
    text = ablation.page([*base, changed, crash, run("as it was", "bert", 0, 3.0, "rotor", 3.0, False, False)])
    assert "| without prices | 1 | 10.167 | 0.400 | +1.833 | worse |" in text
    assert "| kernels halved | | | | | failed: killed |" in text
    assert "| prices | 3 | 6.0 | 3 | 0 |" in text
    assert text.endswith("| rotor | 1 | 3.0 | 0 | 0 |\n")
    earlier = [run("as it was", "bert", 0, 3.0), run("steering halved", "bert", 0, 5.0) | {"against": "as it was"}]
    assert ablation.compare("steering halved", [*base, *earlier])[3] == 2, "and not with what it is now"


def test_every_part_has_constants_and_known_cases() -> None:
    labels = [constant.label for constant in constants()]
    for prefixes, cases in ablation.PARTS.values():
        assert set(cases) <= set(ablation.CASES)
        for prefix in prefixes:
            assert any(label.startswith(f"remat_cli.{prefix}") for label in labels), prefix


def test_stages_are_left_out_together_by_turns_with_none():
    rows = ablation.in_turns(["chain", "search"], [])
    assert [row["change"].partition(" ")[0] for row in rows] == ["with", "without"] * (len(rows) // 2)
    assert all((a["case"], a["seed"]) == (b["case"], b["seed"]) for a, b in zip(rows[::2], rows[1::2], strict=True))
    assert all(row["left_out"] == ["chain", "search"] for row in rows[1::2])
    assert len(rows) == 2 * ablation.SEEDS * len(ablation.CASES)
    assert ablation.in_turns(["chain", "search"], rows[:3]) == rows[3:]
    measured = [row | {"integral": 3.0 if "left_out" in row else 2.0, "stages": []} for row in rows]
    lines = ablation.page(measured).splitlines()
    assert [line for line in lines if "in turns" in line] == [
        f"| without chain+search, in turns | {len(ablation.CASES)} | 2.000 | 0.000 | +1.000 | worse |"
    ]
