"""Mistakes that are easily made when steps are run again, each with a test that would notice it."""

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch_models
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch_plans import difference_of, graph_of, plan_of, repeated

from remat_cli.frontends.torch.capture.capture import capture
from remat_cli.frontends.torch.capture.construction import build_model
from remat_cli.frontends.torch.capture.lower import lower
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.document import FRONTEND, read_step
from remat_cli.frontends.torch.execute import program as programs
from remat_cli.frontends.torch.execute.forward_backward import ForwardBackward, forward_backward
from remat_cli.frontends.torch.execute.program import program
from remat_cli.frontends.torch.measure.operations import place_tensors
from remat_cli.frontends.torch.train import backend as training
from remat_cli.frontends.torch.train.backend import remat_backend
from remat_cli.frontends.torch.train.fitting import fit_module
from remat_cli.plan.derive import derive

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def lowered(build):
    mode = new_fake_mode()
    captured = capture(build_model(build, mode, "cpu"), mode)
    graph = lower(captured, lambda node: 1.0, "x")
    facts = {"frontend": "torch", "version": 1, "torch": str(torch.__version__), "device": "cpu"}
    return captured, replace(graph, metadata=facts | graph.metadata)


def often(graph):
    return plan_of(graph, repeated(graph, share=0.5))


# Random numbers


class Multilinear(nn.Module):
    """Linear in each weight, for any pattern of dropout."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(6, 6, dtype=torch.float64)) for _ in range(3)])

    def forward(self, x):
        for weight in self.weights:
            x = nn.functional.dropout(x @ weight, 0.4, training=True)
        return x.sum()


def test_gradients_of_a_multilinear_step_belong_to_the_dropout_of_its_forward_pass():
    """<dl/dW, W> = l for each weight: untrue as soon as one dropout is drawn anew when it is computed again."""
    torch.manual_seed(0)
    module = Multilinear()
    x = torch.randn(5, 6, dtype=torch.float64)
    fitted = fit_module(module, x, often, unknown="error")
    for _ in range(3):
        module.zero_grad()
        loss = fitted(x)
        loss.backward()
        for weight in module.weights:
            assert (weight.grad * weight).sum().item() == pytest.approx(loss.item(), rel=1e-9)


def test_the_invariant_notices_dropout_that_is_drawn_anew(monkeypatch):
    monkeypatch.setattr(programs, "generator_state", lambda device: (torch.get_rng_state, lambda state: None))
    torch.manual_seed(0)
    module = Multilinear()
    fitted = fit_module(module, torch.randn(5, 6, dtype=torch.float64), often, unknown="error")
    loss = fitted(torch.randn(5, 6, dtype=torch.float64))
    loss.backward()
    sums = [(weight.grad * weight).sum().item() for weight in module.weights]
    assert any(abs(found - loss.item()) > 1e-3 for found in sums)


def test_gradients_under_dropout_are_those_of_finite_differences():
    torch.manual_seed(0)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    fitted = fit_module(Multilinear(), x, often, unknown="error")

    def function(given):
        torch.manual_seed(9)
        return fitted(given)

    assert torch.autograd.gradcheck(function, (x,))


def test_the_stream_of_random_numbers_goes_on_where_eager_would_be():
    torch.manual_seed(0)
    module = Multilinear()
    x = torch.randn(5, 6, dtype=torch.float64)
    fitted = fit_module(module, x, often, unknown="error")
    after = []
    for step in (module, fitted):
        torch.manual_seed(4)
        step(x).backward()
        after.append(torch.rand(4))
    assert torch.equal(*after)


# Batch statistics


def test_running_statistics_are_updated_once_however_often_they_are_computed():
    torch.manual_seed(0)
    # The result is computed once, since the loop holds it; so the last normalisation is not the result.
    eager = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.BatchNorm1d(4), nn.Tanh())
    planned = copy.deepcopy(eager)
    x = torch.randn(8, 4)
    norms = []

    def planner(graph):
        computes = repeated(graph, share=0.5)
        counts = Counter(computes)
        norms.extend(counts[i] for i, node in enumerate(graph.nodes) if node.op.startswith("_native_batch_norm_legit"))
        return plan_of(graph, computes)

    fitted = fit_module(planned, x, planner, unknown="error")
    for _ in range(2):
        eager(x).sum().backward()
        fitted(x).sum().backward()
    assert len(norms) == 2
    assert min(norms) > 2
    for (name, one), other in zip(eager.named_buffers(), planned.buffers(), strict=True):
        assert torch.equal(one, other), name
    assert planned[1].num_batches_tracked == 2


# What is computed again


class Calls(TorchDispatchMode):
    """Counts calls of operators."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


def test_every_computation_of_a_plan_is_made():
    """Common subexpressions are what recomputation is; nothing may take them out, not even those that nobody reads."""
    graph = graph_of("mlp")
    computes = repeated(graph, share=0.5)
    counts = Counter(computes)
    assert max(counts.values()) > 10
    wanted = Counter()
    for node, count in counts.items():
        wanted[graph.nodes[node].payload["call"]] += count
    made = forward_backward(graph, derive(graph, computes), "cpu")
    places = place_tensors(read_step(graph).given, "cpu", 0)
    results = sum(1 for result in graph.metadata["results"] if result["kind"] != "gradient")
    with torch.no_grad(), Calls() as calls:
        out = made.forward(list(places))
        made.backward([*out[results:], torch.ones(())])
    for name, count in wanted.items():
        if name != "remat.tangents":
            assert calls.seen[name] == count, name


def long():
    """Many small layers."""
    return (
        nn.Sequential(*(layer for _ in range(120) for layer in (nn.Linear(3, 3), nn.Tanh()))),
        (torch.randn(4, 3),),
        lambda out: out.sum(),
    )


def test_generated_code_for_700_operations_does_what_the_interpreter_of_fx_does():
    captured, graph = lowered(long)
    assert len(graph.nodes) >= 700
    places = place_tensors(read_step(graph).given, "cpu", 0)
    with torch.no_grad():
        interpreter = torch.fx.Interpreter(captured.joint)
        wanted = interpreter.run(*places, torch.ones(()), enable_io_processing=False)
    computes = repeated(graph, share=0.002)
    assert len(computes) > len(graph.nodes) + 100
    whole = program(graph, derive(graph, computes), "cpu").run(places, lambda k: torch.ones(()))
    flat = [tensor for tensor in wanted if tensor is not None]
    assert len(flat) == len(whole) > 200
    assert all(torch.equal(a, b) for a, b in zip(flat, whole, strict=True))
    both = forward_backward(graph, derive(graph, computes), "cpu")
    with torch.no_grad():
        out = both.forward(list(places))
        gradients = both.backward([*out[1:], torch.ones(())])
    assert torch.equal(out[0], flat[0])
    assert all(torch.equal(a, b) for a, b in zip(flat[1:], [g for g in gradients if g is not None], strict=True))


def test_what_was_saved_for_the_backward_pass_dies_in_it(monkeypatch):
    """Through AOTAutograd and autograd, which hold what they hand over unless it is taken from them."""
    held = []

    def watched(graph, statements, device):
        made = forward_backward(graph, statements, device)

        def backward(args):
            values = [StorageWeakRef(a.untyped_storage()) for a in args if a.numel() == 32 * 64]
            result = made.backward(args)
            held.append([not reference.expired() for reference in values])
            return result

        return ForwardBackward(made.forward, backward, made.saved, made.text)

    monkeypatch.setattr(training, "forward_backward", watched)
    module, (x,), loss = torch_models.mlp()
    fitted = fit_module(module, x, lambda graph: plan_of(graph, range(len(graph.nodes))), unknown="error")
    loss(fitted(x)).backward()
    [alive] = held
    assert len(alive) >= 3
    assert not any(alive)


# Plans of others


def test_the_reason_is_said():
    graph = graph_of("mlp")
    assert difference_of(graph, graph) is None
    single = lowered(lambda: (nn.Linear(4, 4), torch.randn(2, 4), torch.sum))[1]
    double = lowered(lambda: (nn.Linear(4, 4, dtype=torch.float64), torch.randn(2, 4).double(), torch.sum))[1]
    assert difference_of(single, double) == "weight has the type float64 there and float32 here"
    smaller = lowered(lambda: (nn.Linear(4, 4), torch.randn(3, 4), torch.sum))[1]
    assert difference_of(single, smaller) == "0 has the shape [3, 4] there and [2, 4] here"
    assert "parameters, buffers and inputs, and this has" in difference_of(graph, single)
    other = [
        replace(n, payload=n.payload | {"call": "aten.relu.default"}) if n.op == "tanh" else n for n in graph.nodes
    ]
    said = difference_of(graph, replace(graph, nodes=tuple(other)))
    assert "aten.relu.default there and aten.tanh.default here" in said
    fewer = graph.metadata | {"results": graph.metadata["results"][:-1]}
    assert difference_of(graph, replace(graph, metadata=fewer)) == "it returns something else"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"torch": "2.12.1+cpu", "device": "cpu"}, "exported with torch 2.12.1"),
        ({"torch": "2.13.5", "device": "cuda"}, "exported for cuda, and this runs on cpu"),
        ({"torch": "2.13.5+cu130", "device": "cpu"}, None),
        ({}, None),
    ],
)
def test_plans_for_another_torch_or_device_are_not_used(metadata, words):
    said = FRONTEND.foreign(replace(graph_of("mlp"), metadata=metadata), "2.13.0+cpu", "cpu")
    assert said is None if words is None else words in said


def test_a_plan_for_another_torch_is_refused_where_it_is_used():
    module, (x,), _ = torch_models.mlp()
    plans = []
    fit_module(copy.deepcopy(module), x, lambda graph: plans.append(often(graph)) or plans[0])
    old = replace(plans[0], graph=replace(plans[0].graph, metadata=plans[0].graph.metadata | {"torch": "1.9.0"}))
    with pytest.raises(Exception, match=r"exported with torch 1\.9\.0"):
        torch.compile(module, backend=remat_backend(old), dynamic=False)(x)


def test_running_out_of_memory_in_a_step_is_one_message_and_leaves_everything_as_it_was():
    """The operator's own error comes out of backward(); the next step, with memory, is as if nothing had been."""
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    planned, x = copy.deepcopy(eager), torch.randn(8, 4)
    fitted = fit_module(planned, x, often, unknown="error")

    class Full(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "tanh_backward" in str(function):
                raise torch.OutOfMemoryError("out of memory")
            return function(*args, **(kwargs or {}))

    loss = fitted(x).sum()
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"), Full():
        loss.backward()
    assert all(p.grad is None for p in planned.parameters())
    assert all(torch.equal(p, q) for p, q in zip(planned.parameters(), eager.parameters(), strict=True))
    for module, step in ((eager, eager), (planned, fitted)):
        step(x).sum().backward()
        assert all(p.grad is not None for p in module.parameters())
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(planned.parameters(), eager.parameters(), strict=True))
