"""``remat solve --budgets``."""

import csv
import io
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from cli_process import GRAPHS, TOY, Running, read


def names() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def test_a_plan_for_every_budget_and_a_table(remat):
    solved = remat("solve", TOY, "--budgets", "60%:100%:20%")
    assert names() == ["toy.100pct.plan.json", "toy.80pct.plan.json"]
    assert "a plan for 2 of 3 budgets: 0% over no-remat to 12.4%" in solved.out
    assert "node grad/bn1 alone needs 201.3 MB" in " ".join(solved.out.split())
    for name, budget in (("toy.80pct.plan.json", "80%"), ("toy.100pct.plan.json", "100%")):
        remat("check", name, "--budget", budget)
        assert read(name)["provenance"]["budget"] == budget


def test_the_plans_are_those_of_single_solves(remat):
    remat("solve", TOY, "--budgets", "80%,90%", "-q")
    for percent in (80, 90):
        remat("solve", TOY, "--budget", f"{percent}%", "-q")
        single, one = (read(name) for name in ("toy.plan.json", f"toy.{percent}pct.plan.json"))
        assert single | {"run": 0} == one | {"run": 0}


def test_as_json(remat):
    solved = remat("solve", TOY, "--budgets", "200MB,250MB", "--format", "json")
    curve = solved.json("curve")
    low, high = curve["points"]
    assert (low["status"], low["plan"], low["cost"]) == ("infeasible", None, None)
    assert "grad/bn1" in low["reason"]
    assert (high["status"], high["plan"], high["cost"]) == ("optimal", "toy.250MB.plan.json", 10_892_000_003)
    assert high["scope"] == "any-order"


def test_as_a_page(remat):
    asked = ("solve", TOY, "--budgets", "220MB,250MB", "--format", "html")
    done = remat(*asked, "-o", "plans/")
    assert done.out.startswith("<!DOCTYPE html>")
    assert "--format html -o plans/" in done.out
    assert "wrote plans/toy.220MB.plan.json" in done.err
    assert len(remat(*asked, "-o", "plans/", "--cdn").out) < 100_000
    refused = remat("solve", TOY, "-b", "220MB", "--format", "html", code=2)
    assert refused.out == ""
    assert "--format html is for --budgets" in refused.err


def test_as_csv(remat):
    solved = remat("solve", TOY, "--budgets", "200MB,250MB", "--format", "csv")
    low, high = csv.DictReader(io.StringIO(solved.out))
    assert (low["budget"], low["status"], low["cost"]) == ("200000000", "infeasible", "")
    assert (high["budget"], high["status"], float(high["cost"])) == ("250000000", "optimal", 10_892_000_003)


@pytest.mark.parametrize(
    ("output", "written"),
    [
        ("plans", "plans/toy.80pct.plan.json"),
        ("plans/", "plans/toy.80pct.plan.json"),
        ("plans/{budget}.json", "plans/80pct.json"),
        ("{budget}/x.json", "80pct/x.json"),
        ("new/{budget}.yaml", "new/80pct.yaml"),
        ("new", "new/toy.80pct.plan.json"),
        ("new/deep/", "new/deep/toy.80pct.plan.json"),
    ],
)
def test_where_plans_go(remat, output, written):
    Path("plans").mkdir()
    remat("solve", TOY, "--budgets", "80%", "-o", output)
    assert names() == [written]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no budget given"),
        (("-b", "80%", "--budgets", "80%"), "exclude each other"),
        (("--budgets", "80%:90%"), "is not START:STOP:STEP"),
        (("--budgets", "80%,90%", "-o", "-"), "several plans cannot go to standard output"),
        (("--budgets", "80%,90%", "-o", "one.json"), "one.json is not a folder, but there are several plans"),
        (("--budgets", "80%", "-o", "/dev/null/"), "/dev/null/toy.80pct.plan.json: cannot be written"),
        (("--budgets", "80%", "-o", "{budget}.svg"), "80pct.svg: this command writes no .svg files"),
        (("--budgets", "80%", "--write-model", "m.lp"), "--write-model is for a single --budget"),
        (("--budgets", "80%", "--solver-log", "log"), "--solver-log is for a single --budget"),
        (("-b", "80%", "--format", "csv"), "--format csv is for --budgets"),
    ],
)
def test_nonsense_is_refused_before_the_search(remat, monkeypatch, arguments, message):
    monkeypatch.setattr("remat_cli.planning.curve.solve_curve", lambda *_, **__: pytest.fail("searched"))
    assert message in remat("solve", TOY, *arguments, code=2).err
    assert names() == []


def test_the_graph_is_not_overwritten_by_any_plan(remat):
    shutil.copy(TOY, "80pct.yaml")
    solved = remat("solve", "80pct.yaml", "--budgets", "80%,90%", "-o", "{budget}.yaml", code=2)
    assert "80pct.yaml is the graph itself" in solved.err


def test_the_command_line_comes_before_the_environment(remat, monkeypatch):
    monkeypatch.setenv("REMAT_SOLVE_BUDGET", "80%")
    remat("solve", TOY, "--budgets", "90%,100%")
    assert names() == ["toy.100pct.plan.json", "toy.90pct.plan.json"]
    monkeypatch.setenv("REMAT_SOLVE_BUDGETS", "90%")
    assert "exclude each other" in remat("solve", TOY, code=2).err


def test_codes_when_there_is_no_plan(remat):
    remat("solve", TOY, "--budgets", "1B,2B", code=1)
    graph = str(GRAPHS / "unet.json")
    late = remat("solve", graph, "--budgets", "1B,50%", "--time-limit", "1ms", code=4)
    assert "give more time with --time-limit" in late.out
    assert names() == []


def test_unproven_plans_fail_require_optimal_by_name(remat):
    remat("export", "zoo:unit-chain{n=17}", "-o", "chain.json")
    easy_going = ("--budgets", "4B,17B", "--strategy", "checkmate-ilp", "--gap", "0.9")
    remat("solve", "chain.json", *easy_going)
    strict = remat("solve", "chain.json", *easy_going, "--require-optimal", code=1)
    assert "not proven optimal, as --require-optimal asks: 4B\n" in strict.err


def test_ctrl_c_keeps_the_plans_that_are_there(tmp_path):
    with Running("solve", str(GRAPHS / "unet.json"), "--budgets", "30%,50%,70%,90%", cwd=tmp_path) as running:
        running.wait_for(r"best \+.*\(\d of 4\)")
        os.kill(running.pid, signal.SIGINT)
        done = running.finish()
    assert done.code == 0
    assert "interrupted; these are the best plans found until then" in done.out
    assert list(tmp_path.glob("unet.*pct.plan.json"))


def test_a_curve_is_no_graph(remat):
    Path("c.json").write_text(remat("solve", TOY, "--budgets", "80%", "--format", "json").out)
    assert "this is a curve, expected a graph" in remat("show", "c.json", code=2).err


def test_a_report_names_the_budget_that_the_claim_speaks_of(remat):
    remat("solve", TOY, "-b", "80%")
    checked = remat("check", "toy.plan.json", "--budget", "250MB", "--format", "json")
    (report,) = (plan["report"] for plan in checked.json()["plans"])
    assert (report["budget"], report["plan_budget"]) == (250_000_000, 216_426_499)
    words = " ".join(remat("check", "toy.plan.json", "--budget", "250MB").out.split())
    assert "Claimed by the strategy for the plan's own budget of 216.4 MB (216,426,499 bytes)" in words


# The least peak


def test_the_least_peak_and_what_is_proven_of_it(remat):
    solved = remat("solve", TOY, "--minimize", "peak")
    words = " ".join(solved.out.split())
    assert "fits: peak 203.4 MB of 203.4 MB, 12.4% over no-remat" in words
    assert "proven: no schedule in document order (document-order) has a smaller peak" in words
    plan = read()
    assert (plan["budget"], plan["claim"]["cost"]) == (203_424_260, 10_892_000_003)
    assert plan["claim"]["peak"] == {"lower_bound": 203_424_260, "scope": "document-order"}
    checked = remat("check", "toy.plan.json", "--format", "json")
    assert checked.json()["plans"][0]["report"]["claim"]["peak"] == plan["claim"]["peak"]
    assert "least peak?" in remat("check", "toy.plan.json").out


def test_a_false_claim_on_the_peak_is_found(remat):
    remat("solve", TOY, "--minimize", "peak")
    plan = read()
    plan["claim"]["peak"]["lower_bound"] += 1
    Path("toy.plan.json").write_text(json.dumps(plan))
    checked = remat("check", "toy.plan.json", code=1)
    assert "[claimed-peak]" in checked.out
    said = "no peak is below 203.4 MB; the replay gives 203.4 MB (203424261 bytes claimed, 203424260 replayed)"
    assert said in " ".join(checked.out.split())
    assert said in remat("check", "toy.plan.json", "--format", "github", code=1).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-b", "80%"), "--budget and --minimize peak exclude each other"),
        (("--budgets", "80%,90%"), "--budgets and --minimize peak exclude each other"),
        (("--write-model", "m.lp"), "--write-model is for --minimize cost"),
        (("--format", "csv"), "--format csv is for --budgets"),
    ],
)
def test_what_goes_ill_with_the_least_peak(remat, monkeypatch, arguments, message):
    monkeypatch.setattr("remat_cli.cli.solving.solve_smallest", lambda *_, **__: pytest.fail("searched"))
    assert message in remat("solve", TOY, "--minimize", "peak", *arguments, code=2).err


def test_a_budget_in_the_environment_gives_way_to_the_least_peak(remat, monkeypatch):
    monkeypatch.setenv("REMAT_SOLVE_BUDGET", "90%")
    remat("solve", TOY, "--minimize", "peak", "-q")
    assert read()["budget"] == 203_424_260
