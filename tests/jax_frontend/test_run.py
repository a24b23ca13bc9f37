"""Plans run exactly, with the predicted peak, from their documents alone."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax_models
import numpy as np
import pytest
from jax_plans import graph_of, plain, plan_of, repeated

import remat_cli as remat
from remat_cli.cli.main import run
from remat_cli.errors import ExecutionFailed, UsageError
from remat_cli.frontends.jax.document import function_text
from remat_cli.frontends.jax.framework import Jax

run_plan = Jax().run

STEP = Path(jax_models.__file__)


@pytest.mark.parametrize("name", jax_models.ALL)
def test_a_plan_with_many_recomputations_changes_no_bit_and_peaks_as_predicted(name):
    graph = graph_of(name)
    ran = run_plan(plan_of(graph, repeated(graph)), steps=1)
    assert ran.identical
    assert ran.compared == len(graph.metadata["results"])
    assert ran.recomputations > 0
    assert ran.finite
    assert abs(ran.memory.measured - ran.memory.predicted) <= 16
    bare = run_plan(plain(graph), steps=1)
    assert abs(bare.memory.measured - bare.memory.predicted) <= 16
    assert bare.memory.measured == ran.reference_peak


def test_export_in_python_is_that_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = remat.export_jax(f"{STEP}:layers", cost="flops")
    assert [node.payload for node in graph.nodes] == [node.payload for node in graph_of("layers").nodes]
    assert remat.export_jax(f"{STEP}:layers", cost="flops", scans="whole").metadata["scans"] == "whole"
    assert run(["export", f"jax:{STEP}:layers", "--cost", "flops", "-o", "step.json"]) == 0
    assert remat.load_graph("step.json") == graph


def test_a_solved_plan_saves_memory():
    graph = graph_of("deep")
    solved = remat.solve(graph, "70%", remat.SolveOptions(time_limit_s=5))
    ran = remat.run_plan(solved, steps=1)
    assert ran.identical
    assert ran.recomputations > 0
    assert ran.memory.measured < ran.reference_peak
    assert ran.framework == "jax"


def remat_command(*arguments, cwd):
    command = [sys.executable, "-m", "remat_cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_export_profile_solve_and_run_in_fresh_processes_without_the_users_code(tmp_path):
    (tmp_path / "train.py").write_text(STEP.read_text(encoding="utf-8"), encoding="utf-8")
    done = remat_command("export", "jax:train.py:deep", "-o", "step.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "train.py").unlink()
    for arguments in (
        ["profile", "step.json", "--repeats", "2", "-o", "measured.json"],
        ["solve", "measured.json", "--budget", "75%", "--time-limit", "5s", "-o", "plan.json"],
        ["run", "plan.json", "--steps", "1"],
    ):
        done = remat_command(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "identical: all 11 results" in done.stdout
    measured = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))
    assert measured["cost_unit"] == "us"
    assert measured["metadata"]["profile"]["jax"] == jax.__version__
    assert all(node["cost"] > 0 for node in measured["nodes"])
    assert "train.py" not in (tmp_path / "plan.json").read_text(encoding="utf-8").replace("jax:train.py", "")


def test_workspaces_are_those_that_xla_states():
    graph = remat.profile(graph_of("cnn"), repeats=1, warmup=0)
    assert graph.cost_unit == "us"
    assert any(node.workspace for node in graph.nodes)
    assert [node.outputs for node in graph.nodes] == [node.outputs for node in graph_of("cnn").nodes]
    ran = run_plan(plain(graph), steps=1)
    assert ran.memory.predicted > ran.memory.predicted_without_workspace
    assert abs(ran.memory.measured - ran.memory.predicted_without_workspace) <= 16


def changed(graph, **metadata):
    return replace(graph, metadata=graph.metadata | metadata)


def with_payload(graph, index, **fields):
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], payload=nodes[index].payload | fields)
    return replace(graph, nodes=tuple(nodes))


def _results(graph, **fields):
    results = [dict(item) for item in graph.metadata["results"]]
    results[0] |= fields
    return results


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda g: changed(g, version=9), "another version of remat"),
        (lambda g: changed(g, frontend="torch"), "not made by the JAX frontend"),
        (lambda g: changed(g, places=3), r"metadata\.places: it is not a list"),
        (lambda g: changed(g, functions=["!"]), r"metadata\.functions\[0\]"),
        (lambda g: changed(g, functions=["AAAA"]), r"metadata\.functions\[0\]"),
        (lambda g: changed(g, results=_results(g, array={"value": "x:0"})), "no value"),
        (lambda g: changed(g, results=_results(g, kind="other")), "is not loss or"),
        (lambda g: with_payload(g, 0, function=999), "there is no number 999"),
        (lambda g: with_payload(g, 0, reads=[{"place": -1}]), "is not a whole number"),
        (lambda g: with_payload(g, 0, extra=1), 'unknown field "extra"'),
        (lambda g: with_payload(g, 3, values=[]), "tells of 0"),
        (lambda g: with_payload(g, 0, values=[{"dtype": "float31", "shape": []}]), "not a type"),
        (lambda g: changed(g, jax="0.9.1"), "exported with JAX 0.9.1"),
        (lambda g: changed(g, device="cuda"), "exported for cuda"),
    ],
)
def test_damaged_documents_are_refused_with_the_place(damage, message):
    with pytest.raises(UsageError, match=message):
        run_plan(plain(damage(graph_of("mlp"))), steps=1)


def test_a_function_that_jax_cannot_read_is_an_error_of_one_line():
    with pytest.raises(ExecutionFailed, match="JAX cannot read function 0"):
        run_plan(plain(changed(graph_of("mlp"), functions=[function_text(b"zero")] * 99)), steps=1)


def test_a_function_of_another_node_is_refused():
    graph = graph_of("mlp")
    numbers = [node.payload["function"] for node in graph.nodes]
    other = next(number for number in numbers if number != numbers[0])
    with pytest.raises(UsageError, match="other types or shapes"):
        run_plan(plain(with_payload(graph, 0, function=other)), steps=1)


def test_a_function_that_calls_python_is_refused():
    from jax import export

    graph = graph_of("mlp")
    shape = jax.ShapeDtypeStruct((2,), np.float32)
    function = jax.jit(lambda x: jax.pure_callback(np.sin, shape, x))
    checks = [export.DisabledSafetyCheck.custom_call("xla_python_cpu_callback")]
    checks += [export.DisabledSafetyCheck.custom_call("xla_ffi_python_cpu_callback")]
    try:
        written = bytes(export.export(function, disabled_checks=checks)(shape).serialize())
    except NotImplementedError:  # JAX itself does not write it
        text = bytes(
            export.export(jax.jit(lambda x: jax.numpy.linalg.cholesky(x)))(
                jax.ShapeDtypeStruct((2, 2), np.float32)
            ).serialize()
        )
        written = text.replace(b"lapack_spotrf_ffi", b"xla_python_call_1")
    assert b"call" in written
    functions = list(graph.metadata["functions"])
    functions[0] = function_text(written)
    with pytest.raises(UsageError, match="which is no function that JAX keeps"):
        run_plan(plain(changed(graph, functions=functions)), steps=1)


def test_libraries_of_operators_are_not_for_jax():
    with pytest.raises(UsageError, match="JAX has no libraries of operators"):
        remat.run_plan(plain(graph_of("mlp")), libraries=["torchvision"])


def test_another_graph_is_refused():
    with pytest.raises(UsageError, match="for another graph than"):
        remat.run_plan(plain(graph_of("mlp")), graph=graph_of("layers"))
