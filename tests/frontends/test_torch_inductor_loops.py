"""Plans inside Inductor for batches of many lengths and in two processes: the bits of plain torch.compile."""

import copy

import pytest
import torch
from test_torch_lengths import Reader, steps
from torch import nn
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch.nn.parallel import DistributedDataParallel
from torch_plans import FAST
from torch_processes import together

from remat_cli import fit, plans_of
from remat_cli.api import fitting
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.io import dump_plan

OPTIONS = {"options": FAST, "cache": "", "compiler": "inductor", "cost": "flops"}


@pytest.fixture
def _divided_again():
    """Inductor compiles again, for one thread: with two, its gradient of an embedding differs from run to run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    with functorch.patch(enable_autograd_cache=False), inductor.patch(fx_graph_cache=False):
        yield
    torch.compiler.reset()
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_divided_again")
def test_every_length_up_to_the_last_bucket_has_a_plan(monkeypatch):
    torch.manual_seed(1)
    module = Reader()
    probe, other = copy.deepcopy(module), copy.deepcopy(module)
    fit(probe, None, "1GB", **OPTIONS)
    steps(probe, [32])
    [plan] = plans_of(probe)
    searches = []
    solve = fitting.solve
    monkeypatch.setattr(fitting, "solve", lambda *given, **named: searches.append(1) or solve(*given, **named))
    fit(module, None, int(0.9 * no_remat_peak(plan.graph)), buckets=[16, 32], unknown="error", **OPTIONS)
    losses, found = steps(module, [20, 32])
    other.compile(dynamic=False)
    same_losses, wanted = steps(other, [20, 32])
    assert all(map(torch.equal, losses, same_losses))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert len(searches) == 2  # one for each bucket
    assert len(plans_of(module)) == 2


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        layers = [layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return self.body(x).square().mean()


def gradients(module, rank):
    torch.manual_seed(3 + rank)
    losses = []
    for _ in range(2):
        module.zero_grad()
        losses.append(module(torch.randn(64, 64)))
        losses[-1].backward()
    return [*(loss.detach() for loss in losses), *(p.grad.clone() for p in module.parameters())]


def run(rank):
    functorch.enable_autograd_cache = False
    inductor.fx_graph_cache = False
    dynamo.optimize_ddp = False  # as remat sets it: one graph for the whole module
    wanted = gradients(torch.compile(DistributedDataParallel(Narrow()), dynamic=False), rank)
    torch.compiler.reset()
    module = Narrow()
    planned = fit(DistributedDataParallel(module), torch.randn(64, 64), "90%", unknown="error", **OPTIONS)
    found = gradients(planned, rank)
    return all(map(torch.equal, found, wanted)), [dump_plan(plan) for plan in plans_of(module)]


def test_both_processes_have_one_plan():
    (first, plans), (second, others) = together(run)
    assert first
    assert second
    assert len(plans) == 1
    assert plans == others
