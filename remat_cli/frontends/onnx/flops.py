"""FLOPs of ONNX operators: two for every multiply-accumulate, and small counts per element for the rest.

The counts agree with those of the zoo: biases are left out, a normalisation costs four per element, a softmax three. An
operator that only moves data costs one per element that it makes, because no operation is free. The caller refuses
operators without a rule, unless the user gives a default cost.
"""

import math
from collections.abc import Callable

from remat_cli.frontends.formulas import einsum_flops
from remat_cli.frontends.onnx.tensors import Call
from remat_cli.zoo.layers.common import GELU_FLOPS, NORMALISATION_FLOPS, SOFTMAX_FLOPS

Rule = Callable[[Call], int]


def _per_made(flops: int) -> Rule:
    return lambda call: flops * call.made


def _per_read(flops: int) -> Rule:
    return lambda call: flops * call.input(0).elements


def _terms(call: Call) -> int:
    """Sum, maximum and similar functions of several tensors."""
    return call.made * max(1, sum(t is not None for t in call.inputs) - 1)


def _conv(weights: int) -> Rule:
    """Every output is a sum over a window of the weights (M, C/groups, k...), input ``weights``."""
    return lambda call: 2 * call.made * math.prod(call.input(weights).shape[1:])


def _conv_transpose(call: Call) -> int:
    """Every input is spread over a window of the weights (C, M/groups, k...)."""
    return 2 * call.input(0).elements * math.prod(call.input(1).shape[1:])


def _matmul(call: Call) -> int:
    """Every output is a sum over the last axis of the first input."""
    return 2 * call.made * call.input(0).shape[-1]


def _gemm(call: Call) -> int:
    rows, columns = call.input(0).shape
    return 2 * call.made * (rows if call.attributes.get("transA", 0) else columns)


def _einsum(call: Call) -> int:
    return einsum_flops(str(call.attributes["equation"]), [t.shape for t in call.inputs if t is not None])


def _window(call: Call) -> int:
    """A comparison or an addition for every element of every window."""
    return int(math.prod(call.attributes["kernel_shape"])) * (call.output(0).elements)


def _attention(call: Call) -> int:
    """The product of queries and keys, and that of the weights and the values.

    Shapes are (batch, heads, length, size) or (batch, length, heads*size).
    """
    query, key, value = (call.input(k).shape for k in range(3))
    past = call.inputs[4] if len(call.inputs) > 4 else None
    if len(query) == 3:
        heads = int(call.attributes["q_num_heads"])
        size = query[2] // heads
        value_size = value[2] // int(call.attributes["kv_num_heads"])
        length, keys = query[1], key[1]
    else:
        _, heads, length, size = query
        keys, value_size = key[2], value[3]
    keys += past.shape[2] if past is not None else 0
    return 2 * query[0] * heads * length * keys * (size + value_size)


def _recurrent(call: Call) -> int:
    """W (directions, gates*hidden, input) and R (directions, gates*hidden, hidden), for every step and sequence."""
    steps = math.prod(call.input(0).shape[:-1])
    return 2 * steps * (call.input(1).elements + call.input(2).elements)


def _lrn(call: Call) -> int:
    return (int(call.attributes["size"]) + NORMALISATION_FLOPS) * call.made


def _topk(call: Call) -> int:
    """Comparisons of a heap that keeps the k largest."""
    best = call.output(0).shape[int(call.attributes.get("axis", -1))]
    return call.input(0).elements * math.ceil(math.log2(max(2, best)))


_ELEMENTWISE = """
Abs Acos Acosh Add And Asin Asinh Atan Atanh Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear Div Dropout DynamicQuantizeLinear Elu Equal Erf Exp Floor
Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Mish Mod Mul Neg Not Or
PRelu Pow QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Swish
Tan Tanh ThresholdedRelu Where Xor
"""
_MOVING = """
CenterCropPad Concat ConstantOfShape DepthToSpace Expand EyeLike Gather GatherElements GatherND Multinomial OneHot
Pad RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Resize ReverseSequence Scatter
ScatterElements ScatterND Slice SpaceToDepth Split TensorScatter Tile Transpose Trilu Upsample MaxUnpool Shape Size
Compress NonZero
"""
_REDUCING = """
ArgMax ArgMin CumProd CumSum GlobalAveragePool GlobalLpPool GlobalMaxPool NegativeLogLikelihoodLoss ReduceL1
ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
"""
_NORMALISING = """
BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LpNormalization
MeanVarianceNormalization RMSNormalization
"""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _per_made(1)),
    **dict.fromkeys(_MOVING.split(), _per_made(1)),
    **dict.fromkeys(_REDUCING.split(), _per_read(1)),
    **dict.fromkeys(_NORMALISING.split(), _per_read(NORMALISATION_FLOPS)),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax", "SoftmaxCrossEntropyLoss"], _per_read(SOFTMAX_FLOPS)),
    **dict.fromkeys(["Max", "Mean", "Min", "Sum"], _terms),
    **dict.fromkeys(["Conv", "ConvInteger"], _conv(1)),
    **dict.fromkeys(["MatMul", "MatMulInteger", "QLinearMatMul"], _matmul),
    **dict.fromkeys(["MaxPool", "AveragePool", "LpPool"], _window),
    "QLinearConv": _conv(3),
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Attention": _attention,
    **dict.fromkeys(["LSTM", "GRU", "RNN"], _recurrent),
    "Gelu": _per_made(GELU_FLOPS),
    "LRN": _lrn,
    "TopK": _topk,
    "RotaryEmbedding": _per_read(3),
}
"""FLOPs by operator. ``RotaryEmbedding``: two products and a sum for every element."""


def flops(call: Call) -> int | None:
    """FLOPs of an operator, at least 1; None if there is no rule for it.

    Raises:
        IndexError, KeyError, ValueError: If inputs or attributes that the operator needs are missing or invalid.
    """
    rule = RULES.get(call.op)
    return None if rule is None else max(1, rule(call))
