"""Plans with copies in PyTorch: waits, both halves of a step, and training, against the judge and eager mode."""

import copy
import random
import re
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from copies import random_plan
from test_torch_fitting import OPTIMIZERS, broken, conv, deep, in_place, pair, tied, train
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_plans import assert_same, graph_of

from remat_cli import api
from remat_cli.api import SolveOptions, fit, fitted, plans_of
from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.forward_backward import forward_backward
from remat_cli.frontends.torch.execute.host_copies import CudaQueues, HostLink, Stream, pinned_bytes
from remat_cli.frontends.torch.execute.program import program
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.measure.operations import place_tensors
from remat_cli.frontends.torch.train.fitting import fit_module
from remat_cli.graph.model import Graph, Node
from remat_cli.kernels import compiling
from remat_cli.plan.check import check
from remat_cli.plan.host import Host
from remat_cli.plan.model import (
    Allocate,
    Claim,
    ClaimStatus,
    Compute,
    Copies,
    Deallocate,
    Offload,
    Plan,
    Prefetch,
    Release,
    Scope,
)
from remat_cli.plan.queues import timing
from remat_cli.plan.replay import replay

MODELS = ("mlp", "conv", "tied", "in_place", "squared", "exchanged")
CALL = re.compile(r"^    (t|v\d+_0) = (op\d+\(|tangent\(0\))")


def timed(name):
    """A graph whose costs are times."""
    return replace(graph_of(name), cost_unit="s")


def copying(graph, seed):
    """Statements of a random plan with copies back."""
    plans = (random_plan(graph, random.Random(k)) for k in range(50 * seed, 50 * seed + 50))
    return next(plan for plan in plans if any(isinstance(statement, Prefetch) for statement in plan))


def slow_host(graph):
    """A host to which copies take about as long as computations."""
    rate = sum(graph.size) / graph.total_cost
    return Host(rate, 3 * rate, graph.total_cost / 1000)


class CopiedBytes(TorchDispatchMode):
    """Counts what is copied."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default:
            self.bytes += args[0].nbytes
        return function(*args, **(kwargs or {}))


class Clocks:
    """Three queues with clocks: the events are times."""

    def __init__(self, host):
        self.rate = {Stream.OUT: host.out_bytes_per_s, Stream.IN: host.in_bytes_per_s}
        self.latency = host.latency_s
        self.at = dict.fromkeys(Stream, 0.0)

    def mark(self, stream):
        return self.at[stream]

    def wait(self, stream, event):
        self.at[stream] = max(self.at[stream], 0.0 if event is None else event)

    @contextmanager
    def running(self, stream):
        with CopiedBytes() as seen:
            yield
        self.at[stream] += self.latency + seen.bytes / self.rate[stream]

    def buffer(self, size):
        return torch.empty(size, dtype=torch.uint8), None

    def read(self, buffer, event):
        pass

    @contextmanager
    def computing(self, graph, statements, text):
        """Let every computation of generated code take its cost."""
        nodes = [graph.nodes[s.node] for s in statements if isinstance(s, Compute)]
        if "def backward" in text:
            nodes = [node for node in nodes if node.payload["call"] != "remat.tangents"]
        calls = [number for number, line in enumerate(text.splitlines(), 1) if CALL.match(line)]
        cost = dict(zip(calls, (node.cost for node in nodes), strict=True))

        def trace(frame, event, _argument):
            if frame.f_code.co_filename != "<remat plan>":
                return None
            if event == "line":
                self.at[Stream.COMPUTE] += cost.get(frame.f_lineno, 0.0)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def tangents_of(step):
    """One tangent for every result that takes a gradient."""
    return [torch.ones(place.spec.shape) for place in step.places if place.kind == "tangent"]


@pytest.fixture
def clocked(monkeypatch):
    """Makes programs run on clocks."""

    def make(host):
        clocks = Clocks(host)
        monkeypatch.setattr(HostLink, "of", classmethod(lambda cls, device: cls(device, clocks)))
        return clocks

    return make


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", MODELS)
def test_the_code_waits_where_the_judge_waits_and_nowhere_else(name, seed, clocked):
    """On three simulated queues generated code takes exactly the time that the judge replays."""
    graph = timed(name)
    statements, host, step = copying(graph, seed), slow_host(graph), read_step(graph)
    clocks = clocked(host)
    runnable = program(graph, statements, "cpu")
    with clocks.computing(graph, statements, runnable.text):
        runnable.run(place_tensors(step.given, "cpu", 0), tangents_of(step).__getitem__)
    expected = timing(graph, statements, host)
    assert expected.stalls
    assert max(clocks.at.values()) == pytest.approx(expected.time, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", MODELS)
def test_the_two_halves_wait_as_the_whole_does(name, seed, clocked):
    graph = timed(name)
    statements, host, step = copying(graph, seed), slow_host(graph), read_step(graph)
    clocks = clocked(host)
    both = forward_backward(graph, statements, "cpu")
    with torch.no_grad(), clocks.computing(graph, statements, both.text):
        made = both.forward(place_tensors(step.given, "cpu", 0))
        clocks.at[Stream.COMPUTE] += graph.nodes[step.tangents].cost
        both.backward(made[len(made) - len(both.saved) :] + tangents_of(step))
    assert max(clocks.at.values()) == pytest.approx(timing(graph, statements, host).time, rel=1e-9)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "exchanged"])
def test_both_peaks_of_the_two_halves_are_those_predicted(name):
    graph = timed(name)
    statements = copying(graph, 0)
    step = read_step(graph)
    both = forward_backward(graph, statements, "cpu")
    places = place_tensors(step.given, "cpu", 0)
    with torch.no_grad(), live_storages()(places) as live:
        made = both.forward(list(places))
        results = made[: len(made) - len(both.saved)]
        given = made[len(results) :] + tangents_of(step)
        del made
        both.backward(given)
    assert given == []
    seen = replay(graph, statements, host=slow_host(graph))
    updates = [result["of"] for result in graph.metadata["results"] if result["kind"] == "update"]
    states = torch.get_rng_state().numel() * sum(1 for node in graph.nodes if node.payload.get("random"))
    beside = (
        sum(result.untyped_storage().nbytes() for result in results) + sum(places[p].nbytes for p in updates) + states
    )
    assert 0 <= live.peak_bytes - (seen.peak_bytes - graph.fixed_memory) <= beside
    # A copy that the backward half does not read is gone then; the random plan keeps it to its end.
    assert 0 < live.host_peak_bytes <= seen.host_peak_bytes
    exact = {"mlp", "squared"}
    assert live.host_peak_bytes == seen.host_peak_bytes or name not in exact


def by_hand(graph):
    """A random plan with copies."""
    graph = replace(graph, cost_unit="s")
    host, statements = slow_host(graph), copying(graph, 1)
    seen = replay(graph, statements, host=host)
    claim = Claim(ClaimStatus.FEASIBLE, seen.time, 0.0, Scope.ANY_ORDER, copies=Copies.ANY)
    return Plan(graph, statements, None, claim, "by-hand", host=host)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # asked for by PyTorch itself
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("build", [deep, tied, conv, in_place, broken])
def test_training_with_copies_is_eager_training_bit_for_bit(build):
    eager, planned, inputs, loss = pair(build)
    fitted = fit_module(planned, inputs, by_hand, unknown="error")
    plans = plans_of(planned)
    assert all(plan.copies for plan in plans)
    assert api.fitted(planned).host_bytes == sum(check(plan).replay.host_peak_bytes for plan in plans)
    for optimizer in OPTIMIZERS:
        assert_same(
            train(eager, eager, inputs, loss, optimizer, accumulate=2),
            train(fitted, planned, inputs, loss, optimizer, accumulate=2),
        )


@pytest.mark.usefixtures("fresh_compiler")
def test_a_host_is_all_that_fit_takes(tmp_path):
    torch.manual_seed(11)
    assert compiling.wait("copying", Control())
    eager = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU())))
    planned, x = copy.deepcopy(eager), torch.randn(512, 64)
    arguments = {"cost": "roofline:a100", "cache": tmp_path, "options": SolveOptions(time_limit_s=8)}
    fit(planned, x, "60%", host="1000GB/s:500GB/s", **arguments)
    [plan] = plans_of(planned)
    assert plan.host == Host(1e12, 5e11)
    assert plan.copies
    assert check(plan, budget_bytes=plan.budget_bytes).ok
    said = repr(fitted(planned))
    assert " on the host (+" in said
    losses = []
    for module in (eager, planned):
        module(x).square().mean().backward()
        losses.append([parameter.grad for parameter in module.parameters()])
    assert all(map(torch.equal, *losses))
    with pytest.raises(UsageError, match="costs are flops, and copies take time"):
        fit(planned, x, "60%", host="1GB/s", **(arguments | {"cost": "flops"}))
    with pytest.raises(UsageError, match='"1GB" is not a bandwidth'):
        fit(planned, x, "60%", host="1GB", **arguments)


def test_a_second_backward_pass_reads_the_same_copies():
    """What autograd keeps for another backward pass is not given to another step."""
    graph = timed("mlp")
    both = forward_backward(graph, copying(graph, 2), "cpu")
    step = read_step(graph)
    places = place_tensors(step.given, "cpu", 0)
    with torch.no_grad():
        made = both.forward(list(places))
        saved = made[len(made) - len(both.saved) :]
        first = both.backward(saved + tangents_of(step))
        both.forward([torch.randn_like(place) if place.is_floating_point() else place for place in places])
        second = both.backward(saved + tangents_of(step))
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_pinned_memory_is_reused_when_nobody_holds_it(monkeypatch):
    """The pool alone: without a GPU nothing can be pinned."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory, **form: empty(*size, **form))
    queues = CudaQueues("cuda")
    first, free = queues.buffer(8)
    other, _ = queues.buffer(8)
    assert free is None
    assert first.data_ptr() != other.data_ptr()
    queues.read(first, "read")
    address, view = first.data_ptr(), first[2:4]
    del first
    third, free = queues.buffer(8)
    assert third.data_ptr() not in {address, other.data_ptr()}  # a view still refers to the first
    del view
    fourth, free = queues.buffer(8)
    assert (fourth.data_ptr(), free) == (address, "read")
    assert queues.pinned_bytes == 24
    queues.buffer(16)
    assert queues.pinned_bytes == 40


def test_the_pinned_memory_of_a_plan_is_that_of_its_sizes():
    graph = Graph("pins", (Node("a", 1.0, (), (8, 8)), Node("b", 1.0, (0, 1), (4,))), (2,), cost_unit="s")
    statements = (
        *(Allocate(f"%{v}", v) for v in range(2)),
        Compute(0, ("%0", "%1")),
        Offload("%0", "#0"),
        Release("#0"),
        Offload("%1", "#1"),
        Offload("%0", "#2"),
        Allocate("%2", 2),
        Compute(1, ("%2",)),
        Offload("%2", "#3"),
        *(Release(f"#{k}") for k in (1, 2, 3)),
        *(Deallocate(f"%{v}") for v in range(2)),
    )
    assert pinned_bytes(graph, statements) == 8 + 8 + 4
    assert replay(graph, statements, host=Host(1.0, 1.0)).host_peak_bytes == 20
