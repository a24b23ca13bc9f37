"""The zoo's models, small, trained with plans that a strategy made: eager's numbers, and the predicted peak."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from remat_cli.api import SolveOptions, solve
from remat_cli.frontends.torch import models
from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES
from remat_cli.frontends.torch.execute.forward_backward import ForwardBackward, forward_backward
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.train import backend as training
from remat_cli.frontends.torch.train.fitting import fit_module
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.check import check
from remat_cli.plan.model import Compute
from remat_cli.spec import build, split_spec
from remat_cli.units import parse_budget

pytestmark = pytest.mark.usefixtures("fresh_compiler")
MODELS = {
    "torch/resnet50{batch=4,resolution=32,classes=10}": 0.85,
    "torch/unet{batch=2,resolution=32,width=4,depth=2}": 0.85,
    "torch/gpt2{batch=4,depth=2,heads=2,width=32,sequence=32,vocab=20,dropout=0.1}": 0.85,
}
"""Models, and the share of what they need without recomputation that they get."""
STAGES = ((4, 1, 1), (8, 2, 2))
"""Width, blocks and stride: a ResNet of the same blocks as ResNet-50, and fewer of them."""
STEPS = 3


class Step:
    """Counts the storages that are alive inside the step that torch.compile runs, from forward to backward."""

    def __init__(self, monkeypatch):
        self.peaks, self.mode, self.plans = [], None, []
        self.text = ""
        monkeypatch.setattr(training, "forward_backward", self.watched)

    def watched(self, graph, statements, device):
        made = forward_backward(graph, statements, device)
        self.text = made.text

        def forward(args):
            self.mode = live_storages()(list(args))
            with self.mode:
                return made.forward(args)

        def backward(args):
            tangent = args[-1]  # made by autograd, between the halves; the graph counts it
            self.mode.sizes[StorageWeakRef(tangent.untyped_storage())] = tangent.untyped_storage().nbytes()
            del tangent
            with self.mode:
                result = made.backward(args)
            self.peaks.append(self.mode.peak_bytes)
            return result

        return ForwardBackward(forward, backward, made.saved, made.text)

    def planner(self, share):
        def planned(graph):
            # Storages are what is watched, and workspaces are none: tests/frontends/test_torch_workspace.py has them.
            graph = replace(graph, nodes=tuple(replace(node, workspace=0) for node in graph.nodes))
            budget = parse_budget(str(round(no_remat_peak(graph) * share)))
            self.plans.append(solve(graph, budget, SolveOptions(strategy="dtr")).plan)
            return self.plans[-1]

        return planned


def train(module, owner, inputs, kind):
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(owner.parameters(), lr=0.01, **options)
    torch.manual_seed(5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = module(*inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.partition("{")[0].removeprefix("torch/"))
def test_the_zoo_trains_as_eager_does_at_the_peak_that_was_predicted(spec, monkeypatch):
    monkeypatch.setattr(models, "_RESNET_STAGES", STAGES)
    name, options = split_spec(spec)
    torch.manual_seed(1)
    eager, inputs = build(TORCH_ARCHITECTURES.load(name), name, options).make()
    planned, step = copy.deepcopy(eager), Step(monkeypatch)
    fitted = fit_module(planned, inputs, step.planner(MODELS[spec]), unknown="error")
    for kind in (torch.optim.SGD, torch.optim.Adam):
        wanted, found = train(eager, eager, inputs, kind), train(fitted, planned, inputs, kind)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
        states = zip(eager.state_dict().items(), planned.state_dict().values(), strict=True)
        assert not [key for (key, a), b in states if not torch.equal(a, b)]
    assert len(set(map(float, wanted))) == STEPS  # it does learn something
    [plan] = step.plans
    computed = [s.node for s in plan.statements if isinstance(s, Compute)]
    assert len(computed) > len(plan.graph.nodes)
    # To the byte, but for what plans know nothing of: the gradient of the loss, which autograd holds for all of the
    # backward pass, and copies of running statistics, which the forward half overwrites and the backward half reads.
    places = plan.graph.metadata["places"]
    copies = sum(places[int(p)]["bytes"] for p in re.findall(r"places\[(\d+)\]\.clone\(\)", step.text))
    assert copies < 1000
    assert (copies == 0) is ("gpt2" in spec)
    predicted = check(plan).replay.peak_bytes - plan.graph.fixed_memory
    assert len(step.peaks) == 2 * STEPS
    assert set(step.peaks) == {step.peaks[0]}
    assert 0 <= step.peaks[0] - predicted - wanted[0].nbytes <= copies
