"""A fitted module stays the module that it was, in the loops that people write."""

import copy
import inspect
import io
import pickle
import warnings

import pytest
import torch
from test_torch_fitting import Broken, Deep, deep, pair, train
from torch import nn
from torch_plans import FAST, assert_same, by_hand

from remat_cli import fit, unfit
from remat_cli.errors import Infeasible, UsageError
from remat_cli.frontends.torch.execute.forward_backward import forward_backward
from remat_cli.frontends.torch.train import backend as training
from remat_cli.frontends.torch.train import module_call
from remat_cli.frontends.torch.train.fitting import fit_module

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.fixture
def used(monkeypatch):
    """The graphs whose plans are put to use."""
    graphs = []

    def counted(graph, statements, device):
        graphs.append(graph)
        return forward_backward(graph, statements, device)

    monkeypatch.setattr(training, "forward_backward", counted)
    return graphs


def steps(module, x, count=2):
    torch.manual_seed(3)
    losses = []
    for _ in range(count):
        module.zero_grad()
        loss = (module(x) ** 2).mean()
        loss.backward()
        losses.append(loss.detach())
    return losses, {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


# What it is


def test_the_module_is_itself():
    module, plain, inputs, _ = pair(deep)
    names = list(module.state_dict())
    fitted = fit_module(module, inputs, by_hand)
    assert fitted is module
    assert type(fitted) is Deep
    assert list(inspect.signature(fitted.forward).parameters) == ["x"]
    assert list(fitted.state_dict()) == names
    fitted.load_state_dict(plain.state_dict())
    assert repr(fitted) == repr(plain)


def test_without_gradients_it_runs_as_it_is(used):
    module, plain, inputs, _ = pair(deep)
    fit_module(module, inputs, by_hand, unknown="error")
    for length in range(5, 25):
        x = torch.randn(length, 16)
        for one in (module, plain):
            one.eval()
        with torch.no_grad():
            assert torch.equal(module(x), plain(x))
        with torch.inference_mode():
            assert torch.equal(module(x), plain(x))
    assert used == []


def test_copies_are_plain_modules_and_keep_the_weights(used, tmp_path):
    module, _, inputs, _ = pair(deep)
    fit_module(module, inputs, by_hand, unknown="error")
    steps(module, *inputs)
    torch.save(module, tmp_path / "module.pt")
    copies = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(tmp_path / "module.pt", weights_only=False),
    ]
    buffer = io.BytesIO()
    torch.save(nn.ModuleDict({"net": module}), buffer)
    buffer.seek(0)
    copies.append(torch.load(buffer, weights_only=False)["net"])
    wanted, before = module.state_dict(), len(used)
    for one in copies:
        assert all(torch.equal(one.state_dict()[name], value) for name, value in wanted.items())
        one(torch.randn(7, 16))  # a form that was never planned
    assert len(used) == before == 1
    again = fit_module(copies[0], inputs, by_hand, unknown="error")
    again.load_state_dict(wanted)
    reference = copy.deepcopy(copies[1])
    reference.load_state_dict(wanted)
    assert_same(steps(again, *inputs), steps(reference, *inputs))
    assert len(used) == 2


class KeepsAll(Deep):
    """Copies and pickles all that it holds, as ``LightningModule`` does."""

    def __getstate__(self):
        return dict(vars(self))


@pytest.mark.parametrize("batch", [True, False])
def test_modules_that_copy_all_that_they_hold(used, batch):
    module, plain, inputs, _ = pair(lambda: (KeepsAll(), (torch.randn(64, 16),), None))
    fit(module, inputs if batch else None, "100MB", options=FAST, cache="", unknown="error")
    fit(module, inputs if batch else None, "100MB", options=FAST, cache="", unknown="error")
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    assert_same(steps(module, *inputs), steps(plain, *inputs))
    assert len(used) == 1
    for one in copies:
        one(torch.randn(7, 16))
        with pytest.raises(UsageError, match="is not fitted"):
            unfit(one)
    assert len(used) == 1


def test_unfit_gives_the_own_call_back(used):
    module, _, inputs, _ = pair(deep)
    assert unfit(fit_module(module, inputs, by_hand)) is module
    steps(module, *inputs)
    assert used == []
    assert "_compiled_call_impl" not in vars(module)
    with pytest.raises(UsageError, match="this Deep is not fitted"):
        unfit(module)
    with pytest.raises(UsageError, match="this int is not fitted"):
        unfit(3)


def test_fitting_twice_takes_the_new_plans(used):
    module, plain, inputs, _ = pair(deep)
    plans = []
    fit_module(module, inputs, by_hand)
    fit_module(module, inputs, lambda graph: plans.append(by_hand(graph)) or plans[-1], unknown="error")
    assert_same(steps(module, *inputs), steps(plain, *inputs))
    assert len(used) == len(plans) == 1
    assert used[0] is not None


def test_a_fit_that_fails_keeps_the_plans_there_are(used):
    module, plain, inputs, _ = pair(deep)
    fit_module(module, inputs, by_hand, unknown="error")

    def none(graph):
        raise UsageError("no plan today")

    with pytest.raises(UsageError, match="no plan today"):
        fit_module(module, inputs, none)
    assert_same(steps(module, *inputs), steps(plain, *inputs))
    assert len(used) == 1


def compiled_whole():
    return torch.compile(Deep(), backend="eager")


def compiled_in_place():
    module = Deep()
    module.compile(backend="eager")
    return module


def compiled_part():
    module = Deep()
    module.layers[0].compile(backend="eager")
    return module


def fitted_part():
    module = nn.Sequential(nn.Linear(16, 16), Deep())
    fit_module(module[1], torch.randn(64, 16), by_hand)
    return module


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (compiled_whole, "compiled by torch.compile already"),
        (compiled_in_place, "the module is compiled already"),
        (compiled_part, r"its part layers\.0 is compiled already"),
        (fitted_part, "its part 1 is fitted already"),
    ],
)
def test_what_is_compiled_already_is_refused(build, words):
    with pytest.raises(UsageError, match=words) as raised:
        fit_module(build(), torch.randn(64, 16), by_hand)
    assert raised.value.hint


def test_two_fitted_modules_of_a_class_do_not_disturb_each_other(used):
    pairs = [pair(deep) for _ in range(3)]
    for module, _, inputs, _ in pairs:
        fit_module(module, inputs, by_hand, unknown="error")
    for module, plain, inputs, _ in pairs:
        assert_same(steps(module, *inputs), steps(plain, *inputs))
    assert len(used) == len(pairs)


def test_a_compiled_function_around_it_keeps_the_plan(used):
    module, plain, inputs, _ = pair(deep)
    fit_module(module, inputs, by_hand, unknown="error")
    around = torch.compile(module, backend="eager")
    assert_same((steps(around, *inputs)[0], {}), (steps(plain, *inputs)[0], {}))
    assert len(used) == 1


# More forms than are compiled


def test_one_form_too_many_is_said_once_and_known_ones_keep_their_plans(used, monkeypatch):
    monkeypatch.setattr(module_call, "MOST_FORMS", 4)
    module, plain, _, _ = pair(deep)
    fit_module(module, torch.randn(20, 16), by_hand, unknown="warn")
    with warnings.catch_warnings(record=True) as seen, torch._dynamo.config.patch(recompile_limit=2):
        warnings.simplefilter("always")
        for length in [*range(20, 27), 20, 23]:
            x = torch.randn(length, 16)
            assert_same(steps(module, x, 1), steps(plain, x, 1))
    assert len(used) == 4
    [said] = [str(w.message) for w in seen if "remat" in str(w.message)]
    assert "Deep was called in 4 forms" in said
    assert "new ones run without one" in said
    assert [w.filename for w in seen if "remat" in str(w.message)] == [__file__]


def test_one_form_too_many_is_an_error(used, monkeypatch):
    monkeypatch.setattr(module_call, "MOST_FORMS", 1)
    module, _, inputs, _ = pair(deep)
    fit_module(module, inputs, by_hand)
    with torch._dynamo.config.patch(recompile_limit=1):
        steps(module, *inputs)
        with pytest.raises(UsageError, match="Deep was called in more than 1 forms"):
            module(torch.randn(21, 16))
        steps(module, *inputs)
    assert len(used) == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # asked for by PyTorch itself
def test_parts_do_not_count_as_forms(used, monkeypatch):
    monkeypatch.setattr(module_call, "MOST_FORMS", 3)
    torch.manual_seed(11)
    module = Broken()
    plain = copy.deepcopy(module)
    fit_module(module, torch.randn(20, 16), by_hand, unknown="warn")
    warned = pytest.warns(UserWarning, match="Broken was called in 3 forms")
    with warned, torch._dynamo.config.patch(recompile_limit=1):
        for length in range(20, 25):
            x = torch.randn(length, 16)
            assert_same(steps(module, x, 1), steps(plain, x, 1))
    assert len(used) == 6


# Loops


def test_a_moving_average_of_the_weights(used):
    module, plain, inputs, loss = pair(deep)
    fit_module(module, inputs, by_hand, unknown="error")
    averages = [torch.optim.swa_utils.AveragedModel(one, use_buffers=True) for one in (module, plain)]
    for one, average in zip((module, plain), averages, strict=True):
        for _ in range(2):
            train(one, one, inputs, loss, "sgd", steps=1)
            average.update_parameters(one)
        average.eval()
    x = torch.randn(9, 16)
    with torch.no_grad():
        assert torch.equal(averages[0](x), averages[1](x))
    assert len(used) == 1


def test_unfreezing_makes_a_plan(used):
    module, plain, inputs, _ = pair(deep)
    for one in (module, plain):
        one.layers[0].requires_grad_(False)
    fit_module(module, inputs, by_hand)
    assert_same(steps(module, *inputs), steps(plain, *inputs))
    for one in (module, plain):
        one.layers[0].requires_grad_(True)
    assert_same(steps(module, *inputs), steps(plain, *inputs))
    assert len(used) == 2


def test_a_gradient_scaler_with_accumulation_and_clipping(used):
    module, plain, inputs, _ = pair(deep)
    fit_module(module, inputs, by_hand, unknown="error")

    def run(one):
        torch.manual_seed(4)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        norms = []
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                scaler.scale((one(*inputs) ** 2).mean() / 2).backward()
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(one.parameters(), 0.1))
            scaler.step(optimizer)
            scaler.update()
        return norms, one.state_dict()

    assert_same(run(module), run(plain))
    assert len(used) == 1


class Checkpointed(nn.Module):
    """Recomputes its layers by itself, as ``gradient_checkpointing_enable()`` of transformers does."""

    def __init__(self):
        super().__init__()
        self.layers, self.checkpointing = Deep(), False

    def forward(self, x):
        if self.checkpointing and self.training:
            return torch.utils.checkpoint.checkpoint(self.layers, x, use_reentrant=False)
        return self.layers(x)


@pytest.mark.parametrize("before", [True, False])
def test_checkpointing_before_and_after_fit(used, before):
    module, plain, inputs, _ = pair(lambda: (Checkpointed(), (torch.randn(64, 16),), None))
    plain.checkpointing = True
    module.checkpointing = before
    fit_module(module, inputs, by_hand)
    module.checkpointing = True
    assert_same(steps(module, *inputs), steps(plain, *inputs))
    assert len(used) == 1


# The first batch


def test_the_first_call_in_training_may_be_the_batch(used):
    module, plain, inputs, _ = pair(deep)
    assert fit(module, None, "100MB", options=FAST, cache="", unknown="error") is module
    for one in (module, plain):
        one.eval()
    x = torch.randn(3, 16)
    assert torch.equal(module(x), plain(x))
    with torch.no_grad():
        assert torch.equal(*(torch.manual_seed(1) and one.train()(x) for one in (module, plain)))
    assert used == []
    assert_same(steps(module, *inputs), steps(plain, *inputs))
    assert len(used) == 1
    assert unfit(module) is module


def test_the_first_call_says_when_nothing_fits(used):
    module, _, inputs, _ = pair(deep)
    fit(module, None, "1kB", options=FAST, cache="")
    for _ in range(2):
        with pytest.raises(Infeasible, match="no plan fits a budget of 1 kB"):
            module(*inputs)
    unfit(module)
    module(*inputs)
    with pytest.raises(UsageError, match=r"a torch\.nn\.Module, but this is int"):
        fit(3, None, "1kB")


def test_positional_and_keyword_arguments_may_be_mixed_in_the_first_call(used):
    class Two(Deep):
        def forward(self, x, /, scale=1.0, *, shift=None):
            return super().forward(x) * scale + shift

    module, plain, (x,), _ = pair(lambda: (Two(), (torch.randn(64, 16),), None))
    fit(module, None, "100MB", options=FAST, cache="", unknown="error")
    for one in (module, plain):
        torch.manual_seed(2)
        one(x, 2.0, shift=torch.ones(16)).sum().backward()
    pairs = zip(module.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs if b.grad is not None)
    assert len(used) == 1


@pytest.mark.parametrize(
    "register",
    [
        lambda part: part.register_forward_hook(lambda _part, _given, out: 2 * out),
        lambda part: part.register_forward_pre_hook(lambda _part, given: (2 * given[0],)),
        lambda part: part.register_full_backward_hook(lambda _part, into, _out: (2 * into[0],)),
        lambda part: part.register_full_backward_pre_hook(lambda _part, out: (2 * out[0],)),
    ],
    ids=["forward", "forward pre", "backward", "backward pre"],
)
def test_hooks_of_parts_may_come_and_go_between_steps(register):
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    planned, x, hooks = copy.deepcopy(eager), torch.randn(64, 16), []
    fit(planned, x, "1MB", options=FAST, cost="flops", cache="", loss=lambda out: (out**2).mean())
    without = steps(eager, x, 1)
    assert_same(steps(planned, x, 1), without)
    for module in (eager, planned):
        hooks.append(register(module[2]))
    found = steps(planned, x, 1)
    assert_same(found, steps(eager, x, 1))
    assert not torch.equal(found[1]["0.weight"], without[1]["0.weight"])
    for hook in hooks:
        hook.remove()
    assert_same(steps(planned, x, 1), without)
