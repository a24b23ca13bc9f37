"""Training in two processes: the gradients of eager mode bit for bit, and the same plan in both."""

import copy

import pytest
import torch
from test_torch_fitting import Deep
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_plans import FAST
from torch_processes import together

from remat_cli import fit, plans_of, unfit
from remat_cli.api import fitting
from remat_cli.errors import Infeasible, UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.io import dump_plan


class MeanSquare(nn.Module):
    """A loss, so that no step finds out that the results beside it are gone, and has another plan."""

    def forward(self, x):
        return (x**2).mean()


def wide():
    """Parameters beyond the size at which DDP splits graphs (its first bucket has 1 MiB)."""
    torch.manual_seed(1)
    layers = [
        layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Dropout(0.1))
    ]
    return nn.Sequential(*layers, MeanSquare())


def gradients(module, rank, count=3):
    torch.manual_seed(3 + rank)
    module.zero_grad()
    losses = []
    for _ in range(count):
        loss = module(torch.randn(256, 512))
        loss.backward()
        losses.append(loss.detach())
    return losses, [p.grad.clone() for p in module.parameters()]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip([*one[0], *one[1]], [*other[0], *other[1]], strict=True))


def counted(monkeypatch_target):
    searches = []
    solve = monkeypatch_target.solve
    monkeypatch_target.solve = lambda *given, **named: searches.append(1) or solve(*given, **named)
    return searches


def budget_of(module):
    probe = copy.deepcopy(module)
    fit(probe, torch.randn(256, 512), "1GB", options=FAST, cache="")
    return int(0.9 * no_remat_peak(plans_of(probe)[0].graph))


def run_ddp(rank, first, inside):
    plain, module = wide(), wide()
    wanted = gradients(DistributedDataParallel(plain), rank)
    budget = budget_of(wide())
    torch.compiler.reset()
    searches = counted(fitting)
    batch = torch.randn(256, 512) if first else None
    options = {"options": FAST, "cache": "", "unknown": "error"}
    if inside:
        planned = DistributedDataParallel(fit(module, batch, budget, **options))
    else:
        planned = fit(DistributedDataParallel(module), batch, budget, **options)
    found = gradients(planned, rank)
    plans = plans_of(planned)
    assert plans == plans_of(module)
    return equal(found, wanted), [dump_plan(plan) for plan in plans], len(searches), [len(p.statements) for p in plans]


@pytest.mark.parametrize("inside", [True, False], ids=["DDP(fit)", "fit(DDP)"])
@pytest.mark.parametrize("first", [True, False], ids=["batch", "first call"])
def test_both_processes_have_one_plan(first, inside):
    results = together(run_ddp, first, inside)
    assert [same for same, *_ in results] == [True, True]
    plans = [made for _, made, *_ in results]
    assert plans[0] == plans[1]
    assert len(plans[0]) == 1, "DDP has not split the graph"
    assert [searches for *_, searches, _ in results] == [1, 0]


def run_lengths(rank):
    plain, module = Deep(), Deep()
    module.load_state_dict(plain.state_dict())
    x = torch.randn(64 + 8 * rank, 16)
    fit(module, x, "100MB", options=FAST, cache="", unknown="error")
    pairs = []
    for one in (plain, module):
        torch.manual_seed(3)
        one(x).sum().backward()
        pairs.append([p.grad for p in one.parameters() if p.grad is not None])
    return all(torch.equal(a, b) for a, b in zip(*pairs, strict=True)), plans_of(module)[0].graph.metadata["places"][-1]


def test_processes_with_other_batches_plan_for_themselves():
    results = together(run_lengths)
    assert [same for same, _ in results] == [True, True]
    assert [place["shape"] for _, place in results] == [[64, 16], [72, 16]]


def run_failing(rank):
    try:
        fit(Deep(), torch.randn(64 + 8 * rank, 16), "100MB" if rank else "1kB", options=FAST, cache="")
    except (Infeasible, UsageError) as error:
        apart = type(error).__name__, error.message
    try:
        fit(Deep(), torch.randn(64, 16), "1kB", options=FAST, cache="")
    except Infeasible as error:
        return apart, error.message, error.hint
    return apart, "", ""


def test_what_fails_in_one_is_said_in_all():
    (first, second) = together(run_failing)
    assert first[0][0] == "Infeasible"
    assert second[0] == ("UsageError", f"another process could not fit its module: Infeasible: {first[0][1]}")
    assert first[1:] == second[1:]
    assert "no plan fits a budget of 1 kB" in first[1]
    assert first[2]


def run_broken(rank):
    def broken(*given, **named):
        raise ZeroDivisionError("a defect")

    fitting.solve = broken
    try:
        fit(Deep(), torch.randn(64, 16), "100MB", options=FAST, cache="")
    except (UsageError, ZeroDivisionError) as error:
        return type(error).__name__, str(error)


def test_a_defect_in_the_process_that_plans_keeps_none_waiting():
    first, second = together(run_broken)
    assert first == ("ZeroDivisionError", "a defect")
    assert second == ("UsageError", "process 0 could not plan: ZeroDivisionError: a defect")


def run_sharded(rank):
    torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    said = []
    options = {"options": FAST, "cache": "", "unknown": "error"}
    x = torch.randn(8, 16)
    after = fully_shard(Deep())
    whole = fully_shard(fit(Deep(), x, "100MB", **options))
    around = fully_shard(nn.Sequential(fit(Deep(), x, "100MB", **options)))
    for attempt in (
        lambda: fit(after, x, "100MB", **options),
        lambda: fit(after, None, "100MB", **options),
        lambda: whole(x),
        lambda: around(x),
    ):
        try:
            attempt()
        except UsageError as error:
            said.append(error.message)
    with torch.no_grad():
        return said, bool(torch.isfinite(unfit(whole)(x)).all())


def test_sharded_parameters_are_refused():
    for said, runs in together(run_sharded):
        assert len(said) == 4
        assert all("fully_shard was called with this FSDPDeep alone" in message for message in said[:2])
        assert "was Deep and is now FSDPDeep" in said[2]
        assert "Deep has other parameters than when it was fitted" in said[3]
        assert runs


def test_copies_for_several_devices_are_refused():
    with pytest.raises(UsageError, match="DataParallel copies the module"):
        fit(nn.DataParallel(Deep()), None, "100MB")
