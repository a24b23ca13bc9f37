"""The cross entropy in the memory of the logits, beside PyTorch's operators."""

import copy
import itertools

import pytest
import torch
from divided_models import graph_of, plan_in_parts
from torch import nn

import remat_cli as remat
from remat_cli.frontends.torch.compat.operators import dispatch_mode
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.cross_entropy import CROSS_ENTROPY, cross_entropy
from remat_cli.frontends.torch.execute.in_parts import divided_node
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.measure.costs import GRADIENT_KERNELS, LOSS_KERNELS
from remat_cli.graph.splitting import split

aten = torch.ops.aten
SHAPES = (7, 5), (1, 9), (2, 4, 3, 2)


def by_pytorch(logits, targets, weights, ignored, mean, scale):
    forward, backward = (
        (aten.nll_loss_forward, aten.nll_loss_backward)
        if logits.dim() == 2
        else (aten.nll_loss2d_forward, aten.nll_loss2d_backward)
    )
    logs = aten._log_softmax(logits, 1, False)
    loss, total = forward(logs, targets, weights, 2, ignored)
    slope = backward(scale, logs, targets, weights, 1 if mean else 2, ignored, total)
    return loss, total, aten._log_softmax_backward_data(slope, logs, 1, logits.dtype)


@pytest.mark.parametrize(
    ("shape", "weighted", "mean", "ignored"), [*itertools.product(SHAPES, (False, True), (False, True), (-100, 2))]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_losses_weights_and_gradients_are_those_of_the_operators(shape, weighted, mean, ignored, dtype, tolerance):
    generator = torch.Generator().manual_seed(sum(shape))
    logits = 30 * torch.randn(shape, generator=generator, dtype=dtype)
    targets = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
    targets.view(-1)[0] = 1  # one counts in any case
    weights = torch.rand(shape[1], generator=generator, dtype=dtype) if weighted else None
    scale = torch.tensor(1.5, dtype=dtype)
    wanted = by_pytorch(logits, targets, weights, ignored, mean, scale)
    total = wanted[1] if mean else None
    memory = logits.clone()
    assert len(cross_entropy(logits.clone(), targets, weights, ignored, None, None)) == 2
    found = cross_entropy(memory, targets, weights, ignored, scale, total)
    assert found[2] is memory
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))


@pytest.mark.parametrize(("scale", "kernels"), [(None, LOSS_KERNELS), (torch.tensor(1.0), GRADIENT_KERNELS)])
def test_as_many_kernels_run_as_costs_count(scale, kernels):
    seen = []

    class Watching(dispatch_mode()):
        def __torch_dispatch__(self, operator, _types, args=(), kwargs=None):
            if not operator.is_view:
                seen.append(operator)
            return operator(*args, **(kwargs or {}))

    logits, targets = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    total = None if scale is None else torch.tensor(4.0)
    with Watching():
        cross_entropy(logits, targets, None, -100, scale, total)
    assert len(seen) == kernels


def test_rows_that_do_not_count_have_no_gradient_even_if_none_counts():
    logits = torch.randn(3, 4)
    logits[1] = -torch.inf  # its loss is no number
    none = torch.tensor(0.0)
    loss, weight, gradient = cross_entropy(logits, torch.full((3,), 2), None, 2, torch.tensor(1.0), none)
    assert (float(loss), float(weight)) == (0, 0)
    assert not gradient[[0, 2]].any()


def test_masked_classes_have_a_probability_of_zero():
    logits = torch.randn(3, 4, dtype=torch.float64)
    logits[:, 1] = -torch.inf
    targets, one = torch.tensor([0, 2, 3]), torch.tensor(1.0, dtype=torch.float64)
    wanted = by_pytorch(logits, targets, None, -100, False, one)
    for mine, theirs in zip(cross_entropy(logits, targets, None, -100, one, None), wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", ["gpt", "llama", "autocast", "weighted", "half the loss"])
def test_each_pass_of_a_loss_in_parts_has_one_call_for_it(kind):
    divided = split(graph_of(kind), {"loss": 4})
    step = read_step(divided)
    operations = [k for k in step.parts if divided.nodes[k].id in {"loss/both", "loss/forward", "loss/backward"}]
    assert operations
    for k in operations:
        calls = [call.call for call in divided_node(step, k).calls]
        assert calls.count(CROSS_ENTROPY) == 1
        assert not any("softmax" in name or "nll" in name for name in calls)


@pytest.mark.parametrize("options", [{"smoothing": 0.1}, {"dtype": torch.bfloat16}])
def test_a_loss_that_reads_its_softmax_otherwise_or_rounds_it_keeps_the_operators(options):
    divided = split(graph_of("gpt", **options), {"loss": 4})
    step = read_step(divided)
    calls = {call.call for k in step.parts for call in divided_node(step, k).calls}
    assert CROSS_ENTROPY not in calls
    assert "aten._log_softmax.default" in calls


class Penalised(nn.Module):
    """A loss that also keeps the sums of the exponentials near 1, and so reads its logits a second time."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 60, bias=False)

    def forward(self, x, targets):
        logits = self.head(self.body(x))
        return nn.functional.cross_entropy(logits, targets) + logits.logsumexp(1).square().mean()


def test_logits_that_something_else_reads_are_not_overwritten():
    def build():
        return Penalised().double(), (torch.randn(12, 8).double(), torch.randint(0, 60, (12,)))

    graph = export_model(build, "penalised", "torch:penalised.py:build", cost="flops", split=True)
    [loss] = graph.splits
    assert [graph.nodes[i].op for i in loss.operations[0].nodes][-1] == "logsumexp"
    model, batch = build()
    other = copy.deepcopy(model)
    step = torch.compile(model, backend=remat.remat_backend(plan_in_parts(graph, {"loss": 4})))
    for one in (step, other):
        one(*batch).backward()
    for one, wanted in zip(model.parameters(), other.parameters(), strict=True):
        assert (one.grad - wanted.grad).abs().max() <= 1e-12 * wanted.grad.abs().max()
