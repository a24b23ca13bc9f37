"""Units of FSDP2, as ``compat/fully_sharded.py`` says they are."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from remat_cli.frontends.torch.compat import (
    distributed,
    fully_sharded,
)


def units(**options):
    """A module with units, the first parameter of which two ranks cannot share evenly; in a group without processes."""
    mesh = init_device_mesh("cpu", (2,))
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False))
    for child in module:
        fully_shard(child, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh)


def test_units_and_their_parameters():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float64)
    with distributed.fake_group(2):
        module = units(mp_policy=policy)
        assert fully_sharded.is_unit(module[0])
        assert not fully_sharded.is_unit(nn.Linear(2, 2))
        assert [name for name, _ in fully_sharded.units_of(module)] == ["", "0", "1"]
        assert fully_sharded.parameters_of(module) == []
        weight, bias = fully_sharded.parameters_of(module[0])
        assert weight.sharded is module[0].weight
        assert (weight.shape, weight.stride, weight.part, weight.ranks) == ((3, 4), (4, 1), 8, 2)
        assert (weight.gathered, weight.reduced) == (torch.bfloat16, torch.float32)
        assert (weight.gathered_bytes, weight.reduced_elements, bias.reduced_elements) == (32, 16, 4)
        assert fully_sharded.casts(module[0]) == (torch.bfloat16, torch.float64)
        assert fully_sharded.casts(module) == (None, None)
        module.unshard()
    given = fully_sharded.cast({"x": torch.ones(2), "k": torch.ones(2, dtype=torch.int64)}, torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in given.items()} == {"x": torch.bfloat16, "k": torch.int64}
    assert fully_sharded.cast(given, None) is given


def test_units_without_their_hooks():
    with distributed.fake_group(2):
        module = units()
        hooks = dict(module[0]._forward_pre_hooks)
        with pytest.raises(AssertionError):
            copy.deepcopy(module)
        memo = {id(one.sharded): one.sharded for _, unit in fully_sharded.units_of(module)
                for one in fully_sharded.parameters_of(unit)}  # fmt: skip
        with fully_sharded.without_hooks(module):
            plain = copy.deepcopy(module, memo)
        assert [type(one) for one in plain.modules()] == [nn.Sequential, nn.Linear, nn.Linear]
        assert not plain[0]._forward_pre_hooks
        assert not plain[0]._forward_hooks
        assert dict(module[0]._forward_pre_hooks) == hooks
        assert len(fully_sharded.units_of(module)) == 3


def test_modules_that_are_one_unit():
    with distributed.fake_group(2):
        module = nn.Sequential(*[nn.Linear(2, 2) for _ in range(3)])
        options = {"mesh": init_device_mesh("cpu", (2,))}
        fully_shard([module[1], module[2]], **options)
        fully_shard(module[0], **options)
        fully_shard(module, **options)
        assert fully_sharded.joint_units(module) == [["1", "2"]]
        assert [len(fully_sharded.parameters_of(one)) for one in module] == [2, 4, 4]
        with fully_sharded.without_hooks(module):
            assert not any(one._forward_pre_hooks or one._forward_hooks for one in module)
        assert all(one._forward_pre_hooks for one in module)


def test_settings_of_units():
    with distributed.fake_group(2):
        module = units()
        assert [fully_sharded.reshards(one) for one in module] == [True, True]
        assert fully_sharded.keeps_as_root(module)
        module[0].set_reshard_after_forward(False)
        assert [fully_sharded.reshards(one) for one in module] == [False, True]
        assert fully_sharded.unusual(module[0]) == ""
        module.set_modules_to_forward_prefetch([module[0]])
        assert "prefetch" in fully_sharded.unusual(module)
        assert "offload" in fully_sharded.unusual(units(offload_policy=CPUOffloadPolicy(pin_memory=False))[0])
