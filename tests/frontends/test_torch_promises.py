"""What ``fit`` says holds: a refusal comes before training, says why, and a budget that its hint names works."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remat_cli.api import SolveOptions, fit, fitted, plans_of, unfit
from remat_cli.errors import CaptureFailed, Infeasible, RematError, UsageError

pytestmark = pytest.mark.usefixtures("fresh_compiler")
FAST = SolveOptions(time_limit_s=5)


class Experts(nn.Module):
    """Chooses its experts by ``torch.where`` in a loop, so that PyTorch compiles nothing of it."""

    def __init__(self):
        super().__init__()
        self.router, self.out = nn.Linear(16, 4), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x, y):
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            found.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return cross_entropy(self.out(found), y)


class OtherWhenTraced(nn.Module):
    """Works in eager mode only, as models whose masks have another shape when they are traced."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, y):
        hidden = torch.tanh(self.layer(x))
        if torch.compiler.is_compiling():
            hidden = hidden + torch.zeros(3, 5)
        return cross_entropy(hidden, y)


class Derivatives(nn.Module):
    """A physics-informed network, whose loss has second derivatives of its results."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x, y):
        x = x.detach().requires_grad_()
        [first] = torch.autograd.grad(self.layers(x).sum(), x, create_graph=True)
        [second] = torch.autograd.grad(first.sum(), x, create_graph=True)
        return second.square().mean()


class Masked(nn.Module):
    """Goes on with the rows that a mask leaves, which divides the step."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x, y):
        hidden = torch.tanh(self.first(x))
        rows = (y % 2 == 0).nonzero()[:, 0]
        hidden = torch.tanh(self.second(hidden[rows])).exp()
        return cross_entropy(self.out(hidden), y[rows])


class Whole(nn.Module):
    """One graph."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.GELU()) for _ in range(3))

    def forward(self, x, y):
        for part in self.parts:
            x = part(x)
        return cross_entropy(x, y)


class Broken(Whole):
    """Graph breaks between its blocks."""

    def forward(self, x, y):
        first, second, third = self.parts
        x = first(x)
        torch._dynamo.graph_break()
        x = second(x)
        torch._dynamo.graph_break()
        return cross_entropy(third(x), y)


class BrokenInALoop(Whole):
    """A graph break in a loop, where PyTorch gives up the whole function."""

    def forward(self, x, y):
        for part in self.parts:
            x = part(x)
            torch._dynamo.graph_break()
        return cross_entropy(x, y)


def batch(rows=64):
    torch.manual_seed(0)
    return torch.randn(rows, 16), torch.randint(0, 4, (rows,))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("build", [Experts, OtherWhenTraced, BrokenInALoop, Derivatives])
def test_a_module_of_which_nothing_can_be_planned_is_refused_or_trains_as_it_is(build):
    module, inputs = build(), batch()
    module(*inputs).backward()
    eager = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    with pytest.raises(CaptureFailed, match=f"nothing of {build.__name__} can be planned|gradient of a gradient"):
        fit(module, inputs, "1kB", options=FAST, cache="")
    with pytest.raises(UsageError, match="not fitted"):
        fitted(module)
    if build is Derivatives:
        return
    with pytest.warns(UserWarning, match="it trains as it is, with whatever memory that takes"):
        fit(module, inputs, "1kB", options=FAST, cache="", unknown="warn")
    assert fitted(module) is None
    assert plans_of(module) == ()
    module.zero_grad()
    module(*inputs).backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(eager, module.parameters(), strict=False))
    unfit(module)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda x, y: x, "TypeError: .*missing 1 required positional argument: 'y'"),
        (lambda x, y: (x, y, y), "TypeError: .*takes 3 positional arguments but 4 were given"),
        (lambda x, y: {"x": x, "labels": y}, "TypeError: .*unexpected keyword argument 'labels'"),
        (lambda x, y: (x[:, :8], y), "RuntimeError: .*shapes cannot be multiplied"),
        (lambda x, y: (x, y[:3]), "ValueError: .*batch_size"),
    ],
)
@pytest.mark.parametrize("build", [Whole, Broken])
def test_a_wrong_batch_is_an_error_with_the_words_of_the_module(build, given, said):
    with pytest.raises(UsageError, match=f"{build.__name__} cannot be called with this batch: {said}") as refused:
        fit(build(), given(*batch()), "60%", options=FAST, cache="")
    assert "what the module is called with" in refused.value.hint


@pytest.mark.parametrize("build", [Whole, Broken, Masked])
def test_a_budget_in_a_hint_works(build):
    """Each budget that a refusal says to work is fed back; one that it says to be impossible is refused."""
    inputs, module, hint = batch(512), build(), ""

    def refused(budget):
        torch.compiler.reset()
        try:
            fit(module, inputs, budget, options=FAST, cache="")
        except RematError as error:
            return error.hint
        return ""

    budget = 100_000
    while hint := refused(budget):
        [works] = re.findall(r"\((\d+) bytes\) works|known to work is .*?\((\d+) bytes\)", hint)
        for least in re.findall(r"no budget below .*?\((\d+) bytes\)", hint):
            assert refused(int(least) - 1)
        before, budget = budget, int("".join(works))
        assert budget > before
    assert fitted(module).plan_bytes <= budget < 10_000_000


def test_a_larger_batch_that_no_plan_fits_is_an_error_that_names_a_budget():
    module = Whole()
    fit(module, batch(64), "100%", options=FAST, cache="")
    with pytest.raises(Infeasible, match="needs another plan than those before") as refused:
        module(*batch(512))
    assert re.search(r"\(\d+ bytes\) works without recomputation", refused.value.hint)
    assert 'unknown="warn"' in refused.value.hint
    module(*batch(64)).backward()  # what has a plan goes on
    torch.compiler.reset()
    fit(module, batch(64), "100%", options=FAST, cache="", unknown="warn")
    with pytest.warns(UserWarning, match="no plan for this graph; it runs without one"):
        module(*batch(512))


def test_a_smaller_batch_gets_a_plan_without_a_word(capsys):
    module = Whole()
    fit(module, batch(512), "100%", options=FAST, cache="", unknown="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(*batch(64)).backward()
    assert len(plans_of(module)) == 2
