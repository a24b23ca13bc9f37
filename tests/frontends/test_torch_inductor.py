"""Plans inside Inductor: the bits of plain torch.compile, the peak of the plan, and caches that tell plans apart."""

import copy
import gc
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import run_and_get_code
from torch.profiler import ProfilerActivity, profile
from torch_processes import apart

import remat_cli as remat
from remat_cli.frontends.torch.capture.capture import capture
from remat_cli.frontends.torch.capture.construction import build_model
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.compat.inductor import loop_choices
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.inductor import image_layouts
from remat_cli.frontends.torch.inductor.division import _Half
from remat_cli.frontends.torch.inductor.fusion import fusion
from remat_cli.frontends.torch.inductor.image_layouts import LAYOUT
from remat_cli.frontends.torch.inductor.joint import through_inductor
from remat_cli.frontends.torch.inductor.loops import LIMIT, Limit
from remat_cli.frontends.torch.inductor.partitioner import Rules
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Compute, Plan, Scope
from remat_cli.plan.replay import replay

UNLESS = "find_nodes_prefer_channels_last"
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # Inductor's import


class Residual(nn.Module):
    """Layers with residuals, dropout, tied weights and a batch normalisation, whose buffers the step writes."""

    def __init__(self, depth: int = 3, width: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        shared = nn.Linear(width, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) if k else shared for k in range(depth)] + [shared])
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(dropout)

    def forward(self, x):
        for layer in self.layers:
            x = x + self.drop(torch.tanh(layer(self.norm(x))))
        return x.square().mean()


def model_and_batch(rows: int = 256, **sizes):
    torch.manual_seed(0)
    return Residual(**sizes), (torch.randn(rows, sizes.get("width", 32)),)


@pytest.fixture(scope="module")
def graph():
    return export_model(model_and_batch, "residual", "torch:test", compiler="inductor")


@pytest.fixture(autouse=True)
def _fresh():
    """Nothing compiled before is served, so that every test divides; compiled kernels are kept."""
    torch.compiler.reset()
    with (
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(fx_graph_cache=False),
    ):
        yield
    torch.compiler.reset()


def trained(module, call, batch, steps: int = 2):
    """Losses, gradients and buffers of some steps."""
    torch.manual_seed(7)
    found = []
    for _ in range(steps):
        module.zero_grad(set_to_none=True)
        loss = call(*batch)
        loss.backward()
        found.append(loss.detach())
    return [*found, *(p.grad.clone() for p in module.parameters()), *(b.clone() for b in module.buffers())]


def equal(ours, theirs) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def peak_of(step) -> int:
    """Most bytes that PyTorch's profiler sees allocated at a time during ``step``."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        step()
    live = top = 0
    for event in session.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            top = max(top, live)
    return top


def recomputing(graph, budget="75%"):
    plan = remat.solve(graph, budget, remat.SolveOptions(time_limit_s=5)).plan
    counts = [s.node for s in plan.statements if isinstance(s, Compute)]
    assert len(counts) > len(set(counts)), "the plan recomputes nothing, so nothing is tested"
    return plan


def test_nodes_are_groups_of_operations(graph):
    eager = export_model(model_and_batch, "residual", "torch:test")
    assert graph.metadata["compiler"] == "inductor"
    assert "groups" in graph.metadata["costs"]["of"]
    called = {node.op for node in graph.nodes}
    assert {"inductor_seeds", "addmm", "var_mean"} <= called
    assert not {"rsqrt", "inductor_random"} & called  # computed where they are read
    assert no_remat_peak(graph) < no_remat_peak(eager)
    seeds = [node for node in graph.nodes if node.op == "inductor_seeds"]
    assert seeds
    assert not any(node.recompute for node in seeds)


def test_random_numbers_are_stored_once_as_bits(graph):
    masks = [node for node in graph.nodes if node.op == "gt"]
    assert [node.outputs for node in masks] == [(256 * 32,)] * 4


def test_groups_share_no_stored_operation_and_cover_all():
    captured = capture(build_model(model_and_batch, mode := new_fake_mode(), "cpu"), mode, through_inductor)
    found = fusion(captured.joint)
    calls = [node for node in captured.joint.graph.nodes if node.op == "call_function"]
    roots = [node for node in calls if found.maker(node) is node and node not in found.inlined]
    covered = set()
    for root in roots:
        group = found.group(root)
        assert group.root is root
        assert all(member is root or member in found.inlined for member in group.members)
        assert not {found.maker(node) for node in group.reads} & found.inlined
        covered.update(group.members)
    assert found.inlined <= covered


@pytest.fixture(scope="module")
def plain():
    """What plain torch.compile computes."""
    torch.compiler.reset()
    module, batch = model_and_batch()
    call = torch.compile(module, dynamic=False)
    return trained(module, call, batch)


@pytest.mark.parametrize("way", ["options", "backend", "fit"])
def test_a_plan_computes_the_same_bits_within_its_peak(way, graph, plain, tmp_path):
    module, batch = model_and_batch()
    if way == "fit":
        remat.fit(module, batch, "75%", compiler="inductor", cost="flops", cache=str(tmp_path))
        call, [plan] = module, remat.plans_of(module)
    else:
        plan = recomputing(graph)
        if way == "options":
            call = torch.compile(module, options=remat.RematPartitioner(plan).options, dynamic=False)
        else:
            call = torch.compile(module, backend=remat.remat_backend(plan, compiler="inductor"), dynamic=False)
    assert equal(trained(module, call, batch), plain)
    predicted = replay(plan.graph, plan.statements).peak_bytes - plan.graph.fixed_memory
    kept = no_remat_peak(plan.graph) - plan.graph.fixed_memory
    module.zero_grad(set_to_none=True)
    measured = peak_of(lambda: call(*batch).backward())
    assert measured <= 1.05 * predicted < kept


class Skips(nn.Module):
    """Convolutions whose results are read again far later, joined to others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.inner, self.up = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(64, 32, 3, padding=1)
        self.last = nn.Conv2d(48, 8, 3, padding=1)

    def forward(self, x):
        wide = torch.relu(self.first(x))
        deep = torch.relu(self.down(nn.functional.max_pool2d(wide, 2)))
        inner = torch.relu(self.inner(deep))
        up = torch.relu(self.up(torch.cat((deep, inner), 1)))
        return self.last(torch.cat((wide, nn.functional.interpolate(up, scale_factor=2)), 1)).square().mean()


class Experts(nn.Module):
    """Long runs of loops without a call of a library between them."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.ParameterList(torch.randn(4, 32, 64) / 6 for _ in range(3))
        self.out = nn.ParameterList(torch.randn(4, 64, 32) / 8 for _ in range(3))

    def forward(self, x):
        for into, out in zip(self.into, self.out, strict=True):
            hidden = nn.functional.gelu(torch.einsum("bd,edh->ebh", nn.functional.layer_norm(x, (32,)), into))
            share = torch.softmax(x[:, :4], 1).T[:, :, None]
            x = x + (torch.einsum("ebh,ehd->ebd", hidden, out) * share).sum(0)
        return x.square().mean()


class Depthwise(nn.Module):
    """Depthwise convolutions, and gradients that convolutions and sums read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.wide = nn.ModuleList(nn.Conv2d(16, 32, 1) for _ in range(2))
        self.deep = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1, groups=32) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Conv2d(32, 16, 1) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for wide, deep, narrow in zip(self.wide, self.deep, self.narrow, strict=True):
            x = x + narrow(nn.functional.hardswish(deep(nn.functional.hardswish(wide(x)))))
        return x.square().mean()


class Dense(nn.Module):
    """A chain of concatenations, for which Inductor makes no code, between the loops that write their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(24 + 12 * k, track_running_stats=False) for k in range(5))
        self.grow = nn.ModuleList(nn.Conv2d(24 + 12 * k, 12, 3, padding=1) for k in range(5))

    def forward(self, x):
        x = self.first(x)
        for norm, grow in zip(self.norms, self.grow, strict=True):
            x = torch.cat((x, grow(torch.relu(norm(x)))), 1)
        return x.mean((2, 3)).square().sum()


class Weights(nn.Module):
    """Convolutions of small images, whose weights take more than the images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.square().mean()


class Large(nn.Module):
    """Depthwise convolutions with large kernels on small images, and others beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.deep = nn.ModuleList(nn.Conv2d(16, 16, 7, padding=3, groups=16) for _ in range(3))
        self.wide = nn.ModuleList(nn.Conv2d(16, 48, 1) for _ in range(3))
        self.narrow = nn.ModuleList(nn.Conv2d(48, 16, 1) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for deep, wide, narrow in zip(self.deep, self.wide, self.narrow, strict=True):
            x = x + narrow(wide(deep(x)))
        return x.square().mean()


@pytest.fixture
def _one_thread():
    """With several, the sums of loops that are divided otherwise are in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# In the dense network Inductor writes sums of gradients over what they read, which the plan counts beside it.
@pytest.mark.parametrize(
    ("kind", "inputs", "lowest"),
    [
        (Skips, (4, 3, 32, 32), 0.95),
        (Experts, (192, 32), 0.95),
        (Depthwise, (4, 3, 32, 32), 0.95),
        (Dense, (4, 3, 32, 32), 0.9),
        (Weights, (2, 3, 8, 8), 0.95),
        (Large, (2, 3, 16, 16), 0.95),
    ],
)
@pytest.mark.usefixtures("_one_thread")
def test_the_peak_at_the_least_budget_is_that_of_the_plan(kind, inputs, lowest, tmp_path):
    torch.manual_seed(0)
    module, batch = kind(), (torch.randn(inputs),)
    plain = trained(module, torch.compile(module, dynamic=False), batch)
    torch.compiler.reset()
    options = remat.SolveOptions(time_limit_s=5)
    remat.fit(module, batch, "100%", compiler="inductor", cost="flops", cache="", options=options)
    least = remat.solve_smallest(remat.plans_of(module)[0].graph, options).plan
    options = replace(options, start=least)
    remat.fit(module, batch, least.budget_bytes, compiler="inductor", cost="flops", cache="", options=options)
    [plan] = remat.plans_of(module)
    assert all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(trained(module, module, batch), plain, strict=True)
    )
    held = sum(t.numel() * t.element_size() for t in (*module.parameters(), *batch))
    predicted = replay(plan.graph, plan.statements).peak_bytes - held
    module.zero_grad(set_to_none=True)
    measured = peak_of(lambda: module(*batch).backward())
    assert predicted < no_remat_peak(plan.graph) - held
    assert lowest * predicted <= measured <= 1.02 * predicted


@pytest.mark.parametrize(
    ("size", "kernel", "copied", "kept"),
    [(8, 3, (), True), (8, 7, (), False), (64, 7, (), True), (8, 7, (0,), False), (8, 7, (0, 1), True)],
)
def test_channels_last_are_kept_where_depthwise_gradients_take_less(size, kernel, copied, kept):
    shapes = [(2, 16, size, size), (2, 16, size, size), (16, 1, kernel, kernel)]
    graph = torch.fx.Graph()
    read = [graph.placeholder(name) for name in ("gradient", "image", "weight")]
    for k, (node, shape) in enumerate(zip(read, shapes, strict=True)):
        node.meta["val"] = torch.empty(shape)
        node.meta |= {LAYOUT: torch.contiguous_format} if k in copied else {}
    rest = ([16], [1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], 16, [True, True, True])
    graph.output(graph.call_function(torch.ops.aten.convolution_backward.default, (*read, *rest)))
    module = torch.fx.GraphModule({}, graph)
    before = vars(GraphLowering)["decide_layout_opt"]
    with image_layouts.layouts_kept():
        assert not GraphLowering.decide_layout_opt(module, is_inference=False)  # no plan has made it
        module.meta[LIMIT] = Limit(0, {})
        assert GraphLowering.decide_layout_opt(module, is_inference=False) is kept
    assert vars(GraphLowering)["decide_layout_opt"] is before


def test_the_rules_of_plans_end_with_the_last_partitioner():
    """Also for other compilations of the process: what Inductor does without a plan is what it did before."""

    def rules():
        return [
            vars(CppScheduling)["ready_to_flush"],
            vars(GraphLowering)["decide_layout_opt"],
            vars(GraphLowering)[UNLESS],
            loop_choices(),
        ]

    class Holder:
        """Something that is alive or not."""

    gc.collect()  # what other tests have left
    plain, rule = rules(), Rules()
    first, second = Holder(), Holder()
    rule.hold(first)
    held = rules()
    assert not set(map(id, held)) & set(map(id, plain))
    rule.hold(second)
    rule.hold(first)
    assert rules() == held
    del first
    assert rules() == held
    del second
    assert rules() == plain
    third = Holder()
    rule.hold(third)
    assert not set(map(id, rules())) & set(map(id, plain))
    del third
    assert rules() == plain


def test_copies_for_convolutions_are_values_of_the_plan():
    def made():
        torch.manual_seed(0)
        return Weights(), (torch.randn(2, 3, 8, 8),)

    graph = export_model(made, "weights", "torch:test", compiler="inductor")
    copies = [node for node in graph.nodes if node.op == "clone"]
    # The image and the first weight have 3 channels; six weights have 32. Gradients are copied as their weights lie.
    weights = [(32 * 3 * 9 * 4,)] + [(32 * 32 * 9 * 4,)] * 6
    assert sorted(node.outputs for node in copies) == sorted([(2 * 3 * 64 * 4,), *weights, *weights])
    assert all(node.recompute for node in copies)
    module, batch = made()
    assert graph.fixed_memory == sum(t.numel() * t.element_size() for t in (*module.parameters(), *batch))


class Joined(nn.Module):
    """A concatenation of results that are stored before and of others, which a convolution reads."""

    def __init__(self) -> None:
        super().__init__()
        self.side, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.last = nn.Conv2d(24, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels, track_running_stats=False) for channels in (8, 16, 8))

    def forward(self, x):
        side = torch.relu(self.norms[0](self.side(x)))
        deep = torch.relu(self.norms[1](self.deep(nn.functional.max_pool2d(side, 2))))
        joined = torch.cat((nn.functional.interpolate(deep, scale_factor=2.0), side), 1)
        return torch.relu(self.norms[2](self.last(joined))).square().mean()


def test_concatenations_lie_as_convolutions_read_them():
    def made():
        return Joined(), (torch.randn(2, 3, 16, 16),)

    graph = export_model(made, "joined", "torch:test", compiler="inductor")
    again = [k for k, node in enumerate(graph.nodes) if node.phase == "forward" and node.recompute]
    backward = next(k for k, node in enumerate(graph.nodes) if node.phase == "backward")
    everything = [*range(backward), *again, *range(backward, len(graph.nodes))]
    claim = Claim(ClaimStatus.FEASIBLE, math.fsum(graph.nodes[k].cost for k in everything), 0.0, Scope.RESTRICTED)
    plan = Plan(graph, derive(graph, everything), None, claim, "by hand")
    module, batch = made()
    call = torch.compile(module, backend=remat.remat_backend(plan, compiler="inductor"), dynamic=False)
    _, codes = run_and_get_code(lambda: call(*batch).backward())
    assert [code.count("extern_kernels.convolution(") for code in codes] == [3, 3]
    for code in codes:
        assert "empty_strided_cpu((2, 24, 16, 16), (6144, 1, 384, 24), torch.float32)" in code
        assert "empty_strided_cpu((2, 24, 16, 16), (6144, 256, 16, 1), torch.float32)" not in code


@pytest.mark.parametrize(
    ("free", "longer", "apart"),
    [
        ((16, 16, 16), False, []),
        ((16, 15, 16), False, ["early"]),  # 16 bytes more from the first part to the end
        ((16, 16, 15), False, ["early"]),  # the second part needs 8 more then
        ((15, 16, 7), False, ["early", "late"]),
        ((16, 16, 16), True, ["early"]),
    ],
)
def test_concatenations_take_in_their_parts_where_there_is_room_so_early(free, longer, apart):
    class Parts:
        bytes_of = staticmethod(lambda node: node.meta["val"].nbytes)

    half, aten = _Half(Parts()), torch.ops.aten
    x = half.graph.placeholder("x")
    early = half.graph.call_function(aten.relu.default, (x,), name="early")
    between = half.graph.call_function(aten.exp.default, (x,))
    late = half.graph.call_function(aten.sin.default, (between,), name="late")
    joined = half.graph.call_function(aten.cat.default, ([x, early, late],))
    for node, size in ((x, 0), (early, 2), (between, 4), (late, 4), (joined, 6)):
        node.meta["val"] = torch.empty(size)
    half.free = dict(zip((early, between, late), free, strict=True))
    half._keep_apart([early] if longer else [joined])
    assert [part.args[0].name for part in joined.args[0] if str(part.target) == "remat.apart.default"] == apart


@pytest.mark.parametrize("kind", [Weights, Large])
def test_autograd_need_not_copy_gradients_into_the_layout_of_their_weights(kind):
    torch.manual_seed(0)
    module, batch = kind(), (torch.randn(2, 3, 16, 16),)
    remat.fit(module, batch, "100%", compiler="inductor", cost="flops", cache="")
    weights = [p for p in module.parameters() if p.dim() == 4 and p[0, 0].numel() > 1]
    given: list[tuple[int, ...]] = []
    for weight in weights:
        weight.register_hook(lambda gradient: given.append(gradient.stride()))
    module(*batch).backward()
    assert sorted(given) == sorted(weight.stride() for weight in weights)


def test_other_shapes_evaluation_and_autocast_run_too():
    module, batch = model_and_batch(depth=1)
    other = copy.deepcopy(module)
    remat.fit(module, batch, "90%", compiler="inductor", cost="flops", cache="")
    compiled = torch.compile(other, dynamic=False)
    smaller = (batch[0][:100],)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = trained(module, module, smaller, 1), trained(other, compiled, smaller, 1)
    # Inductor rounds to bfloat16 only what it stores, and a plan stores other values.
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
    module.eval()
    other.eval()
    with torch.no_grad():
        assert torch.equal(module(*batch), other(*batch))
    assert len(remat.plans_of(module)) == 2


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return torch.tanh(self.second(x)).square().mean()


@pytest.mark.filterwarnings("default:The .grad attribute of a Tensor that is not a leaf")  # PyTorch's own, when broken
def test_parts_between_graph_breaks_have_plans():
    torch.manual_seed(0)
    module, batch = Broken(), (torch.randn(64, 16),)
    other = copy.deepcopy(module)
    remat.fit(module, batch, "100%", compiler="inductor", cost="flops", cache="")
    assert len(remat.plans_of(module)) == 2
    assert equal(trained(module, module, batch, 1), trained(other, torch.compile(other, dynamic=False), batch, 1))


class Scored(nn.Module):
    """Returns a loss and what it is of, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(32, 32), nn.Dropout(0.1), nn.Linear(32, 256)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x):
        scores = self.head(self.drop(torch.tanh(self.norm(self.first(x)))))
        return scores.logsumexp(1).mean(), scores


def losses_of(module, call, batch, weight: float, steps: int = 3):
    """As ``trained``, for a loop whose loss also reads the scores if ``weight`` is not 0."""

    def loss_of(*inputs):
        loss, scores = call(*inputs)
        return loss + weight * scores.square().mean() if weight else loss

    return trained(module, loss_of, batch, steps)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_results_without_a_gradient_cost_nothing_and_others_are_computed_again(weight):
    torch.manual_seed(0)
    module, batch = Scored(), (torch.randn(256, 32),)
    other = copy.deepcopy(module)
    remat.fit(module, batch, "100%", compiler="inductor", cost="flops", cache="")
    [plan] = remat.plans_of(module)
    [tangents] = [node for node in plan.graph.nodes if node.op == "tangents"]
    assert tangents.outputs == (4,)
    compiled = torch.compile(other, dynamic=False)
    wanted = losses_of(other, compiled, batch, weight)
    if weight:
        with pytest.warns(UserWarning, match="result 1 of the module takes a gradient, which was not assumed"):
            found = losses_of(module, module, batch, weight)
        [other_plan] = remat.plans_of(module)  # in the place of the first one
        assert other_plan is not plan
        torch.testing.assert_close(found, wanted)
    else:
        assert equal(losses_of(module, module, batch, weight), wanted)
        assert len(remat.plans_of(module)) == 1
    module.eval()
    other.eval()
    with torch.no_grad():
        assert all(map(torch.equal, module(*batch), other(*batch)))


def test_caches_tell_plans_apart(graph):
    first, second = recomputing(graph), recomputing(graph, "90%")
    names = {remat.RematPartitioner(plan).uuid() for plan in (first, second, "80%", "85%")}
    assert len(names) == 4
    assert remat.RematPartitioner(first).uuid() == remat.RematPartitioner(first).uuid()


def calls(budget):
    """How often a plan within ``budget`` divides a step."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)), torch.randn(64, 16)
    partitioner = remat.RematPartitioner(budget, cost="flops", cache="")
    called = []
    divide = type(partitioner).__call__
    type(partitioner).__call__ = lambda self, *a, **k: called.append(1) or divide(self, *a, **k)
    settings = {"fx_graph_cache": True, "cpp.vec_isa_ok": True}  # no programs that try out the processor
    with torch._inductor.config.patch(settings), torch._functorch.config.patch(enable_autograd_cache=True):
        torch.compile(module, options=partitioner.options, dynamic=False)(x).sum().backward()
    return len(called)


def test_another_process_is_served_by_the_cache_only_for_the_same_budget(tmp_path):
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    assert [apart(calls, budget, **cache) for budget in ("1MB", "1MB", "2MB")] == [1, 0, 1]


def test_refusals(graph):
    module, batch = model_and_batch()
    with pytest.raises(remat.UsageError, match="measured costs"):
        remat.fit(module, batch, "80%", compiler="inductor", cost="measured")
    with pytest.raises(remat.UsageError, match='"triton" is not a compiler'):
        remat.fit(module, batch, "80%", compiler="triton")
    plan = recomputing(graph)
    call = torch.compile(module, backend=remat.remat_backend(plan), dynamic=False)
    with pytest.raises(Exception, match="no plan was made for"):
        call(*batch)
