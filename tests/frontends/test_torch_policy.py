"""Plans for torch.utils.checkpoint: what the snippet does in eager mode is what the plan says."""

import copy
import functools
import json
from functools import partial

import jsonschema
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._pytree import tree_leaves

from remat_cli.api import SolveOptions, policy, solve
from remat_cli.errors import Infeasible, StrategyMismatch, UsageError
from remat_cli.frontends.torch.compat.operators import weak_storage
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.models import Gpt2, UNet
from remat_cli.frontends.torch.tensors import storage, storage_bytes
from remat_cli.graph.document import load_schema
from remat_cli.graph.tools import as_autograd_holds
from remat_cli.reports.documents import document_json
from remat_cli.reports.policy import policy_text
from remat_cli.reports.style import Style
from remat_cli.zoo.registry import build_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

FAST = SolveOptions(time_limit_s=15)


def unet():
    torch.manual_seed(3)
    return UNet(8, 3, 2), (torch.randn(2, 3, 64, 64), torch.randint(0, 2, (2, 64, 64)))


def gpt2():
    torch.manual_seed(3)
    return Gpt2(4, 2, 32, 32, 50, 0.1), (torch.randint(0, 50, (16, 32)), torch.randint(0, 50, (16, 32)))


@functools.cache
def graph_of(build):
    return export_model(build, name="step", source="torch:step", cost="flops")


def step(model, inputs):
    """The gradients of a step in eager mode, and the peak of all storages."""
    given = [*model.parameters(), *model.buffers(), *inputs]
    fixed = sum({storage(tensor): storage_bytes(tensor) for tensor in given}.values())
    torch.manual_seed(7)
    with live_storages()(given) as live:
        model(*inputs).backward()
    return [parameter.grad for parameter in model.parameters()], fixed + live.peak_bytes


@pytest.mark.parametrize("percent", [85, 75])
def test_the_snippet_does_in_eager_mode_what_the_plan_says(percent):
    model, inputs = unet()
    graph = graph_of(unet)
    plain, before = step(copy.deepcopy(model), inputs)
    found = policy(graph, f"{percent}%", "torch-checkpoint", FAST)
    assert found.settings
    exec(found.snippet, {"model": model})
    gradients, peak = step(model, inputs)
    assert all(torch.equal(a, b) for a, b in zip(plain, gradients, strict=True))
    predicted = found.solved.report.replay.peak_bytes
    assert peak < before
    assert peak == pytest.approx(predicted, rel=0.001)
    assert found.best.plan.claim.cost <= found.solved.plan.claim.cost
    assert {name for name, _ in found.others} <= {"torch-tags"}
    assert all(found.best.plan.claim.cost <= plan.claim.cost for _, plan in found.others)
    document = json.loads(document_json(found.document()))
    document["others"] = [{"tool": "torch-tags", "cost": 1.02 * graph.total_cost, "lower_bound": graph.total_cost}]
    jsonschema.Draft202012Validator(load_schema("policy")).validate(document)
    lines = policy_text(document, Style(80, color=False, unicode=True)).splitlines()
    assert any(line.startswith("torch-tags  ") and line.endswith("+2%, bound +0%") for line in map(str.strip, lines))
    assert any(line.strip().startswith("any plan") for line in lines)
    assert found.solved.plan.claim.lower_bound == pytest.approx(found.solved.plan.claim.cost)


def test_values_that_autograd_holds_together_are_counted():
    """The gradient of a product is two operations, and both factors stay until the second."""

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.gate, self.down = (torch.nn.Linear(*s) for s in ((8, 512), (8, 512), (512, 8)))

        def forward(self, x):
            return x + self.down(self.up(x) * torch.nn.functional.silu(self.gate(x)))

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Gated() for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x.square().mean()

    def build():
        torch.manual_seed(3)
        return Layers(), (torch.randn(256, 8),)

    model, inputs = build()
    graph = export_model(build, name="gated", source="torch:gated", cost="flops")
    every = SolveOptions(strategy="every-n-layers{n=1}")
    held, told = (solve(form, None, every).report.replay.peak_bytes for form in (as_autograd_holds(graph), graph))
    found = policy(graph, held, "torch-checkpoint", FAST)
    exec(found.snippet, {"model": model})
    _, peak = step(model, inputs)
    assert told < peak <= found.solved.report.replay.peak_bytes + 8 <= held + 8  # the loss's own gradient is a number


def compiled_step(snippet, model, inputs, loss=None):
    """The gradients of a step that torch.compile divides as the snippet says, and the peak of all storages."""
    given = [*model.parameters(), *model.buffers(), *(inputs.values() if isinstance(inputs, dict) else inputs)]
    known = {weak_storage(tensor): storage_bytes(tensor) for tensor in given}
    sizes: dict[object, int] = {}
    peaks = [0]

    class Counted(torch.fx.Interpreter):
        def run_node(self, n):
            result = super().run_node(n)
            for tensor in tree_leaves(result) if n.op == "call_function" else ():
                if isinstance(tensor, torch.Tensor) and tensor.dtype is not torch.uint8:  # states of the generator
                    sizes[weak_storage(tensor)] = storage_bytes(tensor)
            for gone in [one for one in sizes if one in known or one.expired()]:
                del sizes[gone]
            peaks.append(sum(sizes.values()))
            return result

    def compiler(graph, _):
        def run(args):
            return Counted(graph).boxed_run(args)  # a new one each time: it keeps what it returned

        run._boxed_call = True
        return run

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=min_cut_rematerialization_partition)
    names = {"model": model, "loss": loss}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend=backend))
        exec(snippet, names)
    torch.manual_seed(7)
    step = names["step"]
    (step(**inputs) if isinstance(inputs, dict) else step(*inputs)).backward()
    return [parameter.grad for parameter in model.parameters()], sum(known.values()) + max(peaks)


class Attention(torch.nn.Module):
    """Blocks whose backward pass reads views of what is recomputed, such as a transposed product."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(32, 96) for _ in range(4))
        self.out = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))

    def forward(self, x, y):
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).view(8, 64, 3, 2, 16).permute(2, 0, 3, 1, 4)
            mixed = torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
            x = x + torch.nn.functional.gelu(out(mixed.transpose(1, 2).reshape(8, 64, 32)))
        return torch.nn.functional.cross_entropy(x.mean(1), y)


def attention():
    torch.manual_seed(3)
    return Attention(), (torch.randn(8, 64, 32), torch.arange(8))


@pytest.mark.parametrize(("build", "percent"), [(unet, 75), (gpt2, 75), (gpt2, 65), (attention, 60)])
def test_the_partitioner_of_torch_compile_obeys_the_tags(build, percent):
    model, inputs = build()
    graph = graph_of(build)
    plain, before = step(copy.deepcopy(model), inputs)
    found = policy(graph, f"{percent}%", "torch-tags", FAST)
    gradients, peak = compiled_step(found.snippet, model, inputs)
    assert all(torch.equal(a, b) for a, b in zip(plain, gradients, strict=True))
    assert peak < before
    assert peak == pytest.approx(found.solved.report.replay.peak_bytes, abs=256)  # counters of batches are numbers
    assert found.best.plan.claim.cost <= found.solved.plan.claim.cost


@pytest.mark.parametrize("way", ["separate", "named"])
def test_tags_are_for_the_loss_as_it_was_exported(way):
    """A loss of its own, and one inside what the model returns beside other results."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))

        def forward(self, x):
            for part in self.parts:
                x = torch.nn.functional.gelu(part(x)).sin() + x
            return x if way == "separate" else {"loss": squares(x), "logits": x}

    def squares(x):
        return x.square().mean()

    def build():
        torch.manual_seed(3)
        inputs = {"x": torch.randn(256, 64)}
        return (Net(), inputs, squares) if way == "separate" else (Net(), inputs)

    graph = export_model(build, name="net", source="torch:net", cost="flops")
    found = policy(graph, "90%", "torch-tags", FAST)
    model, inputs = build()[:2]
    gradients, peak = compiled_step(found.snippet, model, inputs, squares)
    assert peak == pytest.approx(found.solved.report.replay.peak_bytes, abs=256)
    plain, inputs = build()[:2]
    output = plain(**inputs)
    (squares(output) if way == "separate" else output["loss"]).backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(plain.parameters(), gradients, strict=True))


def test_what_cannot_be_is_refused():
    graph = graph_of(unet)
    with pytest.raises(Infeasible, match="no set of modules, each recomputed as a whole, fits a budget"):
        policy(graph, "55%", "torch-checkpoint", FAST)
    with pytest.raises(UsageError, match='there is no tool "keras"'):
        policy(graph, "80%", "keras", FAST)
    with pytest.raises(UsageError, match="plans for torch-checkpoint are those of module-checkpoint"):
        policy(graph, "80%", "torch-checkpoint", SolveOptions(strategy="dtr"))
    with pytest.raises(StrategyMismatch, match="this one has no GradientCheckpointingLayer"):
        policy(graph, "80%", "hf-every-n", FAST)
    with pytest.raises(StrategyMismatch, match="needs modules in the names of nodes"):
        policy(build_graph("vgg16"), "80%", "torch-checkpoint", FAST)
    flat = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    flat_graph = export_model(lambda: (flat, (torch.zeros(2, 8),)), name="flat", source="torch:flat", cost="flops")
    with pytest.raises(StrategyMismatch, match="finds no module whose recomputation as a whole frees memory") as told:
        policy(flat_graph, "100%", "torch-checkpoint", FAST)
    assert "remat export" not in told.value.hint
    with pytest.raises(StrategyMismatch, match="and this one is not exported from a framework"):
        policy(build_graph("vgg16"), "80%", "torch-tags", FAST)
    with pytest.raises(StrategyMismatch, match=r"jax-names needs a graph of remat export jax:.*this one is of"):
        policy(graph, "80%", "jax-names", FAST)
