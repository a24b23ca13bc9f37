"""The state and the temporary tensors of optimizers, against those that PyTorch allocates."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from remat_cli.errors import UsageError
from remat_cli.frontends.gpus import gpu
from remat_cli.frontends.optimizers import OPTIMIZERS, STEP_BYTES, Parameter, optimizer
from remat_cli.frontends.torch.compat.operators import profiler_events

SHAPES = ((64, 30), (30,), (30, 50), (17,), (8, 3, 5, 5), (1,))
MADE = {
    "adamw": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adam": lambda p: torch.optim.Adam(p, foreach=True),
    "adam-fused": lambda p: torch.optim.Adam(p, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, foreach=True),
    "sgd-momentum": lambda p: torch.optim.SGD(p, momentum=0.9, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, foreach=True),
}


def measured(made) -> tuple[int, int]:
    """Bytes of state without the counters of steps, and the most temporary bytes of a step."""
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    stepper = made(parameters)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    stepper.step()
    tensors = [t for p in parameters for name, t in stepper.state[p].items() if name != "step" and t is not None]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        stepper.step()
    events = [event for event in profiler_events(profiler) if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return sum(t.numel() * t.element_size() for t in tensors), most


@pytest.mark.parametrize("name", MADE)
def test_state_is_to_the_byte_and_temporary_tensors_to_small_scalars_what_pytorch_allocates(name) -> None:
    parameters = [Parameter(shape, 4) for shape in SHAPES]
    state, temporary = measured(MADE[name])
    stated = optimizer(name)
    assert stated.state_bytes(parameters) == state
    # Beyond whole copies of parameters there are scalars for each, and Adafactor's sums of rows: less than 5% here.
    assert abs(stated.workspace_bytes(parameters) - temporary) <= 0.05 * sum(p.size for p in parameters)


def test_eight_bits_are_what_bitsandbytes_allocates() -> None:
    """As version 0.50.2 makes it, but for two tables of 256 numbers that all parameters share."""
    for shape, blocks in (((1000, 300), 1172), ((300, 500), 586), ((64, 3, 7, 7), 37), ((4096,), 16)):
        parameter = Parameter(shape, 2)
        assert optimizer("adamw-8bit").state_bytes([parameter]) == 2 * (parameter.elements + STEP_BYTES * blocks)
    assert optimizer("adamw-8bit").state_bytes([Parameter((4095,), 2)]) == 2 * 4 * 4095


def test_frozen_parameters_have_no_state_and_types_are_updated_in_turn() -> None:
    parameters = [Parameter((100,), 4), Parameter((100,), 2), Parameter((1000,), 4, trained=False)]
    assert OPTIMIZERS["adamw"].state_bytes(parameters) == 2 * (400 + 200)
    assert OPTIMIZERS["adamw"].workspace_bytes(parameters) == 400


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: optimizer("adamv"), 'optimizer "adamv" is not known', 'did you mean "adam"?'),
        (lambda: gpu("h101"), 'no card "h101" is known', 'did you mean "h100"?'),
        (lambda: gpu("mine"), 'no card "mine" is known', "write its memory"),
        (lambda: gpu("24G"), "24G", "24GB"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(call, message, hint) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


def test_cards_are_known_by_several_spellings() -> None:
    assert gpu("A100_40GB") == gpu("a100-40gb")
    assert gpu("nvidia-h100").memory_bytes < 80 * 2**30
    assert gpu("24GB").memory_bytes == 24 * 10**9
