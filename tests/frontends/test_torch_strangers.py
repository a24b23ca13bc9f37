"""Documents of strangers: nothing that stands in them is run but operators that only compute."""

import os
from dataclasses import replace

import pytest
import torch
from torch_plans import graph_of, plain, plan_of, repeated

from remat_cli import api
from remat_cli.cli.main import run
from remat_cli.errors import ExecutionFailed, UsageError
from remat_cli.frontends.torch.codec import operator_named
from remat_cli.frontends.torch.document import Data, read_step
from remat_cli.frontends.torch.execute.program import program
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.framework import Torch
from remat_cli.plan.derive import derive

profile, run_plan = Torch().profile, Torch().run


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.add_.Tensor",
        "aten.add.out",
        "aten.copy_.default",
        "prim.Print.default",
        "profiler._record_function_enter_new.default",
        "os.system.default",
        "__import__.os.system",
        "load_library.__call__.default",
        "aten.__dict__.default",
        "aten.add.Tensor.__call__",
        "aten.add.Tensor); import os; os.abort(",
        3,
        None,
    ],
)
def test_operators_that_do_more_than_compute_are_refused(name):
    with pytest.raises(ExecutionFailed, match=r"no operator|does more than compute"):
        operator_named(name)


CODE = "__import__('os').environ.__setitem__('REMAT_TEST_PWNED', '1')"


@pytest.mark.parametrize(
    "payload",
    [
        {"call": CODE},
        {"kwargs": {f"a={CODE}, b": 1}},
        {"kwargs": {"lambda": 1}},
        {"args": [{"place": CODE}]},
        {"args": [{"constant": CODE}]},
        {"args": [{"value": CODE}]},
        {"args": [{"input": 0, "part": CODE}]},
        {"args": [{"call": CODE, "args": [], "kwargs": {}}]},
        {"args": [{"float": CODE}]},
        {"args": [{"float": "0x1p+99999"}]},
        {"args": [{"dtype": "load"}]},
        {"args": [{"dtype": "nn"}]},
        {"args": [{CODE: 1}]},
        {"values": [[{"item": CODE}]]},
    ],
    ids=str,
)
def test_payloads_run_no_code(payload, monkeypatch):
    monkeypatch.delenv("REMAT_TEST_PWNED", raising=False)
    graph = graph_of("mlp")
    nodes = [replace(n, payload=n.payload | payload) if n.op == "tanh" else n for n in graph.nodes]
    graph = replace(graph, nodes=tuple(nodes))
    with pytest.raises((UsageError, ExecutionFailed)) as raised:
        program(graph, derive(graph, range(len(nodes))), "cpu")
    assert raised.value.message
    assert raised.value.hint or "remat writes" in raised.value.message or "torch" in raised.value.message
    with pytest.raises((UsageError, ExecutionFailed)):
        profile(graph, repeats=1, warmup=0)
    assert "REMAT_TEST_PWNED" not in os.environ


@pytest.mark.parametrize(
    ("constant", "words"),
    [
        (Data("float32", (1 << 40,), b""), "data: it has another size, 0 bytes"),
        (Data("float32", (2,), b"xxx"), "data: it has another size, 3 bytes"),
        (Data("load", (), b"xxxx"), 'dtype: "load" is not a type that graphs have'),
        (Data("quint8", (4,), b"xxxx"), 'dtype: "quint8" is not a type that graphs have'),
    ],
)
def test_constants_are_as_large_as_their_data_and_of_a_known_type(constant, words):
    graph = graph_of("mlp")
    graph = replace(graph, metadata=graph.metadata | {"constants": [constant.document()]})
    with pytest.raises(UsageError, match=rf"metadata\.constants\[0\]\.{words}"):
        read_step(graph)


LIBRARY = """
import torch

@torch.library.custom_op("remat_test_library::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2

@halved.register_fake
def _(x):
    return torch.empty_like(x)

halved.register_autograd(lambda context, gradient: gradient / 2)
"""


def test_operators_of_a_library_run_if_the_user_names_it(tmp_path, monkeypatch):
    (tmp_path / "remat_test_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)

    def build():
        from remat_test_library import halved

        class Model(torch.nn.Linear):
            def forward(self, x):
                return halved(super().forward(x).tanh()).square().sum()

        return Model(3, 3), torch.randn(2, 3)

    graph = export_model(build, name="halved", source="torch:x")
    plan = plan_of(graph, repeated(graph))
    with pytest.raises(ExecutionFailed, match="not one of the operators") as raised:
        run_plan(plan, steps=1)
    assert "libraries" in raised.value.hint
    with pytest.raises(ExecutionFailed, match="not one of the operators"):
        profile(graph, repeats=1, warmup=0)
    ran = api.run_plan(plan, steps=1, libraries="remat_test_library")
    assert ran.identical
    assert ran.memory.measured == ran.memory.predicted_without_workspace
    assert profile(graph, repeats=1, warmup=0, libraries=["remat_test_library"]).cost_unit == "us"
    with pytest.raises(UsageError, match="the library remat_test_absent cannot be imported: ModuleNotFoundError"):
        run_plan(plan, steps=1, libraries=["remat_test_absent"])


def test_a_library_is_named_on_the_command_line(tmp_path, capsys):
    graph = graph_of("mlp")
    api.save_plan(plain(graph), tmp_path / "mlp.plan.json")
    assert run(["run", str(tmp_path / "mlp.plan.json"), "--steps", "1", "--library", "json"]) == 0
    assert run(["run", str(tmp_path / "mlp.plan.json"), "--steps", "1", "--library", "remat_test_absent"]) == 2
    assert "the library remat_test_absent cannot be imported" in capsys.readouterr().err
