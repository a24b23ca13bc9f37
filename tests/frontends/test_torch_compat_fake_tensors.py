"""Tensors without data, as ``compat/fake_tensors.py`` says they are."""

import contextlib

import pytest
import torch

from remat_cli.frontends.torch.compat import (
    fake_tensors,
    operators,
)


def test_fake_mode_and_its_sizes():
    with fake_tensors.exact_sizes():
        assert torch._dynamo.config.fake_tensor_cache_enabled is False
    mode = fake_tensors.new_fake_mode()
    assert not mode.cache_enabled
    with mode:
        tensor = torch.ones(1 << 40)
        assert fake_tensors.is_fake(tensor)
        assert fake_tensors.is_fake(tensor + torch.ones(1))
        with fake_tensors.real_tensors():
            assert not fake_tensors.is_fake(torch.ones(3))
    assert not fake_tensors.is_fake(torch.ones(3))
    assert not fake_tensors.is_fake(torch.nn.Parameter(torch.ones(3)))


def test_tensors_without_data():
    module = torch.nn.Linear(2, 3)
    fakes = fake_tensors.without_data([module.weight, module.weight.T, torch.ones(4), 3])
    assert isinstance(fakes[0], torch.nn.Parameter)
    assert fake_tensors.is_fake(fakes[2])
    assert operators.storage_identity(fakes[0]) == operators.storage_identity(fakes[1])
    assert [fake.shape for fake in fakes[:3]] == [(3, 2), (2, 3), (4,)]
    assert fakes[3] == 3
    assert fake_tensors.without_data(fakes)[2] is fakes[2]


def test_an_operator_that_fails_on_fake_tensors_is_logged_unless_it_shall_not_be(monkeypatch):
    said = []
    monkeypatch.setattr(torch._subclasses.fake_tensor.log, "handle", said.append)
    for silent in (True, False):
        quiet = fake_tensors.silent_fakes() if silent else contextlib.nullcontext()
        with quiet, fake_tensors.new_fake_mode(), pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        assert bool(said) is not silent


def test_the_error_of_a_number_without_data_is_known():
    with fake_tensors.silent_fakes(), fake_tensors.new_fake_mode():
        for read in (lambda: torch.ones(1).item(), lambda: torch.ones(3).nonzero(), lambda: 1 / 0):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - the function under test tells them apart
                read()
            assert fake_tensors.needs_numbers(raised.value) is not isinstance(raised.value, ZeroDivisionError)


def test_the_truncated_normal_distribution_reads_no_fake_numbers():
    trunc_normal = torch.nn.init.trunc_normal_
    with fake_tensors.new_fake_mode(), fake_tensors.uninitialized_fakes():
        weight = torch.nn.Parameter(torch.empty(3, 4))
        assert trunc_normal(weight) is weight
    with fake_tensors.uninitialized_fakes():
        assert trunc_normal(torch.full((100,), 9.0), a=-1, b=1).abs().max() <= 1
    with fake_tensors.silent_fakes(), fake_tensors.new_fake_mode(), pytest.raises(Exception) as raised:  # noqa: PT011 - as above
        trunc_normal(torch.empty(3, 4))  # else it is not needed any more
    assert fake_tensors.needs_numbers(raised.value)


def test_modules_of_fake_tensors_can_be_converted():
    mode = fake_tensors.new_fake_mode()
    with mode, fake_tensors.convertible(mode):
        module = torch.nn.Linear(3, 4).to(torch.bfloat16).double()
        assert {p.dtype for p in module.parameters()} == {torch.float64}
        assert all(fake_tensors.is_fake(p) for p in module.parameters())
        assert module(torch.ones(2, 3).double()).shape == (2, 4)
    with mode, pytest.raises(RuntimeError, match="Couldn't swap"):  # else it is not needed any more
        torch.nn.Linear(3, 4).double()
