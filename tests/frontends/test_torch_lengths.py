"""Batches of many lengths run by plans that were made beforehand; no search interrupts the training."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch_plans import FAST, assert_same

from remat_cli import fit, plans_of
from remat_cli.api import fitting
from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.model import Compute
from remat_cli.plan.replay import replay

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Reader(nn.Module):
    """Embeds, attends under a mask, and classifies; with dropout."""

    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(50, 8), nn.Linear(8, 24)
        self.feed, self.back = nn.Linear(8, 64), nn.Linear(64, 8)
        self.register_buffer("positions", torch.randn(1, 64, 8))

    def forward(self, tokens, *, mask):
        x = self.words(tokens) + self.positions[:, : tokens.shape[1]]
        for _ in range(2):
            q, k, v = self.mix(x).chunk(3, -1)
            scores = (q @ k.mT).masked_fill(mask == 0, -1e9)
            x = x + nn.functional.dropout(scores.softmax(-1), 0.1, self.training) @ v
            x = x + self.back(nn.functional.gelu(self.feed(x)))
        return x.square().mean()


def batch(length, size=4):
    return torch.randint(0, 50, (size, length)), torch.tril(torch.ones(length, length)).expand(size, -1, -1)


def steps(module, lengths):
    torch.manual_seed(3)
    losses = []
    for length in lengths:
        module.zero_grad()
        tokens, mask = batch(length)
        loss = module(tokens, mask=mask)
        loss.backward()
        losses.append(loss.detach())
    return losses, {name: p.grad for name, p in module.named_parameters()}


@pytest.fixture
def solved(monkeypatch):
    """The budgets of all searches."""
    seen = []
    solve = fitting.solve
    monkeypatch.setattr(
        fitting, "solve", lambda graph, b, o, **named: seen.append((len(graph.nodes), b)) or solve(graph, b, o, **named)
    )
    return seen


def pair():
    torch.manual_seed(1)
    module = Reader()
    return module, copy.deepcopy(module)


def recomputed(plan):
    return sum(isinstance(s, Compute) for s in plan.statements) - len(plan.graph.nodes)


def budget_for(module, length, share):
    """A share of what a batch needs without recomputation."""
    fit(module, None, "1GB", options=FAST, cache="")
    tokens, mask = batch(length)
    module(tokens, mask=mask)
    [plan] = plans_of(module)
    return int(share * no_remat_peak(plan.graph))


@pytest.mark.parametrize("unknown", ["plan", "error"])
def test_every_length_up_to_the_last_bucket_has_a_plan(solved, unknown):
    module, plain = pair()
    budget = budget_for(copy.deepcopy(module), 32, 0.85)
    solved.clear()
    fit(module, None, budget, options=FAST, cache="", buckets=[16, 32], unknown=unknown)
    lengths = [20, 32, 7, 16, 20]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_same(steps(module, lengths), steps(plain, lengths))
    assert len(solved) == 2  # one for each bucket
    plans = plans_of(module)
    assert len(plans) == len(set(lengths))
    assert all(replay(p.graph, p.statements).peak_bytes <= budget for p in plans)
    assert recomputed(max(plans, key=lambda p: no_remat_peak(p.graph))) > 0
    assert recomputed(min(plans, key=lambda p: no_remat_peak(p.graph))) == 0, "what fits anyway recomputes nothing"


def test_a_length_beyond_the_buckets(solved):
    """It may still fit; else it is treated as ``unknown`` says."""
    module, plain = pair()
    budget = budget_for(copy.deepcopy(module), 16, 1.5)
    fit(module, None, budget, options=FAST, cache="", buckets=[16], unknown="error")
    assert_same(steps(module, [16, 17]), steps(plain, [16, 17]))
    with pytest.raises(UsageError, match=r"no plan was made for \(no plan that was made beforehand is for a graph of"):
        steps(module, [50])
    assert_same(steps(module, [12]), steps(plain, [12]))
    assert len(plans_of(module)) == 3


def test_a_shorter_batch_takes_the_plan_there_is(solved):
    """Without buckets too: the last batch of an epoch does not wait for a search."""
    module, plain = pair()
    budget = budget_for(copy.deepcopy(module), 32, 0.85)
    solved.clear()
    fit(module, None, budget, options=FAST, cache="")
    assert_same(steps(module, [32, 24]), steps(plain, [32, 24]))
    assert len(solved) == 1
    steps(module, [40])  # longer: a search
    assert len(solved) == 2


@pytest.mark.parametrize(
    ("given", "buckets", "words"),
    [
        (batch(20), [16], "the batch has the length 20, and the largest bucket is 16"),
        ((torch.randn(3),), [16], "no tensor of the batch has a second dimension"),
        (batch(8), [0], "buckets is int 0"),
        (batch(8), ["long"], "buckets is str 'long'"),
    ],
)
def test_buckets_that_cannot_be(given, buckets, words):
    with pytest.raises(UsageError, match=words):
        fit(Reader(), {"tokens": given[0], "mask": given[-1]}, "1GB", options=FAST, cache="", buckets=buckets)
