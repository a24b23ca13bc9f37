"""Documents of strangers: nothing that stands in them is run but operators that only compute."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from torch_plans import graph_of

from remat_cli.errors import ExecutionFailed, UsageError
from remat_cli.frontends.torch.codec import operator_named
from remat_cli.frontends.torch.document import Data
from remat_cli.frontends.torch.executing.program import program
from remat_cli.frontends.torch.measuring.profile import profile
from remat_cli.frontends.torch.reading import read_step
from remat_cli.plan.derive import derive


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
