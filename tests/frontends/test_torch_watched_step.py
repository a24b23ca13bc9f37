"""A step that assumed too little of its results runs again; eager mode and Inductor share how that is noticed."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import remat_cli as remat
from remat_cli.errors import ExecutionFailed

pytestmark = pytest.mark.usefixtures("fresh_compiler")
COMPILERS = pytest.mark.parametrize("compiler", ["eager", "inductor"])


class Scored(nn.Module):
    """Returns a loss and scores, of which the loss takes a gradient at first; with or without dropout."""

    def __init__(self, dropout):
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(16, 16), nn.Dropout(dropout), nn.Linear(16, 32)
        self.register_buffer("scale", torch.full((32,), 2.0))

    def forward(self, x):
        scores = self.head(self.drop(torch.tanh(self.first(x))).sin() * 2) * self.scale
        return scores.logsumexp(1).mean(), scores


def fitted(compiler, dropout):
    torch.manual_seed(0)
    module, x = Scored(dropout), torch.randn(64, 16)
    other = copy.deepcopy(module)
    remat.fit(module, x, "120%", compiler=compiler, cost="flops", cache="")  # a plan for both results needs more
    return module, other, x


def step(module, x):
    """The gradients of a step that reads both results, and the state of the generator before and after its backward."""
    torch.manual_seed(1)
    loss, scores = module(x)
    before = torch.get_rng_state()
    (loss + scores.square().mean()).backward()
    return [p.grad.clone() for p in module.parameters()], before, torch.get_rng_state()


@COMPILERS
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_second_run_draws_the_same_numbers_and_leaves_the_generator_as_it_was(compiler, dropout):
    module, other, x = fitted(compiler, dropout)
    with pytest.warns(UserWarning, match="result 1 of the module takes a gradient"):
        found, before, after = step(module, x)
    assert torch.equal(before, after)
    if compiler == "eager" or not dropout:  # Inductor draws other numbers than eager mode
        torch.testing.assert_close(found, step(other, x)[0])
    else:
        module.zero_grad(set_to_none=True)
        torch.testing.assert_close(found, step(module, x)[0])  # by a plan that expects both


@COMPILERS
def test_what_is_changed_in_between_is_no_reason_to_guess(compiler):
    """The second run of a step needs the inputs as they were."""
    module, _, x = fitted(compiler, 0.0)
    loss, scores = module(x)
    with torch.no_grad():
        module.head.bias.add_(1)  # no backward pass reads it, so autograd does not mind
    with (
        pytest.warns(UserWarning, match="takes a gradient"),
        pytest.raises(ExecutionFailed, match="cannot be computed again") as caught,
    ):
        (loss + scores.square().mean()).backward()
    assert "returns=" in caught.value.hint


@COMPILERS
def test_a_buffer_that_is_changed_before_the_backward_pass_is_named(compiler):
    module, _, x = fitted(compiler, 0.0)
    loss, _ = module(x)
    module.scale.mul_(2)
    with pytest.raises(ExecutionFailed, match="buffer scale was changed in place between") as caught:
        loss.backward()
    assert "after loss.backward()" in caught.value.hint
    assert isinstance(caught.value.__cause__, RuntimeError)


@COMPILERS
def test_a_call_is_gone_when_its_results_are(compiler):
    """What is kept for a second run is not kept by the step itself."""
    module, _, x = fitted(compiler, 0.3)
    x = x.clone()
    loss = module(x)[0]
    loss.backward()
    seen = weakref.ref(x)
    del loss, x
    gc.collect()
    assert seen() is None
