"""What tests of the PyTorch frontend share: captured graphs, plans with many recomputations, and what steps take."""

import functools
from itertools import accumulate

import torch
import torch_models
from plans_by_hand import plain as plain
from plans_by_hand import plan_of as plan_of
from plans_by_hand import repeated as repeated

from remat_cli.api import SolveOptions
from remat_cli.frontends.torch.compat.operators import profiler_events
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.framework import Torch
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan

FAST = SolveOptions(strategy="dtr")
run_plan = Torch().run


@functools.cache
def graph_of(name: str) -> Graph:
    """The exported graph of a model, the same object each time; graphs are frozen."""
    return export_model(getattr(torch_models, name), name=name, source=f"torch:torch_models.py:{name}")


def by_hand(graph) -> Plan:
    """A plan that computes many operations again, at random places."""
    return plan_of(graph, repeated(graph))


def difference_of(ours, theirs) -> str | None:
    """Why a plan of one graph is not a plan of the other."""
    framework = Torch()
    return framework.difference(framework.read(ours), framework.read(theirs))


def assert_same(one, other):
    """Losses are the same bits, and so are the tensors of two states."""
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


def most_bytes(step, tensors) -> int:
    """What PyTorch's allocator hands out during a step at most, by the events of its profiler, and what is there."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as session:
        step()
    events = enumerate(profiler_events(session))
    changes = sorted((event.start_ns(), k, event.nbytes()) for k, event in events if event.name() == "[memory]")
    return sum(tensor.nbytes for tensor in tensors) + max(accumulate((size for *_, size in changes), initial=0))
