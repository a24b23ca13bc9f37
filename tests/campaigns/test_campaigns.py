"""The truth of campaigns is true, they find what is planted, and a short share of each finds nothing."""

import json
import random
from collections import Counter
from dataclasses import replace

import anyorder
import bruteforce
import pytest
from families import varied_graph
from seeded import seeded

from campaigns import documents, engine, solves, table
from campaigns.engine import FAULTS, FUZZ, Campaign, Tally, run_block, run_campaign
from campaigns.judge import Wrong, judged
from campaigns.truth import ANY_ORDER, DOCUMENT_ORDER, FRONTIER, Instance, least_cost, least_peak, peak_of, working_set
from remat_cli import check, load_plan
from remat_cli.errors import InputError
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.io import graph_to_document
from remat_cli.plan.derive import peak

ALL = {campaign.name: campaign for campaign in (*FUZZ, *FAULTS)}
FOREVER_S = float("inf")


# Truth -----------------------------------------------------------------------------------------------------------


_BEYOND_FRONTIER = (1148, 1362, 1559)
"""Seeds of graphs whose least peak no frontier-advancing schedule reaches."""


@seeded([*range(40), *_BEYOND_FRONTIER], fits=40, nothing=20, orders_differ=2, classes_differ=3)
def test_two_exhaustive_searches_agree(seed):
    low, high, most = (5, 6, (1,)) if seed in _BEYOND_FRONTIER else (3, 5, (1, 1, 2))
    graph = varied_graph(seed, low, high, max_size=5, most_outputs=most)
    instance = Instance.of(graph_to_document(graph))
    least = least_peak(instance, DOCUMENT_ORDER)
    assert least == bruteforce.least_peak(graph)
    assert least_peak(instance, FRONTIER) == bruteforce.least_peak(graph, passes=1)
    for budget in (least - 1, least, least + 2):
        costs = [least_cost(instance, budget, schedules) for schedules in (ANY_ORDER, DOCUMENT_ORDER, FRONTIER)]
        assert costs == [
            anyorder.cheapest_in_any_order(graph, budget),
            bruteforce.cheapest(graph, budget),
            bruteforce.cheapest(graph, budget, passes=1),
        ]
        yield "nothing" if costs[1] is None else "fits"
        if costs[0] != costs[1]:
            yield "orders_differ"
        if costs[1] != costs[2]:
            yield "classes_differ"


@seeded(range(100), recomputed=80)
def test_peaks_of_schedules_and_working_sets_are_those_of_remat(seed):
    graph, rng = varied_graph(seed), random.Random(seed)
    instance = Instance.of(graph_to_document(graph))
    computes = list(range(len(graph.nodes)))
    for _ in range(rng.randint(0, 4)):
        i = rng.choice(computes)
        computes.insert(rng.randint(computes.index(i) + 1, len(computes)), i)
        yield "recomputed"
    assert peak_of(instance, computes) == peak(graph, computes)
    assert working_set(instance) == peak_bound(graph).bytes


@seeded(range(400), right=20, wrong=150, refused=1)
def test_the_judge_and_the_replayer_of_remat_agree_on_damaged_plans(tmp_path_factory, seed):
    """Neither shares code with the other."""
    plan, rng = json.loads(json.dumps(documents.plan_document())), random.Random(seed)
    statements = plan["statements"]
    at, other = rng.randrange(len(statements)), rng.randrange(len(statements))
    change = rng.choice(["remove", "move", "double", "bytes", "budget", "cost", "register", "nothing"])
    if change == "remove":
        del statements[at]
    elif change == "move":
        statements.insert(other, statements.pop(at))
    elif change == "double":
        statements.insert(other, statements[at])
    elif change == "bytes":
        at = rng.choice([k for k, statement in enumerate(statements) if "allocate" in statement])
        statements[at]["bytes"] += rng.choice((-1, 1))
    elif change == "budget":
        plan["budget"] += rng.choice((-1, 0, 1, -(10**6)))
    elif change == "cost":
        plan["claim"]["cost"] *= rng.choice((0.999, 1 + 1e-12, 1.001))
    elif change == "register":
        frees = [statement for statement in statements if "deallocate" in statement]
        one, two = rng.sample(frees, 2)
        one["deallocate"], two["deallocate"] = two["deallocate"], one["deallocate"]
    path = tmp_path_factory.mktemp("plan") / "in.plan.json"
    path.write_text(json.dumps(plan))
    try:
        report = check(load_plan(path))
    except InputError:  # remat does not even read it
        with pytest.raises((Wrong, KeyError)):
            judged(plan)
        yield "refused"
        return
    if report.ok:
        assert judged(plan).peak == report.replay.peak_bytes
        yield "right"
    else:
        with pytest.raises(Wrong):
            judged(plan)
        yield "wrong"


# Planted defects -------------------------------------------------------------------------------------------------


def test_a_false_claim_is_found_and_shrunk_and_kept(tmp_path, monkeypatch):
    """Every solve, by ``keep-all`` because that is quick, claims a bound above its cost."""
    solve = solves.solve

    def lie(graph, budget, options):
        solved = solve(graph, budget, replace(options, strategy="keep-all", reorder=False))
        claim = replace(solved.plan.claim, lower_bound=solved.plan.claim.cost * 1.01)
        return replace(solved, plan=replace(solved.plan, claim=claim))

    monkeypatch.setattr(solves, "solve", lie)
    monkeypatch.setattr(solves, "solve_smallest", lambda graph, options: lie(graph, None, options))
    monkeypatch.setattr(solves, "_what", lambda case: "solving")
    tally = run_block(ALL["solves"], 1, 20, tmp_path, FOREVER_S)
    assert tally.failures.keys() == {"solving: false bound"}
    assert table.class_of("solving: false bound") == "wrong answers"
    (kept,) = tmp_path.glob("solves-*.json")
    assert len(json.loads(kept.read_text())["case"]["graph"]["nodes"]) <= 3
    assert engine.again(kept).kind == "solving: false bound"
    monkeypatch.undo()
    assert engine.again(kept) is None


def test_an_exception_on_damaged_documents_is_found(tmp_path, monkeypatch):
    def load(path):
        if "relu" not in path.read_text(errors="replace"):
            raise KeyError("relu")

    monkeypatch.setattr(documents, "load_graph", load)
    tally = run_block(ALL["documents"], 1, 200, tmp_path, FOREVER_S)
    (kind,) = (kind for kind in tally.failures if kind.startswith("KeyError at "))
    assert table.class_of(kind) == "tracebacks"
    assert json.loads(engine.kept(tmp_path, "documents", kind).read_text())["case"]["via"] == ["load"]


def test_a_block_goes_on_after_failures_and_is_the_same_again(tmp_path, monkeypatch):
    campaign = Campaign("crashing", goal=1000, block=100, share=1)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("campaigns.crashing.DEADLY", -1)
        tallies = [
            run_block(campaign, 3, 300, tmp_path / str(k), FOREVER_S) for k in (1, 2) if not (tmp_path / str(k)).mkdir()
        ]
    assert tallies[0] == tallies[1]
    assert tallies[0].counts["cases"] == 300
    assert tallies[0].failures["too large"] == tallies[0].counts["large"] > 10
    kept = json.loads(engine.kept(tmp_path / "1", "crashing", "too large").read_text())
    assert (kept["case"], kept["detail"]) == (501, "501")


def test_a_process_that_dies_leaves_its_case(tmp_path):
    campaign = Campaign("crashing", goal=1000, block=400, share=1)
    tally = run_campaign(campaign, 2, keep=tmp_path, jobs=1, seconds=None, count=400)
    assert tally.failures["a process died with -9"]
    assert json.loads(engine.kept(tmp_path, "crashing", "a process died with -9").read_text())["case"] == 7
    assert not list(tmp_path.glob("under-way-*"))


# Tables ----------------------------------------------------------------------------------------------------------


def test_the_page_adds_up_runs_and_tells_failures_apart(tmp_path):
    kinds = ["cbc/highs: false no", "KeyError at x.py:3", "solve, KILL: orphans", "show: half a file", "show: slow"]
    tally = Tally(Counter(cases=10, refused=4), Counter(kinds))
    for seed in (1, 2):
        table.record(tmp_path / "results.json", "solves", seed, 1.5, tally, "1.0")
    page = (tmp_path / "results.md").read_text()
    assert "| solves | 20 | 0.0% | 2 | 2 | 2 | 2 | 2 | refused 8 |" in page
    assert all(f"| solves | {kind} | 2 |" in page for kind in kinds)


# A share of each -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cases", "least"),
    [
        ("solves", 60, {"plans judged": 20, 'answers "no"': 5, "claims compared": 15}),
        ("documents", 400, {"read in Python": 200, "refused": 150, "taken": 50}),
        ("models", 60, {".onnx": 10, ".py": 5, ".pt2": 5, "taken": 5}),
        ("runs", 25, {"refused": 10}),
        ("signals", 6, {"hit while running": 1}),
        ("disks", 8, {"refused": 3}),
        pytest.param("solvers", 4, {}, marks=pytest.mark.system),  # glpsol
        ("sweeps", 1, {}),
    ],
)
def test_a_share_of_each_campaign_finds_nothing(tmp_path, name, cases, least):
    tally = run_block(ALL[name], 1, cases, tmp_path, FOREVER_S)
    assert not tally.failures, "\n".join(f"{kind}\n{detail}" for kind, detail in tally.details.items())
    assert tally.counts["cases"] == cases
    rare = {kind: tally.counts[kind] for kind, count in least.items() if tally.counts[kind] < count}
    assert not rare, f"{rare} of {tally.counts}"
