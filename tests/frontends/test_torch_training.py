"""Training with a plan through torch.compile is training without, bit for bit."""

import copy
from dataclasses import replace

import pytest
import torch
import torch_models
from torch_plans import assert_same, difference_of, graph_of, plan_of, repeated

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.capture.construction import as_model
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.forward_backward import forward_backward
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.measure.operations import place_tensors
from remat_cli.frontends.torch.train.backend import remat_backend
from remat_cli.graph.io import dump_document
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.io import plan_to_document
from remat_cli.zoo.registry import build_graph

MODELS = ("mlp", "conv", "tied", "in_place", "attention")


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def train(model, step, steps=3):
    """Losses and the state after a few steps of SGD with momentum."""
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(*model.inputs, **model.keywords)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses, {name: tensor.clone() for name, tensor in model.module.state_dict().items()}


def step_of(model):
    def step(*inputs, **keywords):
        out = model.module(*inputs, **keywords)
        out = out if model.loss is None else model.loss(out)
        return out["loss"] if isinstance(out, dict) else out

    return step


def pair(name):
    """Two copies of one model."""
    torch.manual_seed(11)
    first = as_model(getattr(torch_models, name)(), name)
    second = copy.copy(first)
    object.__setattr__(second, "module", copy.deepcopy(first.module))
    return first, second


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_training_with_a_plan_is_eager_training_bit_for_bit(name, seed):
    graph = graph_of(name)
    computes = range(len(graph.nodes)) if seed is None else repeated(graph, seed)
    eager, planned = pair(name)
    backend = remat_backend(plan_of(graph, computes))
    compiled = torch.compile(step_of(planned), backend=backend, fullgraph=True, dynamic=False)
    assert_same(train(eager, step_of(eager)), train(planned, compiled))


def test_the_loss_may_be_outside():
    """Then the plan is for the module alone, and its tangents come from a loss that it does not know."""

    def module_alone():
        return torch_models.Mlp(), (torch.randn(32, 16),)

    graph = export_model(module_alone, name="mlp", source="torch:x")
    torch.manual_seed(3)
    x, y = torch.randn(32, 16), torch.randn(32, 8)
    eager = torch_models.Mlp()
    planned = copy.deepcopy(eager)
    compiled = torch.compile(planned, backend=remat_backend(plan_of(graph, repeated(graph))), dynamic=False)
    for model, run in ((eager, eager), (planned, compiled)):
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            ((run(x) - y) ** 2).mean().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(eager.parameters(), planned.parameters(), strict=True))


def test_evaluation_needs_no_plan():
    graph = graph_of("conv")
    model = as_model(torch_models.conv(), "conv")
    compiled = torch.compile(step_of(model), backend=remat_backend(plan_of(graph, range(len(graph.nodes)))))
    model.module.eval()
    with torch.no_grad():
        assert torch.equal(compiled(*model.inputs), step_of(model)(*model.inputs))


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_both_halves_is_the_one_predicted(name):
    graph = graph_of(name)
    computes = repeated(graph)
    both = forward_backward(graph, derive(graph, computes), "cpu")
    places = place_tensors(read_step(graph).given, "cpu", 0)
    forward = sum(1 for result in graph.metadata["results"] if result["kind"] != "gradient")
    with torch.no_grad(), live_storages()(places) as live:
        results = both.forward(list(places))
        given = [*results[forward:], torch.ones(())]
        del results[forward:]
        gradients = both.backward(given)
    assert given == []
    assert len(gradients) == len(places)
    updated = {result["of"] for result in graph.metadata["results"] if result["kind"] == "update"}
    copies = sum(places[p].nbytes for p in updated)
    states = sum(saved.spec.shape[0] for saved in both.saved if saved.host)
    # States that do not cross the cut are kept for a while too, in either half.
    kept = torch.get_rng_state().numel() * sum(1 for node in graph.nodes if node.payload.get("random"))
    predicted = peak(graph, computes) - graph.fixed_memory
    # The caller has the results, so that one that is made again in the backward half is there twice.
    held = sum(result.nbytes for result in results)
    assert predicted <= live.peak_bytes <= predicted + held + copies + max(states, kept)
    assert held <= 100


def test_a_graph_without_a_plan_is_an_error_or_a_warning():
    model = as_model(torch_models.mlp(), "mlp")
    plan = plan_of(graph_of("conv"), range(len(graph_of("conv").nodes)))
    compiled = torch.compile(step_of(model), backend=remat_backend(plan))
    with pytest.raises(Exception, match="no plan was made for"):
        compiled(*model.inputs)
    torch._dynamo.reset()
    compiled = torch.compile(step_of(model), backend=remat_backend(plan, unknown="warn"))
    with pytest.warns(UserWarning, match="no plan for this graph"):
        loss = compiled(*model.inputs)
    assert torch.equal(loss, step_of(model)(*model.inputs))


def test_other_shapes_and_other_constants_are_other_graphs():
    graph = graph_of("conv")
    assert difference_of(graph, graph_of("conv")) is None

    def wider():
        model, (x, labels) = torch_models.conv()
        return model, (torch.cat([x, x]), torch.cat([labels, labels]))

    assert "shape" in difference_of(graph, export_model(wider, name="conv", source="torch:x"))
    other = [constant | {"data": "AAAAAA=="} for constant in graph.metadata["constants"]]
    said = difference_of(graph, replace(graph, metadata=graph.metadata | {"constants": other}))
    assert said == "constants in the code have other values"
    assert difference_of(graph, graph_of("mlp")) is not None


def test_the_plan_of_one_graph_among_several_is_found(tmp_path):
    plans = [plan_of(graph_of(name), repeated(graph_of(name))) for name in ("conv", "tied", "mlp")]
    path = tmp_path / "mlp.plan.json"
    path.write_text(dump_document(plan_to_document(plans[2])), encoding="utf-8")
    eager, planned = pair("mlp")
    compiled = torch.compile(step_of(planned), backend=remat_backend(*plans[:2], str(path)))
    assert_same(train(eager, step_of(eager)), train(planned, compiled))


def test_plans_of_others_and_invalid_plans_are_refused():
    chain = build_graph("linear{n=4}")
    with pytest.raises(UsageError, match="was not made by the PyTorch frontend"):
        remat_backend(plan_of(chain, range(len(chain.nodes))))
    graph = graph_of("mlp")
    plan = plan_of(graph, range(len(graph.nodes)))
    with pytest.raises(UsageError, match="is not valid"):
        remat_backend(replace(plan, statements=plan.statements[:-2]))
