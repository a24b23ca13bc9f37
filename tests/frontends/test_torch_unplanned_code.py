"""Memory of code that no plan is for: it runs between the planned parts of a module, or beside them."""

import copy
import gc
import warnings
import weakref
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch_plans import FAST, most_bytes

from remat_cli import api
from remat_cli.api import fit, plans_of
from remat_cli.errors import CaptureFailed, Infeasible, UsageError
from remat_cli.frontends.torch.capture.capture import Model, capture
from remat_cli.frontends.torch.capture.lower import lower
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.train.budget_split import Reservation
from remat_cli.frontends.torch.train.part_schedule import Part, saved_by
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.derive import derive

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # PyTorch itself looks at it where what crosses a graph break enters a compiled part.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
WIDTH = 32


class Recurrent(nn.Module):
    """An LSTM, which PyTorch does not compile and whose kernel keeps memory of its own, behind layers that it does."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        x, state = self.layers(x), None
        for k in range(4):
            state = self.cell(x[:, k], state)
        out, _ = self.lstm(x)
        return (out[:, -1] + state[0]).square().mean()


class Between(nn.Module):
    """Code that PyTorch is told not to compile, between two layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.second = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))

    def forward(self, x):
        return self.second(plainly(self.first(x))).square().mean()


class Again(nn.Module):
    """One block that runs several times with a graph break behind it, and a part whose result takes no gradient."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        for _ in range(3):
            x = self.once(x)
        return x.square().mean()

    def once(self, x):
        norm = (self.scale.expand(len(x), 16, WIDTH) * 2).sigmoid()
        torch._dynamo.graph_break()
        x = x + self.block(x / norm.detach())
        torch._dynamo.graph_break()
        return x


class Step(nn.Module):
    """A layer behind which the graph breaks."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        x = self.layer(x)
        torch._dynamo.graph_break()
        return x


class Shapes(nn.Module):
    """A class that runs in more shapes than PyTorch compiles of a function; only the last result is returned."""

    def __init__(self, count=12):
        super().__init__()
        widths = [WIDTH + 8 * k for k in range(count)]
        self.steps = nn.Sequential(*(Step(*pair) for pair in pairwise([*widths, WIDTH])))

    def forward(self, x):
        return self.steps(x)


class Codes(nn.Module):
    """An encoder in parts to which no gradient comes, since only numbers of codes go on, and a decoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList(Step(WIDTH, WIDTH) for _ in range(6))
        self.codes = nn.Embedding(WIDTH, WIDTH)
        self.decoder = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))

    def forward(self, x):
        numbers = self.encoded(x)
        torch._dynamo.graph_break()
        return self.decoder(self.codes(numbers)).square().mean()

    def encoded(self, x):
        for layer in self.encoder:
            x = plainly(layer(x)).tanh()
        return x.argmax(-1)


class Padded(nn.Module):
    """Pads by a number in a tensor, as models of sound do: PyTorch cannot compile that, and runs it as it is."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.last = nn.Sequential(nn.Linear(WIDTH, 128), nn.Tanh(), nn.Linear(128, WIDTH))
        self.register_buffer("length", torch.tensor(20))

    def forward(self, x):
        x = self.first(x)
        sizes = (0, 0, 0, self.length - x.shape[1])
        torch._dynamo.graph_break()
        x = nn.functional.pad(x, sizes)
        torch._dynamo.graph_break()
        return self.last(x).square().mean()


class Written(nn.Module):
    """A part that cannot be planned writes into one of two results of the part before, as losses of speech do."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.second, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))

    def forward(self, x):
        x, y = self.first(x), self.side(x)
        torch._dynamo.graph_break()
        x.index_add_(0, torch.arange(4), self.second(x[4:8].clone()))
        torch._dynamo.graph_break()
        return (self.last(x) + y).square().mean()


class Reversed(torch.autograd.Function):
    """Keeps its result alone, and computes with gradients in its backward pass, as layers that can be reversed."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.block(x), grad)
        return x.grad, None


class Reversible(nn.Module):
    """A block in a function of autograd that PyTorch does not compile, behind layers that it does."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.block = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))

    def forward(self, x):
        return run_reversed(self.first(x), self.block).square().mean()


@torch._dynamo.disable
def run_reversed(x, block):
    return Reversed.apply(x, block)


@torch._dynamo.disable
def plainly(x):
    return x.exp().sin().cos()  # each keeps its result or its argument


def peak_bytes(module, inputs):
    """Most bytes in use in a step, parameters and inputs included."""
    module(*inputs).backward()
    module.zero_grad(set_to_none=True)
    peak = most_bytes(lambda: module(*inputs).backward(), [*module.parameters(), *inputs])
    module.zero_grad(set_to_none=True)
    return peak


def gradients(module, inputs):
    loss = module(*inputs)
    loss.backward()
    found = [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    module.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("kind", [Recurrent, Between])
def test_the_budget_holds_beside_code_without_a_plan(kind):
    torch.manual_seed(0)
    eager, inputs = kind(), (torch.randn(256, 16, WIDTH),)
    planned = copy.deepcopy(eager)
    budget = int(0.9 * peak_bytes(eager, inputs))
    fit(planned, inputs, budget, options=FAST, cost="flops", cache="")
    assert "code that is in no plan keeps" in api.fitted(planned).assumed
    assert api.fitted(planned).extra_cost > 0
    assert all(torch.equal(a, b) for a, b in zip(gradients(planned, inputs), gradients(eager, inputs), strict=True))
    assert peak_bytes(planned, inputs) <= 1.01 * budget


def test_what_pytorch_cannot_compile_in_a_pass_is_no_unknown_part():
    """There is no warning of parts that may come."""
    torch.manual_seed(0)
    eager, inputs = Padded(), (torch.randn(256, 16, WIDTH),)
    planned = copy.deepcopy(eager)
    budget = int(0.9 * peak_bytes(copy.deepcopy(eager), inputs))
    fit(planned, inputs, budget, options=FAST, cost="measured", cache="")
    report = api.fitted(planned)
    assert report.parts == 1  # the first layers; PyTorch gives up the rest of the function
    assert "takes the same way as with this batch" in report.assumed
    assert "code that is in no plan keeps" in report.assumed
    assert all(torch.equal(a, b) for a, b in zip(gradients(planned, inputs), gradients(eager, inputs), strict=True))
    assert peak_bytes(planned, inputs) <= 1.01 * budget


def test_parts_that_run_several_times_are_counted_call_by_call():
    torch.manual_seed(0)
    eager, inputs = Again(), (torch.randn(256, 16, WIDTH),)
    planned = copy.deepcopy(eager)
    fit(planned, inputs, "100%", options=FAST, cost="measured", cache="")
    report = api.fitted(planned)
    assert report.extra_cost == 0
    # What a part is given counts while it runs, even where its backward pass does not read it: here one tensor of 35.
    assert 0.97 * report.keep_all_bytes <= peak_bytes(planned, inputs) <= 1.001 * report.keep_all_bytes
    budget = int(0.75 * report.keep_all_bytes)
    fit(planned, inputs, budget, options=FAST, cost="measured", cache="")
    assert api.fitted(planned).extra_cost > 0
    assert all(torch.equal(a, b) for a, b in zip(gradients(planned, inputs), gradients(eager, inputs), strict=True))
    assert peak_bytes(planned, inputs) <= 1.01 * budget


class Squared(nn.Module):
    """A module with the loss of a loop, for what measures a whole step."""

    def __init__(self, module, loss=None):
        super().__init__()
        self.module, self.loss = module, loss or squared

    def forward(self, x):
        output = self.module(x)
        return self.loss(output)


def squared(output):
    return output.square().mean()


class Cached(nn.Module):
    """Two parts, of which the second reads a result of the first and returns more results than the loss reads."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = torch.dropout(self.first(x), 0.5, self.training)
        torch._dynamo.graph_break()
        cached = self.inner(x.detach().sin()) + self.inner(x.sin())  # neither reads x in its backward pass
        torch._dynamo.graph_break()
        return self.last(cached).tanh(), cached.mean((1, 2))


class Selected(nn.Module):
    """Returns what code makes that is in no plan: a softmax over rows that its data choose."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x):
        rows = self.body(x).flatten(0, 1)
        chosen = rows[(rows[:, 0] > 0).nonzero().flatten()]
        return self.head(chosen).log_softmax(-1).gather(1, torch.zeros(len(chosen), 1, dtype=torch.long)), chosen


def first_squared(output):
    return output[0].square().mean()


@pytest.mark.parametrize("kind", [Cached, Selected])
def test_what_the_parts_of_a_step_need_is_told_within_a_percent(kind):
    """Inputs that are kept for a second run, results of code without a plan, and gradients in their usual order."""
    torch.manual_seed(0)
    module, inputs = kind(), (torch.randn(256, 16, WIDTH),)
    fit(module, inputs, "100%", options=FAST, cost="measured", cache="", loss=first_squared)
    step = Squared(module, first_squared)
    assert peak_bytes(step, inputs) == pytest.approx(api.fitted(module).keep_all_bytes, rel=0.01)


def test_every_shape_of_a_layer_is_a_part_and_only_the_last_result_stays():
    torch.manual_seed(0)
    eager, inputs = Shapes(), (torch.randn(512, WIDTH),)
    needed = peak_bytes(Squared(copy.deepcopy(eager)), inputs)
    planned = copy.deepcopy(eager)
    fit(planned, inputs, needed, options=FAST, cost="measured", cache="", loss=squared, holds=())  # as in this loop
    report = api.fitted(planned)
    assert report.parts == 12
    assert report.keep_all_bytes == pytest.approx(needed, rel=0.01)
    found, wanted = (gradients(Squared(module), inputs) for module in (planned, eager))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert len(planned._compiled_call_impl.plans) == 12
    assert peak_bytes(Squared(planned), inputs) <= 1.01 * needed


def test_a_first_call_holds_no_variables_of_its_callers():
    """Even if plans were refused on the way: the errors have tracebacks, and these the variables of all callers."""
    torch.manual_seed(0)
    module, x = Shapes(), torch.randn(512, WIDTH)
    budget = peak_bytes(Squared(copy.deepcopy(module)), (x,))
    fit(module, None, budget, options=FAST, cost="measured", cache="", loss=torch.sum, holds=())
    results = []

    def loss():
        output = module(x)
        results.append(weakref.ref(output))
        return output.sum()  # keeps nothing of it

    gc.disable()
    try:
        value = loss()
        assert results[0]() is None
    finally:
        gc.enable()
    value.backward()
    assert "no results alive but numbers" in api.fitted(module).assumed


def test_what_no_gradient_comes_to_is_gone_after_its_forward_pass():
    torch.manual_seed(0)
    eager, inputs = Codes(), (torch.randn(256, 16, WIDTH),)
    needed = peak_bytes(copy.deepcopy(eager), inputs)
    planned = copy.deepcopy(eager)
    fit(planned, inputs, needed, options=FAST, cost="measured", cache="")
    report = api.fitted(planned)
    assert "code that is in no plan" not in report.assumed
    assert report.keep_all_bytes <= 1.01 * needed
    assert all(torch.equal(a, b) for a, b in zip(gradients(planned, inputs), gradients(eager, inputs), strict=True))
    assert peak_bytes(planned, inputs) <= 1.01 * needed


def test_what_no_gradient_comes_to_is_there_in_its_forward_pass():
    """An encoder without a gradient that needs more than all that is behind it.

    What it keeps is counted, and not what the code between its parts computes meanwhile: two tensors of 20.
    """
    torch.manual_seed(0)
    module, inputs = Codes(), (torch.randn(256, 16, WIDTH),)
    module.decoder = nn.Linear(WIDTH, 1)
    needed = peak_bytes(copy.deepcopy(module), inputs)
    fit(module, inputs, "100%", options=FAST, cost="measured", cache="")
    assert api.fitted(module).keep_all_bytes == pytest.approx(needed, rel=0.1)


def test_a_part_that_is_planned_again_holds_no_more_than_others_count_on():
    mode = new_fake_mode()
    with mode:
        layers = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8))
        x = torch.randn(16, 8)
    captured = capture(Model(layers, (x,), {}, None), mode)
    graph = lower(captured, lambda node: 1.0, "part")
    statements = derive(graph, range(len(graph.nodes)))
    saved, budget = saved_by(Part(graph), statements).value_bytes, 10 * no_remat_peak(graph)
    assert saved > 0
    enough, less = (Reservation(7, 11).limiting(graph, budget, bytes_) for bytes_ in (saved, saved - 1))
    assert no_remat_peak(enough.added(graph)) == budget
    assert no_remat_peak(less.added(graph)) == budget + 1
    # More room than the budget leaves is not made.
    tight = replace(graph, fixed_memory=budget)
    assert Reservation(7, 11).limiting(tight, budget, saved) == Reservation(7, 11)


def test_what_later_code_writes_into_takes_the_gradient_that_it_took():
    """The part that writes stands between in the graph of autograd, and the result before it takes a gradient too."""
    torch.manual_seed(0)
    eager, inputs = Written(), (torch.randn(256, 16, WIDTH),)
    planned = copy.deepcopy(eager)
    budget = int(0.95 * peak_bytes(copy.deepcopy(eager), inputs))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(planned, inputs, budget, options=FAST, cost="measured", cache="")
        count = len(plans_of(planned))
        found = gradients(planned, inputs)
        assert peak_bytes(planned, inputs) <= 1.01 * budget
    assert any("run without a plan" in str(warning.message) for warning in said)
    assert not any("takes a gradient, which was not assumed" in str(warning.message) for warning in said)
    assert len(plans_of(planned)) == count
    assert all(torch.equal(a, b) for a, b in zip(found, gradients(eager, inputs), strict=True))


def test_the_backward_pass_of_a_function_in_python_is_tried_out():
    torch.manual_seed(0)
    eager, inputs = Reversible(), (torch.randn(256, 16, WIDTH),)
    needed = peak_bytes(copy.deepcopy(eager), inputs)
    planned = copy.deepcopy(eager)
    planned.block[0].weight.grad = kept = torch.ones_like(planned.block[0].weight)
    fit(planned, inputs, "100%", options=FAST, cost="measured", cache="")
    assert planned.block[0].weight.grad is kept
    assert planned.block[0].bias.grad is None
    assert api.fitted(planned).keep_all_bytes == pytest.approx(needed, rel=0.05)
    planned.zero_grad(set_to_none=True)
    assert all(torch.equal(a, b) for a, b in zip(gradients(planned, inputs), gradients(eager, inputs), strict=True))
    with pytest.raises(Infeasible):
        fit(planned, inputs, int(0.7 * needed), options=FAST, cost="measured", cache="")


def test_a_function_in_python_that_does_not_stand_alone_is_told():
    class Fails(Reversed):
        """Its backward pass asks for more than zeros."""

        @staticmethod
        def backward(ctx, grad):
            assert grad.any()
            return Reversed.backward(ctx, grad)

    @torch._dynamo.disable
    def failing(x, block):
        return Fails.apply(x, block)

    class Failing(Reversible):
        def forward(self, x):
            return failing(self.first(x), self.block).square().mean()

    with pytest.warns(UserWarning, match="the backward pass of Fails is code of its own, which could not be tried out"):
        fit(Failing(), (torch.randn(8, 16, WIDTH),), "100%", options=FAST, cost="flops", cache="")


class Untraceable(nn.Module):
    """Adds what does not go together, but only when it is compiled."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.second(h + torch.zeros(3, 5) if torch.compiler.is_compiling() else h).square().mean()


class Differentiated(Untraceable):
    """The second derivative of its output, as in a network that solves an equation."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(self.first, nn.Tanh(), self.second)

    def forward(self, x):
        x = x.requires_grad_()
        u = self.net(torch.cat([x, x], 1)[:, :16])
        once = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        return (u + torch.autograd.grad(once.sum(), x, create_graph=True)[0].sum(1)).square().mean()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Untraceable, r"test_torch_unplanned_code\.py:\d+ in forward: .*broadcast"),
        (Differentiated, "not .* used in the graph"),
    ],
)
def test_what_fails_only_when_it_is_compiled_is_refused_before_training(build, words):
    module, x = build(), torch.randn(256, 16)
    module(x.clone()).backward()
    with pytest.raises(CaptureFailed, match=f"can be planned, since PyTorch does not compile it: .*{words}"):
        fit(module, x, "80%", cache="")
    module(x.clone()).backward()  # it is as it was


def test_a_batch_that_the_module_refuses_is_an_error_with_its_words():
    """Where PyTorch cannot follow without numbers, those of the batch matter; another one trains."""

    class Looked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 1)

        def forward(self, x):
            if float(x[0, 0].detach()) == 0.0:
                raise ValueError("no data")
            return self.second(torch.tanh(self.first(x))).square().mean()

    module = Looked()
    with pytest.raises(UsageError, match="Looked cannot be called with this batch: ValueError: no data"):
        fit(module, torch.zeros(256, 16), "8MB", cache="")
    x = torch.randn(256, 16)
    fit(module, x, "8MB", cache="")
    module(x).backward()
    assert module.first.weight.grad is not None


class InAnExpression(Recurrent):
    """What PyTorch does not compile, where it compiles nothing around it."""

    def forward(self, x):
        return self.cell(self.lstm(self.layers(x))[0][:, -1])[0].square().mean()


def test_a_layer_that_is_not_compiled_is_planned_around_in_a_statement_of_its_own():
    x = torch.randn(16, 4, WIDTH)
    with pytest.raises(CaptureFailed, match="RNN, GRU, or LSTM") as raised:
        fit(InAnExpression(), x, "90%", cache="", options=FAST)
    assert "in a statement of its own outside of loops" in raised.value.hint
    module = Recurrent()
    fit(module, x, "100%", cache="", options=FAST)
    assert plans_of(module)
