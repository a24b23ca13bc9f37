"""Costs of operations: FLOPs, or time on a GPU by its data sheet.

TensorFlow counts the FLOPs of products, convolutions, pooling and most pointwise operations. What it does not count
(ReLU, batch normalisation, their gradients, products by einsum) counts here. No cost is 0: free operations lead to
ties, and to plans that recompute them any number of times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.formulas import einsum_flops
from remat_cli.frontends.rates import DTYPES, PRODUCT, Rates, roofline
from remat_cli.frontends.tensorflow.capture.program import Op, Program
from remat_cli.frontends.tensorflow.compat import flop_statistics

FLOPS = "flops"
_US_DIGITS = 3
"""Digits after the point of a time in microseconds. Nothing is known that exactly, and documents stay readable."""
_PRODUCTS = ("MatMul", "Conv", "Einsum")
"""Parts of the names of operations that do much more than read and write memory."""
_PER_ELEMENT = {
    "FusedBatchNormV3": 8,
    "FusedBatchNormGradV3": 12,
    "Softmax": 4,
    "LogSoftmax": 4,
    "SparseSoftmaxCrossEntropyWithLogits": 6,
    "SoftmaxCrossEntropyWithLogits": 6,
}
"""FLOPs per element of the largest tensor, where TensorFlow counts none and there is more than one."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """How to cost operations.

    Attributes:
        unit: Unit of the costs.
        description: Entry of the graph's metadata.
        cost: Cost of an operation of a program, from the program, the operation and TensorFlow's graph.
    """

    unit: str
    description: dict[str, Any]
    cost: Callable[[Program, Op, Any], float]


def cost_model(text: str) -> CostModel:
    """The cost model that ``flops`` or ``roofline:NAME`` names.

    Raises:
        UsageError: If there is no cost model of that name.
    """
    if text == FLOPS:
        return CostModel("flops", {"model": "flops"}, flops)
    kind, _, name = text.partition(":")
    if kind != "roofline":
        raise UsageError(
            f'"{text}" is not a cost model for TensorFlow',
            hint="write flops or roofline:a100; remat profile measures the device at hand",
        )
    rates, description = roofline(name)
    return CostModel("us", description, lambda program, op, graph: _microseconds(program, op, graph, rates))


def flops(program: Program, op: Op, graph: Any) -> float:
    """FLOPs of an operation; at least 1."""
    if op.call.op == "Einsum":
        shapes = [program.spec(ref).shape for ref in op.call.inputs]
        return float(max(1, einsum_flops(str(op.call.attributes["equation"].value), shapes)))
    counted = flop_statistics(graph, op.node_def)
    if counted > 0:
        return counted
    return float(max(1, _PER_ELEMENT.get(op.call.op, 1) * _elements(program, op)))


def _elements(program: Program, op: Op) -> int:
    """Elements of the largest tensor that an operation reads or makes."""
    specs = [*map(program.spec, op.call.inputs), *op.call.outputs]
    return max((math.prod(spec.shape) for spec in specs if spec.dtype != "resource"), default=1)


def _microseconds(program: Program, op: Op, graph: Any, rates: Rates) -> float:
    """Launch + max(FLOPs of products / rate, bytes / bandwidth)."""
    moved = sum(program.spec(ref).bytes for ref in op.call.inputs) + sum(spec.bytes for spec in op.call.outputs)
    own = 0.0
    if any(part in op.call.op for part in _PRODUCTS):
        dtype = op.call.outputs[0].dtype
        own = rates.product_us(PRODUCT, dtype if dtype in DTYPES else DTYPES[0], flops(program, op, graph))
    return max(10.0**-_US_DIGITS, round(rates.launch_us + max(own, rates.us("stream", moved) or 0.0), _US_DIGITS))
