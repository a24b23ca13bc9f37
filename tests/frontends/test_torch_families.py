"""One small model of each kind that libraries have: exported, solved, run and trained like the real ones.

The real ones are in ``benchmarks/models``; they need libraries that the tests do without.
"""

import copy
from collections.abc import Mapping

import pytest
import torch
from family_models import FAMILIES
from torch_plans import by_hand, plan_of, repeated, run_plan

import remat_cli
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.train.fitting import fit_module

pytestmark = pytest.mark.usefixtures("fresh_compiler")

STEPS = 3


@pytest.mark.parametrize("build", FAMILIES, ids=lambda build: build.__name__)
def test_a_plan_has_the_same_results_and_the_predicted_peak(build):
    graph = export_model(build, name=build.__name__, source="torch:x")
    options = remat_cli.SolveOptions(strategy="dtr")
    plans = [remat_cli.solve(graph, "90%", options).plan, plan_of(graph, repeated(graph))]
    for plan in plans:
        ran = run_plan(plan, steps=1)
        assert ran.identical
        assert ran.finite
        assert ran.memory.measured == ran.memory.predicted_without_workspace
    assert plans[1].claim.cost > graph.total_cost


def trained(owner, module, inputs, loss):
    """Losses and gradients of some steps of AdamW, and the buffers after them."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW([p for p in owner.parameters() if p.requires_grad], lr=0.01)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        output = module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
        value = loss(output)
        value.backward()
        found += [value.detach(), *(p.grad.clone() for p in owner.parameters() if p.requires_grad)]
        optimizer.step()
    return [*found, *owner.buffers()]


@pytest.mark.filterwarnings("ignore:remat. ")
@pytest.mark.parametrize("build", FAMILIES, ids=lambda build: build.__name__)
def test_training_by_plan_is_training(build):
    torch.manual_seed(2)
    eager, inputs, *loss = build()
    loss = loss[0] if loss else (lambda output: output["loss"] if isinstance(output, Mapping) else output)
    planned = copy.deepcopy(eager)
    fitted = fit_module(planned, inputs, by_hand, unknown="error")
    wanted, found = trained(eager, eager, inputs, loss), trained(planned, fitted, inputs, loss)
    assert len(wanted) > STEPS
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
