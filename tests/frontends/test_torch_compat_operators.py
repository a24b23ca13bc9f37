"""Operators, memory and modes, as ``compat/operators.py`` says they are."""

import weakref

import torch
from torch import nn

from remat_cli.frontends.torch.compat import (
    autograd,
    fake_tensors,
    operators,
)


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


def test_the_last_call_of_an_operator():
    x = torch.ones(2, 2)
    operator, args = operators.last_call(lambda: torch.add(x.exp(), 1))
    assert operator is torch.ops.aten.add.Tensor
    assert torch.equal(args[0], x.exp())
    assert args[1] == 1
    kept = weakref.ref(args[0])
    del operator, args
    assert kept() is None  # before any garbage is collected


def test_host_memory_is_known_while_it_lives():
    storage = operators.host_storage(64)
    reference = operators.weak_reference(storage)
    assert storage.nbytes() == 64
    assert operators.is_host(reference)
    assert operators.is_host(operators.weak_reference(storage))
    assert not operators.is_host(operators.weak_reference(torch.ones(3).untyped_storage()))
    del storage
    assert reference.expired()
