"""Plans on a device: the same bits as without recomputation, and the peak that was predicted."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from copies import random_plan
from torch_plans import graph_of, plan_of, repeated, run_plan

from remat_cli.cli.main import run
from remat_cli.errors import ExecutionFailed, FrameworkUnavailable, OutOfMemory, UsageError
from remat_cli.frontends.captured.running import without_workspace
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute import program as programs
from remat_cli.frontends.torch.execute.strides import copied_bytes
from remat_cli.frontends.torch.measure import benches as running
from remat_cli.frontends.torch.measure.benches import kept_tensor
from remat_cli.frontends.torch.measure.operations import place_tensors
from remat_cli.graph.io import dump_document
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.host import Host
from remat_cli.plan.io import plan_to_document
from remat_cli.plan.model import Claim, ClaimStatus, Offload, Plan, Prefetch, Scope
from remat_cli.reports.run import run_text
from remat_cli.reports.style import Style
from remat_cli.reports.words import exact_bytes
from remat_cli.zoo.registry import build_graph

MODELS = ("mlp", "conv", "tied", "in_place", "squared", "exchanged")


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same_bits_and_the_peak_is_predicted_to_the_byte(name):
    graph = graph_of(name)
    computes = repeated(graph)
    ran = run_plan(plan_of(graph, computes), steps=1)
    assert (ran.identical, ran.differing, ran.finite) == (True, (), True)
    assert ran.compared == len(graph.metadata["results"])
    assert (ran.computations, ran.recomputations) == (len(computes), len(computes) - len(graph.nodes))
    assert ran.memory.predicted == peak(graph, computes)
    assert ran.memory.predicted_without_workspace <= ran.memory.measured
    assert ran.memory.measured <= ran.memory.predicted_without_workspace + ran.memory.generator_states
    assert ran.result is not None
    assert ran.step_s > 0
    copied = [copied_bytes(operation, "cpu") for operation in read_step(graph).operations]
    assert ran.reference_peak <= peak(without_workspace(graph, copied), range(len(graph.nodes)))


def test_random_numbers_that_are_drawn_anew_are_noticed(monkeypatch):
    """The comparison would be worth nothing if it said yes to everything."""
    graph = graph_of("tied")
    plan = plan_of(graph, repeated(graph))
    assert run_plan(plan, steps=1).memory.generator_states > 0
    monkeypatch.setattr(programs, "generator_state", lambda device: (torch.get_rng_state, lambda state: None))
    ran = run_plan(plan, steps=1)
    assert ran.identical is False
    assert "gradient of tokens.weight" in ran.differing
    assert ran.unsteady == ()


def test_the_order_of_the_plan_is_that_of_the_comparison():
    """A plan may compute nodes in another order; random operations then draw other numbers, in both runs."""
    graph = graph_of("conv")
    nodes = list(range(len(graph.nodes)))
    swap = next(i for i in nodes[:-1] if not set(graph.nodes[i + 1].inputs) & set(graph.values_of(i)))
    order = [*nodes[:swap], swap + 1, swap, *nodes[swap + 2 :]]
    plan = replace(plan_of(graph, order), provenance={"reorder": True})
    assert run_plan(plan, steps=1).identical


def test_same_seed_same_result():
    plan = plan_of(graph_of("tied"), range(len(graph_of("tied").nodes)))
    first, second, other = (run_plan(plan, steps=1, seed=seed).result for seed in (1, 1, 2))
    assert first == second != other


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.ones(2, 3), torch.ones(3, 2).t(), True),
        (torch.ones(2), torch.ones(3), False),
        (torch.tensor(True), torch.tensor(True), True),
        (torch.empty(0), torch.empty(0), True),
    ],
)
def test_bits_are_compared(a, b, same):
    assert kept_tensor("x", a).same(kept_tensor("x", b)) is same


def test_generated_code_frees_where_the_plan_does():
    graph = graph_of("mlp")
    statements = derive(graph, range(len(graph.nodes)))
    made = programs.program(graph, statements, "cpu")
    frees = [line for line in made.text.splitlines() if line.strip().startswith("del ")]
    assert len(frees) == sum(1 for s in statements if type(s).__name__ == "Deallocate")
    assert len(made.nodes) == made.text.count("\n")


def test_what_does_not_fit_without_recomputation_is_not_compared(monkeypatch):
    graph = graph_of("mlp")
    measured, calls = running.TorchPlans.measure, []

    def first_fails(self, statements, steps):
        calls.append(steps)
        if len(calls) == 1:
            raise OutOfMemory("out of memory on cpu at node x") from torch.cuda.OutOfMemoryError("no memory")
        return measured(self, statements, steps)

    monkeypatch.setattr(running.TorchPlans, "measure", first_fails)
    ran = run_plan(plan_of(graph, repeated(graph)), steps=1)
    assert (ran.identical, ran.compared, ran.reference_peak, ran.reference_step_s) == (None, 0, None, None)
    assert "nothing to compare with" in run_text(ran.document(), Style(80, False, True))


def test_other_failures_are_not_taken_for_want_of_memory(monkeypatch):
    def fails(self, statements, steps):
        raise ExecutionFailed("node x failed") from ValueError("something else")

    monkeypatch.setattr(running.TorchPlans, "measure", fails)
    with pytest.raises(ExecutionFailed):
        run_plan(plan_of(graph_of("mlp"), range(len(graph_of("mlp").nodes))))


def test_memory_on_cuda_is_that_of_the_allocator(monkeypatch):
    """The arithmetic, with an allocator that is made up: no GPU is needed."""
    graph = graph_of("mlp")
    numbers = {"memory_allocated": 1000, "max_memory_allocated": 51_000, "max_memory_reserved": 80_000}
    for name, number in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda number=number: number)
    calls = []
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: calls.append("manual_seed"))
    bench = running.TorchPlans(read_step(graph), "cuda", 0, place_tensors(read_step(graph).given, "cpu", 0), None)
    runnable = programs.program(graph, derive(graph, range(len(graph.nodes))), "cpu")
    results, highest, reserved, pinned = bench._on_cuda(runnable, lambda k: torch.ones(()))
    assert (highest, reserved, pinned) == (graph.fixed_memory + 50_000, 80_000, 0)
    assert len(results) == len(graph.metadata["results"])
    assert calls.index("reset_peak_memory_stats") < len(calls) - 1
    assert calls[-1] == "synchronize"


# Refusals


def test_other_plans_are_refused():
    chain = build_graph("linear{n=4}")
    with pytest.raises(UsageError, match="was not made by the PyTorch frontend"):
        run_plan(plan_of(chain, range(len(chain.nodes))))
    graph = graph_of("mlp")
    plan = plan_of(graph, range(len(graph.nodes)))
    with pytest.raises(UsageError, match="the plan is not valid"):
        run_plan(replace(plan, statements=plan.statements[:-3]))
    with pytest.raises(UsageError, match="at least one step"):
        run_plan(plan, steps=0)


def test_no_device_no_run(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(FrameworkUnavailable, match="without CUDA"):
        run_plan(plan_of(graph_of("mlp"), range(len(graph_of("mlp").nodes))), device="cuda")


def broken(graph, payload):
    nodes = [replace(n, payload=n.payload | payload) if n.id == "layers.2/addmm" else n for n in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("payload", "error", "words"),
    [
        ({"args": [{"input": 0}, {"input": 0}, {"input": 0}]}, ExecutionFailed, "node layers.2/addmm .* cannot run: "),
        ({"args": [{"input": 7}]}, UsageError, "a payload that remat did not write"),
        ({"args": [{"what": 7}]}, UsageError, "a payload that remat did not write"),
        ({"args": [1.5]}, UsageError, r"node layers.2/addmm: args\[0\]: 1.5 is nothing that remat writes"),
        ({"kwargs": {"x=1) or print(": 7}}, UsageError, "is not the name of an argument"),
        ({"call": "aten.none_such.default"}, ExecutionFailed, "which is not one of the operators"),
    ],
)
def test_damaged_payloads_are_refused_and_failing_nodes_named(payload, error, words):
    graph = broken(graph_of("mlp"), payload)
    with pytest.raises(error, match=words) as raised:
        run_plan(plan_of(graph, range(len(graph.nodes))), steps=1)
    assert raised.value.message


# The command


def test_the_command_reports_and_exits_by_the_verdict(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    graph = graph_of("conv")
    plan = plan_of(graph, repeated(graph))
    Path("conv.plan.json").write_text(dump_document(plan_to_document(plan)), encoding="utf-8")
    assert run(["run", "conv.plan.json"]) == 0
    text = capsys.readouterr().out
    assert "identical: all 10 results equal those without recomputation, bit for bit" in text
    assert "per step (median of 3)" in text
    assert run(["run", "conv.plan.json", "--format", "json", "--steps", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["identical"] is True
    assert document["memory"]["measured"] >= graph.fixed_memory
    monkeypatch.setattr(programs, "generator_state", lambda device: (torch.get_rng_state, lambda state: None))
    assert run(["run", "conv.plan.json", "--steps", "1"]) == 1
    assert "different: " in capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_reports_keep_to_their_width(width, unicode):
    ran = run_plan(plan_of(graph_of("tied"), repeated(graph_of("tied"))), steps=1).document()
    on_cuda = {"reserved": 10**9, "predicted_reserved": 10**9, "predicted_blocks": 10**8, "libraries": 2**25}
    for document in (
        ran,
        ran | {"identical": False, "differing": [f"gradient of {k}" for k in range(9)], "unsteady": ["x"]},
        ran | {"finite": False, "result": None, "memory": ran["memory"] | on_cuda | {"predicted": 10**9}},
    ):
        text = run_text(document, Style(width, False, unicode))
        assert max(map(len, text.splitlines())) <= width
        assert text.isascii() or unicode


@pytest.mark.parametrize("name", MODELS)
def test_values_that_wait_on_the_host_come_back_with_the_same_bits_and_both_peaks_are_predicted(name):
    graph = replace(graph_of(name), cost_unit="s")
    plans = (random_plan(graph, random.Random(seed)) for seed in range(50))
    statements = next(plan for plan in plans if any(isinstance(statement, Prefetch) for statement in plan))
    claim = Claim(ClaimStatus.FEASIBLE, 0.0, 0.0, Scope.ANY_ORDER)
    plan = Plan(graph, statements, None, claim, "by-hand", host=Host(1e9, 1e9))
    plan = replace(plan, claim=replace(claim, cost=check(plan).replay.time))
    ran = run_plan(plan, steps=1)
    seen = check(plan).replay
    assert (ran.identical, ran.differing, ran.finite) == (True, (), True)
    assert ran.memory.predicted == seen.peak_bytes
    assert ran.copied is not None
    assert ran.copied.predicted == seen.host_peak_bytes > 0
    if name == "exchanged":  # one result of an operator that is not asked for all of them is counted, and never there
        assert ran.memory.measured <= ran.memory.predicted_without_workspace
        assert ran.copied.measured <= ran.copied.predicted
        return
    assert 0 <= ran.memory.measured - ran.memory.predicted_without_workspace <= ran.memory.generator_states
    assert ran.copied.measured == ran.copied.predicted
    assert ran.copied.to_host == sum(isinstance(s, Offload) for s in plan.statements)
    text = run_text(ran.document(), Style(200, False, True))
    assert "nothing runs beside the copies on a CPU" in text
    assert f"{exact_bytes(seen.host_peak_bytes)} of host memory, as predicted to the byte" in text
