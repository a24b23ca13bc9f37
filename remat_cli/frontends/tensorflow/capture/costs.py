"""Costs of operations: FLOPs, or time on a GPU by its data sheet.

TensorFlow counts the FLOPs of products, convolutions, pooling and most pointwise operations. What it does not count
(ReLU, batch normalisation, their gradients, products by einsum) counts here.
"""

import math
from typing import Any, NamedTuple

from remat_cli.frontends.formulas import einsum_flops
from remat_cli.frontends.rates import DTYPES, PRODUCT, CostModel, Rates, named_costs
from remat_cli.frontends.tensorflow.capture.program import Op, Program
from remat_cli.frontends.tensorflow.compat import flop_statistics

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


class Work(NamedTuple):
    """An operation of a captured step, with TensorFlow's graph of it."""

    program: Program
    op: Op
    graph: Any


def cost_model(text: str) -> CostModel[Work]:
    """The cost model that ``flops`` or ``roofline:NAME`` names.

    Raises:
        UsageError: If there is no cost model of that name.
    """
    return named_costs(text, flops, _microseconds, None, "TensorFlow")


def flops(work: Work) -> float:
    """FLOPs of an operation; at least 1."""
    program, op, graph = work
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


def _microseconds(work: Work, rates: Rates) -> float:
    """Launch + max(FLOPs of products / rate, bytes / bandwidth)."""
    program, op, _ = work
    moved = sum(program.spec(ref).bytes for ref in op.call.inputs) + sum(spec.bytes for spec in op.call.outputs)
    own = 0.0
    if any(part in op.call.op for part in _PRODUCTS):
        dtype = op.call.outputs[0].dtype
        own = rates.product_us(PRODUCT, dtype if dtype in DTYPES else DTYPES[0], flops(work))
    return rates.launch_us + max(own, rates.us("stream", moved) or 0.0)
