"""``fit`` on modules whose parameters are DTensors: processes train by one plan, with the bits of eager mode."""

import pytest
import sharded_models
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch_processes import least_peak, together

import remat_cli as remat
from remat_cli.errors import CaptureFailed, Infeasible, UsageError
from remat_cli.frontends.interconnect import SHARES, Interconnect
from remat_cli.frontends.torch.compat.distributed import fake_group, local_tensor
from remat_cli.frontends.torch.measure.links import fitted_line, measured_links
from remat_cli.frontends.torch.train import ranks
from remat_cli.graph.model import NodeQueue
from remat_cli.plan.check import check
from remat_cli.plan.io import dump_plan
from remat_cli.plan.model import Compute

FSDP, MIN_CUT = (remat.SolveOptions(strategy=name) for name in ("fsdp", "min-cut"))
FITTING = {"interconnect": "50GB/s", "cost": "roofline:h100", "holds": (), "cache": "", "options": FSDP}


def trained(module, batch, loss, steps=3):
    """Losses, and the parameters of this rank after some steps."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        one = loss(module(*batch))
        one.backward()
        optimizer.step()
        losses.append(one.detach())
    return losses + [local_tensor(parameter).detach() for parameter in module.parameters()]


def peak_of(module, batch, loss, enough=None):
    return least_peak(lambda: loss(module(*batch)).backward(), module.zero_grad, enough)


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def order(plan):
    """The collectives of a plan, in the order in which it runs them."""
    computes = [one.node for one in plan.statements if isinstance(one, Compute)]
    return [plan.graph.nodes[k].id for k in computes if plan.graph.nodes[k].queue is NodeQueue.COMMUNICATION]


def run_training(rank, name, budget, options):
    build = getattr(sharded_models, name)
    wanted, eager = trained(*build()), peak_of(*build())
    module, batch, loss = build()
    kind = type(module)
    assert remat.fit(module, batch, budget, loss=loss, **FITTING | options) is module
    found = trained(module, batch, loss)
    [plan] = remat.plans_of(module)
    report = check(plan)
    predicted = report.replay.peak_bytes - plan.graph.fixed_memory
    assert type(module) is kind
    return {
        "same": equal(found, wanted),
        "eager": eager,
        "measured": peak_of(module, batch, loss, predicted + 64),
        "predicted": predicted,
        "fits": report.valid and report.replay.peak_bytes <= remat.fitted(module).budget_bytes,
        "budget": remat.fitted(module).budget_bytes,
        "order": order(plan),
        "costs": plan.graph.metadata["costs"]["interconnect"],
        "plan": dump_plan(plan),
        "state": list(module.state_dict()),
        "extra": remat.fitted(module).extra_cost,
    }


@pytest.mark.parametrize(
    ("name", "count", "budget", "options"),
    [
        ("simple_fsdp", 2, "90%", {}),
        ("tensor_parallel", 2, "95%", {"interconnect": "measure", "options": MIN_CUT}),
        ("both", 4, "95%", {"interconnect": "fsdp=50GB/s,tp=400GB/s+5us", "options": MIN_CUT}),
    ],
)
def test_training_by_one_plan(name, count, budget, options):
    interconnect = options.get("interconnect", "50GB/s")
    results = together(run_training, name, budget, options, count=count)
    with fake_group(count):
        state = list(getattr(sharded_models, name)()[0].state_dict())
    for one in results:
        assert one["same"]
        assert one["fits"]
        assert one["measured"] == pytest.approx(one["predicted"], abs=64)
        assert one["measured"] < 0.95 * one["eager"]
        assert one["plan"] == results[0]["plan"]
        assert one["state"] == state
        assert one["extra"] > -1e-6, "of the time of a step, in which collectives run beside computations"
    [links] = {str(one["costs"]) for one in results}
    if interconnect != "measure":
        assert links == str(Interconnect.of(interconnect).document())
    else:
        assert results[0]["costs"]["bytes_per_s"].keys() == results[0]["costs"]["latency_us"].keys() == {"tp"}


def test_uneven_parts_have_one_order():
    """The last of three ranks pads what it sends: it has another graph, the same order, and the same budget."""
    results = together(run_training, "simple_fsdp", "90%", {}, count=3)
    first, _, last = results
    assert first["plan"] != last["plan"]
    for one in results:
        assert one["same"]
        assert one["fits"]
        assert one["budget"] == first["budget"]
        assert one["order"] == first["order"]
        assert one["measured"] == pytest.approx(one["predicted"], abs=64)
        assert one["measured"] < 0.95 * one["eager"]
    assert len(first["order"]) > len(set(first["order"])), "something is gathered again"


# Forms that come later.


class Widths(nn.Module):
    """A sharded module with its loss."""

    def __init__(self):
        super().__init__()
        module, _, _ = sharded_models.made()
        mesh = init_device_mesh("cpu", (sharded_models.ranks(),), mesh_dim_names=("fsdp",))
        self.body = sharded_models.sharded(module, mesh, sharded_models.whole(module))

    def forward(self, x):
        return self.body(x).square().mean()


def stepped(module, inputs):
    found = []
    for x in inputs:
        module.zero_grad()
        module(x).backward()
        found += [local_tensor(parameter.grad).clone() for parameter in module.parameters()]
    return found


def run_later(rank):
    torch.manual_seed(5)
    full = torch.randn(128, 64)
    # Ranks have batches of several lengths in the same step; then all call it in another form.
    inputs = [full, full[: 128 - 32 * rank].clone(), full[: 64 + 16 * rank].clone(), full.clone().requires_grad_()]
    wanted = stepped(Widths(), inputs)
    module = Widths()
    remat.fit(module, full, "90%", **FITTING)
    found = stepped(module, inputs)
    orders = [order(plan) for plan in remat.plans_of(module)]
    ranks.LATE_S = 1.0
    try:
        if rank:
            with torch.autocast("cpu", torch.bfloat16):  # another graph, in this process alone
                module(full)
    except UsageError as error:
        return equal(found, wanted), orders, error.message, error.hint
    return equal(found, wanted), orders, "", ""


def test_forms_that_come_later_have_one_order():
    first, second = together(run_later)
    for same, orders, *_ in (first, second):
        assert same
        assert len(orders) == 4 - (orders is first[1]), "a plan for each form"
        assert all(one == orders[0] for one in orders[:-1])
        assert orders[-1] == first[1][-1], "of the form for which both have met"
    assert "not all others came for one within 1 s" in second[2]
    assert second[3]


def run_too_large(rank):
    module = Widths()
    x = torch.randn(128, 64)
    remat.fit(module, x[:64], "90%", **FITTING)
    try:
        module(x)
    except Infeasible as error:
        return error.message, error.hint


def test_a_batch_above_the_budget_is_refused_in_all():
    first, second = together(run_too_large)
    assert first == second
    assert "in the order of the plan that all processes have, this batch needs" in first[0]
    assert first[1]


# What is refused.


def error_of(attempt):
    try:
        attempt()
    except (CaptureFailed, UsageError, Infeasible) as error:
        return type(error).__name__, error.message, error.hint
    return "", "", ""


class Failing(Widths):
    def forward(self, x):
        raise ZeroDivisionError("in one process alone")


class Other(Widths):
    def forward(self, x):
        return self.body(x).square().square().mean()


def run_refused(rank):
    x = torch.randn(128, 64)

    def fitting(kind, budget="90%", **options):
        return lambda: remat.fit(kind(), x, budget, **FITTING | options)

    said = [
        error_of(fitting(Failing if rank else Widths)),
        error_of(fitting(Other if rank else Widths)),
        error_of(fitting(Widths, "1kB")),
        error_of(fitting(Widths, interconnect=None)),
        error_of(fitting(Widths, unknown="warn")),
        error_of(fitting(Widths, cost="flops")),
        error_of(fitting(Widths, cost="measured")),
        error_of(fitting(Widths, compiler="inductor")),
        error_of(fitting(Widths, interconnect="tp=50GB/s")),
        error_of(lambda: remat.fit(nn.Linear(64, 8), x, "100MB", **FITTING | {"interconnect": "measure"})),
    ]
    module = Widths()
    remat.fit(module, x, "90%", **FITTING)
    return said, equal(stepped(module, [x]), stepped(Widths(), [x]))


def test_what_fails_in_one_is_an_error_in_all():
    (first, trains), (second, trains_too) = together(run_refused)
    assert first[0][:2] == (
        "UsageError",
        f"another process could not fit its module: {second[0][0]}: {second[0][1]}",
    )
    assert "ZeroDivisionError: in one process alone" in second[0][1]
    assert first[1:] == second[1:]
    wanted = [
        ("UsageError", "process 1 has another graph than process 0, with more differences than padding"),
        ("Infeasible", "no plan fits a budget of 1 kB"),
        ("UsageError", "are DTensors, so that a step communicates, and the bandwidth between ranks is not given"),
        ("UsageError", "all ranks have to communicate in one order, which a step without a plan does not keep"),
        ("UsageError", "collectives have no costs that are flops"),
        ("UsageError", "collectives have no costs that are measured"),
        ("UsageError", "steps that communicate are not planned for Inductor"),
        ("UsageError", 'the mesh of the step has no dimension "tp": its dimensions are fsdp'),
        ("UsageError", "no parameter of this Linear is a DTensor, so that there is no link to measure"),
    ]
    for (kind, message, hint), (wanted_kind, part) in zip(first[1:], wanted, strict=True):
        assert kind == wanted_kind
        assert part in message
        assert hint
    assert trains
    assert trains_too


def test_groups_without_processes():
    with fake_group(2), pytest.raises(UsageError, match="its process group has no processes") as caught:
        remat.fit(Widths(), torch.randn(8, 64), "90%", **FITTING)
    assert caught.value.hint


# Links that are measured.


def test_a_line_through_times():
    exact = [(sent, 2e-5 + sent / 4e9) for sent in (1e3, 1e5, 1e7)]
    assert fitted_line(exact) == pytest.approx((2e-5, 4e9))
    through_zero = [(1e3, 1e-7), (1e6, 2e-4)]
    latency_s, rate = fitted_line(through_zero)
    assert latency_s == 0
    assert sum(((sent / rate - took) / took) ** 2 for sent, took in through_zero) < min(
        sum(((sent / other - took) / took) ** 2 for sent, took in through_zero) for other in (0.99 * rate, 1.01 * rate)
    )
    assert fitted_line([(1e3, 1e-3), (1e6, 1e-4)]) == (0.0, 1e10), "larger tensors took less"


def run_measured(rank):
    meeting = ranks.Meeting()
    module = sharded_models.both()[0]
    with meeting.together():
        found = measured_links(module, torch.device("cpu"), meeting.all_entries)
    slow = []
    meshes = {"": torch.nn.Linear(2, 2)}
    meshes[""].weight = nn.Parameter(
        torch.distributed.tensor.distribute_tensor(torch.ones(2, 2), init_device_mesh("cpu", (2, 2)))
    )
    with meeting.together():
        slow.append(error_of(lambda: measured_links(meshes[""], torch.device("cpu"), meeting.all_entries)))
    return found, slow


def test_links_are_measured_by_dimension():
    results = together(run_measured, count=4)
    found = results[0][0]
    assert all(one[0] == found for one in results)
    assert found.interconnect.bytes_per_s.keys() == found.interconnect.latency_us.keys() == {"fsdp", "tp"}
    assert all(1e6 < rate < 1e12 for rate in found.interconnect.bytes_per_s.values())
    assert found.line().startswith("interconnect measured: fsdp=")
    again = Interconnect.of(found.interconnect.text())
    for kind in SHARES:
        wanted = found.interconnect.us(kind, 10**6, 2, "tp")
        assert again.us(kind, 10**6, 2, "tp") == pytest.approx(wanted, rel=1e-3)
    for _, [(kind, message, hint)] in results:
        assert kind == "UsageError"
        assert message == "a mesh has several dimensions without names, and links are measured by dimension"
        assert hint
