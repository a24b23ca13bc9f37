"""The cross entropy in the memory of the logits, beside PyTorch's operators."""

import itertools

import pytest
import torch
from divided_models import graph_of

from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.cross_entropy import CROSS_ENTROPY, cross_entropy
from remat_cli.frontends.torch.execute.in_parts import divided_node
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
