import json
from pathlib import Path

import pytest
from cli_process import TOY, read, remat_process

FORMATS = ["text", "json", "github", "markdown"]
KEPT_COST, TIGHT_COST = 9_692_000_003, 10_892_000_003
KEPT_PEAK, TIGHT_PEAK = 270_533_124, 203_424_260


@pytest.fixture
def plans(remat):
    """``kept.json`` recomputes nothing, ``tight.json`` one node, ``other.json`` is for a graph of other costs."""
    remat("solve", TOY, "-b", "none", "-q", "-o", "kept.json")
    remat("solve", TOY, "-b", "80%", "-q", "-o", "tight.json")
    text = Path(TOY).read_text(encoding="utf-8")
    Path("graph.yaml").write_text(text.replace("cost: 3.0e7", "cost: 3.1e7"), encoding="utf-8")
    remat("solve", "graph.yaml", "-b", "80%", "-q", "-o", "other.json")
    Path("units.yaml").write_text(text.replace("cost_unit: flops", "cost_unit: us"), encoding="utf-8")
    remat("solve", "units.yaml", "-b", "80%", "-q", "-o", "units.json")


def document(remat, *arguments: str) -> dict:
    told = remat("diff", *arguments, "--format", "json", code=None)
    found = told.json("diff")
    assert told.code == (0 if found["ok"] else 1)
    return found


def test_what_changed(remat, plans):
    found = document(remat, "kept.json", "tight.json")
    assert (found["old"]["peak_memory"], found["new"]["peak_memory"]) == (KEPT_PEAK, TIGHT_PEAK)
    assert (found["old"]["cost"], found["new"]["cost"]) == (KEPT_COST, TIGHT_COST)
    assert found["cost_increase"] == pytest.approx(TIGHT_COST / KEPT_COST - 1)
    assert found["peak_increase"] == pytest.approx(TIGHT_PEAK / KEPT_PEAK - 1)
    assert found["same_graph"]
    added = {"node": "conv1", "old_times": 1, "new_times": 2, "extra_cost": 1.2e9}
    assert found["recomputed"] == {"added": [added], "removed": [], "changed": []}
    back = document(remat, "tight.json", "kept.json")
    removed = {"node": "conv1", "old_times": 2, "new_times": 1, "extra_cost": -1.2e9}
    assert back["recomputed"] == {"added": [], "removed": [removed], "changed": []}


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        (("kept.json", "tight.json"), []),
        (("kept.json", "tight.json", "--max-cost-increase", "12.4%"), []),
        (("kept.json", "tight.json", "--max-cost-increase", "12.3%"), ["cost-increase"]),
        (("kept.json", "tight.json", "--max-cost-increase", "12.3 %", "--max-peak-increase", "0"), ["cost-increase"]),
        (("tight.json", "kept.json", "--max-cost-increase", "0", "--max-peak-increase", "33%"), []),
        (("tight.json", "kept.json", "--max-peak-increase", "32.9%"), ["peak-increase"]),
        (("kept.json", "kept.json", "--max-peak-increase", "0%", "--max-cost-increase", "0%"), []),
    ],
)
@pytest.mark.parametrize("form", FORMATS)
def test_tolerances(remat, plans, arguments, codes, form):
    told = remat("diff", *arguments, "--format", form, code=1 if codes else 0)
    assert told.err == ""
    if form == "json":
        assert [reason["code"] for reason in told.json()["beyond"]] == codes
    elif codes:
        assert "more than the" in told.out


def test_a_plan_that_got_worse_has_a_tick_only_within_tolerances(remat, plans):
    for old, new, arguments, mark, sign in (
        ("kept", "tight", (), "!", "⚠️"),
        ("kept", "tight", ("--max-cost-increase", "20%"), "✓", "✅"),
        ("kept", "tight", ("--max-cost-increase", "1%"), "✗", "❌"),
        ("kept", "kept", (), "✓", "✅"),
    ):
        asked, code = ("diff", f"{old}.json", f"{new}.json", *arguments), int(mark == "✗")
        assert remat(*asked, code=code).out.startswith(mark)
        assert f"### {sign} " in remat(*asked, "--format", "markdown", code=code).out


@pytest.mark.parametrize("amount", ["-1%", "5GB", "much", "1%%", "0.005", "12.3"])
def test_a_tolerance_is_a_percentage(remat, plans, amount):
    told = remat("diff", "kept.json", "tight.json", "--max-cost-increase", amount, code=2)
    assert "--max-cost-increase" in told.err


def test_a_bad_new_plan_never_will_do_and_a_bad_old_one_is_no_measure(remat, plans):
    broken = read("tight.json")
    del broken["statements"][2]
    Path("broken.json").write_text(json.dumps(broken), encoding="utf-8")
    assert [r["code"] for r in document(remat, "kept.json", "broken.json")["beyond"]] == ["invalid-plan"]
    assert document(remat, "broken.json", "kept.json")["ok"]
    measured = document(remat, "broken.json", "kept.json", "--max-cost-increase", "50%")
    assert [r["code"] for r in measured["beyond"]] == ["invalid-plan"]
    small = read("kept.json") | {"budget": KEPT_PEAK - 1}
    Path("small.json").write_text(json.dumps(small), encoding="utf-8")
    assert [r["code"] for r in document(remat, "kept.json", "small.json")["beyond"]] == ["over-budget"]


@pytest.mark.parametrize("form", FORMATS)
def test_plans_of_different_graphs_are_compared_and_said_to_be(remat, plans, form):
    told = remat("diff", "tight.json", "other.json", "--format", form, "--max-cost-increase", "1%")
    assert "first differ at node bn1" in told.out
    assert "different graphs" in told.out or form == "json"


def test_costs_in_different_units_are_not_compared(remat, plans):
    found = document(remat, "tight.json", "units.json")
    assert (found["cost_unit"], found["cost_increase"], found["peak_increase"]) == (None, None, 0)
    assert "cost the same" not in remat("diff", "tight.json", "units.json").out
    told = remat("diff", "tight.json", "units.json", "--max-cost-increase", "1%", code=2)
    assert "their units differ, flops and us" in told.err
    remat("diff", "tight.json", "units.json", "--max-peak-increase", "0%")


def test_one_of_them_may_come_from_standard_input(remat, plans):
    text = Path("tight.json").read_text(encoding="utf-8")
    assert (
        document(remat, "kept.json", "tight.json")["new"] | {"path": "-"}
        == remat("diff", "kept.json", "-", "--format", "json", stdin=text).json()["new"]
    )
    assert remat_process("diff", "-", "tight.json", "--format", "markdown", stdin=text).err == ""
    assert "cannot both come from standard input" in remat("diff", "-", "-", stdin=text, code=2).err


def test_markdown_is_a_table_whatever_the_names(remat, plans):
    text = Path("tight.json").read_text(encoding="utf-8")
    plan = json.loads(text) | {"strategy": "a|b`<c>"}
    Path("x|y.json").write_text(json.dumps(plan), encoding="utf-8")
    told = remat("diff", "kept.json", "x|y.json", "--format", "markdown").out
    rows = [line for line in told.splitlines() if line.startswith("| ")]
    assert len(rows) > 8
    for row in rows:
        assert row.replace("\\|", "").count("|") == 5
    assert told == remat("diff", "kept.json", "x|y.json", "--format", "markdown").out


@pytest.mark.parametrize("bad", ["none.json", TOY])
def test_what_is_no_plan_is_bad_input(remat, plans, bad):
    for arguments in (("kept.json", bad), (bad, "kept.json")):
        assert remat("diff", *arguments, code=2).out == ""
