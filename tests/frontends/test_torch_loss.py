"""A loss that the loop computes from what a module returns: ``fit`` counts its memory if it knows it."""

import copy
import warnings

import pytest
import torch
from test_torch_unplanned_code import peak_bytes
from torch import nn
from torch_plans import FAST

from remat_cli import api
from remat_cli.api import SolveOptions, fit
from remat_cli.errors import CaptureFailed, UsageError

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Masks(nn.Module):
    """Masks that are larger than what they are made of, and a number for each, as models of segmentation return."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(6)))
        self.upscale = nn.ConvTranspose2d(16, 4, 4, 4)
        self.score = nn.Linear(16, 4)

    def forward(self, x):
        x = self.body(x)
        return {"masks": self.upscale(x.movedim(-1, 1)), "scores": self.score(x.mean((1, 2)))}


def loss_of_masks(output):
    return output["masks"].square().mean()


class WithLoss(nn.Module):
    """A module and the loss of its loop, for what measures a whole step."""

    def __init__(self, module, loss):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, *inputs):
        return self.loss(self.module(*inputs))


def over(module, loss, inputs, budget):
    """How far the peak of a step is above the budget, as a share of it."""
    return peak_bytes(WithLoss(module, loss), inputs) / budget - 1


def test_the_budget_holds_with_a_loss_that_is_known():
    torch.manual_seed(0)
    eager, inputs = Masks(), (torch.randn(4, 16, 16, 16),)
    budget = int(0.85 * peak_bytes(WithLoss(eager, loss_of_masks), inputs))
    peaks = {}
    for loss in (loss_of_masks, None):
        planned = copy.deepcopy(eager)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fit(planned, inputs, budget, options=FAST, cost="measured", cache="", loss=loss)
            peaks[loss] = over(planned, loss_of_masks, inputs, budget)
        report = api.fitted(planned)
        if loss is not None:
            assert not [w for w in said if "remat" in str(w.message)]
            assert "is not counted" not in report.assumed
            assert "only masks takes a gradient" in report.assumed
            assert report.extra_cost > 0
            steps = [(loss(m(*inputs)).backward(), [p.grad for p in m.parameters()])[1] for m in (planned, eager)]
            assert all(a is b is None or torch.equal(a, b) for a, b in zip(*steps, strict=True))
        else:
            assert "(loss=FUNCTION counts it)" in report.assumed
    assert peaks[loss_of_masks] <= 0.01
    assert peaks[None] > 0.01  # a loss that takes more than a usual one


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "binary_cross_entropy"])
def test_a_loss_that_keeps_a_number_for_each_element_counts_to_the_end(name):
    """These write a number for each element, then their mean into the same memory, which lives as long as the loss."""
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU())]
    module, x, y = nn.Sequential(*layers, nn.Sigmoid()), torch.randn(512, 64), torch.rand(512, 64)

    def loss(output):
        return getattr(nn.functional, name)(output, y)

    fit(module, (x,), "80%", options=SolveOptions(time_limit_s=10), cache="", loss=loss, holds=())
    assert over(module, loss, (x,), api.fitted(module).budget_bytes) <= 0.002
    assert api.fitted(module).plan_bytes <= 1.02 * peak_bytes(WithLoss(module, loss), (x,))


def soft_margin(output):
    return nn.functional.multilabel_soft_margin_loss(output, torch.ones(512, 64))


def connectionist(output):
    scores = output.unflatten(0, (16, 32)).log_softmax(-1)
    return nn.functional.ctc_loss(scores, torch.ones(32, 4, dtype=torch.long), [16] * 32, [4] * 32)


@pytest.mark.parametrize("loss", [soft_margin, connectionist])
def test_operations_of_the_loss_need_memory_while_they_run(loss):
    """PyTorch cannot even run ctc_loss without numbers."""
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.GELU())]
    module, x = nn.Sequential(*layers), torch.randn(512, 64)
    state = torch.get_rng_state()
    fit(module, (x,), "100%", options=FAST, cache="", loss=loss, holds=())
    assert torch.equal(torch.get_rng_state(), state)
    report = api.fitted(module)
    assert "random results" not in report.assumed
    assert peak_bytes(WithLoss(module, loss), (x,)) == pytest.approx(report.plan_bytes, rel=0.005)


def test_a_loss_that_random_results_do_not_suit_is_counted_without_its_workspace():
    def loss(output):
        if type(output) is torch.Tensor and output.detach().min() >= 0:  # random results are from 0 to 1
            raise ValueError("too small")
        return output.square().mean()

    module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    fit(module, (torch.randn(512, 64),), "100%", options=FAST, cost="flops", cache="", loss=loss)
    assert "does not run on random results (ValueError: too small)" in api.fitted(module).assumed


def test_what_eager_mode_needs_includes_the_loss():
    torch.manual_seed(0)
    module, inputs = Masks(), (torch.randn(4, 16, 16, 16),)
    needed = peak_bytes(WithLoss(copy.deepcopy(module), loss_of_masks), inputs)
    fit(module, inputs, "100%", options=FAST, cost="flops", cache="", loss=loss_of_masks)
    report = api.fitted(module)
    assert report.eager_bytes == pytest.approx(needed, rel=0.01)
    assert report.keep_all_bytes == pytest.approx(needed, rel=0.02)


def broken(output):
    return output["masks"] @ output["scores"].nonexistent


@pytest.mark.parametrize(
    ("error", "said", "options"),
    [
        (UsageError, "a function of what the module returns, and not str", {"loss": "mse"}),
        (UsageError, "returns does, too", {"loss": loss_of_masks, "returns": "masks"}),
        (UsageError, "of results of one length", {"loss": loss_of_masks, "buckets": [16, 32]}),
        (UsageError, "loss returned int, and not a tensor", {"loss": lambda output: 3}),
        (UsageError, "loss returned 16 numbers", {"loss": lambda output: output["scores"]}),
        (UsageError, "a number that takes no gradient", {"loss": lambda output: loss_of_masks(output).detach()}),
        (UsageError, "depends on none of the results", {"loss": lambda output: torch.ones(1, requires_grad=True)}),
        (CaptureFailed, "AttributeError: .*nonexistent", {"loss": broken}),
    ],
)
def test_a_loss_that_is_none_is_refused(error, said, options):
    module = Masks()
    with pytest.raises(error, match=said) as caught:
        fit(module, (torch.randn(4, 16, 16, 16),), "90%", options=FAST, cost="flops", cache="", **options)
    assert caught.value.hint


def test_labels_that_are_real_are_no_obstacle():
    torch.manual_seed(0)
    labels, inputs = torch.randint(4, (4,)), (torch.randn(4, 16, 16, 16),)
    module = Masks()
    fit(
        module,
        inputs,
        "80%",
        options=FAST,
        cost="flops",
        cache="",
        loss=lambda output: nn.functional.cross_entropy(output["scores"], labels),
    )
    assert "only scores takes a gradient" in api.fitted(module).assumed
    nn.functional.cross_entropy(module(*inputs)["scores"], labels).backward()
    assert module.score.weight.grad is not None
    assert module.upscale.weight.grad is None
