"""Plans with copies in PyTorch: waits, both halves of a step, and training, against the judge and eager mode."""

from __future__ import annotations

import random
import re
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from copies import random_plan
from torch_plans import graph_of
from torch.utils._python_dispatch import TorchDispatchMode

from remat_cli.frontends.torch.executing.forward_backward import forward_backward
from remat_cli.frontends.torch.executing.host_copies import HostLink, Stream
from remat_cli.frontends.torch.executing.inputs import place_tensors
from remat_cli.frontends.torch.executing.program import program
from remat_cli.frontends.torch.reading import read_step
from remat_cli.plan.host import Host
from remat_cli.plan.model import Compute, Prefetch
from remat_cli.plan.queues import timing

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
