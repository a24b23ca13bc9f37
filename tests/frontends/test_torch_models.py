"""Models that nobody had in mind: same bits, the peak that was predicted, or one refusal that says what to do."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_plans import by_hand, plan_of, repeated

import remat_cli
from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.torch.document import TensorSpec
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.framework import Torch
from remat_cli.frontends.torch.measure.operations import new_tensor, seeded
from remat_cli.frontends.torch.train.backend import remat_backend
from remat_cli.frontends.torch.train.fitting import fit_module
from remat_cli.zoo.registry import build_graph

profile, run_plan = Torch().profile, Torch().run

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def of(function, *layers, inputs=None):
    """A model that hands the output of layers to ``function``, with what goes in."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*layers)

        def forward(self, *given):
            return function(self.layers(given[0]), *given[1:])

    return Model(), (torch.randn(5, 6),) if inputs is None else inputs


# What operators return where fake tensors say less


def bags():
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(20, 4)

        def forward(self, words, starts):
            return self.bag(words, starts).square().mean()

    return Bags(), (torch.randint(0, 20, (10,)), torch.tensor([0, 3, 7]))


def mixed():
    """Normalisations with weights in one type and inputs in another."""
    layers = [nn.BatchNorm1d(6), nn.Linear(6, 6), nn.GroupNorm(2, 6), nn.LayerNorm(6), nn.BatchNorm1d(6, affine=False)]

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in layers:
                x = layer(x.bfloat16())
        return x.float().square().mean()

    return of(step, nn.Linear(6, 6), *layers)


def losses():
    target = torch.rand(5, 4)

    def loss(x):
        x, f = x.sigmoid(), functional
        found = (
            f.binary_cross_entropy(x, target),
            f.mse_loss(x, target),
            f.smooth_l1_loss(x, target[:, :1].expand(5, 4)),
        )
        return sum([*found, f.soft_margin_loss(x, target), f.mse_loss(x, target, reduction="none").sum()])

    return of(loss, nn.Linear(6, 4))


def columns():
    def fold(x):
        return functional.fold(functional.unfold(x, 2), (3, 3), 2).square().mean()

    return of(fold, nn.Conv2d(1, 2, 2), inputs=(torch.randn(2, 1, 4, 4),))


def distances():
    """Between so many points that PyTorch multiplies matrices; and noise as diffusers draws it, without a generator."""
    points = torch.randn(30, 4)

    def step(x):
        near = torch.cdist(x, points).amin(1)
        drawn = [torch.randn(30, generator=None), torch.rand(30, generator=None), torch.randperm(30, generator=None)]
        return (near * sum(drawn) + torch.randint(0, 3, (30,), generator=None)).square().mean()

    return of(step, nn.Linear(6, 4), inputs=(torch.randn(30, 6),))


def noise():
    """Random operations that need shares, and one whose parameter is a target of a cross entropy by a view."""

    def step(x, share):
        kept = torch.bernoulli(share)
        chosen = torch.multinomial(x.detach().softmax(1), 2)
        return functional.binary_cross_entropy((x * kept).sigmoid(), share.t().t()) + x.gather(1, chosen).mean()

    return of(step, nn.Linear(6, 4), inputs=(torch.randn(5, 6), torch.rand(5, 4)))


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("build", [bags, mixed, losses, columns, distances, noise])
def test_the_peak_is_that_of_what_operators_really_keep(build):
    graph = export_model(build, name=build.__name__, source="torch:x")
    for computes in (range(len(graph.nodes)), repeated(graph, share=0.2)):
        ran = run_plan(plan_of(graph, computes), steps=1)
        assert ran.identical
        assert ran.memory.measured == ran.memory.predicted_without_workspace
    measured = profile(graph, repeats=1, warmup=0)
    assert [node.outputs for node in measured.nodes] == [node.outputs for node in graph.nodes]


def test_buffers_and_inputs_may_be_expanded():
    def build():
        module, inputs = of(lambda x, y: (x * y * module.scale).sum(), nn.Linear(6, 4), inputs=(torch.randn(5, 6),))
        module.register_buffer("scale", torch.ones(1, 4).expand(5, 4))
        return module, (*inputs, torch.randn(5, 1).expand(5, 4))

    graph = export_model(build, name="expanded", source="torch:x")
    assert [place["bytes"] for place in graph.metadata["places"] if 0 in place["stride"]] == [5 * 4, 4 * 4]
    assert run_plan(plan_of(graph, repeated(graph)), steps=1).identical


def test_random_tensors_take_no_memory_besides_their_own_and_keep_to_limits():
    for dtype in ("float32", "bfloat16", "complex64", "float8_e5m2"):
        tensor = new_tensor(TensorSpec(dtype, (3, 4), (0, 2)), "cpu", seeded("cpu", 1))
        assert (tensor.shape, tensor.stride(), tensor.untyped_storage().nbytes()) == (
            (3, 4),
            (0, 2),
            7 * tensor.dtype.itemsize,
        )
        assert len(set(tensor[0].to(torch.complex64).tolist())) == 4
    shares = new_tensor(TensorSpec("float16", (99,), (1,)), "cpu", seeded("cpu", 1), below=1)
    assert 0 <= shares.min() < 0.2 < 0.8 < shares.max() <= 1


# Modules and results of unusual kinds


@pytest.mark.parametrize("convert", [lambda m: m.double(), lambda m: m.to(memory_format=torch.channels_last)])
def test_modules_are_converted_where_tensors_are_fake(convert):
    def build():
        module = convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)))
        return module, convert(torch.randn(2, 3, 4, 4)), torch.sum

    graph = export_model(build, name="converted", source="torch:x")
    place = next(p for p in graph.metadata["places"] if p["name"] == "0.weight")
    real = build()[0][0].weight
    assert (place["dtype"], tuple(place["stride"])) == (str(real.dtype).removeprefix("torch."), real.stride())
    assert run_plan(plan_of(graph, repeated(graph)), steps=1).identical


def shared(x, _):
    """Results that share memory with one another."""
    mean, deviation = x.chunk(2, 1)
    return mean + deviation.exp() * torch.randn_like(mean), mean, deviation


def bases(x, given):
    """Results that are views of memory that is no result, and of an input."""
    return x.view(2, -1), x.t(), given.view(-1)


@pytest.mark.parametrize("function", [shared, bases])
def test_results_may_share_memory(function):
    inputs = (torch.randn(4, 6), torch.randn(4, 6))

    def loss(results):
        return sum((k + result.sin().mean()) ** 2 for k, result in enumerate(results))

    torch.manual_seed(2)
    eager, _ = of(function, nn.Linear(6, 4), inputs=inputs)
    planned = copy.deepcopy(eager)
    fitted = fit_module(planned, inputs, by_hand, unknown="error")
    for module in (eager, fitted):
        torch.manual_seed(3)
        for _ in range(2):
            loss(module(*inputs)).backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(eager.parameters(), planned.parameters(), strict=True))
    graph = export_model(lambda: of(function, nn.Linear(6, 4), inputs=inputs), name="x", source="torch:x")
    ran = run_plan(plan_of(graph, repeated(graph)), steps=1)
    assert ran.identical
    assert ran.memory.measured == ran.memory.predicted_without_workspace


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_weights_that_are_computed_before_every_pass():
    torch.manual_seed(4)
    eager = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 6)), nn.Tanh(), nn.utils.spectral_norm(nn.Linear(6, 6)))
    torch.manual_seed(4)
    planned = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 6)), nn.Tanh(), nn.utils.spectral_norm(nn.Linear(6, 6)))
    x = torch.randn(4, 6)
    fitted = fit_module(planned, x, by_hand, unknown="error")
    for module in (eager, fitted):
        for _ in range(2):
            module(x).square().mean().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(eager.parameters(), planned.parameters(), strict=True))
    assert all(torch.equal(b, c) for b, c in zip(eager.buffers(), planned.buffers(), strict=True))


# What cannot be done


def sparse():
    return nn.Embedding(9, 4, sparse=True), torch.zeros(3, dtype=torch.long), torch.sum


def renormed():
    return nn.Embedding(9, 4, max_norm=1.0), torch.zeros(3, dtype=torch.long), torch.sum


def checked():
    return of(lambda x: torch.linalg.inv(x @ x.t() + torch.eye(5)).sum(), nn.Linear(6, 4))


def miscompiled():
    target = torch.tensor([[3, 0, -1, 1]] * 5)
    return of(lambda x: functional.multilabel_margin_loss(x, target), nn.Linear(6, 4))


def recurrent():
    return nn.GRU(6, 4), torch.randn(3, 5, 6), lambda out: out[0].sum()


def assigned():
    def step(x, mask):
        x = x.clone()
        x[mask] = x.sum()
        return x.square().mean()

    return of(step, nn.Linear(6, 4), inputs=(torch.randn(5, 6), torch.ones(5, dtype=torch.bool)))


def filled():
    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(x).index_fill(0, torch.tensor([1, 2]), self.bias[0]).sum()

    return Model(6, 4), torch.randn(5, 6)


class Penalized(nn.Linear):
    """A gradient of a gradient: in its backward pass, or already in its forward pass."""

    def __init__(self, twice=False):
        super().__init__(6, 4)
        self.twice = twice

    def forward(self, x):
        x = x.clone().requires_grad_()
        y = super().forward(x).tanh().sum()
        slope = torch.autograd.grad(y, x, create_graph=True)[0]
        if self.twice:
            slope = torch.autograd.grad(slope.square().sum(), x, create_graph=True)[0]
        return slope.square().sum()


REFUSED = [
    (sparse, "makes a sparse tensor", "sparse=True"),
    (renormed, "writes into the parameter weight, of which it also takes the gradient", "max_norm"),
    pytest.param(
        checked,
        "does something besides computing: aten._linalg_check_errors.default(\n|$)",
        "cholesky_ex",
        marks=pytest.mark.skipif(torch.__version__ < "2.13", reason="PyTorch leaves the check out itself"),
    ),
    (miscompiled, "computes multilabel_margin_loss wrongly when it is compiled", "outside"),
    (recurrent, "RNN, GRU, or LSTM", "nn.LSTMCell"),
]


@pytest.mark.parametrize(("build", "words", "hint"), REFUSED)
def test_what_is_refused_says_why_and_what_to_do(build, words, hint):
    module, inputs = build()[:2]
    for action in (
        lambda: export_model(build, name="x", source="torch:x"),
        lambda: fit_module(module, inputs, by_hand),
    ):
        with pytest.raises(CaptureFailed, match=words) as raised:
            action()
        assert hint in raised.value.hint


@pytest.mark.parametrize("twice", [False, True])
def test_fit_refuses_gradients_of_gradients_before_training(twice):
    with pytest.raises(CaptureFailed, match="gradient of a gradient") as raised:
        fit_module(Penalized(twice), torch.randn(5, 6), by_hand)
    assert "uncompiled" in raised.value.hint


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="known of PyTorch 2.13; refused in all versions")
def test_what_is_refused_as_miscompiled_is_miscompiled():
    module, inputs = miscompiled()
    compiled = torch.compile(module, backend="aot_eager", dynamic=False)
    assert not torch.allclose(module(*inputs), compiled(*inputs), rtol=1e-3)


@pytest.mark.parametrize("build", [assigned, filled])
def test_sizes_that_depend_on_numbers_are_refused(build):
    with pytest.raises(CaptureFailed, match=r"the size of what .* makes depends on the numbers in a tensor") as raised:
        export_model(build, name="x", source="torch:x")
    assert "masked_fill" in raised.value.hint


def mismatched():
    return of(torch.sum, nn.Linear(6, 4), inputs=(torch.randn(5, 3),))


def without_target():
    return of(functional.cross_entropy, nn.Linear(6, 4), inputs=(torch.randn(5, 6), None))


@pytest.mark.filterwarnings("ignore:Error detected in")  # PyTorch says where, and fails
def test_an_error_of_the_backward_pass_is_told_as_it_is():
    def build():
        return of(lambda x: x.sigmoid().exp_().mul_(2).sum(), nn.Linear(6, 4))

    with pytest.raises(CaptureFailed, match="modified by an inplace operation") as raised:
        export_model(build, name="x", source="torch:x")
    assert "without remat" in raised.value.hint


@pytest.mark.parametrize(
    ("build", "words"),
    [(mismatched, "a and b must have same reduction dim"), (without_target, "must be Tensor, not NoneType")],
)
def test_errors_of_the_model_itself_are_told_as_they_are_and_where(build, words, capfd):
    with pytest.raises(CaptureFailed, match=rf"captured: test_torch_models\.py:\d+ in \w+: .*{words}") as raised:
        export_model(build, name="x", source="torch:x")
    assert "without remat" in raised.value.hint
    assert capfd.readouterr().err == ""  # PyTorch logs a traceback


def test_a_later_shape_of_what_was_compiled_for_any_shape_is_told_how_to_compile():
    graph = export_model(lambda: (nn.Linear(6, 4), torch.randn(5, 6)), name="x", source="torch:x")
    compiled = torch.compile(nn.Linear(6, 4), backend=remat_backend(by_hand(graph)))
    compiled(torch.randn(5, 6))
    with pytest.raises(
        Exception, match=r"not a tensor of fixed shape: compile with torch\.compile\(\.\.\., dynamic=False\)"
    ):
        compiled(torch.randn(4, 6))


def test_an_lstm_is_refused_when_pytorch_may_capture_it():
    module, inputs = of(lambda out: out[0].sum(), nn.LSTM(6, 4))
    with torch._dynamo.config.patch(allow_rnn=True), pytest.raises(CaptureFailed, match=r"nn\.LSTM on a CPU"):
        fit_module(module, inputs, by_hand)


@pytest.mark.parametrize(
    ("module", "batch", "words", "hint"),
    [
        (torch.tanh, torch.ones(2), "takes a torch.nn.Module", "forward method"),
        (nn.Linear(2, 2), iter([torch.ones(1, 2)]), "a batch is .* but this is list_iterator", "next"),
        (nn.Linear(2, 2), None, "a batch is .* but this is NoneType", "next"),
    ],
)
def test_what_is_no_module_or_no_batch_is_refused(module, batch, words, hint):
    with pytest.raises(UsageError, match=words) as raised:
        fit_module(module, batch, by_hand)
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("module", "batch", "words", "hint"),
    [
        (lambda x: x, torch.ones(2), "takes a torch.nn.Module, but this is function", "forward method"),
        (torch.ones(2), nn.Linear(2, 2), "but this is Tensor", "the module comes first: fit(module, batch, budget)"),
        (nn.Linear, torch.ones(2), "but this is the class Linear", "make one: Linear(...)"),
        (None, torch.ones(2), "but this is NoneType", "fit(module, batch, budget)"),
        (None, None, "but this is NoneType", "fit(module, batch, budget)"),
        (nn.Linear(2, 2).state_dict(), torch.ones(2), "but this is OrderedDict", "load_state_dict"),
        (torch.optim.SGD([torch.ones(2)]), torch.ones(2), "but this is SGD", "parameters"),
        (build_graph("unit-chain{n=5}"), torch.ones(2), "but this is Graph", "solve(graph, budget)"),
        (nn.Linear(2, 2), np.ones((1, 2)), "a batch is .* but this is ndarray", "torch.from_numpy"),
        (nn.Linear(2, 2), iter([]), "a batch is .* but this is list_iterator", "next(iter(loader))"),
    ],
)
def test_fit_refuses_what_is_no_module_or_no_batch_in_a_sentence(module, batch, words, hint):
    with pytest.raises(UsageError, match=words) as raised:
        remat_cli.fit(module, batch, "80%")
    assert hint in raised.value.hint


def test_fit_refuses_names_of_results_that_are_none():
    for wrong in (3.5, ["loss", None], {"loss": 1}, True):
        with pytest.raises(UsageError, match=r"returns is .* expected names or positions"):
            remat_cli.fit(nn.Linear(2, 2), torch.ones(1, 2), "80%", returns=wrong)


def test_a_module_is_no_graph_and_the_hint_says_what_takes_one():
    with pytest.raises(UsageError, match="graph is Linear") as raised:
        remat_cli.solve(nn.Linear(2, 2), "80%")
    assert "fit(module, batch, budget)" in raised.value.hint


def test_modules_that_cannot_be_copied_are_refused():
    module = nn.Linear(2, 2)
    module.log = (line for line in ["a generator"])
    with pytest.raises(CaptureFailed, match="cannot be copied: TypeError") as raised:
        fit_module(module, torch.ones(1, 2), by_hand)
    assert "remat export" in raised.value.hint


def test_a_later_graph_that_cannot_be_planned_is_an_error_or_runs_as_it_is_with_one_warning():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(9, 4)

        def forward(self, x):
            return functional.embedding(x, self.words.weight, sparse=not self.training).sum()

    module, x = Model(), torch.zeros(3, dtype=torch.long)
    fitted = fit_module(module, x, by_hand)
    fitted(x).backward()
    module.zero_grad()
    module.eval()
    with pytest.raises(UsageError, match=r"no plan was made for .*makes a sparse tensor") as refused:
        fitted(x)
    assert refused.value.hint == 'unknown="warn" runs it without one'
    torch.compiler.reset()
    fitted = fit_module(module.train(), x, by_hand, unknown="warn")
    fitted(x).backward()
    module.zero_grad()
    module.eval()
    with pytest.warns(UserWarning, match=r"it runs without one .*makes a sparse tensor"):
        fitted(x).backward()
    fitted(x).backward()  # -W error: it is said once
    assert module.words.weight.grad.is_sparse
    strict = remat_backend(by_hand(export_model(lambda: (nn.Linear(2, 2), torch.ones(1, 2)), name="x", source="")))
    with pytest.raises(Exception, match=r"no plan was made for .*makes a sparse tensor"):
        torch.compile(Model().eval(), backend=strict)(x)


def test_a_plan_for_the_loss_alone_is_none_for_all_results():
    class Model(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return {"loss": out.sum(), "out": out}

    def build():
        return Model(6, 4), torch.randn(5, 6)

    graph = export_model(build, name="loss", source="torch:x")
    module, x = build()
    compiled = torch.compile(module, backend=remat_backend(by_hand(graph)))
    with pytest.raises(
        Exception, match="1 of its results takes a gradient, and 2 of this: compile what returns the same"
    ):
        compiled(x)
    torch._dynamo.reset()
    step = torch.compile(lambda given: module(given)["loss"], backend=remat_backend(by_hand(graph)))
    eager = copy.deepcopy(module)
    step(x).backward()
    eager(x)["loss"].backward()
    assert torch.equal(module.weight.grad, eager.weight.grad)
