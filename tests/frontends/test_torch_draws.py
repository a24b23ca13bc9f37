"""Modules that take their way at random, as where layers are skipped in training (LayerDrop)."""

import copy
import random
from itertools import accumulate

import numpy
import pytest
import torch
from torch import nn
from torch_plans import FAST

from remat_cli import api
from remat_cli.api import fit
from remat_cli.frontends.torch.capture.random_state import starts

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # PyTorch itself looks at it where what crosses a graph break enters a compiled part.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # It does not trace the generators of Python and numpy, and says so.
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace"),
]
WIDTH, LAYERS = 32, 5


class Layer(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.layers(x))


class Skips(nn.Module):
    """A layer, and others of which each is skipped at random in training; ``draw`` says by which generator."""

    def __init__(self, draw, share=0.5):
        super().__init__()
        self.first, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.draw, self.share = draw, share

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            if self.training and self.skipped():
                continue
            x = layer(x)
        return x.square().mean()

    def skipped(self):
        return DRAWS[self.draw]() < self.share


class Runs(Skips):
    """The same with the share of the layers that run, so that a low number is one that runs."""

    def skipped(self):
        return DRAWS[self.draw]() > self.share


DRAWS = {
    "torch": lambda: torch.rand([]),
    "python": lambda: random.random(),
    "numpy": lambda: numpy.random.uniform(0, 1),
}


def seeded(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def step(module, x, seed):
    """The loss, the gradients, and the most bytes in use, by the events of the profiler."""
    seeded(seed)
    module.zero_grad(set_to_none=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as session:
        loss = module(x)
        loss.backward()
    events = enumerate(session.profiler.kineto_results.events())
    changes = sorted((event.start_ns(), k, event.nbytes()) for k, event in events if event.name() == "[memory]")
    fixed = sum(tensor.nbytes for tensor in [*module.parameters(), x])
    grads = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    module.zero_grad(set_to_none=True)
    return loss.detach(), grads, fixed + max(accumulate((size for _, _, size in changes), initial=0))


def same(a, b):
    return (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))


@pytest.mark.parametrize("kind", [Skips, Runs])
@pytest.mark.parametrize("draw", DRAWS)
def test_the_budget_holds_for_every_draw(kind, draw):
    torch.manual_seed(0)
    module, x = kind(draw), torch.randn(64, 16, WIDTH)
    whole = copy.deepcopy(module)
    whole.skipped = lambda: False
    _, _, needed = step(whole, x, 0)
    budget, planned = int(0.7 * needed), copy.deepcopy(module)
    step(planned, x, 0)
    seeded(11)
    before = torch.rand(3), random.random(), numpy.random.rand(3)
    seeded(11)
    fit(planned, (x,), budget, options=FAST, cost="flops", cache="")
    after = torch.rand(3), random.random(), numpy.random.rand(3)
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert (before[2] == after[2]).all()
    report = api.fitted(planned)
    assert report.keep_all_bytes == pytest.approx(needed, rel=0.1)  # no layer is skipped
    assert "what it runs is random; the plan is for the largest of the " in report.assumed
    ran = set()
    for seed in range(5):
        loss, grads, _ = step(module, x, seed)
        found, found_grads, peak = step(planned, x, seed)
        assert torch.equal(found, loss)
        assert all(map(same, found_grads, grads))
        assert peak <= 1.01 * budget
        ran.add(sum(grad is not None for grad in grads))
    assert len(ran) > 1  # layers were skipped


def test_draws_that_change_nothing_are_not_told():
    class Shifts(Skips):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x + self.skipped())
            return x.square().mean()

    module = Shifts("python")
    fit(module, (torch.randn(8, 4, WIDTH),), "100%", options=FAST, cost="flops", cache="")
    assert "at random" not in api.fitted(module).assumed


def test_a_module_that_draws_nothing_outside_of_its_graphs_is_called_once():
    class Counted(Skips):
        """Counts its calls where PyTorch does not look."""

        def skipped(self):
            counted()
            return False

    calls = []

    @torch._dynamo.disable
    def counted():
        calls.append(1)

    module = Counted("python")
    fit(module, (torch.randn(8, 4, WIDTH),), "100%", options=FAST, cost="flops", cache="")
    assert len(calls) == 2 * LAYERS  # the capture, and the peak of eager mode


def test_starts_draw_high_and_low_numbers_at_first():
    _, high, second, low = starts()
    assert high != second
    for start, inside in ((high, lambda d: d > 0.9), (second, lambda d: d > 0.9), (low, lambda d: d < 0.1)):
        start.set()
        drawn = [random.random(), random.uniform(0, 1), numpy.random.rand(), numpy.random.uniform(), *torch.rand(2)]
        assert all(map(inside, drawn))
