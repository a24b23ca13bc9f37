"""Random programs: whatever a model does, a plan that computes much of it again trains it as eager PyTorch does."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_plans import plan_of, repeated, run_plan

from remat_cli.frontends.torch.train.fitting import fit_module

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),  # PyTorch's own, of autograd functions
]


class Doubled(torch.autograd.Function):
    """A product with noise whose gradient is twice as large as it should be."""

    @staticmethod
    def forward(ctx, x, noise):
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0], None


def written(x, k):
    x = x.clone()
    x[:, : k % 5 + 1].mul_(1.5)
    x[k % 4] += 0.5
    rows = x.view(2, 12)
    rows[k % 2].sigmoid_()
    return x


def averaged(model, x, _):
    with torch.no_grad():
        model.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x


def counted(model, x, _):
    model.count += 1
    return x + 0.01 * model.count


def chosen(x, _):
    rows = torch.randint(0, 4, (4,))
    return x[rows] + x.index_select(0, rows)


def attention(x, _):
    heads = x.view(1, 2, 2, 6)
    return functional.scaled_dot_product_attention(heads, heads, heads.sin(), dropout_p=0.2).reshape(4, 6)


def again(model, x, k):
    return checkpoint(lambda y: functional.dropout(model.layers[k % 3](y).tanh(), 0.2), x, use_reentrant=False)


STEPS = [
    lambda model, x, k: model.layers[k % 3](x),
    lambda model, x, k: x @ model.layers[k % 3].weight.t() + model.layers[0].bias,
    lambda model, x, k: model.norm(x),
    lambda model, x, k: functional.dropout(x, 0.3),
    lambda model, x, k: (x + 0.1).relu_(),
    lambda model, x, k: written(x, k),
    lambda model, x, k: torch.cat([x.chunk(2, 1)[1].tanh(), x.chunk(2, 1)[0]], 1),
    lambda model, x, k: x + 0.1 * torch.randn_like(x),
    averaged,
    counted,
    again,
    lambda model, x, k: Doubled.apply(x, torch.rand_like(x)),
    lambda model, x, k: x + x.detach().sin(),
    lambda model, x, k: attention(x, k),
    lambda model, x, k: chosen(x, k),
    lambda model, x, k: x.t().contiguous().view(3, 8).view(6, 4).t().contiguous(),
    lambda model, x, k: torch.where(x > 0, x, model.fill) * x.new_empty(4, 1).bernoulli_(0.8),
]


class Program(nn.Module):
    """A random sequence of ``STEPS``."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        source = random.Random(seed)
        self.steps = [(source.randrange(len(STEPS)), source.randrange(60)) for _ in range(10)]
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("average", torch.ones(6))
        self.register_buffer("fill", torch.randn(4, 6))

    def forward(self, x):
        for step, k in self.steps:
            x = STEPS[step](self, x, k)
        return (x * self.average.detach().clone()).square().mean()


def trained(program, module):
    """Losses, gradients, parameters, buffers and the state of the generator after some steps."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    seen = []
    for k in range(2):
        optimizer.zero_grad()
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(k)).requires_grad_()
        loss = program(x)
        loss.backward()
        seen += [loss.detach(), x.grad, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
        optimizer.step()
    return [*seen, *module.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_train_as_eager_does(seed):
    eager, planned = Program(seed), Program(seed)
    plans = []

    def often(graph):
        plans.append(plan_of(graph, repeated(graph, seed, 0.2)))
        return plans[-1]

    fitted = fit_module(planned, torch.randn(4, 6, requires_grad=True), often, unknown="error")
    wanted, found = trained(eager, eager), trained(fitted, planned)
    assert len(wanted) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    ran = run_plan(plans[0], steps=1)
    assert ran.identical
    assert ran.recomputations > 0
    assert ran.memory.measured == ran.memory.predicted_without_workspace
