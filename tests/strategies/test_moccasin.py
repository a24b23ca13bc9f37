"""Strategy ``moccasin``: the optimum of its class, and what it has so far when it must stop."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import pickle
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bruteforce import cheapest, least_peak
from families import random_graph

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached, SolverFailed, SolverUnavailable, UsageError
from remat_cli.extras import install_command
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.derive import peak
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.solvers.registry import solver_from_spec
from remat_cli.strategies.base import Context, Found, Known, Schedule, Task
from remat_cli.strategies.published.moccasin import strategy as moccasin
from remat_cli.strategies.published.moccasin.strategy import Moccasin
from remat_cli.strategies.published.moccasin.worker import Job
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=17}")
WHOLE = 7
"""As many instances as a graph of up to six nodes has stages: the whole frontier class."""
WORK = """
import json, pickle, sys
from remat_cli.strategies.published.moccasin.worker import work
for job in pickle.load(open(sys.argv[1], "rb")):
    told = []
    work(job, lambda kind, value: told.append((kind, value)))
    print(json.dumps(told))
assert "highspy" not in sys.modules
"""


def small(seed: int, cost_unit: float = 1.0) -> Graph:
    rng = random.Random(seed)
    graph = random_graph(
        rng,
        rng.randint(3, 5),
        max_outputs=rng.choice((1, 3)),
        workspace=seed % 2 == 0,
        recompute_false=rng.choice((0.0, 0.2)),
        random_outputs=seed % 3 != 0,
        zero_outputs=seed % 4 == 0,
        fixed_memory=rng.choice((0, 7)),
    )
    nodes = (Node(n.id, cost_unit * n.cost, n.inputs, n.outputs, n.workspace, n.recompute) for n in graph.nodes)
    return Graph(graph.name, tuple(nodes), graph.outputs, fixed_memory=graph.fixed_memory)


def layered(n: int, seed: int) -> Graph:
    """A graph like the random layered ones of the paper: a source, layers of random width, skips, and a sink."""
    rng = random.Random(seed)
    width = round(math.sqrt(n))
    layers: list[list[int]] = [[0]]
    made = 1
    while made < n - 1:
        layers.append(list(range(made, min(n - 1, made + rng.randint(width // 2, width)))))
        made = layers[-1][-1] + 1
    inputs: list[set[int]] = [set() for _ in range(n)]
    for before, layer in itertools.pairwise(layers):
        for j in layer:
            inputs[j] = {rng.choice(before)} | {i for i in before if rng.random() < 0.2}
            if rng.random() < 0.3:
                inputs[j].add(rng.randrange(before[0] + 1))
    read = set().union(*inputs)
    inputs[n - 1] = {*layers[-1], *(i for i in range(n - 1) if i not in read)}
    nodes = (
        Node(f"n{j}", float(rng.randint(1, 1000)), tuple(sorted(inputs[j])), (10 * rng.randint(1, 500),))
        for j in range(n)
    )
    return Graph("layered", tuple(nodes), (n - 1,))


def done(jobs: list[Job], folder: Path) -> list[list[list[Any]]]:
    """What the worker tells of each job; one process does them all, which saves its start."""
    path = folder / "jobs.pickle"
    path.write_bytes(pickle.dumps(jobs))
    ran = subprocess.run([sys.executable, "-W", "error", "-c", WORK, str(path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def cheapest_told(job: Job, told: list[list[Any]]) -> float | None:
    """Cost of the cheapest schedule within the budget that was told, checked to be one."""
    costs = [math.inf]
    for kind, computes in told:
        if kind == "computes" and peak(job.graph, computes) <= job.budget_bytes:
            costs.append(math.fsum(job.graph.nodes[k].cost for k in computes))
            assert all(computes.count(k) <= job.instances for k in computes)
    return None if min(costs) == math.inf else min(costs)


def test_equals_a_search_of_all_frontier_advancing_schedules(tmp_path: Path) -> None:
    jobs = []
    for seed in range(40):
        graph = small(seed, 1.0 if seed % 5 else 1e6 / 7)
        for budget in range(peak_bound(graph).bytes, no_remat_peak(graph)):
            jobs.append(Job(graph, budget, WHOLE, hint=seed % 3 > 0, gap=1e-9, threads=1))
    assert len(jobs) > 50
    least_of = functools.cache(lambda graph: least_peak(graph, passes=1))
    impossible = 0
    for job, told in zip(jobs, done(jobs, tmp_path), strict=True):
        truth = cheapest(job.graph, job.budget_bytes, passes=1)
        found = cheapest_told(job, told)
        assert ["end", None] in told
        if truth is None:
            impossible += 1
            assert found is None
            (least,) = [value for kind, value in told if kind == "empty"]
            assert least == (least_of(job.graph) if job.hint else None)
        else:
            assert found == pytest.approx(truth, rel=1e-9)
            bound = max(value for kind, value in told if kind == "bound")
            assert bound <= truth
            assert bound == pytest.approx(truth, rel=1e-8)
    assert 0 < impossible < len(jobs)


def test_few_instances_never_beat_the_class(tmp_path: Path) -> None:
    jobs = [
        Job(small(seed), budget, instances, threads=1)
        for seed in range(20)
        for instances in (1, 2, 3)
        for budget in range(peak_bound(small(seed)).bytes, no_remat_peak(small(seed)))
    ]
    worse = 0
    for job, told in zip(jobs, done(jobs, tmp_path), strict=True):
        truth = cheapest(job.graph, job.budget_bytes, passes=1)
        found = cheapest_told(job, told)
        if found is not None:
            assert truth is not None
            assert found >= truth
        worse += found is None and truth is not None
    assert worse > 0, "one computation per node is the same as none again"


@pytest.mark.parametrize(("budget", "instances", "cost"), [(5, 2, 22), (4, 3, 26), (8, 20, 19)])
def test_unit_chain(budget: int, instances: int, cost: int) -> None:
    solved = solve(CHAIN, budget, SolveOptions(strategy=f"moccasin{{instances={instances}}}"))
    claim = solved.plan.claim
    assert (claim.cost, claim.lower_bound, claim.status) == (cost, cost, ClaimStatus.OPTIMAL)
    assert claim.scope is (Scope.FRONTIER if instances == 20 else Scope.RESTRICTED)
    assert solved.plan.solver is None
    assert solved.outcome == "finished"


def test_a_refusal_says_what_was_searched_and_what_works() -> None:
    with pytest.raises(Infeasible) as refusal:
        solve(CHAIN, 4, SolveOptions(strategy="moccasin"))
    assert refusal.value.message.startswith("no frontier-advancing schedule with at most 2 computations per node fits")
    assert "known to work is 5 bytes; every plan of the kind searched needs at least 5 bytes" in refusal.value.hint


def test_a_layered_graph_comes_out_as_with_the_strategy_optimal() -> None:
    graph = layered(40, 1)
    costs = [
        solve(graph, "90%", SolveOptions(strategy=name, time_limit_s=60, gap=1e-6)).plan.claim
        for name in ("moccasin", "optimal")
    ]
    assert costs[0].status is costs[1].status is ClaimStatus.OPTIMAL
    assert costs[0].cost == costs[1].cost > graph.total_cost


@pytest.mark.parametrize("reason", ["interrupted", "time limit"])
def test_stopping_keeps_the_incumbent(reason: str) -> None:
    control = Control()
    published: list[Found] = []

    def publish(found: Found) -> None:
        published.append(found)
        if reason == "interrupted":
            control.cancelled.set()
        else:
            control.deadline_s = time.monotonic()

    context = Context(control, solver_from_spec("highs"), gap=0.0, publish=publish)
    answer = Moccasin(instances=20).solve(Task(CHAIN, 3), context)  # whose optimum takes minutes to prove
    assert isinstance(answer, Found)
    assert published
    assert not answer.used_solver
    assert not published[0].used_solver
    assert not answer.exhausted
    assert peak(CHAIN, answer.schedule.computes) <= 3


def test_a_time_limit_before_any_schedule() -> None:
    # On a busy machine the limit comes before CP-SAT starts.
    with pytest.raises(LimitReached, match=r"CP-SAT found a schedule that fits|stopped before any schedule was found"):
        solve(layered(300, 3), "70%", SolveOptions(strategy="moccasin", time_limit_s=2))


def test_a_known_schedule_is_where_it_starts() -> None:
    start = solve(CHAIN, 5, SolveOptions(strategy="moccasin")).plan
    computes = tuple(s.node for s in start.statements if hasattr(s, "node"))
    activities: list[str] = []
    control = Control(listener=lambda progress: activities.append(progress.activity))
    task = Task(CHAIN, 5, Known((Schedule(computes),)))
    answer = Moccasin().solve(task, Context(control, solver_from_spec("highs")))
    assert isinstance(answer, Found)
    assert len(answer.schedule.computes) == 22
    assert "CP-SAT" in activities
    assert "CP-SAT: lowering the peak" not in activities


def test_the_log_goes_where_it_should(tmp_path: Path) -> None:
    solve(CHAIN, 5, SolveOptions(strategy="moccasin", solver_log=tmp_path / "log.txt"))
    text = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert "Starting CP-SAT solver" in text
    assert "CpSolverResponse summary" in text
    assert '["' not in text


def test_without_ortools_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    assert importlib.util.find_spec("ortools") is None
    with pytest.raises(SolverUnavailable, match="ortools is not installed") as missing:
        solve(CHAIN, 5, SolveOptions(strategy="moccasin"))
    assert missing.value.hint == install_command("cpsat")


def test_a_broken_installation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "import sys\nsys.modules['ortools.sat.python.cp_model'] = None\n"
    monkeypatch.setattr(moccasin, "_WORKER", f"{broken}{moccasin._WORKER}")
    with pytest.raises(SolverUnavailable, match=r"ortools does not work: import of ortools\.sat.* halted") as refusal:
        solve(CHAIN, 5, SolveOptions(strategy="moccasin"))
    assert refusal.value.hint == install_command("cpsat")


def test_a_crash_is_a_failure_of_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moccasin, "_WORKER", "import os\nprint('last words', flush=True)\nos.abort()")
    with pytest.raises(SolverFailed, match=r"CP-SAT ended by signal 6 \(SIGABRT\).*last words"):
        solve(CHAIN, 5, SolveOptions(strategy="moccasin"))


def test_huge_sizes() -> None:
    nodes = tuple(
        Node(n.id, n.cost, n.inputs, tuple(size * 2**40 + 1 for size in n.outputs))
        for n in build_graph("unit-chain{n=9}").nodes
    )
    graph = Graph("huge", nodes, (len(nodes) - 1,))
    solved = solve(graph, 5 * (2**40 + 1), SolveOptions(strategy="moccasin"))
    assert solved.plan.claim.cost == 10


def test_a_least_peak_is_not_rounded_up() -> None:
    """CP-SAT tells it as a float, whose neighbours are 64 apart here."""
    sizes = ((1,), (1,), (65,), (2**59,), (1,), (1,))
    nodes = tuple(Node(f"n{i}", 1, (2,) if i == 5 else (), size, recompute=i != 2) for i, size in enumerate(sizes))
    graph = Graph("exbibyte", nodes, (3,))
    least = least_peak(graph)
    with pytest.raises(Infeasible) as refused:
        solve(graph, 2**59, SolveOptions(strategy="moccasin{instances=3}", gap=0))
    told = [int(number) for number in re.findall(r"(\d{15,}) bytes", str(refused.value.hint))]
    assert told
    assert max(told) <= least


def test_no_instances_are_refused() -> None:
    with pytest.raises(UsageError, match="every node is computed at least once"):
        Moccasin(instances=0)
