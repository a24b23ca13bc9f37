"""The simulated CUDA allocator against PyTorch's own, by what that made of the same requests."""

import gc
import json
import random
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_plans import graph_of, plan_of, repeated

from remat_cli.api import SolveOptions
from remat_cli.api.fitting import CachedPlanner
from remat_cli.errors import Infeasible
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.program import defined
from remat_cli.frontends.torch.measure import allocator
from remat_cli.frontends.torch.measure.allocator import (
    BLOCK_BYTES,
    LIBRARY_BYTES,
    CachingAllocator,
    NoRoom,
    fixed_sizes,
    footprint,
    least_limit,
    loop_footprint,
    returns_within,
)
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Compute
from remat_cli.units import parse_budget

RECORDED = json.loads(Path(__file__).with_name("allocator.json").read_text(encoding="utf-8"))["recorded"]
"""Made by record_allocator.py, with the host's side of PyTorch 2.13.0 (addresses of segments rising, no kernels)."""
STEPS = [row["steps"] for row in RECORDED if "steps" in row]


def followed(steps, limit):
    """What the simulation makes of ``steps``, as it is recorded."""
    allocator, alive, seen = CachingAllocator(limit), {}, []
    try:
        for step in steps:
            if len(step) == 2:
                alive[step[0]] = allocator.allocate(step[1])
            else:
                allocator.release(alive.pop(step[0]))
            seen.append([allocator.allocated, allocator.reserved])
    except NoRoom:
        return allocator, seen, False
    return allocator, seen, True


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_every_request_ends_as_with_pytorch(number):
    row, steps = RECORDED[number], STEPS[number // 4]
    allocator, seen, through = followed(steps, row["limit"])
    assert (through, len(seen)) == (row["through"], row["served"])
    assert seen[-1:] == row["end"]
    assert [max(column) for column in zip(*seen, strict=True)] == row["peak"]
    if through:
        assert [allocator.peak_allocated, allocator.peak_reserved] == row["peak"]


def test_the_record_has_all_that_can_happen():
    assert {row["through"] for row in RECORDED} == {True, False}
    tight = [row for row in RECORDED if row["limit"] is not None and row["through"]]
    assert any(row["peak"][1] > row["end"][0][1] for row in tight), "segments were given back"


# Plans


def in_blocks(graph, size):
    """``graph`` with values of whole blocks, as the allocator makes them, all from segments for large ones."""
    nodes = tuple(replace(node, outputs=tuple(size for _ in node.outputs)) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def test_without_gaps_the_footprint_is_the_peak_that_the_judge_sees():
    graph = in_blocks(graph_of("conv"), 32 << 20)
    plan = plan_of(graph, repeated(graph))
    fixed = sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in fixed_sizes(read_step(graph)))
    found = footprint(graph, plan.statements)
    assert found.allocated_bytes == check(plan).replay.peak_bytes - graph.fixed_memory + fixed
    # One size only, so every gap is of use: whole segments of values, and one for what is small and fixed.
    assert found.reserved_bytes == found.allocated_bytes - fixed + (2 << 20)


def test_training_has_the_optimizer_and_the_libraries_beside_the_steps():
    graph = in_blocks(graph_of("mlp"), 32 << 20)
    states = 64 << 20
    statements = derive(graph, range(len(graph.nodes)))
    without = footprint(graph, statements)
    graph = replace(graph, fixed_memory=graph.fixed_memory + states)
    loop = loop_footprint(read_step(graph), statements, state_bytes=states)
    assert loop.allocated_bytes == pytest.approx(without.allocated_bytes + states + 2 * LIBRARY_BYTES, abs=1 << 20)
    assert loop.reserved_bytes >= loop.allocated_bytes
    more = loop_footprint(read_step(graph), statements, state_bytes=states, update_bytes=1 << 30)
    assert more.allocated_bytes == pytest.approx(
        graph.fixed_memory + sum_of_outputs(graph) + (1 << 30) + 2 * LIBRARY_BYTES, abs=1 << 20
    )


def test_cublas_is_counted_for_the_passes_that_multiply_matrices():
    """A network of convolutions, whose parameters are in the forward pass: each pass with a product counts once."""
    whole = graph_of("conv")
    nodes = range(len(whole.nodes))
    step = read_step(whole)
    without = replace(step, operations=tuple(without_products(operation) for operation in step.operations))
    forward = replace(step, operations=(*step.operations[: step.tangents], *without.operations[step.tangents :]))
    taken = [loop_footprint(one, derive(whole, nodes)).allocated_bytes for one in (without, forward, step)]
    assert [taken[1] - taken[0], taken[2] - taken[1]] == [LIBRARY_BYTES, LIBRARY_BYTES]


def without_products(operation):
    return (
        replace(operation, call="aten.relu.default")
        if ".mm." in operation.call or "addmm" in operation.call
        else operation
    )


def sum_of_outputs(graph):
    return sum(graph.size[value] for value in graph.outputs)


def test_a_limit_holds_or_is_refused():
    graph = graph_of("conv")
    sizes = random.Random(0)
    nodes = [replace(n, outputs=tuple(sizes.randint(1, 1 << 26) for _ in n.outputs)) for n in graph.nodes]
    graph = replace(graph, nodes=tuple(nodes))
    statements = plan_of(graph, repeated(graph)).statements
    step = read_step(graph)
    freely = loop_footprint(step, statements)
    assert loop_footprint(step, statements, limit_bytes=freely.reserved_bytes) == freely
    least = least_limit(graph, statements)
    reserved = [loop_footprint(step, statements, habit=habit).reserved_bytes for habit in allocator._HABITS]
    assert freely.allocated_bytes <= least < max(reserved)
    assert loop_footprint(step, statements, limit_bytes=least).reserved_bytes <= least
    with pytest.raises(NoRoom):
        loop_footprint(step, statements, limit_bytes=freely.allocated_bytes - 1)


def test_memory_that_is_returned_in_every_step_is_counted():
    """And what works within a limit need not work within a larger one."""
    graph = graph_of("conv")
    sizes = random.Random(0)
    nodes = [replace(n, outputs=tuple(sizes.randint(1, 1 << 26) for _ in n.outputs)) for n in graph.nodes]
    graph = replace(graph, nodes=tuple(nodes))
    statements = plan_of(graph, repeated(graph)).statements
    freely = loop_footprint(read_step(graph), statements)
    assert returns_within(graph, statements, freely.reserved_bytes + (1 << 30)) == freely.returns == 0
    assert returns_within(graph, statements, freely.allocated_bytes - 1) is None
    assert returns_within(graph, statements, least_limit(graph, statements)) > 0


def test_workspace_between_outputs_is_requested_once_more_for_each():
    graph = graph_of("conv")
    step = read_step(graph)
    several = [k for k, node in enumerate(graph.nodes) if sum(size > 0 for size in node.outputs) > 1]
    nodes = [replace(node, workspace=7 << 20) if k in several else node for k, node in enumerate(graph.nodes)]
    step = replace(step, graph=replace(graph, nodes=tuple(nodes)))
    statements = derive(step.graph, range(len(graph.nodes)))
    once, each = (
        allocator._requests(step, statements, allocator.Habit(workspace_each=each)).count(7 << 20)
        for each in (False, True)
    )
    assert once == len(several) > 0
    assert each == sum(len(graph.nodes[k].outputs) for k in several)


def test_plans_for_cuda_leave_room_for_gaps():
    """A budget on CUDA holds for all that the allocator takes, not for values alone."""
    graph = graph_of("conv")
    nodes = tuple(replace(n, outputs=tuple(size << 12 for size in n.outputs)) for n in graph.nodes)
    graph = replace(graph, nodes=nodes, metadata=graph.metadata | {"device": "cuda"})
    planner = CachedPlanner(parse_budget("80%"), SolveOptions(strategy="dtr"), None)
    whole = least_limit(graph, derive(graph, range(len(graph.nodes))))
    plan = planner(graph)
    assert least_limit(graph, plan.statements) <= 0.8 * whole
    assert returns_within(graph, plan.statements, int(0.8 * whole)) == 0
    assert any(count > 1 for count in Counter(s.node for s in plan.statements if isinstance(s, Compute)).values())
    with pytest.raises(Infeasible):
        CachedPlanner(parse_budget("20%"), SolveOptions(strategy="dtr"), None)(graph)


def test_a_plan_for_which_every_step_returns_memory_is_the_last_choice(monkeypatch):
    """And if there is no other, a warning says what it costs."""
    graph = graph_of("conv")
    nodes = tuple(replace(n, outputs=tuple(size << 12 for size in n.outputs)) for n in graph.nodes)
    graph = replace(graph, nodes=nodes, metadata=graph.metadata | {"device": "cuda"})
    planner = CachedPlanner(parse_budget("80%"), SolveOptions(strategy="dtr"), None)
    asked = []
    monkeypatch.setattr(CachedPlanner, "_returns", lambda self, plan, limit: asked.append(plan) or len(asked) % 2)
    assert planner(graph) is asked[1]
    monkeypatch.setattr(CachedPlanner, "_returns", lambda self, plan, limit: asked.append(plan) or 1)
    with pytest.warns(UserWarning, match="returns memory to the device in every step"):
        assert planner(graph) is asked[2]


def test_tensors_of_generated_code_die_with_it():
    """Without the garbage collector, which would come late, and let memory be counted in the wrong place."""
    kept = torch.ones(3)
    watched = weakref.ref(kept)
    gc.disable()
    try:
        [function] = defined("def f():\n    return kept", {"kept": kept}, "f")
        assert function() is kept
        del function, kept
        assert watched() is None
    finally:
        gc.enable()
