"""FLOPs of ATen operators: two for every multiply-accumulate of products, convolutions and attention.

Every other operator costs one per element of the largest tensor that it reads or makes. The PyTorch frontend counts in
the same way, so the costs of a captured step and of an archive of the same module agree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remat_cli.errors import InputError
from remat_cli.frontends.aten.program import Call, Ref, TensorType
from remat_cli.frontends.formulas import einsum_flops
from remat_cli.frontends.imported import DefaultCosts
from remat_cli.printable import printable

_OWN = ("aten.", "prims.", "remat.")
Types = Mapping[str, TensorType]
Rule = Callable[[Call, Types], int]


def flops(call: Call, types: Types) -> int:
    """FLOPs of a call; at least 1. ``types`` are those of all tensors."""
    rule = _RULES.get(call.op)
    counted = 0 if rule is None else rule(call, types)
    return counted if counted > 0 else elements(call, types)


def elements(call: Call, types: Types) -> int:
    """Elements of the largest tensor that a call reads or makes; at least 1."""
    read = [types[name].elements for name in call.refs() if name in types]
    return max([1, *read, *(made[1].elements for made in call.outputs if made is not None)])


def cost_of(call: Call, types: Types, defaults: DefaultCosts) -> int:
    """FLOPs of a call in a file; operators that are not PyTorch's own have no rule.

    Raises:
        InputError: If its arguments do not fit the rule.
    """
    if not call.target.startswith(_OWN):
        return defaults.of(call.op, elements(call, types))
    try:
        return flops(call, types)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        words = printable(f"{call.name} ({call.target}) cannot be costed: {error}")
        raise InputError.of(defaults.source, words, "are its arguments right?") from None


def _shape(call: Call, types: Types, position: int, name: str) -> tuple[int, ...]:
    argument = call.argument(position, name)
    return types[argument.name].shape if isinstance(argument, Ref) and argument.name in types else ()


def _made(call: Call) -> int:
    """Elements of the first result, counted by its shape."""
    return next((math.prod(made[1].shape) for made in call.outputs if made is not None), 0)


def _product(first: int, name: str) -> Rule:
    """Every element of the result is a sum over the last axis of argument ``first``."""

    def rule(call: Call, types: Types) -> int:
        shape = _shape(call, types, first, name)
        return 2 * _made(call) * shape[-1] if shape else 0

    return rule


def _conv(call: Call, types: Types) -> int:
    """Every element of the result is a sum over a window of the weights (M, C/groups, k...).

    In a transposed convolution every element of the input is spread over such a window instead.
    """
    weights = _shape(call, types, 1, "weight")
    transposed = "transpose" in call.op or (call.op in _CONVOLUTIONS and call.argument(6, "transposed") is True)
    over = math.prod(_shape(call, types, 0, "input")) if transposed else _made(call)
    return 2 * over * math.prod(weights[1:])


def _conv_backward(call: Call, types: Types) -> int:
    """The FLOPs of the convolution itself for the gradient of its input, and the same for that of its weights."""
    weights = _shape(call, types, 2, "weight")
    over = (
        _shape(call, types, 1, "input")
        if call.argument(7, "transposed") is True
        else _shape(call, types, 0, "grad_output")
    )
    mask = call.argument(10, "output_mask") or [True, True]
    return 2 * math.prod(over) * math.prod(weights[1:]) * sum(bool(wanted) for wanted in mask[:2])


def _attention(call: Call, types: Types) -> int:
    """The product of queries and keys, and that of the weights and the values."""
    query, key, value = _queries(call, types, 0)
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(call: Call, types: Types) -> int:
    """The scores once more, and a product for each gradient: of values, of weights, of queries, of keys."""
    query, key, value = _queries(call, types, 1)
    return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def _queries(call: Call, types: Types, first: int) -> Sequence[tuple[int, ...]]:
    return [_shape(call, types, first + k, name) for k, name in enumerate(("query", "key", "value"))]


def _einsum(call: Call, types: Types) -> int:
    operands = call.argument(1, "tensors") or []
    return einsum_flops(str(call.argument(0, "equation")), [types[operand.name].shape for operand in operands])


def _recurrent(call: Call, types: Types) -> int:
    """A product with every matrix among the parameters, for every step and sequence."""
    steps = _shape(call, types, 0, "input")[:-1]
    parameters: list[Any] = call.argument(2, "params") or []
    matrices = [types[p.name].shape for p in parameters if isinstance(p, Ref) and len(types[p.name].shape) == 2]
    return 2 * math.prod(steps) * sum(math.prod(matrix) for matrix in matrices)


_CONVOLUTIONS = ("aten.convolution", "aten._convolution", "aten.cudnn_convolution", "aten.convolution_overrideable")
_ATTENTION = [
    f"aten._scaled_dot_product_{kind}"
    for kind in (
        "attention_math",
        "cudnn_attention",
        "efficient_attention",
        "flash_attention",
        "flash_attention_for_cpu",
        "fused_attention_overrideable",
    )
]
_RULES: dict[str, Rule] = {
    **dict.fromkeys(["aten.mm", "aten.bmm", "aten.mv", "aten._scaled_mm", "aten._int_mm"], _product(0, "self")),
    **dict.fromkeys(["aten.addmm", "aten.addmv", "aten.addbmm", "aten.baddbmm"], _product(1, "mat1")),
    **dict.fromkeys(["aten.matmul", "aten.dot", "aten.inner"], _product(0, "self")),
    "aten.linear": _product(0, "input"),
    **dict.fromkeys([*_CONVOLUTIONS, "aten._slow_conv2d_forward"], _conv),
    **dict.fromkeys([f"aten.conv{n}d" for n in (1, 2, 3)], _conv),
    **dict.fromkeys([f"aten.conv_transpose{n}d" for n in (1, 2, 3)], _conv),
    "aten.convolution_backward": _conv_backward,
    **dict.fromkeys(["aten.scaled_dot_product_attention", *_ATTENTION], _attention),
    **dict.fromkeys([f"{name}_backward" for name in _ATTENTION], _attention_backward),
    "aten.einsum": _einsum,
    **dict.fromkeys(["aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu"], _recurrent),
}
