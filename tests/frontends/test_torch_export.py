"""Captured training steps: run again from the document alone, they do what PyTorch does, bit for bit."""

import json
import random
from pathlib import Path

import pytest
import torch
import torch_models
import torch_plans
from torch import nn
from torch_plans import run_plan

from remat_cli import fit
from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capture.construction import as_model
from remat_cli.frontends.torch.execute.program import program
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_to_document
from remat_cli.graph.model import Phase
from remat_cli.plan.derive import derive, peak

MODELS = ("mlp", "conv", "tied", "in_place", "attention")
_graphs: dict[str, object] = {}


def graph_of(name):
    """The exported graph, after a trip through its document."""
    if name not in _graphs:
        graph = torch_plans.graph_of(name)
        text = dump_document(graph_to_document(graph))
        _graphs[name] = graph_from_document(parse_document(text, "graph.json"))
        assert _graphs[name] == graph
    return _graphs[name]


class Real:
    """A real model beside the graph of its step."""

    def __init__(self, name):
        torch.manual_seed(7)
        self.graph = graph_of(name)
        self.model = as_model(getattr(torch_models, name)(), name)
        known = dict(self.model.module.named_parameters()) | dict(self.model.module.named_buffers())
        known |= {str(k): x for k, x in enumerate(self.model.inputs)} | dict(self.model.keywords)
        free = self.model.loss.__closure__ if self.model.loss is not None else ()
        self.places = []
        for place in self.graph.metadata["places"]:
            if place["kind"] == "captured":
                tensor = free[0].cell_contents
            elif place["kind"] != "tangent":
                tensor = known[place["name"]]
            else:
                continue
            assert list(tensor.shape) == place["shape"]
            assert list(tensor.stride()) == place["stride"]
            self.places.append(tensor.detach().clone())

    def eager(self):
        """Loss, gradients by name, and buffers after one step of plain PyTorch."""
        torch.manual_seed(1)
        out = self.model.module(*self.model.inputs, **self.model.keywords)
        if self.model.loss is not None:
            out = self.model.loss(out)
        loss = out["loss"] if isinstance(out, dict) else out
        loss.backward()
        gradients = {n: p.grad for n, p in self.model.module.named_parameters() if p.grad is not None}
        return loss.detach(), gradients, dict(self.model.module.named_buffers())

    def step(self, computes):
        """The same from the graph, for a schedule."""
        torch.manual_seed(1)
        runnable = program(self.graph, derive(self.graph, computes), "cpu")
        results = runnable.run(self.places, lambda k: torch.ones(()))
        loss, gradients, updates = None, {}, {}
        for description, tensor in zip(self.graph.metadata["results"], results, strict=True):
            if description["kind"] == "result":
                loss = tensor
            else:
                name = self.graph.metadata["places"][description["of"]]["name"]
                (gradients if description["kind"] == "gradient" else updates)[name] = tensor
        return loss, gradients, updates


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


def random_nodes(graph):
    """The nodes that draw random numbers."""
    return [node for node in graph.nodes if node.payload.get("random")]


def shuffled(graph, seed):
    """A schedule that computes many nodes again, at random places where their inputs have been computed before."""
    source = random.Random(seed)
    computes, done = [], []
    for node in range(len(graph.nodes)):
        again = [i for i in done if graph.nodes[i].recompute and source.random() < 0.1]
        computes += [*again, node]
        done.append(node)
    return computes


@pytest.mark.parametrize("name", MODELS)
def test_the_step_is_eager_pytorch_bit_for_bit(name):
    real = Real(name)
    loss, gradients, updates = real.step(range(len(real.graph.nodes)))
    wanted_loss, wanted_gradients, buffers = real.eager()
    assert same(loss, wanted_loss)
    assert gradients.keys() == wanted_gradients.keys()
    assert all(same(gradients[n], wanted_gradients[n]) for n in gradients)
    assert all(same(tensor, buffers[n]) for n, tensor in updates.items())
    changed = {n for n, b in buffers.items() if n in dict(Real(name).model.module.named_buffers())}
    assert updates.keys() == changed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_recomputation_changes_no_bit(name, seed):
    real = Real(name)
    plain = real.step(range(len(real.graph.nodes)))
    computes = shuffled(real.graph, seed)
    assert len(computes) > len(real.graph.nodes)
    again = real.step(computes)
    assert same(plain[0], again[0])
    for before, after in zip(plain[1:], again[1:], strict=True):
        assert all(same(before[n], after[n]) for n in before)


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_that_of_live_storages(name):
    real = Real(name)
    graph = real.graph
    for computes in (range(len(graph.nodes)), shuffled(graph, 5)):
        statements = derive(graph, computes)
        runnable = program(graph, statements, "cpu")
        made = [torch.ones(())]  # made before the counting starts: count them as the graph does
        with live_storages()([*real.places, *made]) as live:
            runnable.run(real.places, lambda k, made=made: made[0].clone())
        generator = torch.get_rng_state().numel() * len(random_nodes(graph))
        seen = live.peak_bytes
        predicted = peak(graph, computes) - graph.fixed_memory
        if computes == range(len(graph.nodes)):
            assert predicted == no_remat_peak(graph) - graph.fixed_memory
        assert predicted <= seen <= predicted + (generator if random_nodes(graph) else 0)


@pytest.mark.parametrize("name", MODELS)
def test_nodes_cost_something_and_know_their_phase(name):
    graph = graph_of(name)
    assert all(node.cost > 0 for node in graph.nodes)
    assert all(node.id and node.op and node.payload["call"] for node in graph.nodes)
    phases = [node.phase for node in graph.nodes]
    backward = phases.index(Phase.BACKWARD)
    assert set(phases[:backward]) == {Phase.FORWARD, Phase.LOSS}
    assert set(phases[backward:]) == {Phase.BACKWARD}
    assert graph.nodes[backward - 1].op == "tangents"
    assert not graph.nodes[backward - 1].recompute


def test_fixed_memory_is_parameters_buffers_and_inputs():
    graph = graph_of("conv")
    torch.manual_seed(0)
    module, inputs = torch_models.conv()
    tensors = [*module.parameters(), *module.buffers(), *inputs]
    assert graph.fixed_memory == sum(t.numel() * t.element_size() for t in tensors) + 4  # a constant in the code
    assert graph.metadata["notes"] == [
        "parameter unused.weight has no part in the step",
        "parameter unused.bias has no part in the step",
    ]
    tied = graph_of("tied")
    shared = sum(1 for place in tied.metadata["places"] if place["shape"] == [50, 32])
    assert shared == 1


def test_outputs_of_one_operation_are_values_of_their_own():
    graph = graph_of("conv")
    norm = next(n for n in graph.nodes if n.op == "_native_batch_norm_legit_functional")
    assert norm.outputs == (4 * 8 * 8 * 8 * 4, 32, 32, 32, 32)
    pool = next(n for n in graph.nodes if n.op == "max_pool2d_with_indices")
    assert pool.outputs == (4 * 8 * 4 * 4 * 4, 4 * 8 * 4 * 4 * 8)


def test_views_are_no_nodes():
    graph = graph_of("tied")
    views = {"view", "t", "transpose", "detach", "_unsafe_view", "split", "expand", "unsqueeze", "permute", "getitem"}
    assert not views & {node.op for node in graph.nodes}


def test_random_operations_are_marked_and_attention_without_dropout_is_not():
    assert {n.op for n in random_nodes(graph_of("tied"))} == {"native_dropout"}
    assert len(random_nodes(graph_of("tied"))) == 2
    assert random_nodes(graph_of("attention")) == []
    assert any("scaled_dot_product" in n.op for n in graph_of("attention").nodes)


def test_ids_say_where_in_the_model_an_operation_is():
    ids = {node.id for node in graph_of("conv").nodes}
    assert {"conv1/convolution", "grad/conv1/convolution_backward", "drop/native_dropout"} <= ids


def test_integers_that_serve_as_indices_have_a_limit():
    places = {place["name"]: place for place in graph_of("tied").metadata["places"]}
    assert places["tokens"]["below"] == 50
    assert places["targets"]["below"] == 50


class Placed(nn.Module):
    """Positions out of a mask, beyond two entries that stand for something else: 34 are enough for 32 words."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(34, 8)

    def forward(self, ids, mask, fields):
        places = (torch.cumsum(mask, 1) * mask - 1) + 2
        return (self.words(ids) + self.places(places) + self.words((fields.int() + 40).long())).square().mean()


def test_integers_that_become_indices_by_arithmetic_stay_in_range():
    ids = torch.randint(0, 50, (3, 32))
    build = lambda: (Placed(), (ids, torch.ones_like(ids), torch.randint(0, 10, (3, 32))))  # noqa: E731
    graph = export_model(build, name="placed", source="torch:x")
    limits = {place["name"]: place.get("below") for place in graph.metadata["places"] if place["kind"] == "input"}
    assert limits == {"0": 50, "1": 2, "2": 10}
    assert run_plan(torch_plans.plain(graph), steps=2).identical


@pytest.mark.parametrize("name", MODELS)
def test_the_same_export_gives_the_same_bytes(name):
    """Sizes above all: PyTorch's cache of fake results would make them smaller the second time."""
    first = dump_document(graph_to_document(graph_of(name)))
    second = export_model(getattr(torch_models, name), name=name, source=f"torch:torch_models.py:{name}")
    assert first == dump_document(graph_to_document(second))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (torch_models.frozen, "nothing to train"),
        (torch_models.breaks, "could not be captured: torch_models.py:"),
        (lambda: 3, "returned int"),
        (lambda: (torch.nn.Linear(1, 1), 3), "returned int as the inputs"),
        (lambda: (3, 3), "returned int as the module"),
        (lambda: (torch.nn.Linear(1, 1), torch.ones(1, 1), 3), "returned int as the loss"),
        (lambda: torch.randn(3).numpy().sum().item() + torch.zeros(()).item(), "returned float"),
        (lambda: 1 / 0, r"<lambda>\(\) failed at test_torch_export.py:\d+: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_captured_is_said(build, words):
    with pytest.raises(CaptureFailed, match=words) as raised:
        export_model(build, name="x", source="torch:x.py:x")
    assert raised.value.hint


def test_a_large_model_takes_no_memory():
    """Weights of 40 GB, which fit nowhere here."""
    graph = export_model(
        lambda: (torch.nn.Linear(100_000, 100_000), torch.zeros(1, 100_000), lambda out: out.sum()),
        name="large",
        source="torch:x.py:large",
    )
    assert graph.fixed_memory > 40_000_000_000


def test_payloads_are_plain_json():
    graph = graph_of("conv")
    text = json.dumps([node.payload for node in graph.nodes] + [graph.metadata])
    assert "torch.float" not in text
    assert str(Path.cwd()) not in text


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        chosen = torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.inner(x),))
        return self.outer(chosen).square().mean()


@pytest.mark.usefixtures("fresh_compiler")
def test_control_flow_with_graphs_of_its_own_is_refused_at_its_line():
    build = lambda: (Chosen(), torch.randn(64, 8))  # noqa: E731
    for capturing in (
        lambda: export_model(build, name="chosen", source="torch:x"),
        lambda: fit(*build(), "90%", cache=""),
    ):
        with pytest.raises(CaptureFailed, match=r"test_torch_export\.py:\d+ in forward: the model uses cond, ") as told:
            capturing()
        assert "torch.where" in told.value.hint
