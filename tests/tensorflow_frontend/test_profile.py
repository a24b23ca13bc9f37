"""Measured costs."""

import pytest
from steps import compiled_cnn, graph_of, recurrent

import remat_cli
from remat_cli.errors import UsageError
from remat_cli.frontends.tensorflow.framework import TensorFlow

profile, run_plan = TensorFlow().profile, TensorFlow().run


def test_times_and_workspace_are_measured():
    graph = graph_of(compiled_cnn)
    measured = profile(graph, repeats=2, warmup=1)
    assert measured.cost_unit == "us"
    assert measured.size == graph.size
    assert all(node.cost > 0 for node in measured.nodes)
    assert all(m.workspace >= n.workspace for m, n in zip(measured.nodes, graph.nodes, strict=True))
    # What kernels need beside their values depends on the machine: oneDNN's gradient of a filter took 34 MB on one.
    plan = remat_cli.solve_smallest(measured, remat_cli.SolveOptions(time_limit_s=5)).plan
    ran = run_plan(plan, steps=1)
    assert ran.identical
    assert ran.memory.measured == pytest.approx(ran.memory.predicted_without_workspace, abs=2048)
    again = profile(measured, repeats=2, warmup=1)
    assert [n.outputs for n in again.nodes] == [n.outputs for n in graph.nodes]


def test_loops_are_measured_too():
    measured = profile(graph_of(recurrent), repeats=1, warmup=0)
    assert any("While" in (node.op or "") for node in measured.nodes)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(UsageError, match="at least one repeat"):
        profile(graph_of(recurrent), repeats=0)
