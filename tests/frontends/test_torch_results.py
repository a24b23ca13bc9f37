"""Modules that return more than their loss: other results cost nothing, and whatever is done with them is eager's."""

import copy
import re
import warnings

import pytest
import torch
from torch import nn
from torch_plans import by_hand, most_bytes, plain

from remat_cli import api
from remat_cli.api import SolveOptions, fit, fitted, plans_of
from remat_cli.errors import Infeasible, UsageError
from remat_cli.frontends.torch.train.fitting import fit_module
from remat_cli.plan.replay import replay

pytestmark = pytest.mark.usefixtures("fresh_compiler")

FAST = SolveOptions(time_limit_s=4)
WIDE = 2000


class Rich(nn.Module):
    """Returns its loss, logits, keys (a view of what the loss depends on too), and a result of its own."""

    def __init__(self, width=16, classes=32):
        super().__init__()
        self.keys = nn.Linear(width, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(0.3))
        self.head = nn.Linear(width, classes)
        self.pooler = nn.Linear(width, width)

    def forward(self, x, y):
        keys = self.keys(x).view(len(x), 4, -1).transpose(0, 1)
        hidden = self.body(keys.transpose(0, 1).reshape(len(x), -1))
        logits = self.head(hidden)
        loss = nn.functional.cross_entropy(logits, y)
        return {"logits": logits, "loss": loss, "keys": keys, "pooled": torch.tanh(self.pooler(hidden))}


USES = {
    "loss": lambda out, y: out["loss"],
    "smoothed": lambda out, y: nn.functional.cross_entropy(out["logits"], y, label_smoothing=0.1),
    "auxiliary": lambda out, y: out["loss"] + out["pooled"].square().mean(),
    "keys": lambda out, y: out["loss"] + out["keys"].square().sum(),
    "all": lambda out, y: out["loss"] + out["keys"].sum() + out["pooled"].sum() + out["logits"].exp().mean(),
}


def batch(rows=32, width=16, classes=32):
    return torch.randn(rows, width), torch.randint(0, classes, (rows,))


def two(build=Rich, **options):
    torch.manual_seed(11)
    module = build(**options)
    return module, copy.deepcopy(module)


def assert_same_step(eager, fitted, owner, inputs, use, seed=5):
    """One step of both: the loss, gradients (None where eager has None) and buffers."""
    seen = []
    for module, parameters in ((eager, eager), (fitted, owner)):
        torch.manual_seed(seed)
        loss = use(module(*inputs), inputs[1])
        loss.backward()
        seen.append((loss, [p.grad for p in parameters.parameters()], list(parameters.buffers())))
    (loss, gradients, buffers), (other, others, theirs) = seen
    assert torch.equal(loss, other)
    assert [g is None for g in gradients] == [g is None for g in others]
    assert all(a is None or torch.equal(a, b) for a, b in zip(gradients, others, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(buffers, theirs, strict=True))


def surprises(seen):
    return [str(w.message) for w in seen if "takes a gradient" in str(w.message)]


def peak_bytes(step, owner, inputs):
    """Most bytes in use in a step, what the module and its inputs take included."""
    owner.zero_grad(set_to_none=True)
    return most_bytes(step, [*owner.parameters(), *owner.buffers(), *inputs])


@pytest.mark.parametrize("use", USES)
def test_whatever_the_loop_does_with_the_results_is_as_in_eager_mode(use):
    eager, planned = two()
    inputs = batch()
    fitted = fit_module(planned, inputs, by_hand, unknown="error")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(3):  # gradients are accumulated
            assert_same_step(eager, fitted, planned, inputs, USES[use], seed=step)
    assert len(surprises(seen)) == (use != "loss"), "said once, and later steps expect it"


def test_a_loop_may_change_what_it_does():
    eager, planned = two()
    inputs = batch()
    fitted = fit_module(planned, inputs, by_hand)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for use in ["loss", "auxiliary", "loss", "smoothed", "keys", "all", "loss"]:
            assert_same_step(eager, fitted, planned, inputs, USES[use])
            eager.zero_grad(set_to_none=True)
            planned.zero_grad(set_to_none=True)
    assert len(surprises(seen)) == 3


def test_other_batches_and_modes_know_it_too():
    eager, planned = two()
    fitted = fit_module(planned, batch(), by_hand)
    with pytest.warns(UserWarning, match="takes a gradient"):
        assert_same_step(eager, fitted, planned, batch(), USES["auxiliary"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in (True, False):
            eager.train(mode)
            planned.train(mode)
            assert_same_step(eager, fitted, planned, batch(20), USES["auxiliary"])


def test_the_user_can_say_which_results_take_a_gradient():
    eager, planned = two()
    inputs = batch()
    fitted = fit_module(planned, inputs, by_hand, returns=["loss", "pooled"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_step(eager, fitted, planned, inputs, USES["auxiliary"])
    assert "of 4 results only loss, pooled take a gradient" in repr(api.fitted(fitted))
    with pytest.raises(UsageError, match='returns="los": there is no such result') as raised:
        fit_module(planned, inputs, by_hand, returns="los")
    assert "logits, loss, keys, pooled" in raised.value.hint


def test_a_tuple_without_a_loss():
    """The first number is the loss; without a number, all results may take gradients, until a step has been seen."""

    class Pair(Rich):
        def forward(self, x, y):
            out = super().forward(x, y)
            return out["logits"], out["pooled"]

    eager, planned = two(Pair)
    inputs = batch()
    fitted = fit_module(planned, inputs, by_hand, unknown="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(2):
            assert_same_step(eager, fitted, planned, inputs, lambda out, y: out[0].exp().mean(), seed)


def test_a_gradient_that_does_not_come_is_zero_for_what_reads_several():
    """Parts of one memory take gradients together, so the undefined one is filled with zeros, as autograd does."""

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x, y):
            first, second = torch.unbind(self.layer(x).tanh().reshape(2, -1, 8).flip(2), 0)
            return first.exp().sum(), second.t() * 2

    eager, planned = two(Parts)
    inputs = batch(8, 8)
    fitted = fit_module(planned, inputs, by_hand)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_step(eager, fitted, planned, inputs, lambda out, y: out[0])
    with pytest.warns(UserWarning, match="takes a gradient"):
        assert_same_step(eager, fitted, planned, inputs, lambda out, y: out[0] + out[1].square().sum())


# Memory


def test_results_that_the_loop_lets_go_cost_nothing():
    """Here logits are the largest tensor: eager lets them go before the backward pass, and so can the plan."""
    eager, planned = two(width=16, classes=WIDE)
    inputs = batch(256, 16, WIDE)
    needs = peak_bytes(lambda: eager(*inputs)["loss"].backward(), eager, inputs)
    with pytest.raises(Infeasible, match="no plan"):
        fit(planned, inputs, needs + 20_000, options=FAST, cache="")
    fitted = fit(planned, inputs, needs + 20_000, holds=(), options=FAST, cache="")
    assert "no results alive but numbers" in repr(api.fitted(fitted))
    for _ in range(2):
        assert peak_bytes(lambda: fitted(*inputs)["loss"].backward(), planned, inputs) <= needs + 20_000


def logits_beside_a_hidden_state(budget, **options):
    """What a step needs at most in three steps of a loop with a loss of its own, and the fitted module."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [part for _ in range(4) for part in (nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128))]
            self.body, self.head = nn.Sequential(*layers), nn.Linear(128, 1000)

        def forward(self, x):
            hidden = self.body(x)
            return self.head(hidden), hidden

    torch.manual_seed(0)
    module, x, y = Two(), torch.randn(256, 128), torch.randint(0, 1000, (256,))

    def criterion(out):
        return nn.functional.cross_entropy(out[0], y) + 1e-3 * out[1].square().mean()

    def step():
        out = module(x)
        loss = criterion(out)
        loss.backward()

    options = {name: criterion if value is ... else value for name, value in options.items()}
    fit(module, x, budget, options=FAST, cache="", **options)
    peaks = []
    for _ in range(3):
        module.zero_grad(set_to_none=True)
        peaks.append(peak_bytes(step, module, [x, y]))
    return max(peaks), module


@pytest.mark.parametrize("options", [{"loss": ...}, {}], ids=["loss=", "usual loss"])
def test_what_an_ordinary_loop_holds_is_within_the_budget(options):
    """``out = model(x); loss = criterion(out)``: results are alive in the backward pass, and the loss counts."""
    with pytest.raises(Infeasible) as refused:
        logits_beside_a_hidden_state("50%", **options)
    [least] = re.findall(r"no budget below .*?\((\d+) bytes\)", refused.value.hint)
    torch.compiler.reset()
    budget = int(least) + 30_000  # the least leaves nothing for statistics
    peak, module = logits_beside_a_hidden_state(budget, **options)
    assert peak <= 1.01 * fitted(module).budget_bytes
    assert fitted(module).plan_bytes <= fitted(module).budget_bytes
    said = "assumes that the loss takes 3.465 MB at most, as cross entropy does" in fitted(module).assumed
    assert said is (not options)  # logits and hidden states, three times


def test_an_assumption_that_does_not_hold_leads_to_another_plan():
    """The first step warns; later ones have a plan that counts what the loop holds, which ``fitted`` tells of."""
    with pytest.warns(UserWarning, match="result 0, 1 of the module is still there .* 1.155 MB more than its plan"):
        _, module = logits_beside_a_hidden_state("100%", holds=(), loss=...)
    [plan] = plans_of(module)
    seen = fitted(module)
    assert seen.plan_bytes == replay(plan.graph, plan.statements).peak_bytes <= seen.budget_bytes
    x = torch.randn(256, 128)
    peak = peak_bytes(lambda: module(x)[0].sum().backward(), module, [x])
    assert peak <= 1.01 * seen.budget_bytes


def test_an_assumption_that_does_not_hold_is_an_error_if_no_other_plan_fits():
    _, planned = two(width=16, classes=WIDE)
    inputs = batch(256, 16, WIDE)
    module = fit(planned, inputs, "100%", holds=(), options=FAST, cache="")
    least = fitted(module).least_bytes + 100_000
    torch.compiler.reset()
    module = fit(planned, inputs, least, holds=(), options=FAST, cache="")

    def step():
        out = module(*inputs)
        out["loss"].backward()

    with pytest.warns(UserWarning, match="still there in the backward pass"):
        step()
    for _ in range(2):
        with pytest.raises(Infeasible, match="needs another plan than those before") as refused:
            step()
    assert 'unknown="warn"' in refused.value.hint
    torch.compiler.reset()
    module = fit(planned, inputs, least, holds=(), options=FAST, cache="", unknown="warn")
    with pytest.warns(UserWarning, match="still there in the backward pass"):
        step()
    with pytest.warns(UserWarning, match="no plan for this graph"):
        step()


def test_results_can_be_named_that_the_loop_holds():
    _, planned = two(width=16, classes=WIDE)
    inputs = batch(256, 16, WIDE)

    def step():
        out = planned(*inputs)
        kept, loss = out["pooled"], out["loss"]
        del out
        loss.backward()
        return kept

    fit(planned, inputs, "100%", holds="pooled", options=FAST, cache="")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert peak_bytes(step, planned, inputs) <= fitted(planned).budget_bytes + 8
    with pytest.raises(UsageError, match='holds="pool": there is no such result'):
        fit(planned, inputs, "100%", holds="pool", options=FAST, cache="")


def test_results_that_the_loop_keeps_are_counted():
    _, planned = two(width=16, classes=WIDE)
    inputs = batch(256, 16, WIDE)

    def step():
        out = module(*inputs)
        out["loss"].backward()
        return out

    module = fit(planned, inputs, "100%", options=FAST, cache="")
    assert peak_bytes(step, planned, inputs) <= fitted(module).budget_bytes + 8


def test_a_result_that_is_no_number_is_not_computed_a_second_time():
    """The loop has it, and the gradient of it comes beside it: both count at a tight budget."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.Tanh())]
    module, x = nn.Sequential(*layers), torch.randn(1024, 32)
    weight = torch.randn(1024, 32)

    def step(fitted):
        out = fitted(x)
        (out * weight).sum().backward()
        return out

    for budget in ("100%", "75%", "55%"):
        torch.compiler.reset()
        fitted = fit(module, x, budget, options=FAST, cache="")
        assert peak_bytes(lambda one=fitted: step(one), module, [x]) <= api.fitted(fitted).budget_bytes * 1.002 + 16


def test_what_eager_mode_needs_is_said():
    eager, planned = two(width=16, classes=WIDE)
    inputs = batch(256, 16, WIDE)

    def step():
        out = eager(*inputs)
        out["loss"].backward()
        return out

    fitted = fit_module(planned, inputs, plain)
    assert api.fitted(fitted).eager_bytes == pytest.approx(peak_bytes(step, eager, inputs), rel=1e-3)
    assert api.fitted(fitted).least_bytes <= api.fitted(fitted).plan_bytes <= api.fitted(fitted).keep_all_bytes
    assert "eager" in repr(api.fitted(fitted))


# One budget


class Parted(nn.Module):
    """Two graphs, the first one larger."""

    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(width, width), nn.Tanh())])
        self.head = nn.Linear(width, width)

    def forward(self, x, y):
        x = self.body(x)
        torch._dynamo.graph_break()
        return self.head(x).square().mean()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # asked for by PyTorch itself
def test_parts_share_the_budget():
    eager, planned = two(Parted)
    inputs = batch(1024, 32)
    whole = peak_bytes(lambda: eager(*inputs).backward(), eager, inputs)
    for budget in ("100%", "85%", "75%"):
        torch.compiler.reset()
        fitted = fit(planned, inputs, budget, options=FAST, cache="", unknown="error")
        assert api.fitted(fitted).parts == 2
        assert api.fitted(fitted).keep_all_bytes <= whole
        for seed in range(2):
            eager.zero_grad(set_to_none=True)
            planned.zero_grad(set_to_none=True)
            assert_same_step(eager, fitted, planned, inputs, lambda out, y: out, seed)
            peak = peak_bytes(lambda one=fitted: one(*inputs).backward(), planned, inputs)
            # A product by a number wraps it in 8 and 4 bytes, which only measured costs count, and backward() holds the
            # 4 bytes of the gradient that it begins with to its end.
            assert peak <= api.fitted(fitted).budget_bytes + 16
    with pytest.raises(Infeasible):
        fit(planned, inputs, api.fitted(fitted).least_bytes - 1, options=FAST, cache="")


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("build", [Rich, Parted])
def test_a_percentage_is_of_the_first_batch(build, capsys):
    """A smaller last batch and evaluation have the bytes of the first batch, and a line tells of each plan."""
    eager, planned = two(build, width=32)
    fitted = fit(planned, batch(512, 32), "85%", options=FAST, cache="")
    assert capsys.readouterr().err.startswith(f"remat: {build.__name__}")
    use = USES["loss"] if build is Rich else lambda out, y: out
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for rows, mode in ((512, True), (24, True), (512, False), (24, False)):
            eager.train(mode)
            planned.train(mode)
            assert_same_step(eager, fitted, planned, batch(rows, 32), use)
    assert not [w for w in seen if "remat" in str(w.message)]
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith(f"remat: {build.__name__}, called with ") for line in lines)


class Detector(nn.Module):
    """Returns several losses by name, and a number that is none, as detectors do."""

    def __init__(self):
        super().__init__()
        self.body, self.classes, self.boxes = nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x, y):
        hidden = torch.tanh(self.body(x))
        losses = {
            "loss_classes": nn.functional.cross_entropy(self.classes(hidden), y),
            "loss_boxes": self.boxes(hidden).square().mean(),
        }
        return {"mean": hidden.mean(), **losses}


def test_all_results_that_are_called_losses_take_a_gradient():
    eager, planned = two(Detector)
    inputs = torch.randn(32, 16), torch.randint(0, 4, (32,))
    fitted = fit_module(planned, inputs, by_hand, unknown="error")
    assert "of 3 results only loss_classes, loss_boxes take a gradient" in api.fitted(fitted).assumed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_step(eager, fitted, planned, inputs, lambda out, y: out["loss_classes"] + out["loss_boxes"])
