"""Process groups, meshes, DTensors and collectives, as ``compat/distributed.py`` says they are."""

from itertools import accumulate

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch_processes import together

from remat_cli.frontends.torch.compat import (
    aot_autograd,
    distributed,
)
from remat_cli.frontends.torch.measure.memory import changes_of


def test_groups_without_processes():
    assert distributed.is_present()
    assert not distributed.has_group()
    with distributed.fake_group(6):
        assert distributed.has_group()
        assert torch.distributed.get_rank() == 0
        mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("rows", "columns"))
        named = distributed.group_dimensions([mesh, None, 3])
        assert {dimension: distributed.group_size(group) for group, dimension in named.items()} == {
            "rows": 3,
            "columns": 2,
        }
        whole = torch.zeros(4, 6)
        tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        assert distributed.group_dimensions([tensor]) == named
        assert distributed.local_tensor(tensor).shape == (2, 3)
        assert distributed.local_tensor(whole) is whole
        assert [distributed.is_divided(one) for one in (tensor, whole)] == [True, False]
        odd = distribute_tensor(torch.zeros(4, 6), mesh, [Shard(0), Replicate()])
        assert [distributed.is_uneven(one) for one in (tensor, odd, whole)] == [True, True, False]  # 4 rows on 3 ranks
        even = distribute_tensor(torch.zeros(6, 6), mesh, [Shard(0), Shard(1)])
        assert not distributed.is_uneven(even)
        assert distributed.has_dtensors([whole, tensor])
        assert not distributed.has_dtensors([whole, mesh])
        assert distributed.is_fake()
        assert distributed.without_meshes([mesh, None, 3, mesh]) == [None, 3]
        groups = distributed.mesh_groups([whole, tensor, mesh])
        assert {group: dimension for dimension, [group] in groups.items()} == named
        assert len(distributed.mesh_groups([init_device_mesh("cpu", (3, 2))])[""]) == 2
        for kind in ("all-gather", "reduce-scatter", "all-reduce"):
            distributed.collective(kind, 1000, groups["rows"][0], torch.device("cpu"))()
    assert not distributed.is_fake()
    assert not distributed.has_group()


def test_meshes_of_groups_that_are_gone():
    """Without ``forget_meshes``, the second mesh would gather in a group of the first, which has another name."""

    def gathered(groups):
        for _ in range(groups):
            torch.distributed.new_group([0])
        mesh = init_device_mesh("cpu", (3, 2))
        distribute_tensor(torch.zeros(6), mesh, [Shard(0), Replicate()]).full_tensor()

    for groups in (0, 3):
        with distributed.fake_group(6):
            gathered(groups)
    distributed.forget_meshes()


def test_collectives_and_what_they_stage():
    for name in distributed.COLLECTIVES:
        namespace, operator, overload = name.split(".")
        assert namespace in distributed.COMMUNICATING
        assert isinstance(getattr(getattr(getattr(torch.ops, namespace), operator), overload), torch._ops.OpOverload)
    gather = "_c10d_functional.all_gather_into_tensor.default"
    assert distributed.in_flight(gather)
    assert not distributed.in_flight(distributed.SHARD_TO_SHARD)
    assert not distributed.in_flight(distributed.WAIT)
    assert not distributed.in_flight("aten.add.Tensor")
    assert distributed.staged_bytes(gather, "cpu", 100) == 100
    assert distributed.staged_bytes(gather, "cuda", 100) == 0
    assert distributed.staged_bytes("_c10d_functional.all_reduce.default", "cpu", 100) == 0


def staged(rank):
    ops, group = torch.ops._c10d_functional, torch.distributed.group.WORLD.group_name
    x = torch.randn(1024, 16)
    calls = {
        "all_gather_into_tensor": lambda: [ops.all_gather_into_tensor(x, 2, group)],
        "all_gather_into_tensor_coalesced": lambda: ops.all_gather_into_tensor_coalesced([x, x], 2, group),
        "reduce_scatter_tensor": lambda: [ops.reduce_scatter_tensor(x, "sum", 2, group)],
        "reduce_scatter_tensor_coalesced": lambda: ops.reduce_scatter_tensor_coalesced([x, x], "sum", 2, group),
        "all_reduce": lambda: [ops.all_reduce(x, "sum", group)],
        "broadcast": lambda: [ops.broadcast(x, 0, group)],
        "all_to_all_single": lambda: [ops.all_to_all_single(x, [512, 512], [512, 512], group)],
    }
    found = {}
    for name, call in calls.items():
        function = lambda: [ops.wait_tensor(tensor) for tensor in call()]  # noqa: B023, E731 - it only runs before the next one is made
        results = function()
        read = x.nbytes * (2 if len(results) == 2 else 1)
        made = sum(tensor.nbytes for tensor in results)
        [changes] = changes_of([function])
        found[name] = max(accumulate(changes, initial=0)) - made, max(read, made)
    return found


def test_gloo_stages_what_the_table_says():
    for found in together(staged):
        for name, (taken, whole) in found.items():
            stated = distributed.staged_bytes(f"_c10d_functional.{name}.default", "cpu", whole)
            assert stated <= taken <= 1.5 * stated, name


def test_parts_of_tensors_in_joint_graphs():
    descriptors = aot_autograd.descriptors()
    given, made = descriptors.PlainAOTInput(idx=3), descriptors.PlainAOTOutput(idx=1)
    inside = descriptors.SubclassGetAttrAOTInput(given, "_local_tensor")
    assert distributed.whole_description(inside) is given
    assert distributed.whole_description(descriptors.SubclassGetAttrAOTOutput(made, "_local_tensor")) is made
    other = descriptors.SubclassGetAttrAOTInput(given, "device_mesh")
    assert distributed.whole_description(other) is other
    assert distributed.whole_description(given) is given
    assert not distributed.is_opaque(torch.zeros(1))
    assert not distributed.is_opaque(None)


def test_modules_whose_hooks_gather():
    with distributed.fake_group(2):
        module = nn.Sequential(nn.Linear(4, 4))
        assert not distributed.is_fully_sharded(module)
        fully_shard(module[0], mesh=init_device_mesh("cpu", (2,)))
        assert distributed.is_fully_sharded(module)
