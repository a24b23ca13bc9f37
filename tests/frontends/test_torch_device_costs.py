"""Times of operations by the rates of a device: the model, the measurement, and where rates come from."""

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import remat_cli as remat
from remat_cli.cli.main import run
from remat_cli.errors import InputError
from remat_cli.frontends.rates import KINDS, CostModel, Rates, rate_at, read_rates
from remat_cli.frontends.torch import export
from remat_cli.frontends.torch.measure import costs as work
from remat_cli.frontends.torch.measure import rates as costing_device
from remat_cli.frontends.torch.measure.costs import cost_model

ONE = ((1.0, 1e6),)
"""One unit of work in a microsecond."""
EVERY = Rates("x", 1000.0, 0.0, dict.fromkeys(KINDS, ONE) | {"stream": ((1.0, 1e15),)})


def costs(build, rates, monkeypatch):
    """Microseconds of the operations of a step, by operator, at these rates."""
    model = CostModel("us", {}, lambda node: work.microseconds(node, rates))
    monkeypatch.setattr("remat_cli.frontends.torch.export.cost_model", lambda *given: model)
    graph = export.export_model(build, name="x", source="torch:x")
    return {node.op: node.cost for node in graph.nodes if node.phase == "forward"}


def of(function, *inputs):
    class Net(nn.Module):
        def forward(self, *given):
            return function(*given)

    return lambda: (Net(), inputs, lambda out: out.sum())


def x(*shape):
    return torch.randn(*shape, requires_grad=True)


# The model


def test_an_operation_takes_its_launch_its_views_and_the_longer_of_work_and_traffic(monkeypatch):
    fast = {"product float32": ((1.0, 1e9),), "stream": ((1.0, 1e9),)}
    found = costs(of(lambda a, b: a @ b.t(), x(64, 32), x(16, 32)), Rates("x", 5.0, 2.0, fast), monkeypatch)
    flops, traffic = 2 * 64 * 32 * 16, 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert found["mm"] == pytest.approx(5 + 2 + 1e-3 * max(flops, traffic))
    slow = fast | {"stream": ((1.0, 1e7),)}
    found = costs(of(lambda a, b: a @ b.t(), x(64, 32), x(16, 32)), Rates("x", 5.0, 2.0, slow), monkeypatch)
    assert found["mm"] == pytest.approx(5 + 2 + 1e-1 * traffic)


@pytest.mark.parametrize(
    ("function", "op", "kind", "amount"),
    [
        (lambda a: F.gelu(a), "gelu", "erf", 1024),
        (lambda a: F.gelu(a, approximate="tanh"), "gelu", "tanh", 1024),
        (lambda a: F.silu(a), "silu", "exp", 1024),
        (lambda a: F.dropout(a, 0.1), "native_dropout", "random", 1024),
        (lambda a: a.softmax(-1), "_softmax", "softmax", 1024),
        (lambda a: F.layer_norm(a, (32,)), "native_layer_norm", "layer norm", 1024),
        (lambda a: a**1.5, "pow", "tanh", 1024),
        (lambda a: torch.where(a > 0, a, 2.0), "where", "select", 1024),
        (lambda a: a.sort()[0], "sort", "sort", 1024),
        (lambda a: a[torch.tensor([1, 2])], "index", "index", 64),
        (lambda a: a.double(), "_to_copy", "mixed", 1024),
        (lambda a: a @ a, "mm", "product", 2 * 32**3),
        (lambda a: F.conv1d(a[None], a[:, :32, None]), "convolution", "convolution", 2 * 32**3),
        (lambda a: F.conv1d(a[None], a[:, :1, None], groups=32), "convolution", "grouped convolution", 2 * 32**2),
    ],
)
def test_operators_have_kinds(monkeypatch, function, op, kind, amount):
    plain = dict.fromkeys(("stream", "run", "scatter", *(k for k in KINDS if "product" in k)), ((1.0, 1e15),))
    chosen = {name: ONE for name in KINDS if name == kind or name.startswith(f"{kind} float32")}
    found = costs(of(function, x(32, 32)), Rates("x", 0.0, 0.0, plain | chosen), monkeypatch)
    assert found[op] == pytest.approx(amount, rel=1e-3)


@pytest.mark.parametrize("exponent", [2, 0.5, -1])
def test_squares_and_roots_are_no_powers(monkeypatch, exponent):
    found = costs(of(lambda a: a**exponent, x(32, 32)), EVERY, monkeypatch)
    assert all(cost == pytest.approx(1000, rel=1e-3) for op, cost in found.items() if op in {"pow", "sqrt"})


@pytest.mark.parametrize(
    ("function", "runs", "scattered"),
    [
        (lambda a: a + a, 0, 0),
        (lambda a: a + a[0], 32, 0),  # broadcast: one run for each row
        (lambda a: a + a[:, :1], 32, 0),
        (lambda a: a[:, :8] + a[:, 8:16], 32, 0),
        (lambda a: a + a.t(), 32, 1024),  # every row reads a column
        (lambda a: a.view(4, 8, 32).transpose(0, 1).contiguous(), 32, 0),
    ],
)
def test_pointwise_operations_walk_in_runs(monkeypatch, function, runs, scattered):
    rates = dict.fromkeys(KINDS, ((1.0, 1e15),)) | {"run": ONE, "scatter": ((1.0, 1e3),)}
    found = costs(of(function, x(32, 32)), Rates("x", 0.0, 0.0, rates), monkeypatch)
    op = "clone" if "clone" in found else "add"
    assert found[op] == pytest.approx(runs + 1e3 * scattered, abs=1e-3)


def test_a_lookup_reads_what_it_returns_and_not_the_table(monkeypatch):
    slow = {"stream": ONE, "product float32": ONE, "index": ((1.0, 1e15),)}
    table = nn.Embedding(1000, 16)
    build = lambda: (table, (torch.arange(4),), lambda out: out.sum())  # noqa: E731
    found = costs(build, Rates("x", 0.0, 0.0, slow), monkeypatch)
    assert found["embedding"] == 2 * 4 * 16 * 4 + 4 * 8


def test_a_product_in_another_type_is_as_much_faster_as_products_are():
    rates = Rates("x", 0, 0, {"product float32": ONE, "product bfloat16": ((1.0, 4e6),), "attention": ((1.0, 2e6),)})
    assert rates.product_us("attention", "bfloat16", 800) == 100
    assert rates.product_us("attention", "float32", 800) == 400
    assert rates.product_us("convolution", "float32", 800) == 800  # a kind without a rate


def test_rates_between_two_amounts_lie_between():
    curve = ((10.0, 1.0), (1000.0, 3.0))
    assert [rate_at(curve, amount) for amount in (1, 10, 100, 1000, 1e9)] == [1, 1, 2, 3, 3]


def test_no_cost_is_zero(monkeypatch):
    model = cost_model("device")
    graph = export.export_model(of(lambda a: a * 2, x(1)), name="x", source="torch:x", cost="device")
    assert model.unit == graph.cost_unit == "us"
    assert min(node.cost for node in graph.nodes) > 0


# The measurement


def test_everything_is_measured_in_the_time_given_and_nothing_else_changes():
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            started = time.perf_counter()
            launch_us, view_us, per_s = costing_device.measure("cpu", 0.3)
            assert time.perf_counter() - started < 60  # a few calls of everything take a third of a second when alone
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.rand(3), wanted)
    assert set(per_s) == set(KINDS)
    assert launch_us > 0 < view_us
    assert all(rate > 0 for curve in per_s.values() for _, rate in curve)
    rates = Rates("x", launch_us, view_us, per_s, {"threads": 1})
    assert read_rates(json.dumps(rates.document()), "x") == rates


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_measured_are_operations_that_torch_has(device):
    """On tensors without data, by the sizes of each device, so that those for CUDA are seen here too."""
    for part in (
        costing_device._elements,
        costing_device._kinds,
        costing_device._norms,
        costing_device._products,
        costing_device._others,
        costing_device._large,
    ):
        for case in part("meta", costing_device._SIZES[device]):
            assert case.call() is not None


def test_what_a_device_does_not_support_has_no_rate(monkeypatch):
    def refuses(a, b):
        raise RuntimeError("not implemented")

    refused = costing_device._Case.of("product bfloat16", 1, refuses, 1, 2)
    monkeypatch.setattr(costing_device, "_products", lambda *given: [refused, *PRODUCTS])
    _, _, per_s = costing_device.measure("cpu", 0.01)
    assert set(per_s) == set(KINDS) - {"product bfloat16", "product float16", "product float64", "batched product"}
    monkeypatch.setattr(
        costing_device, "_products", lambda *given: [costing_device._Case.of("product float32", 1, refuses, 1, 2)]
    )
    with pytest.raises(RuntimeError, match="not implemented"):
        costing_device.measure("cpu", 0.01)


PRODUCTS = [
    costing_device._Case.of("product float32", 2 * 8**3, torch.ops.aten.mm.default, torch.ones(8, 8), torch.ones(8, 8))
]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(128, 512), nn.Linear(512, 128), nn.LayerNorm(128)

    def forward(self, given):
        for _ in range(4):
            given = given + F.dropout(self.down(F.gelu(self.up(self.norm(given)))), 0.1)
        return given.square().mean()


def test_a_step_takes_about_as_long_as_predicted():
    """In processor time, beside eager mode; within a factor, since other programs use the caches too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = Rates("x", *costing_device.measure("cpu"))
        module, given = Block(), torch.randn(1024, 128)
        seconds = []
        for _ in range(10):
            started = time.thread_time()
            module(given).backward()
            seconds.append(time.thread_time() - started)
    finally:
        torch.set_num_threads(threads)
    with pytest.MonkeyPatch.context() as patch:
        model = CostModel("us", {}, lambda node: work.microseconds(node, rates))
        patch.setattr("remat_cli.frontends.torch.export.cost_model", lambda *given: model)
        graph = export.export_model(lambda: (Block(), (torch.randn(1024, 128),)), name="x", source="torch:x")
    assert 0.5 < graph.total_cost / (1e6 * min(seconds)) < 2


# Where rates come from


@pytest.fixture
def at_hand(monkeypatch, tmp_path):
    """A machine that was never measured, and measures in no time; returns the number of measurements."""
    measured = []

    def found(asked):
        measured.append(asked)
        return 2.0, 1.0, {"stream": ONE, "product float32": ((1.0, float(len(measured))),)}

    monkeypatch.delenv("REMAT_RATES")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(costing_device, "measure", found)
    monkeypatch.setattr(costing_device, "_SEEN", {})
    return measured


def test_the_device_is_measured_once_and_says_so(at_hand, tmp_path, monkeypatch):
    told = []
    first = costing_device.device_rates("cpu", told.append)
    assert costing_device.device_rates(torch.device("cpu"), told.append) == first
    monkeypatch.setattr(costing_device, "_SEEN", {})  # as in another process
    assert costing_device.device_rates("cpu", told.append) == first
    assert at_hand == ["cpu"]
    [words] = told
    [kept] = (tmp_path / "cache" / "remat" / "rates").iterdir()
    assert words.startswith("measuring how fast ")
    assert words.endswith(f", for 2 s; kept in {kept}")
    assert read_rates(kept.read_text(encoding="utf-8"), "kept") == first
    assert first.facts["threads"] == torch.get_num_threads()


def test_another_number_of_threads_is_another_device(at_hand, monkeypatch):
    costing_device.device_rates("cpu", lambda text: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert costing_device.device_rates("cpu", lambda text: None).facts["threads"] == 77
    assert len(at_hand) == 2


@pytest.mark.parametrize("content", ["", "{}", "[" * 100_000, '{"schema": "remat-rates/1"}', "\udcff"])
def test_damaged_rates_are_measured_again(at_hand, tmp_path, monkeypatch, content):
    costing_device.device_rates("cpu", lambda text: None)
    [kept] = (tmp_path / "cache" / "remat" / "rates").iterdir()
    kept.write_bytes(content.encode("utf-8", "surrogateescape"))
    monkeypatch.setattr(costing_device, "_SEEN", {})
    costing_device.device_rates("cpu", lambda text: None)
    assert len(at_hand) == 2
    assert read_rates(kept.read_text(encoding="utf-8"), "kept")


def test_a_cache_that_cannot_be_written_is_told_and_no_error(at_hand, tmp_path):
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    told = []
    assert costing_device.device_rates("cpu", told.append).launch_us == 2
    assert "the rates are not kept: " in told[1]
    assert len(told) == 2


def test_the_library_tells_on_standard_error(at_hand, capsys):
    cost_model("device")
    said = capsys.readouterr()
    assert said.err.startswith("remat: measuring how fast ")
    assert said.err.count("\n") == 1
    assert not said.out


GOOD = {"schema": "remat-rates/1", "machine": "m", "launch_us": 1, "view_us": 0,
        "per_s": {"stream": [[1, 1]], "product float32": [[1, 1], [2, 3]]}}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"schema": "remat-graph/1"}, 'has no "schema": "remat-rates/1"'),
        ({"machine": 5}, "has no text machine"),
        ({"launch_us": -1}, "launch_us is not a number, 0 or more"),
        ({"view_us": True}, "view_us is not a number"),
        ({"per_s": []}, "has no object per_s"),
        ({"per_s": {"stream": [[1, 1]]}}, 'per_s: "product float32" is missing'),
        ({"per_s": GOOD["per_s"] | {"speed": [[1, 1]]}}, 'per_s: there is no kind "speed"'),
        ({"per_s": GOOD["per_s"] | {"exp": []}}, "per_s: exp: is not a list of [amount, rate]"),
        ({"per_s": GOOD["per_s"] | {"exp": [[1, 0]]}}, "per_s: exp: is not a list"),
        ({"per_s": GOOD["per_s"] | {"exp": [[1, float("inf")]]}}, "per_s: exp: is not a list"),
        ({"per_s": GOOD["per_s"] | {"exp": [[2, 1], [1, 1]]}}, "by rising amount"),
    ],
)
def test_a_file_of_rates_that_means_nothing_is_one_clear_error(tmp_path, monkeypatch, changed, words):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(GOOD | changed), encoding="utf-8")
    monkeypatch.setenv("REMAT_RATES", str(path))
    with pytest.raises(InputError) as raised:
        cost_model("device")
    assert str(path) in str(raised.value)
    assert words in str(raised.value)


def test_a_file_of_rates_replaces_the_measurement(at_hand, tmp_path, monkeypatch):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    monkeypatch.setenv("REMAT_RATES", str(path))
    assert costing_device.device_rates("cpu").machine == "m"
    monkeypatch.setenv("REMAT_RATES", str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="there is no such file"):
        costing_device.device_rates("cpu")
    assert not at_hand


# The defaults

BUILD = """
import torch

def build():
    return torch.nn.Linear(4, 2), (torch.zeros(3, 4),), torch.sum
"""


def test_export_writes_times_and_which_rates_they_come_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(BUILD, encoding="utf-8")
    texts = []
    for _ in range(2):
        assert run(["export", "torch:train.py:build", "-o", "step.json"]) == 0
        texts.append(Path("step.json").read_text(encoding="utf-8"))
        assert capsys.readouterr().err.endswith(" nodes, times on the machine of the tests with 1 thread\n")
    assert texts[0] == texts[1]
    document = json.loads(texts[0])
    described = document["metadata"]["costs"]
    assert document["cost_unit"] == "us"
    assert (described["model"], described["machine"]) == ("device", "the machine of the tests")
    assert described["per_s"]["stream"] == [[1572864.0, 4.5e10], [50331648.0, 2.5e10]]
    assert run(["export", "torch:train.py:build", "--cost", "flops", "-o", "step.json"]) == 0
    assert json.loads(Path("step.json").read_text(encoding="utf-8"))["cost_unit"] == "flops"
    assert run(["export", "zoo:torch/unet{batch=1,resolution=32,width=2,depth=1}", "-o", "unet.json"]) == 0
    assert json.loads(Path("unet.json").read_text(encoding="utf-8"))["cost_unit"] == "us"


def test_quiet_export_measures_quietly(at_hand, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(BUILD, encoding="utf-8")
    assert run(["export", "torch:train.py:build", "-q", "-o", "step.json"]) == 0
    assert capsys.readouterr().err == ""
    assert at_hand == ["cpu"]


def test_fit_spares_time(fresh_compiler, tmp_path):
    """A matrix product and a dropout make as much memory; the product has more FLOPs, the dropout takes longer."""
    made = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 256), nn.Linear(256, 8)

        def forward(self, given):
            return self.second(F.dropout(self.first(given), 0.1)).square().mean()

    from remat_cli.api import fitting

    planner = fitting.CachedPlanner.planned

    def watched(self, graph, budget):
        made.append(graph)
        return planner(self, graph, budget)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting.CachedPlanner, "planned", watched)
        for cost in ({}, {"cost": "flops"}):
            remat.fit(Net(), torch.randn(512, 16), "1GB", cache=tmp_path, **cost)
    units = [graph.cost_unit for graph in made]
    assert units == ["us", "flops"]
    dropout, product = ([n.cost for g in made for n in g.nodes if n.op == op] for op in ("native_dropout", "addmm"))
    assert dropout[0] > product[0]
    assert dropout[1] < product[2]
