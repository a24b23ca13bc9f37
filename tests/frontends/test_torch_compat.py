"""What PyTorch does not document, and this frontend needs: all in one folder, and each as its module says."""

import ast
import contextlib
import copy
import functools
import logging
import pickle
import re
import sys
import types
import weakref
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch_processes import together

import remat_cli.frontends.torch
from remat_cli.frontends.torch.compat import (
    aot_autograd,
    autograd,
    distributed,
    dynamo,
    fake_tensors,
    fully_sharded,
    inductor,
    masks,
    operators,
    symbols,
)
from remat_cli.frontends.torch.measure.memory import changes_of

FOLDER = Path(remat_cli.frontends.torch.__file__).parent
PRIVATE = re.compile(
    r"torch(\.\w+)*\._(?!_)|functorch|\._(cdata|schema|boxed_call)\b|kineto|torch\.multiprocessing|flop_count"
)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_only_one_folder_uses_what_is_not_documented(path):
    if path.parent.name == "compat":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    code = [
        ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Import | ast.ImportFrom)
    ]
    assert not [text for text in code if PRIVATE.search(text.replace("from ", "").replace(" import ", "."))]


@pytest.mark.parametrize("path", sorted((FOLDER / "compat").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_every_function_has_a_test_here(path):
    """Named after it, so that a failure says what moved."""
    functions = {
        node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)
    }
    text = Path(__file__).read_text(encoding="utf-8")
    assert functions == {name for name in functions if re.search(rf"\b{path.stem}\.{name}[(,)]", text)}


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
        function = lambda: [ops.wait_tensor(tensor) for tensor in call()]  # noqa: B023, E731
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


def test_meshes_are_opaque_inputs():
    seen = []

    def partition(joint, inputs, **options):
        seen.extend(node.meta["val"] for node in joint.graph.find_nodes(op="placeholder"))
        return aot_autograd.default_split(joint, inputs, **options)

    def backend(graph_module, inputs):
        return aot_autograd.aot(graph_module, inputs, compiler=aot_autograd.as_given, partition=partition)

    with distributed.fake_group(2):
        mesh = init_device_mesh("cpu", (2,))
        weight = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
        torch.compile(lambda w: (w * w).to_local(), backend=backend)(weight)
        torch.compiler.reset()
    assert [distributed.is_opaque(value) for value in seen] == [False, True, False][: len(seen)]


def test_modules_whose_hooks_gather():
    with distributed.fake_group(2):
        module = nn.Sequential(nn.Linear(4, 4))
        assert not distributed.is_fully_sharded(module)
        fully_shard(module[0], mesh=init_device_mesh("cpu", (2,)))
        assert distributed.is_fully_sharded(module)


def test_positions_without_numbers_are_consecutive_where_that_is_said():
    decided = masks.none_by_numbers(lambda tensor: tensor)
    with fake_tensors.new_fake_mode():
        positions = torch.arange(4)
    assert decided(positions) is positions
    with masks.consecutive_positions():
        assert decided(positions) is None
        assert decided(torch.arange(4)).tolist() == [0, 1, 2, 3]
    assert decided(positions) is positions


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
    with fake_tensors.silent_fakes(), fake_tensors.new_fake_mode(), pytest.raises(Exception) as raised:  # noqa: PT011
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


def test_aot_asks_for_the_split_and_tells_what_inputs_and_outputs_are():
    seen = []

    def partition(joint, joint_inputs, *, num_fwd_outputs, **options):
        kinds = aot_autograd.descriptors()
        places = [node.meta["desc"] for node in joint.graph.find_nodes(op="placeholder")]
        [output] = joint.graph.find_nodes(op="output")
        assert isinstance(places[0], kinds.PlainAOTInput)
        assert isinstance(places[-1], kinds.TangentAOTInput)
        assert isinstance(places[-1].output, kinds.PlainAOTOutput)
        assert any(isinstance(found, kinds.InputMutationAOTOutput) for found in output.meta["desc"])
        seen.append(num_fwd_outputs)
        return aot_autograd.default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

    def backend(graph_module, inputs):
        return aot_autograd.aot(graph_module, inputs, compiler=aot_autograd.as_given, partition=partition)

    count, x = torch.zeros(()), torch.ones(3, requires_grad=True)

    def step(given):
        count.add_(1)
        return (given.sin() * given).sum()

    torch.compiler.reset()
    loss = torch.compile(step, backend=backend, dynamic=False)(x)
    loss.backward()
    [forward_outputs] = seen
    assert forward_outputs == 2
    assert torch.allclose(x.grad, x.sin() + x * x.cos())
    assert count == 1
    torch.compiler.reset()


def logging_graphs(logger, messages):
    """The number of graphs of a function that logs in its middle, and the messages."""
    graphs = []

    def step(x):
        y = x.sin()
        logger.warning("the shape is %s", y.shape)
        return y * 2

    def backend(graph_module, inputs):
        graphs.append(dynamo.break_of(graph_module))
        return graph_module.forward

    torch.compiler.reset()
    assert torch.equal(torch.compile(step, backend=backend)(torch.ones(3)), torch.ones(3).sin() * 2)
    torch.compiler.reset()
    return graphs, len(messages)


def test_logging_is_left_out_of_graphs(monkeypatch):
    """And a graph that ends early says why, with the place."""
    logger, messages = logging.Logger("x"), []
    monkeypatch.setattr(logger, "handle", messages.append)
    with torch._dynamo.config.patch(ignore_logging_functions=set()):
        [first, last], said = logging_graphs(logger, messages)
        assert said == 1
        assert last is None
        text, frames = first
        assert text.startswith("logging.Logger method not supported")
        assert "\n" in text
        assert [Path(file).name for file, _, _ in frames] == [Path(__file__).name]
        assert frames[0][2] == "step"
        with dynamo.without_logging():
            assert logging_graphs(logger, messages) == ([None], 1)
        assert torch._dynamo.config.ignore_logging_functions == set()
        end = dynamo.leave_out_logging()
        assert logging_graphs(logger, messages) == ([None], 1)
        left_out = torch._dynamo.config.ignore_logging_functions
        assert logging.Logger.warning in left_out
        assert not {logging.Logger.isEnabledFor, logging.Logger.getEffectiveLevel, logging.Logger.getChild} & left_out
        end()
        assert torch._dynamo.config.ignore_logging_functions == set()


def test_metrics_that_cannot_hold_functions_are_not_told_of():
    """As PyTorch 2.11 does for its log; other errors of its metrics are told."""
    log, told = logging.getLogger("torch._dynamo.metrics_context"), []
    filters = list(log.filters)  # those of modules that other tests have fitted
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.exc_info[0])
    log.addHandler(handler)
    try:
        with dynamo.without_logging():
            for kind in (TypeError, ValueError):
                try:
                    raise kind
                except kind:
                    log.exception("not logged")
    finally:
        log.removeHandler(handler)
    assert told == [ValueError]
    assert log.filters == filters


def packed(positions):
    """As Transformers finds sequences behind another: a mask, or None where numbers can be read and there is one."""
    mask = (torch.diff(positions, dim=-1) != 1).cumsum(-1)
    return None if not torch.compiler.is_compiling() and (mask == 0).all() else mask


def made(tokens):
    return (torch.arange(tokens.shape[1]) + 3).unsqueeze(0).expand(2, -1)


def apart(_):
    return torch.arange(0, 8, 2).unsqueeze(0)


def in_two(tokens):
    return torch.arange(tokens.shape[1]).view(2, -1).to(torch.int64)


@pytest.mark.parametrize(
    ("positions", "masked"),
    [(made, False), (in_two, False), (apart, True), (lambda t: made(t) * 1, True), (lambda t: t + made(t), True)],
    ids=["one", "two", "apart", "other_functions", "of_an_input"],
)
def test_masks_are_those_of_eager_mode_unless_they_depend_on_the_input(positions, masked, monkeypatch):
    library = types.ModuleType("transformers.masking_utils")
    library.find_packed_sequence_indices = packed
    monkeypatch.setitem(sys.modules, library.__name__, library)

    def step(tokens):
        found = library.find_packed_sequence_indices(positions(tokens))
        return tokens if found is None else tokens + 0 * found.sum()

    def operations():
        torch.compiler.reset()
        recorder = torch._dynamo.testing.EagerAndRecordGraphs()
        tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]])
        result = torch.compile(step, backend=recorder, fullgraph=True)(tokens)
        assert torch.equal(result, step(tokens))
        return {getattr(node.target, "__name__", node.target) for node in recorder.graphs[0].graph.nodes}

    assert "cumsum" in operations()
    with masks.with_eager_masks():
        assert ("cumsum" in operations()) is masked
        assert torch.equal(library.find_packed_sequence_indices(torch.tensor([[0, 1, 0]])), torch.tensor([[0, 1]]))
        with masks.with_eager_masks():  # inside of another, as when a fitted model is exported
            pass
        assert library.find_packed_sequence_indices is not packed
    assert library.find_packed_sequence_indices is packed
    end = masks.eager_masks()
    end()
    assert library.find_packed_sequence_indices is packed


def test_without_padding_compiled_code_makes_the_mask_of_eager_mode(monkeypatch):
    """As older versions of Transformers decide, which make another mask whenever code is compiled."""

    def is_tracing(tensor=None):
        return torch.compiler.is_compiling()

    library = types.SimpleNamespace(find_packed_sequence_indices=packed, is_tracing=is_tracing)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", library)

    def step(x, padding=None):
        return x + (1 if library.is_tracing(padding) else 2)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    with masks.with_eager_masks():
        assert int(compiled(torch.tensor(0))) == 2
        assert int(compiled(torch.tensor(0), torch.tensor(1))) == 1
    torch.compiler.reset()
    assert int(compiled(torch.tensor(0))) == 1
    assert library.is_tracing is is_tracing


def test_numbers_in_the_code_are_known():
    def step(tokens):
        return tokens + made(tokens)

    recorder = torch._dynamo.testing.EagerAndRecordGraphs()
    torch.compile(step, backend=recorder)(torch.zeros(2, 4))
    *_, sum_of_both, _ = recorder.graphs[0].graph.nodes
    assert masks.numbers_of(sum_of_both.all_input_nodes[1]).tolist() == [[3, 4, 5, 6]] * 2
    assert masks.numbers_of(sum_of_both) is None
    assert masks.none_by_numbers(packed)(torch.tensor([[0, 1]])) is None
    with torch.compiler.set_stance("default"), masks.not_compiling():
        assert not torch.compiler.is_compiling()


def test_compiled_functions_may_empty_their_list():
    """AOTAutograd hands its own list to what has the mark, and a copy to what has not."""
    marked = aot_autograd.takes_its_arguments(lambda args: [args.pop()])
    given = [3]
    assert marked(given) == [3]
    assert given == []
    assert marked._boxed_call is True
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert torch.equal(aot_autograd.as_given(module, None)([torch.ones(2)]), torch.ones(2))


def test_operators_and_their_schemas():
    operator = torch.ops.aten.add_.Tensor
    assert operators.is_operator(operator)
    assert not operators.is_operator(torch.ops.aten.add_)
    assert not operators.is_operator(torch.add)
    assert operators.schema(operator).name == "aten::add_"
    assert operators.schema(operator).is_mutable
    assert not operators.schema(torch.ops.aten.add.Tensor).is_mutable
    assert [argument.name for argument in operators.schema(operator).arguments] == ["self", "other", "alpha"]
    assert [str(r.type) for r in operators.schema(operator).returns] == ["Tensor"]


def test_storages():
    base = torch.ones(4, 4)
    assert operators.storage_identity(base) == operators.storage_identity(base[1:].t())
    assert operators.storage_identity(base) != operators.storage_identity(base.clone())
    first, second = operators.weak_storage(base), operators.weak_storage(base[1:])
    assert first == second
    assert len({first, second}) == 1
    view = base[2:]
    del base
    assert not first.expired()
    del view
    assert first.expired()


def test_dispatch_modes_see_operators():
    seen = []

    class Mode(operators.dispatch_mode()):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        torch.ones(2) + 1
    assert "aten.add.Tensor" in seen


def test_dropout_of_gpus():
    tensor = torch.ones(1000, requires_grad=True)
    with operators.dropout_of_gpus():
        kept = autograd.kept_by(nn.functional.dropout(tensor, 0.5).grad_fn)
        assert [one.dtype for one in kept] == [torch.bool]
        assert nn.functional.dropout(tensor, 0.5, training=False) is tensor
    kept = autograd.kept_by(nn.functional.dropout(tensor, 0.5).grad_fn)
    assert torch.bool not in {one.dtype for one in kept}


def test_attention_of_gpus():
    """Fused where a GPU has it, for tensors without data, forward and backward; and as ever without dropout."""

    def called(dtype=torch.float32, dropout=0.1, mask=None, heads=4, causal=False):
        query = torch.empty(2, 4, 32, 16, dtype=dtype, requires_grad=True)
        keys = torch.empty(2, heads, 32, 16, dtype=dtype, requires_grad=True)
        seen = set()

        class Watching(operators.dispatch_mode()):
            def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
                seen.add(operator.overloadpacket.__name__)
                return operator(*args, **(kwargs or {}))

        with Watching():
            y = nn.functional.scaled_dot_product_attention(
                query, keys, keys, mask, dropout, causal, enable_gqa=heads != 4
            )
            y.sum().backward()
        assert query.grad.shape == query.shape
        return {
            name.removeprefix("_scaled_dot_product_") for name in seen if name.startswith("_scaled") or name == "bmm"
        }

    def pair(name):
        return {f"{name}_attention", f"{name}_attention_backward"}

    with fake_tensors.new_fake_mode(), operators.attention_of_gpus():
        assert called() == called(causal=True) == pair("efficient")
        assert called(torch.bfloat16) == called(torch.bfloat16, causal=True) == pair("flash")
        assert called(torch.bfloat16, heads=2) == pair("flash")
        assert called(heads=2) == {"bmm"}
        mask = torch.ones(2, 1, 32, 32, dtype=torch.bool)
        assert called(mask=mask) == called(torch.bfloat16, mask=mask) == pair("efficient")
        assert called(mask=mask[..., :1].expand(2, 1, 32, 32)) == {"bmm"}
        assert called(dropout=0.0) == {"flash_attention_for_cpu", "flash_attention_for_cpu_backward"}
    with operators.attention_of_gpus():
        assert "bmm" in called()
    with fake_tensors.new_fake_mode():
        assert "bmm" in called()


def test_operators_are_replaced_for_a_while():
    tensor = torch.ones(2, requires_grad=True)
    with operators._replaced("dropout", lambda tensor, _probability, _train: -tensor):
        assert nn.functional.dropout(tensor, 0.0).tolist() == [-1, -1]
    assert nn.functional.dropout(tensor, 0.0).tolist() == [1, 1]


def test_attention_that_was_traced_for_gpus_has_gradients_later():
    def step(query):
        return nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=0.1).sum()

    query = torch.ones(2, 4, 8, 16, requires_grad=True)
    with operators.attention_of_gpus():
        torch.compile(step, backend="aot_eager")(query)
    torch._dynamo.reset()
    torch.compile(step, backend="aot_eager")(query).backward()  # a kernel without gradients is an error of the tests
    assert query.grad.abs().max() > 0


def test_formulas_of_flops():
    a, b = torch.ones(2, 3), torch.ones(3, 5)
    assert operators.flop_formula(torch.ops.aten.mm.default)(a, b, out_val=a @ b) == 2 * 2 * 3 * 5
    assert operators.flop_formula(torch.ops.aten.relu.default) is None


def test_formulas_of_attention_on_a_cpu():
    aten = torch.ops.aten
    q, k, v = torch.rand(2, 3, 4, 8), torch.rand(2, 3, 6, 8), torch.rand(2, 3, 6, 8)
    y, s = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    forward = operators.flop_formula(aten._scaled_dot_product_flash_attention_for_cpu.default)
    assert forward(q, k, v, out_val=(y, s)) == 2 * (2 * 3) * 4 * 6 * (8 + 8)
    backward = operators.flop_formula(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
    gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(y, q, k, v, y, s, 0.0, False)
    assert backward(y, q, k, v, y, s, 0.0, False, out_val=gradients) == 2 * (2 * 3) * 4 * 6 * 5 * 8


def test_formulas_of_attention_with_shared_heads():
    aten = torch.ops.aten
    q, k = torch.rand(2, 4, 8, 16), torch.rand(2, 2, 8, 16)
    formula = operators.flop_formula(aten._scaled_dot_product_flash_attention.default)
    whole = formula(q, q, q, out_val=(q,))
    assert formula(q, k, k, out_val=(q,)) == whole == 2 * 2 * 4 * 8 * 8 * (16 + 16)
    backward = operators.flop_formula(aten._scaled_dot_product_flash_attention_backward.default)
    assert backward(q, q, k, k, q, out_val=(q, k, k)) == backward(q, q, q, q, q, out_val=(q, q, q))


def test_events_of_the_profiler():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as session:
        torch.ones(1000)
    changes = [event for event in operators.profiler_events(session) if event.name() == "[memory]"]
    assert 4000 in [event.nbytes() for event in changes]
    assert all(event.start_ns() > 0 and event.duration_ns() >= 0 for event in changes)


def test_the_node_behind_results_and_their_views():
    module = torch.nn.Linear(2, 2)

    def step(x):
        out = module(x)
        return out.sum(), out.view(1, 4)[:, :2], out.t()

    compiled = torch.compile(step, backend="aot_eager", dynamic=False)
    number, view, _ = compiled(torch.ones(2, 2))
    node, position, direct = autograd.compiled_node(number)
    assert (position, direct) == (0, True)
    behind, position, direct = autograd.compiled_node(view)
    assert behind is node
    assert (position, direct) == (3, False)  # the memory that it is a view of
    assert autograd.compiled_node(torch.ones(2)) is None
    assert autograd.compiled_node(module.weight.sum()) is None


def test_the_node_of_autograd_that_runs():
    running = []

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            running.append(autograd.running_node())
            return gradient

    result = Own.apply(torch.ones(3, requires_grad=True))
    assert autograd.running_node() is None
    result.sum().backward()
    assert running == [result.grad_fn]


def test_nodes_of_autograd_tell_what_they_keep_and_make():
    weight, x = torch.nn.Parameter(torch.ones(3, 4)), torch.ones(2, 3)
    product = x @ weight
    later = product.exp()
    node, after = product.grad_fn, later.grad_fn
    assert autograd.made_at(node) < autograd.made_at(after)
    assert list(autograd.nodes_behind([None, after])) == [after, node, node.next_functions[1][0]]
    assert [tensor.shape for tensor in autograd.kept_by(node)] == [x.shape]  # the weight is not needed for its gradient
    assert [tensor.data_ptr() for tensor in autograd.kept_by(after)] == [later.data_ptr()]
    assert autograd.gradient_sizes(node) == (2 * 4 * 4, 3 * 4 * 4)
    assert autograd.gradient_bytes(node, 0) == autograd._bytes_of(node._input_metadata[0]) == product.nbytes
    assert autograd.gradient_bytes(node, 1) == 0  # it has one result
    [gradient] = autograd.gradients_for(node)
    assert gradient.shape == product.shape
    assert not gradient.is_contiguous()
    assert node(gradient)[1].shape == weight.shape
    assert [gradient.shape for gradient in autograd.gradients_for(later.sum().grad_fn)] == [()]
    assert autograd.parameter_of(node) is None
    assert autograd.parameter_of(node.next_functions[1][0]) is weight
    product.exp_()
    assert autograd.kept_by(torch.ones(2, requires_grad=True).exp().add_(1).grad_fn) == []


def test_whether_tangents_can_be_freed():
    """As seen from inside a backward function of a compiled graph, after it has emptied its arguments."""
    freed = []

    def compiler(graph, _inputs):
        from functorch.compile import make_boxed_func

        if not any("tangent" in str(node.target) for node in graph.graph.find_nodes(op="placeholder")):
            return make_boxed_func(graph.forward)

        def backward(args):
            reference = operators.weak_storage(args[-1])
            shape = args[-1].shape
            args.clear()
            freed.append(reference.expired())
            return [torch.zeros(shape)]

        return aot_autograd.takes_its_arguments(backward)

    def backend(graph, inputs):
        return aot_autograd.aot(graph, inputs, compiler=compiler, partition=aot_autograd.default_split)

    x = torch.ones(8, requires_grad=True)
    out = torch.compile(lambda y: y.exp(), backend=backend, dynamic=False)(x)
    (out * torch.arange(8.0)).sum().backward()
    assert freed == [autograd.frees_tangents()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_of_dropout_is_two_products(dtype):
    gradient, mask = torch.randn(32, 17, dtype=dtype), torch.rand(32, 17) > 0.15
    kernel = torch.ops.aten.native_dropout_backward(gradient, mask, 1 / 0.85)
    assert torch.equal(aot_autograd.dropout_backward(gradient, mask, 1 / 0.85), kernel)


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear", "bicubic", "nearest", "nearest-exact"])
def test_interpolation_is_one_operator_with_the_bits_of_eager_mode(fresh_compiler, mode):
    sizes = {"linear": 1, "trilinear": 3}.get(mode, 2)
    found = []

    def step(x):
        return torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode).square().sum()

    def compiler(graph, inputs):
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        found.extend(node.target for node in calls if "upsample" in str(node.target))
        return aot_autograd.as_given(graph, inputs)

    def backend(graph_module, inputs):
        return aot_autograd.aot(graph_module, inputs, compiler=compiler, partition=aot_autograd.default_split)

    x = torch.randn(2, 3, *[5] * sizes)
    gradients = []
    for function in (step, torch.compile(step, backend=backend)):
        x = x.detach().requires_grad_()
        function(x).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert len(found) == 2  # forward and backward
    python = torch.ops.aten.upsample_bilinear2d.vec.py_kernels
    before = dict(python)
    with aot_autograd.whole_interpolation():
        assert len(python) < len(before)
    assert python == before


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 0.3, "training": False}, {"p": 0.0, "inplace": True}])
def test_a_dropout_that_drops_nothing_returns_its_input_as_in_eager_mode(fresh_compiler, options):
    found = []

    def step(x):
        y = x * 2
        z = torch.nn.functional.dropout(y, **options)
        z.add_(1)  # both of them
        return (y * torch.nn.functional.dropout(z.sin(), **options)).sum()

    def compiler(graph, inputs):
        found.extend(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default))
        return aot_autograd.as_given(graph, inputs)

    def backend(graph_module, inputs):
        return aot_autograd.aot(graph_module, inputs, compiler=compiler, partition=aot_autograd.default_split)

    x = torch.randn(4, 3)
    gradients = []
    for function in (step, torch.compile(step, backend=backend)):
        x = x.detach().requires_grad_()
        function(x).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert not found


def test_a_dropout_that_drops_something_stays():
    def graph_of(**options):
        graph = torch.fx.symbolic_trace(lambda x: torch.nn.functional.dropout(x, **options))
        aot_autograd.leave_out_idle_dropout(graph)
        return len(graph.graph.find_nodes(op="call_function", target=torch.nn.functional.dropout))

    assert [graph_of(), graph_of(p=0.1), graph_of(p=0.0), graph_of(training=False)] == [1, 1, 0, 0]


def test_the_gradient_of_a_layer_norm_is_that_of_a_contiguous_copy():
    gradient, x = torch.randn(6, 4, 5).permute(1, 2, 0), torch.randn(4, 5, 6)
    weight, bias = torch.randn(6), torch.randn(6)
    _, mean, deviation = torch.ops.aten.native_layer_norm(x, [6], weight, bias, 1e-5)
    rest = ([6], mean, deviation, weight, bias, [True, True, True])
    kernel = torch.ops.aten.native_layer_norm_backward(gradient, x, *rest)
    ours = aot_autograd.layer_norm_backward(gradient, x, *rest)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(ours, kernel, strict=True))
    assert kernel[0].is_contiguous()
    assert aot_autograd.layer_norm_backward(gradient.contiguous(), x, *rest) is NotImplemented
    assert aot_autograd.layer_norm_backward(gradient, x.permute(1, 0, 2), *rest) is NotImplemented


def test_the_words_for_a_tensor_that_was_changed_in_place():
    x = torch.ones(2, requires_grad=True)
    kept = x * 2
    out = (kept * kept).sum()
    with torch.no_grad():
        kept.add_(1)
    with pytest.raises(RuntimeError) as raised:
        out.backward()
    assert autograd.was_changed_in_place(raised.value)
    assert not autograd.was_changed_in_place(RuntimeError("another"))


def test_a_module_may_have_another_call():
    module = torch.nn.Linear(2, 2)
    assert dynamo.call_of(module) is None
    dynamo.set_call(module, lambda x, bias=0: (dynamo.plain_call(module)(x), bias))
    x = torch.ones(1, 2)
    out, bias = module(x, bias=3)
    assert torch.equal(out, torch.nn.functional.linear(x, module.weight, module.bias))
    assert bias == 3
    assert dynamo.call_of(copy.deepcopy(module)) is None
    assert dynamo.call_of(pickle.loads(pickle.dumps(module))) is None
    dynamo.set_call(module, None)
    assert dynamo.call_of(module) is None
    assert torch.equal(module(x), out)
    module.compile(backend="eager")
    assert dynamo.call_of(module) is not None
    assert not dynamo.is_compiled(module)
    assert dynamo.is_compiled(torch.compile(module, backend="eager"))


def _twice(x):
    return 2 * x


def test_compilations_are_counted_by_code_object(fresh_compiler):
    """One that has a code object of its own may still be compiled when the other may not."""
    seen = []

    def backend(graph_module, inputs):
        seen.append(inputs)
        return graph_module.forward

    assert dynamo.recompile_limit() == 8
    one, other = (
        torch.compile(dynamo.own_code(_twice), backend=backend, dynamic=False, fullgraph=True) for _ in range(2)
    )
    for length in range(1, 9):
        one(torch.ones(length))
    with pytest.raises(Exception, match="fullgraph=True"):
        one(torch.ones(9))
    assert len(seen) == 8
    other(torch.ones(1))
    with dynamo.undistributed(12):
        assert dynamo.recompile_limit() == 12
        assert torch._dynamo.config.optimize_ddp is False
        for length in range(2, 13):
            other(torch.ones(length))
    assert len(seen) == 8 + 12


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_inductor_divides_a_joint_graph_and_stores_what_is_marked(fresh_compiler):
    """One compilation shows the partitioner, the mark, the choices of loops and the buffers."""
    seen = {}

    class Divide(inductor.partitioner_base()):
        def __call__(self, joint, joint_inputs, **options):
            forward, backward = aot_autograd.min_cut(joint, joint_inputs, **options)
            sums = [node for node in forward.graph.nodes if "add" in str(node.target)]
            with forward.graph.inserting_after(sums[0]):
                made = inductor.stored(forward.graph, sums[0])
            sums[0].replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
            forward.meta["mine"] = 1
            forward.recompile()
            return forward, backward

        def uuid(self):
            return "test"

        def __reduce__(self):
            return str, ("test",)

    kind = type(inductor.loop_choices())

    class Choices(kind):
        @staticmethod
        def can_fuse(scheduler, node1, node2, shared_data_score):
            if inductor.compiled_meta().get("mine"):
                found = inductor.buffer_sizes(scheduler)
                reads = {found.real(name) for node in scheduler.nodes for name in found.read_by(node)}
                seen.update(sizes=found.sizes, reads=reads, results=found.results)
            return kind.can_fuse(scheduler, node1, node2, shared_data_score)

        def uuid(self):
            return "test"

    def backend(graph_module, inputs):
        return inductor.inductor(graph_module, inputs, partitioner=Divide(), settings={"force_disable_caches": True})

    before = inductor.loop_choices()
    with inductor.choosing_loops(Choices()):
        x = torch.ones(64, 64, requires_grad=True)
        made = torch.compile(lambda x: ((x + 1).exp() * 2).sum(0), backend=backend, dynamic=False)(x)
    assert inductor.loop_choices() is before
    torch.testing.assert_close(made, ((x + 1).exp() * 2).sum(0))
    stored = {name for name, size in seen["sizes"].items() if size == (64 * 64 * 4, 64 * 64 * 4)}
    assert stored & seen["reads"]  # the sum that is marked; else all would be one loop
    assert set(seen["results"]) - stored
    assert aot_autograd.saved_description(3).expr() == "__saved_for_backwards_3"


def test_dimensions_that_vary_are_symbols_with_conditions():
    seen = {}

    def backend(module, inputs):
        def partition(joint, joint_inputs, *, num_fwd_outputs, **options):
            seen["joint"] = joint
            return aot_autograd.default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

        return aot_autograd.aot(module, inputs, compiler=aot_autograd.as_given, partition=partition)

    x = torch.ones(5, 7, requires_grad=True)
    symbols.let_vary(x, 0)
    torch.compile(lambda x: (x * (1 if x.shape[0] > 3 else 2)).sum(), backend=backend, fullgraph=True)(x)
    numbers, guards, limits = symbols.conditions(seen["joint"])
    [(symbol, number)] = [(symbol, number) for symbol, number in numbers.items() if number == 5]
    assert number == 5
    assert limits[symbol][0] >= 2 or any(guard.subs({symbol: 3}) == False for guard in guards)  # noqa: E712  # sympy's
    assert all(guard.subs({symbol: 9}) == True for guard in guards)  # noqa: E712
    sizes = {
        symbols.expression(t.meta["val"].numel())
        for t in seen["joint"].graph.nodes
        if hasattr(t.meta.get("val"), "numel")
    }
    assert 7 * symbol in sizes
    assert symbols.expression(3) == 3


def test_inputs_without_their_sizes_have_other_places():
    known = aot_autograd.descriptors()
    given = known.PlainAOTInput(4)
    assert aot_autograd.renumbered(given, {4: 2}) == known.PlainAOTInput(2)
    written = aot_autograd.renumbered(known.InputMutationAOTOutput(given), {4: 2})
    assert written == known.InputMutationAOTOutput(known.PlainAOTInput(2))
    result = known.PlainAOTOutput(4)
    assert aot_autograd.renumbered(result, {4: 2}) is result


def test_marks_return_their_argument_and_say_what_inductor_makes_of_it():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta = {"val": 1}
    stored, inlined, apart = inductor.stored(graph, x), inductor.inlined(graph, x), inductor.apart(graph, x)
    assert [node.args for node in (stored, inlined, apart)] == [(x,), (x,), (x,)]
    assert stored.meta == inlined.meta == apart.meta == x.meta
    assert apart.target is inductor._mark("apart", inductor._lower_apart) is torch.ops.remat.apart.default
    assert stored.target is inductor._mark("stored", inductor._lower_stored) is torch.ops.remat.stored.default
    assert inlined.target is inductor._mark("inlined", inductor._lower_inlined) is torch.ops.remat.inlined.default
    assert inductor._marked(graph, x, stored.target).target is stored.target
    value = torch.ones(2)
    assert stored.target(value) is value
    assert inlined.target(value) is value


def test_results_that_are_stored_or_inlined():
    class Tensor:
        realized = 0

        def realize(self):
            self.realized += 1

    tensor = Tensor()
    assert inductor._lower_stored(tensor) is tensor
    assert tensor.realized == 1
    tensor.data = None  # what something else has stored is no pointwise result
    assert inductor._lower_inlined(tensor) is tensor
    assert inductor._inlined_box() is inductor._inlined_box()
    assert inductor._inlined_box()(None).should_realize_on_reuse(100) is False
    assert inductor._lower_apart(tensor) is tensor
    assert tensor.realized == 2


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_functions_of_loops_end_where_they_are_told_to(fresh_compiler):
    kinds = []

    def ends(scheduler):
        kinds.append(inductor.is_loop(scheduler.current_node))
        return ending

    def calls():
        torch._dynamo.reset()
        function = torch.compile(lambda x: (x.sum(0), x.sum(1)), dynamic=False)
        uncached = torch._functorch.config.patch(enable_autograd_cache=False)
        with uncached, torch._inductor.config.patch(fx_graph_cache=False):
            _, [code] = run_and_get_code(function, torch.ones(64, 32))
        return code.count("    cpp_fused_") + code.count("    cpp_ker")

    full = CppScheduling.ready_to_flush
    with inductor.ending_calls_where(ends):
        ending = False
        together = calls()
        assert kinds
        assert all(kinds)
        seen = len(kinds)
        ending = True
        assert calls() == together + 1 == 2
        assert len(kinds) == 2 * seen == 4
    assert CppScheduling.ready_to_flush is full


def test_a_rule_that_others_have_replaced_since_is_theirs():
    owner = type("Owner", (), {"rule": 1})
    with inductor._replaced(owner, "rule", 2):
        assert owner.rule == 2
    assert owner.rule == 1
    with inductor._replaced(owner, "rule", 2):
        owner.rule = 3
    assert owner.rule == 3


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_concatenations_whose_parts_are_made_in_place_make_no_code():
    from torch._inductor import scheduler

    made = {
        kind: inductor.makes_code(object.__new__(kind))
        for kind in (scheduler.NopKernelSchedulerNode, scheduler.SchedulerNode)
    }
    assert list(made.values()) == [False, True]


def test_the_last_call_of_an_operator():
    x = torch.ones(2, 2)
    operator, args = operators.last_call(lambda: torch.add(x.exp(), 1))
    assert operator is torch.ops.aten.add.Tensor
    assert torch.equal(args[0], x.exp())
    assert args[1] == 1
    kept = weakref.ref(args[0])
    del operator, args
    assert kept() is None  # before any garbage is collected


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_images_with_channels_last_where_asked_for(wanted):
    from torch._inductor.graph import GraphLowering

    before = GraphLowering.decide_layout_opt
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    asked = []

    def wants(given):
        asked.append(given)
        return wanted

    with inductor.channels_last_where(wants):
        assert GraphLowering.decide_layout_opt(module, is_inference=False) is wanted
    assert asked == [module]
    assert GraphLowering.decide_layout_opt is before


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_results_that_are_not_copied_into_channels_last():
    from torch._inductor.graph import GraphLowering

    name = "find_nodes_prefer_channels_last"
    before = getattr(GraphLowering, name)
    lowering = types.SimpleNamespace(module=torch.fx.Graph())
    image, weight = lowering.module.placeholder("image"), lowering.module.placeholder("weight")
    rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    made = lowering.module.call_function(torch.ops.aten.convolution.default, (image, weight, *rest))
    lowering.module.output(made)
    lowering.module = torch.fx.GraphModule({}, lowering.module)
    assert {image, weight, made} <= getattr(GraphLowering, name)(lowering)
    asked = []

    def keeps(module, node):
        asked.append(module)
        return node is weight

    with inductor.channels_last_unless(keeps):
        found = getattr(GraphLowering, name)(lowering)
    assert getattr(GraphLowering, name) is before
    assert {image, made} <= found
    assert weight not in found
    assert set(asked) == {lowering.module}
    assert len(asked) == len(found) + 1  # asked once for each


def _code(function, change, x):
    """What ``function`` returns for ``x``, and Inductor's code for its forward graph after ``change``."""

    class Divide(inductor.partitioner_base()):
        def __call__(self, joint, joint_inputs, **options):
            forward, backward = aot_autograd.min_cut(joint, joint_inputs, **options)
            [sines] = [node for node in forward.graph.nodes if "sin" in str(node.target)]
            change(forward.graph, sines)
            forward.recompile()
            return forward, backward

        def uuid(self):
            return "test"

    def backend(graph_module, inputs):
        return inductor.inductor(graph_module, inputs, partitioner=Divide(), settings={"force_disable_caches": True})

    result, [code, *_] = run_and_get_code(torch.compile(function, backend=backend, dynamic=False), x)
    return result, code


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_operations_that_are_left_to_a_library(fresh_compiler):
    called = set()
    x = torch.randn(3, requires_grad=True)
    for change, expected in (
        (lambda _graph, _node: None, 0),
        (lambda _graph, node: inductor.leave_to_library(node), 1),
    ):
        torch._dynamo.reset()
        called.clear()
        with inductor.ending_calls_where(lambda scheduler: called.update(map(inductor.called_by, scheduler.nodes))):
            result, code = _code(lambda x: x.sin() + 1, change, x)
        torch.testing.assert_close(result, x.sin() + 1)
        assert code.count("torch.ops.aten.sin.default(") == expected
        assert called == ({"", "sin"} if expected else {""})


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_results_in_the_layout_that_is_asked_for(layout, fresh_compiler):
    other = {torch.contiguous_format: torch.channels_last, torch.channels_last: torch.contiguous_format}[layout]
    marks = []

    def change(graph, node):
        made = inductor.laid_out(graph, node, layout)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
        marks.append((made.target, made.meta == node.meta))

    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=other).requires_grad_()
    result, code = _code(lambda x: x.sin().sort()[0].sum(), change, x)
    torch.testing.assert_close(result, x.sin().sum())
    strides = torch.empty(2, 3, 4, 5).contiguous(memory_format=layout).stride()
    assert f"empty_strided_cpu((2, 3, 4, 5), {strides}, torch.float32)" in code
    kinds = {torch.contiguous_format: "contiguous", torch.channels_last: "channels_last"}
    lower = {
        torch.contiguous_format: inductor._lower_contiguous,
        torch.channels_last: inductor._lower_channels_last,
    }
    assert marks == [(inductor._mark(kinds[layout], lower[layout]), True)]


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_concatenations_of_images_with_channels_last(fresh_compiler):
    def joined_twice(graph, node, lay_out):
        part = inductor.stored(graph, node)
        with graph.inserting_after(part):
            joined = graph.call_function(torch.ops.aten.cat.default, ([part, part], 1))
        joined.meta = {"val": torch.empty(2, 6, 4, 5)}
        node.replace_all_uses_with(joined, delete_user_cb=lambda user: user is not part)
        lay_out(joined)

    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    for lay_out, strides in ((id, (120, 20, 5, 1)), (lambda node: inductor.lay_out_joined(node), (120, 1, 30, 6))):
        torch._dynamo.reset()
        result, code = _code(lambda x: x.sin().sum(), functools.partial(joined_twice, lay_out=lay_out), x)
        torch.testing.assert_close(result, 2 * x.sin().sum())
        assert f"empty_strided_cpu((2, 6, 4, 5), {strides}, torch.float32)" in code
    found = inductor._operator(
        "joined", "(Tensor[] tensors, int dim=0) -> Tensor", inductor._lower_joined, inductor._join
    )
    assert found is torch.ops.remat.joined.default
    assert torch.equal(found([x, x], 1), inductor._join([x, x], 1))
    assert inductor._same(x) is x


def test_gradients_of_gradients_of_a_compiled_graph(fresh_compiler):
    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(lambda x: (x**3).sum(), backend="aot_eager")
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    assert autograd.has_second_gradient([first])
    (plain,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    assert not autograd.has_second_gradient([plain])
    with pytest.raises(RuntimeError) as raised:
        first.sum().backward()
    assert autograd.refuses_second_gradient(raised.value)
    assert not autograd.refuses_second_gradient(RuntimeError("another"))


def test_a_function_that_is_not_traced_still_compiles(fresh_compiler):
    seen = []

    def named(name):
        return lambda graph_module, inputs: seen.append(name) or graph_module.forward

    compiled = torch.compile(dynamo.own_code(_twice), backend=named("inner"))
    inner = dynamo.not_traced(lambda x: compiled(x))
    around = torch.compile(lambda x: inner(x + 1) - 1, backend=named("outer"))
    assert torch.equal(around(torch.ones(2)), torch.full((2,), 3.0))
    assert sorted(seen) == ["inner", "outer", "outer"]


def test_host_memory_is_known_while_it_lives():
    storage = operators.host_storage(64)
    reference = operators.weak_reference(storage)
    assert storage.nbytes() == 64
    assert operators.is_host(reference)
    assert operators.is_host(operators.weak_reference(storage))
    assert not operators.is_host(operators.weak_reference(torch.ones(3).untyped_storage()))
    del storage
    assert reference.expired()


PAGE = FOLDER.parents[2] / "docs" / "pytorch-internals.md"


def undocumented(function):
    """The names of PyTorch in a function that need a row: what it imports from PyTorch, and what has an underscore."""
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in {"torch", "functorch"}:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            yield node.attr


def test_the_page_on_internals_has_every_name_and_only_what_there_is():
    """So whoever changes ``compat``, moves a file or renames a test also tells the reader."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    named = {}
    for row in rows:
        if row.startswith("| Rule |"):
            continue
        assert row.count(" | ") == 3, row
        _, rests, code, test = row.strip("| ").split(" | ")
        file, *functions = re.findall(r"`([^`]+)`", code)
        assert (FOLDER / file).is_file(), row
        assert "::" in test, row
        named.setdefault(file, {}).update(dict.fromkeys(functions, rests))
    tests = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_torch_*.py")}
    for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", text):
        assert f"\ndef {name}(" in tests[file], f"{file}::{name}"
    for path in sorted((FOLDER / "compat").glob("[a-z]*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        assert named[f"compat/{path.name}"].keys() == {name for name in functions if not name.startswith("_")}
        for name, function in functions.items():
            missing = [word for word in undocumented(function) if not re.search(rf"\b{word}\b", text)]
            assert not missing, f"{path.name}: {name}"
