"""What is known of JAX's primitives: which are cheap enough to be computed again in every reader, and their FLOPs.

Products and convolutions cost two FLOPs for every multiply-accumulate, as in the other frontends. A reduction costs one
per element read, and every other operation on numbers one per element of its largest operand or result. Operations that
only move numbers cost nothing by themselves; no group of operations costs less than 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remat_cli.frontends.jax.compat import inner_jaxpr

Shape = tuple[int, ...]

_MOVES = """broadcast_in_dim reshape transpose squeeze expand_dims slice rev concatenate pad iota stack unstack split
    convert_element_type bitcast_convert_type dynamic_slice copy real imag reduce_precision random_wrap random_unwrap
    empty tile"""
_POINTWISE = """abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp clz complex conj cos cosh div
    eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg
    nextafter not or population_count pow rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical
    sign sin sinh sqrt square sub tan tanh xor random_split random_fold_in random_seed"""
MOVES = frozenset(_MOVES.split())
"""Primitives that move numbers, or write them in another type."""
CHEAP = MOVES | frozenset(_POINTWISE.split())
"""Primitives that XLA computes again in every reader, or as it reads: they do little more than read and write memory.
Splitting keys is among them: keys are a few bytes."""
PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})


def is_reduction(name: str) -> bool:
    """Whether a primitive reduces arrays to smaller ones, reading every element once."""
    return name.startswith(("reduce_", "argm")) and name not in MOVES


def flops(name: str, params: Mapping[str, Any], reads: Sequence[Shape], makes: Sequence[Shape]) -> float:
    """FLOPs of one equation, by the shapes that it reads and makes; 0 if it only moves numbers."""
    rule = _RULES.get(name)
    if rule is not None:
        return rule(params, reads, makes)
    if name in MOVES:
        return 0.0
    return float(max([1, *map(math.prod, reads), *map(math.prod, makes)]))


def flops_of_jaxpr(jaxpr: Any) -> float:
    """FLOPs of all equations of a jaxpr."""
    return math.fsum(
        flops(
            str(equation.primitive.name),
            equation.params,
            [operand.aval.shape for operand in equation.invars],
            [made.aval.shape for made in equation.outvars],
        )
        for equation in jaxpr.eqns
    )


def _product(params: Mapping[str, Any], reads: Sequence[Shape], makes: Sequence[Shape]) -> float:
    """Every element of the result is a sum over the contracted axes."""
    (contracted, _), _ = params["dimension_numbers"]
    return float(2 * math.prod(makes[0]) * math.prod(reads[0][axis] for axis in contracted))


def _convolution(params: Mapping[str, Any], reads: Sequence[Shape], makes: Sequence[Shape]) -> float:
    """Every element of the result is a sum over a window of the kernel.

    Where the input is spread out (``lhs_dilation``), as in the gradient of a convolution with strides, all but one of
    so many elements under the window are zeros, which are not counted.
    """
    kernel = params["dimension_numbers"].rhs_spec
    window = math.prod(reads[1][axis] for axis in kernel[1:])
    return float(2 * math.prod(makes[0]) * window / math.prod(params["lhs_dilation"]))


def _inner(name: str, times: str | None = None) -> Callable[..., float]:
    def rule(params: Mapping[str, Any], reads: Sequence[Shape], makes: Sequence[Shape]) -> float:
        inner = inner_jaxpr(params[name])
        once = 0.0 if inner is None else flops_of_jaxpr(inner[0])
        return max(1.0, once * (params[times] if times is not None else 1))

    return rule


def _branches(params: Mapping[str, Any], reads: Sequence[Shape], makes: Sequence[Shape]) -> float:
    return max([1.0, *(flops_of_jaxpr(branch.jaxpr) for branch in params["branches"])])


def _window(params: Mapping[str, Any], reads: Sequence[Shape], makes: Sequence[Shape]) -> float:
    """Every element of the result (of the operand, for its gradient) is chosen from a window."""
    over = max(math.prod(makes[0]), 1)
    return float(over * math.prod(params["window_dimensions"]))


def _random(params: Mapping[str, Any], reads: Sequence[Shape], makes: Sequence[Shape]) -> float:
    """Threefry takes 20 rounds of a few operations for two words; 50 for each word, rounded."""
    return 50.0 * max(1, math.prod(makes[0]))


_RULES: dict[str, Callable[[Mapping[str, Any], Sequence[Shape], Sequence[Shape]], float]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "scan": _inner("jaxpr", "length"),
    "while": _inner("body_jaxpr"),
    "cond": _branches,
    **{name: _inner("jaxpr") for name in ("jit", "pjit")},
    **{name: _inner("call_jaxpr") for name in ("custom_jvp_call", "custom_vjp_call", "closed_call")},
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min", "select_and_gather_add"), _window),
    "random_bits": _random,
    "threefry2x32": _random,
}
