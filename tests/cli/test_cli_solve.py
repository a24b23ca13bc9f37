import json
import re
import shutil
from pathlib import Path

import pytest
from cli_process import GRAPHS, NODE_LINK, TOY, TOY_PEAK, read, script

PLAN = "toy.plan.json"


def test_from_a_graph_to_a_checked_plan(remat):
    solved = remat("solve", TOY, "--budget", "80%")
    assert "fits: peak 203.4 MB of 216.4 MB, 12.4% over no-remat" in solved.out
    assert "wrote toy.plan.json\n" in solved.err
    assert read()["claim"]["status"] == "optimal"
    assert read()["claim"]["cost"] == 10_892_000_003
    checked = remat("check", PLAN)
    assert "fits" in checked.out
    shown = remat("show", PLAN)
    assert "budget 216.4 MB" in shown.out
    assert (checked.err, shown.err) == ("", "")
    assert sorted(p.name for p in Path().iterdir()) == [PLAN]


def test_from_an_architecture_to_a_checked_plan(remat):
    remat("export", "zoo:unit-chain{n=17}", "-o", "chain.json")
    remat("solve", "chain.json", "-b", "7B")
    assert read("chain.plan.json")["claim"] | {"gap": 0, "scope": ""} == {
        "cost": 20,
        "lower_bound": 20,
        "status": "optimal",
        "gap": 0,
        "scope": "",
    }
    remat("check", "chain.plan.json")
    remat("check", "chain.plan.json", "-b", "6B", code=1)


def test_the_stages_of_the_search_are_shown_and_recorded(remat):
    remat("export", "zoo:mobilenet-v1", "-o", "net.json")
    solved = remat("solve", "net.json", "-b", "60%", "-v")
    stages = read("net.plan.json")["run"]["stages"]
    assert stages[0]["stage"] == "quick-method"
    assert all(stage["seconds"] >= 0 for stage in stages)
    whole = [stage for stage in stages if "within" not in stage]
    bounds, costs = [stage["bound"] for stage in whole], [stage["cost"] for stage in whole]
    assert bounds == sorted(bounds)
    assert costs == sorted(costs, reverse=True)
    assert sum(stage.get("gained", 0) for stage in stages if "within" not in stage) == pytest.approx(
        costs[0] - costs[-1]
    )
    for stage in stages:
        assert stage["stage"] in solved.err


def test_another_order_of_the_nodes(remat):
    """Two branches that fit one after the other; the document has them side by side."""
    nodes = [
        {"id": "a1", "cost": 1, "memory": 1000, "inputs": []},
        {"id": "b1", "cost": 1, "memory": 1000, "inputs": []},
        {"id": "a2", "cost": 1, "memory": 10, "inputs": ["a1"]},
        {"id": "b2", "cost": 1, "memory": 10, "inputs": ["b1"]},
        {"id": "end", "cost": 1, "memory": 10, "inputs": ["a2", "b2"]},
    ]
    Path("two.json").write_text(json.dumps({"schema": "remat-graph/1", "name": "two", "nodes": nodes}))
    assert "40.0% over no-remat" in remat("solve", "two.json", "-b", "1100B").out
    assert "not the document's" in remat("solve", "two.json", "-b", "1100B", "--reorder").out
    made = read("two.plan.json")
    assert made["claim"] | {"gap": 0} == {
        "cost": 5,
        "lower_bound": 5,
        "status": "optimal",
        "gap": 0,
        "scope": "any-order",
    }
    assert made["provenance"]["reorder"] is True
    assert "not the document's" in remat("check", "two.plan.json").out
    assert "--reorder" in remat("solve", TOY, "-b", "80%", "--reorder", "--strategy", "checkpoint-all", code=2).err


@pytest.mark.parametrize(
    ("budget", "budget_bytes"),
    [
        ("216426499B", 216_426_499),
        ("216.426499MB", 216_426_499),
        ("0.25GB", 250_000_000),
        ("210MiB", 210 * 2**20),
        ("80%", 216_426_499),
        ("99.9%", TOY_PEAK * 999 // 1000),
        ("100%", TOY_PEAK),
        ("16GB", 16 * 10**9),
    ],
)
def test_budgets_in_every_unit(remat, budget, budget_bytes):
    remat("solve", TOY, "--budget", budget, "-q")
    assert read()["budget"] == budget_bytes
    assert read()["provenance"]["budget"] == budget
    remat("check", PLAN)


@pytest.mark.parametrize("word", ["none", "NONE", " none "])
def test_no_budget(remat, word):
    remat("solve", TOY, "--budget", word)
    assert read()["budget"] is None
    assert read()["strategy"] == "keep-all"
    remat("check", PLAN)


def test_the_same_input_gives_the_same_bytes(remat):
    plans = []
    for name in ("a.json", "b.json"):
        remat("solve", TOY, "-b", "80%", "-o", name, "-q")
        plans.append(re.sub(r'"run": .*\n', "", Path(name).read_text(encoding="utf-8")))
    assert plans[0] == plans[1]
    assert plans[0].endswith("}\n")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("toy.yaml", "toy.plan.json"),
        ("toy.YML", "toy.plan.json"),
        ("a.b.json", "a.b.plan.json"),
        ("plain", "plain.plan.json"),
        ("folder/with space.json", "with space.plan.json"),
        (".json", "graph.plan.json"),
    ],
)
def test_the_plan_is_named_after_the_graph_and_lies_in_the_current_folder(remat, source, target):
    Path("folder").mkdir()
    exported = remat("export", "zoo:linear{n=2}").out
    Path(source).write_text(exported, encoding="utf-8")
    solved = remat("solve", source, "-b", "none")
    assert Path(target).is_file()
    assert f"wrote {target}\n" in solved.err


@pytest.mark.parametrize(
    ("name", "target"),
    [("toy", "toy.plan.json"), ("a/b c", "a-b-c.plan.json"), ("..", "graph.plan.json"), ("größe", "größe.plan.json")],
)
def test_through_a_pipe_the_plan_is_named_after_the_graphs_name(remat, name, target):
    document = remat("export", "zoo:linear{n=2}").json() | {"name": name}
    remat("solve", "-", "-b", "none", "-q", stdin=json.dumps(document))
    assert [p.name for p in Path().iterdir()] == [target]


def test_with_a_dash_the_plan_alone_is_on_standard_output(remat):
    solved = remat("solve", TOY, "-b", "80%", "-o", "-")
    assert solved.json()["schema"] == "remat-plan/1"
    assert "fits: peak 203.4 MB" in solved.err
    assert not list(Path().iterdir())
    quiet = remat("solve", TOY, "-b", "80%", "-o", "-", "--quiet")
    assert quiet.err == ""
    assert quiet.json()["claim"] == solved.json()["claim"]


def test_a_pipeline(remat):
    graph = remat("export", "zoo:linear{n=4}").out
    solved = remat("solve", "-", "--budget", "none", "-o", "-", stdin=graph)
    checked = remat("check", "-", stdin=solved.out)
    assert (solved.code, checked.code) == (0, 0)
    assert "valid plan" in checked.out
    remat("show", "-", stdin=solved.out)


def test_the_report_as_json(remat):
    solved = remat("solve", TOY, "-b", "80%", "--format", "json")
    report = solved.json("report")
    assert report["valid"]
    assert report["within_budget"]
    assert report["peak_memory"] == 203_424_260


def test_options_come_from_the_environment(remat, monkeypatch):
    monkeypatch.setenv("REMAT_SOLVE_BUDGET", "80%")
    monkeypatch.setenv("REMAT_SOLVE_OUTPUT", "mine.json")
    monkeypatch.setenv("REMAT_SOLVE_STRATEGY", "checkmate-ilp")
    monkeypatch.setenv("REMAT_SOLVE_QUIET", "1")
    assert remat("solve", TOY).err == ""
    assert read("mine.json")["budget"] == 216_426_499
    assert read("mine.json")["strategy"] == "checkmate-ilp"
    remat("solve", TOY, "-b", "90%")  # the command line comes first
    assert read("mine.json")["budget"] == TOY_PEAK * 9 // 10
    monkeypatch.setenv("REMAT_SOLVE_BUDGET", "16G")
    assert "ambiguous" in remat("solve", TOY, code=2).err


@pytest.mark.parametrize("solver", ["highs", "cbc", "glpk", "gurobi"])
def test_every_solver_can_be_chosen(remat, solver):
    remat("solve", TOY, "-b", "80%", "--strategy", "checkmate-ilp", "--solver", solver, "--gap", "1e-6")
    assert read()["solver"] == solver
    assert read()["solver_version"]
    assert read()["claim"]["cost"] == 10_892_000_003
    assert read()["provenance"]["solver"] == solver


def test_strategies_take_options(remat):
    remat("solve", TOY, "-b", "80%", "--strategy", "checkmate-ilp{stage_split=2}")
    assert read()["strategy"] == "checkmate-ilp{stage_split=2}"
    assert read()["strategy_options"]["stage_split"] == 2


@pytest.mark.parametrize(("suffix", "words"), [(".lp", ["Minimize", "Subject To"]), (".mps", ["ROWS", "ENDATA"])])
def test_the_model_is_written(remat, suffix, words):
    asked = ("--strategy", "checkmate-ilp", "--write-model", f"model{suffix}")
    remat("solve", TOY, "-b", "80%", *asked)
    text = Path(f"model{suffix}").read_text(encoding="ascii")
    for word in words:
        assert word.lower() in text.lower()


def test_the_solvers_log_is_written(remat):
    asked = ("--strategy", "checkmate-ilp", "--solver-log", "log.txt")
    remat("solve", TOY, "-b", "80%", *asked)
    assert "HiGHS" in Path("log.txt").read_text(encoding="utf-8")
    remat("solve", TOY, "-b", "80%", *asked, "--solver", "cbc")
    assert "CBC" in Path("log.txt").read_text(encoding="utf-8")


def test_files_that_no_solver_wrote_are_spoken_of(remat):
    solved = remat("solve", TOY, "-b", "none", "--write-model", "m.lp", "--solver-log", "log.txt")
    assert "m.lp was not written: keep-all builds no model" in solved.err
    assert "log.txt was not written: keep-all uses no solver" in solved.err
    assert [p.name for p in Path().iterdir()] == [PLAN]
    solved = remat("solve", TOY, "-b", "80%", "--strategy", "checkmate-ilp", "--write-model", "m.lp")
    assert "wrote m.lp" in solved.err
    again = remat("solve", TOY, "-b", "none", "--write-model", "m.lp")
    assert "m.lp was not written: keep-all builds no model" in again.err


def test_a_proven_plan_satisfies_require_optimal(remat):
    remat("solve", TOY, "-b", "80%", "--require-optimal")


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_an_unproven_plan_is_written_and_fails_require_optimal(remat, quiet):
    remat("export", "zoo:unit-chain{n=17}", "-o", "chain.json")
    easy_going = ("-b", "4B", "--strategy", "checkmate-ilp", "--gap", "0.9")
    solved = remat("solve", "chain.json", *easy_going, "--require-optimal", *quiet, code=1)
    assert "not proven optimal" in solved.err
    assert read("chain.plan.json")["claim"]["status"] == "feasible"
    remat("check", "chain.plan.json")
    remat("solve", "chain.json", *easy_going)


def test_a_search_starts_from_an_old_plan(remat):
    remat("export", "zoo:unet{batch=1}", "-o", "unet.json")
    remat("solve", "unet.json", "-b", "60%", "--strategy", "dtr", "-o", "old.json")
    for budget, words in (("70%", "nothing cheaper was found than the plan in old.json"), ("100%", "% less than the")):
        solved = remat("solve", "unet.json", "-b", budget, "--start", "old.json", "--time-limit", "1ms", "-o", "a.json")
        assert words in solved.err
        assert read("a.json")["claim"]["cost"] <= read("old.json")["claim"]["cost"]
    assert "is for a different graph" in remat("solve", TOY, "-b", "80%", "--start", "old.json", code=2).err
    remat("solve", TOY, "-b", "none")
    solved = remat("solve", TOY, "-b", "80%", "--start", PLAN)
    assert "the plan in toy.plan.json was of no use: its peak is 54.11 MB over the budget" in solved.err
    assert "cannot both come from standard input" in remat("solve", "-", "-b", "80%", "--start", "-", code=2).err


def test_a_plan_is_found_again_in_the_cache(remat, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("COLUMNS", "400")
    assert "cached" not in remat("solve", TOY, "-b", "80%", "--cache").out
    (kept,) = (tmp_path / "user" / "remat" / "plans").iterdir()
    made = read()
    again = remat("solve", TOY, "-b", "216426499B", "--cache", "-o", "again.json")
    assert f"not solved again, only replayed: {kept}" in again.out
    assert read("again.json") == made | {"provenance": made["provenance"] | {"budget": "216426499B"}}
    told = remat("solve", TOY, "-b", "80%", "--cache", "--format", "json")
    assert told.json()["valid"]
    assert "not solved again" in told.err
    other = ("--cache-dir", "plans")
    for arguments in (("-b", "80%", *other), ("-b", "81%", *other), ("-b", "80%", "--seed", "1", *other)):
        for hit in (False, True):
            assert ("not solved again" in remat("solve", TOY, *arguments).out) is hit
    assert "not solved again" not in remat("solve", TOY, "-b", "80%", "--solver-log", "log.txt", *other).out
    for hit in (False, True):
        assert ("not solved again" in remat("solve", TOY, "--minimize", "peak", *other).out) is hit
    assert len(list(Path("plans").iterdir())) == 4


def test_a_larger_budget_never_gives_a_more_expensive_plan_than_the_cache_has(remat):
    remat("export", "zoo:unet{batch=1}", "-o", "unet.json")
    kept = ("--cache-dir", "kept", "--format", "json")
    least = remat("solve", "unet.json", "-b", "60%", "--strategy", "dtr", *kept).json()
    remat("solve", "unet.json", "-b", "61%", "--time-limit", "1ms", code=4)
    hurried = ("solve", "unet.json", "--time-limit", "1ms", *kept)
    for budget in ("61%", "62%"):  # the second time from two plans
        assert remat(*hurried, "-b", budget).json()["cost"] == least["cost"]
    assert read("unet.plan.json")["strategy"] == "dtr"
    remat(*hurried, "-b", "40%", code=4)
    # A plan for a larger budget whose search came to its end gives way to a cheaper one for a smaller budget.
    dear = {path: path.read_text(encoding="utf-8") for path in Path("kept").iterdir()}
    cheap = remat("solve", "unet.json", "-b", "80%", *kept).json()["cost"]
    before = {*Path("kept").iterdir()}
    assert remat("solve", "unet.json", "-b", "90%", *kept).json()["cost"] <= cheap < least["cost"]
    (largest,) = {*Path("kept").iterdir()} - before
    largest.write_text(next(text for text in dear.values() if '"outcome": "finished"' in text), encoding="utf-8")
    assert remat("solve", "unet.json", "-b", "90%", *kept).json()["cost"] <= cheap


def test_only_sound_and_finished_plans_come_from_the_cache(remat):
    remat("export", "zoo:unit-chain{n=17}", "-o", "chain.json")
    slow = ("solve", "chain.json", "-b", "4B", "--cache-dir", "kept")
    remat(*slow, "--strategy", "dtr", "--time-limit", "1s")
    (kept,) = Path("kept").iterdir()
    good = kept.read_text(encoding="utf-8")
    for damage in (
        good[:-20],
        good.replace('"outcome": "finished"', '"outcome": "time limit"'),
        good.replace('"n3"', '"n4"'),
    ):
        assert damage != good
        kept.write_text(damage, encoding="utf-8")
        assert "not solved again" not in remat(*slow, "--strategy", "dtr", "--time-limit", "1s").out
        assert "not solved again" in remat(*slow, "--strategy", "dtr", "--time-limit", "1s").out
    kept.unlink()
    remat("export", "zoo:unet{batch=1}", "-o", "unet.json")
    hurried = ("solve", "unet.json", "-b", "60%", "--time-limit", "1ms", "--start", "old.json", "--cache-dir", "kept")
    remat("solve", "unet.json", "-b", "60%", "--strategy", "dtr", "-o", "old.json")
    remat(*hurried)
    assert "not solved again" not in remat(*hurried).out  # nor is a plan whose search was cut short
    for arguments, words in (
        (("-b", "80%", "--cache-dir", "/dev/null/x"), "choose another file with --cache-dir"),
        (("--budgets", "80%", "--cache"), "--cache is for a single --budget"),
    ):
        assert words in remat("solve", TOY, *arguments, code=2).err


def test_a_graph_as_node_link_json(remat):
    Path("nx.json").write_text(json.dumps(NODE_LINK), encoding="utf-8")
    remat("solve", "nx.json", "-b", "30B", "--keys", "cost=weight,memory=size")
    assert read("nx.plan.json")["claim"]["cost"] == 3
    assert 'did you mean "cost"?' in remat("solve", "nx.json", "-b", "30B", "--keys", "costs=weight", code=2).err


# The answer is no


def test_a_budget_below_a_working_set_names_the_node_and_the_bytes(remat):
    solved = remat("solve", TOY, "-b", "200MB", code=1)
    assert "no plan fits a budget of 200 MB (200000000 bytes): node grad/bn1 alone needs 201.3 MB" in solved.err
    assert "3.424 MB (3424256 bytes) too much" in solved.err
    assert "no budget below 203.4 MB (203424256 bytes) can work" in solved.err
    assert "--minimize peak finds the least that works" in solved.err
    assert (solved.out, list(Path().iterdir())) == ("", [])


def test_where_nothing_can_be_saved_the_hint_says_so(remat):
    nodes = [{"id": "a", "cost": 1, "memory": 5, "inputs": []}, {"id": "b", "cost": 1, "memory": 5, "inputs": ["a"]}]
    Path("two.json").write_text(json.dumps({"schema": "remat-graph/1", "nodes": nodes}))
    solved = remat("solve", "two.json", "-b", "9B", code=1)
    assert "hint: recomputation cannot help: 10 bytes is needed, and is enough without any" in solved.err


def test_a_budget_between_the_bound_and_the_best_plan_is_infeasible(remat):
    solved = remat("solve", TOY, "-b", "203424256B", code=1)
    assert "203424260 bytes" in solved.err  # the smallest budget that works
    assert not list(Path().iterdir())


def test_a_strategy_that_ignores_the_budget_may_fail_it(remat):
    solved = remat("solve", TOY, "-b", "80%", "--strategy", "keep-all", code=1)
    assert "the plan of keep-all needs 270.5 MB" in solved.err
    assert not list(Path().iterdir())


# Solvers that are missing or fail


def test_a_missing_solver_is_3_and_says_how_to_install_it(remat):
    solved = remat(
        "solve", TOY, "-b", "80%", "--strategy", "checkmate-ilp", "--solver", "cbc{path=/nowhere/cbc}", code=3
    )
    assert "/nowhere/cbc" in solved.err
    assert "pip install" in solved.err
    assert not list(Path().iterdir())


def test_a_missing_solver_is_3_also_where_no_solver_is_needed(remat, monkeypatch):
    monkeypatch.setattr("remat_cli.solvers.gurobi.installed_package", lambda name: None)
    remat("export", "zoo:unit-chain{n=5}", "-o", "chain.json")
    for command in (
        ("solve", "chain.json", "-b", "none"),
        ("solve", "chain.json", "-b", "90%", "--strategy", "chen-sqrt"),
        ("solve", "chain.json", "--budgets", "90%,100%"),
        ("solve", "chain.json", "--minimize", "peak"),
        ("max-batch", "chain.json", "--memory", "1GB", "--batch", "1"),
        ("compare", "chain.json", "--budgets", "100%", "--strategies", "keep-all"),
    ):
        done = remat(*command, "--solver", "gurobi", "-q", code=3)
        assert done.out == ""
        assert "gurobipy is not installed" in done.err
        assert "pip install" in done.err
    assert [path.name for path in Path().iterdir()] == ["chain.json"]


def test_a_failing_solver_is_3_with_its_last_words(remat, tmp_path):
    failing = script(tmp_path / "cbc", '[ "$1" = -stop ] && echo "Version: 2" && exit\necho "out of luck"\nexit 7')
    asked = ("--strategy", "checkmate-ilp", "--solver", f"cbc{{path={failing}}}")
    solved = remat("solve", TOY, "-b", "80%", *asked, code=3)
    assert "ended with status 7" in solved.err
    assert "out of luck" in solved.err
    assert [p.name for p in tmp_path.iterdir()] == ["cbc"]


# Limits


@pytest.mark.parametrize("strategy", ["auto", "checkmate-ilp"])
def test_a_limit_before_any_plan_is_4(remat, strategy):
    solved = remat(
        "solve", str(GRAPHS / "vgg16.json"), "-b", "60%", "--strategy", strategy, "--time-limit", "1ms", code=4
    )
    assert "--time-limit" in solved.err
    assert not list(Path().iterdir())


def test_a_plan_that_needs_no_search_is_found_within_any_limit(remat):
    remat("solve", TOY, "-b", "none", "--time-limit", "10s")
    assert read()["run"]["outcome"] == "finished"


def test_time_limits_count_from_the_start_of_each_command(remat, monkeypatch):
    monkeypatch.setattr("remat_cli.cli.main._STARTED_S", -1e9)  # as after a long life of this process
    remat("solve", TOY, "-b", "80%", "--time-limit", "60s")
    assert read()["run"]["outcome"] == "finished"
    assert read()["run"]["wall_s"] < 60


# Files in the way


def test_the_graph_is_not_overwritten(remat):
    shutil.copy(TOY, "toy.yaml")
    before = Path("toy.yaml").read_bytes()
    Path("link.lp").symlink_to("toy.yaml")
    for option, name in (
        ("-o", "toy.yaml"),
        ("-o", "./toy.yaml"),
        ("--solver-log", "toy.yaml"),
        ("--write-model", "link.lp"),
    ):
        assert "is the graph itself" in remat("solve", "toy.yaml", "-b", "80%", option, name, code=2).err
    assert Path("toy.yaml").read_bytes() == before


def test_a_plan_for_another_budget_is_not_replaced_in_silence(remat):
    assert remat("solve", TOY, "-b", "80%").err == "wrote toy.plan.json\n"
    assert remat("solve", TOY, "-b", "80%").err == "wrote toy.plan.json\n"
    words = "toy.plan.json held a plan for a budget of 216.4 MB, which this one replaced"
    assert words in remat("solve", TOY, "-b", "none").err
    assert "held a plan for no budget" in remat("solve", TOY, "-b", "80%").err
    assert remat("solve", TOY, "-b", "90%", "-o", PLAN).err == "wrote toy.plan.json\n"


def test_an_old_plan_is_replaced_only_by_a_new_one(remat):
    Path(PLAN).write_text("old")
    remat("solve", TOY, "-b", "1B", code=1)
    assert Path(PLAN).read_text() == "old"
    remat("solve", TOY, "-b", "80%")
    assert read()["schema"] == "remat-plan/1"


@pytest.mark.parametrize("option", ["-o", "--write-model", "--solver-log"])
def test_unwritable_files_are_refused_before_the_search(remat, monkeypatch, option):
    monkeypatch.setattr("remat_cli.cli.solving.solve", lambda *_, **__: pytest.fail("searched"))
    solved = remat("solve", TOY, "-b", "80%", option, "/dev/null/x.lp", code=2)
    assert "/dev/null/x.lp: cannot be written: Not a directory" in solved.err
    assert f"choose another file with {option}" in solved.err
    assert not list(Path().iterdir())


def test_of_a_plan_the_graph_is_solved(remat):
    remat("solve", TOY, "-b", "none", "-q", "-o", "kept.plan.json")
    solved = remat("solve", "kept.plan.json", "-b", "80%", "-o", "tight.plan.json")
    assert "remat: kept.plan.json is a plan; solving the graph in it\n" in solved.err
    remat("check", "tight.plan.json", "--graph", TOY)
    remat("solve", TOY, "-b", "80%", "-q", "-o", "direct.plan.json")
    made, direct = (read(name) for name in ("tight.plan.json", "direct.plan.json"))
    assert made["statements"] == direct["statements"]


def test_quiet_prints_nothing_but_what_was_asked_for(remat):
    solved = remat("solve", TOY, "-b", "80%", "-q")
    assert (solved.out, solved.err) == ("", "")
    checked = remat("check", "toy.plan.json", "-q")
    assert (checked.out, checked.err) == ("", "")
    over = remat("check", "toy.plan.json", "-b", "1B", "-q", code=1)
    assert (over.out, over.err) == ("", "")
    assert remat("solve", TOY, "-b", "80%", "-q", "--format", "json").json()["valid"]
    assert "bytes" in remat("solve", TOY, "-b", "1B", "-q", code=1).err
