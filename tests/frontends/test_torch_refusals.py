"""Plans for elsewhere, and devices without memory: one message, the documented exit code, nothing half-written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_plans import graph_of, plain, plan_of, repeated

from remat_cli.cli.main import run
from remat_cli.errors import ExecutionFailed, ExitCode, OutOfMemory, UsageError
from remat_cli.frontends.torch.execute import program as programs
from remat_cli.frontends.torch.execute.out_of_memory import memory_told, no_memory, out_of_memory
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.framework import Torch
from remat_cli.frontends.torch.train.backend import remat_backend
from remat_cli.graph.io import dump_document, graph_to_document
from remat_cli.plan.io import plan_to_document

profile, run_plan = Torch().profile, Torch().run


def elsewhere(graph, **facts):
    return replace(graph, metadata=graph.metadata | facts)


FOREIGN = [
    ({"torch": "2.9.1+cu128"}, f"exported with torch 2.9.1+cu128, but this is torch {torch.__version__}"),
    ({"device": "cuda"}, "exported for cuda, and this runs on cpu"),
]


@pytest.mark.parametrize(("facts", "words"), FOREIGN)
def test_what_was_exported_for_elsewhere_is_refused_unless_it_is_forced(facts, words):
    graph = elsewhere(graph_of("mlp"), **facts)
    for action in (lambda **o: run_plan(plain(graph), steps=1, **o), lambda **o: profile(graph, repeats=1, **o)):
        with pytest.raises(UsageError, match="the graph mlp is not for here") as raised:
            action()
        assert words in raised.value.message
        assert 'export it again here, with device="cpu"' in raised.value.hint
        assert action(force=True) is not None


def test_another_patch_of_the_same_minor_version_will_do():
    minor = ".".join(torch.__version__.split(".")[:2])
    assert run_plan(plain(elsewhere(graph_of("mlp"), torch=f"{minor}.99+cu999")), steps=1).identical


def linear(batch, dtype):
    return lambda: (nn.Linear(4, 4, dtype=dtype), torch.randn(batch, 4, dtype=dtype), torch.sum)


@pytest.mark.parametrize(
    ("batch", "dtype", "words"),
    [
        (3, torch.float32, "0 has the shape [2, 4] there and [3, 4] here"),
        (2, torch.float64, "weight has the type float32 there and float64 here"),
    ],
)
def test_a_plan_for_another_graph_shape_or_type_is_refused(batch, dtype, words):
    planned = export_model(linear(2, torch.float32), name="planned", source="torch:x")
    wanted = export_model(linear(batch, dtype), name="wanted", source="torch:x")
    with pytest.raises(UsageError, match="the plan of planned is for another graph than wanted") as raised:
        run_plan(plain(planned), graph=wanted)
    assert words in raised.value.message
    dearer = replace(planned, nodes=tuple(replace(node, cost=2 * node.cost) for node in planned.nodes))
    assert run_plan(plain(planned), graph=dearer, steps=1).identical  # costs do not matter to what it does


def test_the_same_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    graph = graph_of("mlp")
    documents = {
        "mlp.json": graph_to_document(graph),
        "conv.json": graph_to_document(graph_of("conv")),
        "old.json": graph_to_document(elsewhere(graph, torch="2.9.1")),
        "mlp.plan.json": plan_to_document(plain(graph)),
        "old.plan.json": plan_to_document(plain(elsewhere(graph, torch="2.9.1"))),
    }
    for name, document in documents.items():
        Path(name).write_text(dump_document(document), encoding="utf-8")
    assert run(["run", "mlp.plan.json", "--graph", "mlp.json", "--steps", "1"]) == 0
    refused = [
        (["run", "mlp.plan.json", "--graph", "conv.json"], "for another graph than conv: it has 9 parameters"),
        (["run", "old.plan.json"], "exported with torch 2.9.1"),
        (["profile", "old.json", "-o", "measured.json"], "exported with torch 2.9.1"),
        (["run", "-", "--graph", "-"], "cannot both come from standard input"),
    ]
    capsys.readouterr()
    for arguments, words in refused:
        assert run(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert words in said.err
        assert said.err.count("\n") == 2
    assert not Path("measured.json").exists()
    assert run(["run", "old.plan.json", "--steps", "1", "--force"]) == 0
    assert run(["profile", "old.json", "-o", "measured.json", "--repeats", "1", "--force"]) == 0
    assert json.loads(Path("measured.json").read_text(encoding="utf-8"))["cost_unit"] == "us"


# Out of memory

CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"  # fmt: skip # noqa: E501 - as PyTorch says it
CUDA = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 1.00 MiB is free."  # fmt: skip # noqa: E501 - as PyTorch says it


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (torch.cuda.OutOfMemoryError(CUDA), ", which asked for 20.00 MiB more"),
        (RuntimeError(CPU), ", which asked for 4096 bytes more"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), ""),
        (RuntimeError("std::bad_alloc"), ""),
        (MemoryError(), ""),
    ],
    ids=str,
)
def test_whoever_says_that_there_is_no_memory_is_understood(error, asked):
    assert out_of_memory(error)
    assert no_memory(error, "cuda", "node x").message == f"out of memory on cuda at node x{asked}"
    with (
        pytest.raises(OutOfMemory, match="out of memory on cuda at inputs") as raised,
        memory_told("cuda", "inputs", "h"),
    ):
        raise error
    assert (raised.value.hint, raised.value.exit_code) == ("h", ExitCode.NO)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("out of memory")]
)
def test_other_errors_are_not_taken_for_it(error):
    assert not out_of_memory(error)
    with pytest.raises(type(error)), memory_told("cpu", "x", "h"):
        raise error


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError(CUDA), RuntimeError(CPU)], ids=["cuda", "cpu"])
def test_the_node_at_which_it_happens_is_named(error, monkeypatch):
    graph = graph_of("mlp")
    named = programs.operator_named

    def failing(name):
        def fails(*args):
            raise type(error)(str(error))

        return fails if name == "aten.tanh.default" else named(name)

    monkeypatch.setattr(programs, "operator_named", failing)
    monkeypatch.setattr(Torch, "require_harmless", lambda *args, **options: None)
    with pytest.raises(OutOfMemory, match=r"at node layers.3/tanh, which asked for") as raised:
        run_plan(plan_of(graph, repeated(graph)), steps=1)
    assert "by prediction the plan needs " in raised.value.hint
    assert isinstance(raised.value, ExecutionFailed)
    with pytest.raises(OutOfMemory, match=r"at node layers.3/tanh \(aten.tanh.default\), which asked for"):
        profile(graph, repeats=1)


FAR = 1 << 48
"""Elements: a petabyte of float32, which is more than any process can address, however much memory there is."""


def far_inputs():
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.zeros(FAR // 16, 16), torch.sum


class Spread(nn.Module):
    """Small inputs, small values, and one that is far too large."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 1)

    def forward(self, x):
        return torch.tanh(self.first(x).expand(FAR >> 10, 1 << 10))


def far_value():
    return Spread(), torch.zeros(1, 4), torch.sum


def test_real_want_of_memory_on_a_cpu_is_told_and_leaves_files_as_they_were(tmp_path, monkeypatch, capsys):
    """PyTorch's own allocator says it: for the inputs, in the middle of a step, and where an operation is measured."""
    monkeypatch.chdir(tmp_path)
    for build in (far_inputs, far_value):
        graph = export_model(build, name="far", source="torch:x")
        Path(f"{build.__name__}.json").write_text(dump_document(graph_to_document(graph)), encoding="utf-8")
        Path(f"{build.__name__}.plan.json").write_text(dump_document(plan_to_document(plain(graph))), encoding="utf-8")
    Path("measured.json").write_text("what was there", encoding="utf-8")
    names = sorted(path.name for path in tmp_path.iterdir())
    for arguments, place, hint in (
        (["run", "far_inputs.plan.json"], "weights and inputs", "by prediction the plan needs 3.378 PB"),
        (["run", "far_value.plan.json"], "node tanh", "by prediction the plan needs 2.252 PB"),
        (
            ["profile", "far_inputs.json", "-o", "measured.json"],
            "the inputs of an operation",
            "profile a smaller batch",
        ),
    ):
        assert run(arguments) == ExitCode.NO
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"remat: error: out of memory on cpu at {place}")
        assert f"which asked for {4 * FAR} bytes more" in " ".join(said.err.split())
        assert hint in said.err
        assert Path("measured.json").read_text(encoding="utf-8") == "what was there"
        assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_backend_says_the_versions_too():
    graph = elsewhere(graph_of("mlp"), torch="2.9.1")
    module, x = nn.Linear(2, 2), torch.ones(1, 2)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=rf"exported with torch 2\.9\.1, but this is torch {torch.__version__[:3]}"):
        torch.compile(module, backend=remat_backend(plain(graph)), dynamic=False)(x)
    torch._dynamo.reset()
