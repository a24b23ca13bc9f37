"""Costs before measurement, encodings, and the zoo's models in PyTorch."""

import base64
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch

import remat_cli as remat
from remat_cli.cli.main import run
from remat_cli.errors import ExecutionFailed, FrameworkUnavailable, UsageError
from remat_cli.extras import install_command
from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.rates import LAUNCH_US, MACHINES
from remat_cli.frontends.torch import installed
from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES
from remat_cli.frontends.torch.capture.naming import clean_path
from remat_cli.frontends.torch.codec import decode, decode_data, encode, encode_data, operator_named
from remat_cli.frontends.torch.document import Named, Operation, Placeholder, Returned, Step, TensorSpec, read_step
from remat_cli.frontends.torch.execute.program import Writer
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.framework import Torch
from remat_cli.frontends.torch.measure.costs import cost_model
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node


def linear():
    return torch.nn.Linear(256, 128, bias=False), (torch.zeros(64, 256),), lambda out: out.sum()


def test_flops_of_a_product_are_those_of_the_formula_and_others_count_their_elements():
    graph = export_model(linear, name="linear", source="torch:x")
    costs = {node.op: node.cost for node in graph.nodes}
    assert costs["mm"] == 2 * 64 * 256 * 128
    assert costs["sum"] == 64 * 128
    assert min(costs.values()) == 1
    assert graph.cost_unit == "flops"


def test_the_roofline_is_arithmetic_or_traffic_and_the_launch():
    graph = export_model(linear, name="linear", source="torch:x", cost="roofline:a100")
    cost = next(node.cost for node in graph.nodes if node.id == "mm")
    traffic = 4 * (64 * 256 + 256 * 128 + 64 * 128)
    slowest = max(2 * 64 * 256 * 128 / 19.5e12, traffic / 2039e9)  # of the data sheet
    assert cost == round(1e6 * slowest + LAUNCH_US, 3)
    assert graph.cost_unit == "us"
    assert graph.metadata["costs"]["device"] == MACHINES["a100"].machine


@pytest.mark.parametrize("text", ["", "flop", "roofline", "roofline:a10O", "time"])
def test_unknown_cost_models_are_refused(text):
    with pytest.raises(UsageError) as raised:
        cost_model(text)
    assert raised.value.hint


def through_a_document(argument):
    """An argument of an operator that goes to JSON and back."""
    values = ((Returned(None, TensorSpec("float32", (), ())),),)
    document = Operation("aten.x.default", (argument,), {}, values).document()
    tangents = Operation(TANGENTS, (), {}, ((Returned(0, TensorSpec("float32", (), ())),),)).document()
    nodes = (Node("x", 1.0, (), (4,), payload=json.loads(json.dumps(document, allow_nan=False))),)
    nodes += (Node("t", 1.0, (), (4,), payload=tangents),)
    tangent = Placeholder("tangent", "tangent0", TensorSpec("float32", (), ()), 4)
    metadata = {"places": [tangent.document()], "constants": [], "results": []}
    return read_step(Graph("x", nodes, (), metadata=metadata)).operations[0].args[0]


VALUES = [None, True, 3, -(2**40), "mean", [1, [2, None]], 0.1, math.inf, 1e-300, 2j, torch.float16, torch.strided,
          torch.channels_last, torch.device("cpu")]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_arguments_survive_a_document_exactly(value):
    there = through_a_document(encode(value, lambda _: None))
    assert decode(there, lambda _: None) == value
    assert type(decode(there, lambda _: None)) is type(value)


def test_devices_follow_the_one_that_is_asked_for():
    assert decode(Named("device", "cpu"), lambda _: None, {"cpu": "meta"}) == torch.device("meta")
    assert decode(Named("device", "cpu"), lambda _: None, {"cuda": "cuda:1"}) == torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_constants_survive_a_document_exactly(dtype, shape):
    tensor = (torch.randn(shape) * 3).to(dtype)
    there = json.loads(json.dumps(encode_data(tensor).document()))
    again = decode_data(replace(encode_data(tensor), data=base64.b64decode(there["data"])), "cpu")
    assert (again.dtype, again.shape) == (dtype, tensor.shape)
    assert torch.equal(again, tensor)


@pytest.mark.parametrize("name", ["aten.nonsense.default", "aten.add.Nonsense", "aten", "aten.add", "__class__.x.y"])
def test_unknown_operators_are_refused(name):
    with pytest.raises(ExecutionFailed, match="has no operator"):
        operator_named(name)


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("L['self'].layer1[0].conv1", "layer1.0.conv1"),
        ("L['module']._modules['blocks']._modules['3']", "blocks.3"),
        ("L['module']", ""),
        ("L['m'].a b:7", "a_b_7"),
    ],
)
def test_module_paths_are_cleaned(path, clean):
    assert clean_path(path) == clean


# The zoo


def without_copies(graph):
    return sum(node.op != "clone" for node in graph.nodes)


@pytest.mark.parametrize(
    ("spec", "nodes", "values_mb", "parameters"),
    [
        # Operations, and bytes of VGG16 and GPT-2, as counted independently with PyTorch 2.13; parameters as published.
        # Copies are not counted: in PyTorch 2.13 dropout that drops nothing copies, in 2.15 it does not.
        ("torch/vgg16{dropout=0}", 84, 2860.7, 138_357_544),
        ("torch/unet", 156, 3007.4, 31_037_698),
        ("torch/resnet50", 407, 2763.9, 25_557_032),
    ],
)
def test_the_zoo_has_the_models_that_are_usually_compared(spec, nodes, values_mb, parameters):
    graph = Torch().export_architecture(spec)
    assert without_copies(graph) == nodes + 1  # that of the tangents
    assert (no_remat_peak(graph) - graph.fixed_memory) / 1e6 == pytest.approx(values_mb, abs=0.05)
    assert graph.metadata["parameters"] == parameters
    assert graph.metadata["notes"] == []


def test_gpt2_is_as_deep_as_it_says():
    """Nodes, bytes and parameters grow evenly with the depth: two shallow captures tell of the deep one."""

    def counted(depth):
        graph = Torch().export_architecture(f"torch/gpt2{{depth={depth}}}")
        assert graph.metadata["notes"] == []
        return without_copies(graph), no_remat_peak(graph) - graph.fixed_memory, graph.metadata["parameters"]

    shallow, next_one = counted(1), counted(2)
    nodes, values, parameters = (a + 11 * (b - a) for a, b in zip(shallow, next_one, strict=True))
    assert nodes == 365 + 1  # that of the tangents
    assert values / 1e6 == pytest.approx(4914.5, abs=0.05)
    assert parameters == 124_439_808 - 512 * 768  # half the positions


# What is missing


def test_a_missing_torch_is_one_clear_error(monkeypatch, capsys, tmp_path):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.chdir(tmp_path)
    for source in ("torch:train.py:build", "zoo:torch/gpt2"):
        assert run(["export", source]) == 2
        said = capsys.readouterr().err
        assert "needs PyTorch, which is not installed" in said
        assert install_command("torch") in said


@pytest.mark.parametrize(
    ("version", "fine"), [("2.10.1", False), ("2.11.0+cpu", True), ("2.15.9", True), ("2.16", False)]
)
def test_other_versions_of_torch_are_refused(monkeypatch, version, fine):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    if fine:
        installed.require_torch()
    else:
        with pytest.raises(FrameworkUnavailable, match=r"from 2\.11 up to, but not including, 2\.16"):
            installed.require_torch()


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cpu"])
def test_plans_for_compiled_steps_are_refused_with_a_torch_that_does_not_keep_them(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    message = rf"plans for Inductor need PyTorch 2\.13 or newer, and {re.escape(version)} is installed"
    made = remat.solve(export_model(linear, name="x", source="torch:x"), None)
    refused = (
        lambda: export_model(linear, name="x", source="torch:x", compiler="inductor"),
        lambda: remat.fit(*linear()[:2], "1GB", compiler="inductor"),
        lambda: remat.remat_backend(made, compiler="inductor"),
        lambda: remat.RematPartitioner("1GB"),
        lambda: remat.RematPartitioner(made),
    )
    for call in refused:
        with pytest.raises(FrameworkUnavailable, match=message) as caught:
            call()
        assert caught.value.hint == "install PyTorch 2.13 or newer, or plan for eager mode"
    for version in ("2.13.0", "2.14.1+cpu"):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        installed.require_inductor()


def test_a_device_that_torch_was_not_built_for_is_refused_before_it_aborts(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(FrameworkUnavailable, match="without CUDA"):
        export_model(linear, name="x", source="torch:x", device="cuda")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FrameworkUnavailable, match="no CUDA device"):
        installed.require_present("cuda")
    with pytest.raises(UsageError, match="knows no device"):
        installed.require_device("tpu")


def test_listing_and_help_do_not_load_torch():
    code = (
        "import sys; from remat_cli.cli.main import run; assert run(sys.argv[1:]) == 0;"
        "sys.exit('torch' in sys.modules or 'functorch' in sys.modules)"
    )
    for arguments in (["export", "--list"], ["export", "--help"], ["--help"]):
        subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    assert {f"zoo:{name}" for name in TORCH_ARCHITECTURES.names()} == {
        f"zoo:torch/{name}" for name in ("gpt2", "resnet50", "unet", "vgg16")
    }


BUILD = """
import torch
from neighbour import WIDTH

def build():
    return torch.nn.Linear(WIDTH, 2), (torch.zeros(3, WIDTH),), torch.sum

number = 3
"""


def test_a_file_is_exported_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(BUILD, encoding="utf-8")
    Path("neighbour.py").write_text("WIDTH = 5\n", encoding="utf-8")
    assert run(["export", "torch:train.py:build", "-o", "step.json"]) == 0
    assert capsys.readouterr().err.startswith("wrote step.json: build, ")
    document = json.loads(Path("step.json").read_text(encoding="utf-8"))
    assert document["metadata"]["source"] == "torch:train.py:build"
    assert document["fixed_memory"] == 4 * (5 * 2 + 2 + 3 * 5)
    assert run(["solve", "step.json", "-b", "none", "-q"]) == 0
    assert run(["check", "step.plan.json"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["torch:train.py:number"], "there is no function number in train.py"),
        (["torch:broken.py:build"], "cannot be loaded: ZeroDivisionError"),
        (["torch:train.py:build", "--cost", "money"], "is not a cost model"),
        (["zoo:vgg16", "--device", "cpu"], "--split and --world are for models of your own"),
        (["torch:train.py:build", "--scans", "whole"], "--scans is not for PyTorch"),
        (["tf:train.py:build", "--compiler", "inductor"], "--compiler is not for TensorFlow"),
        (["jax:train.py:build", "--scans", "all"], '"all" is no --scans'),
        (["zoo:torch/unet", "--cost", "flops"], "--split and --world are for models of your own"),
        (["zoo:vgg16", "--cost", "device"], "is not a cost model for architectures of the zoo"),
        (["zoo:vgg16", "--cost", "roofline:v10"], 'no device "v10"'),
        (["zoo:unit-chain", "--cost", "roofline:v100"], "unit-chain is no network of layers"),
        (["zoo:torch/unet{resolution=100}"], "choose a resolution such as 112"),
    ],
)
def test_bad_requests_are_refused(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(BUILD, encoding="utf-8")
    Path("neighbour.py").write_text("WIDTH = 5\n", encoding="utf-8")
    Path("broken.py").write_text("1 / 0\n", encoding="utf-8")
    assert run(["export", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_second_device_gets_what_operators_make_from_nothing():
    """A model on cuda:1 while cuda:0 is the current device."""
    step = Step(Graph("x", (), ()), (), (), (), (), tangents=0, device="cuda")
    writer = Writer(step, "cuda:1")
    assert writer.argument(Named("device", "cuda"), ()) in writer.names
    assert list(writer.names.values()) == [torch.device("cuda:1")]
