"""What the derivatives of ONNX operators read, for the rule ``operator`` of the zoo.

Other operators are assumed to read all their inputs and outputs. That may keep more in memory than they need, but never
less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.frontends.onnx.tensors import Call
from remat_cli.zoo.network import Derivative

_BY_OUTPUT = """
Elu Exp HardSigmoid Hardmax LeakyRelu LogSoftmax Reciprocal Relu Selu Sigmoid Softmax Sqrt Tanh
"""
_OUTPUT = frozenset(_BY_OUTPUT.split())
"""Unary operators whose derivative is a function of the output."""
_BY_INPUT = """
Abs Acos Acosh Asin Asinh Atan Atanh Celu Cos Cosh Erf Gelu HardSwish Log Mish Shrink Sin Sinh Softplus Softsign
Swish Tan ThresholdedRelu LpPool ReduceL1 ReduceSumSquare LpNormalization
"""
_INPUT = frozenset(_BY_INPUT.split())
"""Unary operators whose derivative is a function of the input."""
_BY_GRADIENT = """
Add AveragePool Cast CastLike CenterCropPad Compress Concat CumSum DepthToSpace Expand GlobalAveragePool Identity
Mean Neg Pad ReduceMean ReduceSum Resize ReverseSequence Slice SpaceToDepth Split Sub Sum Tile Transpose Trilu
Upsample
"""
_GRADIENT = frozenset(_BY_GRADIENT.split())
"""Linear operators: their derivative reads only the gradient."""
_PRODUCTS = frozenset(["Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul", "Mul"])
"""Operators that are linear in each operand: the gradient of one is a product with the others."""
_PICKS = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "Where": 0, "OneHot": 0}
"""Operators that select elements, and the position of the input that says which."""
_STATISTICS = frozenset(["BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization"])
_PER_OPERAND = frozenset(["Attention", "Einsum", "Gemm", "MatMul"])


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of an operator, for its derivative.

    Attributes:
        position: Which input it is.
        read: Position among the values that the operation reads; None for fixed memory.
        parameter: Whether it is a parameter with a gradient.
        floating: Whether it can have a gradient.
    """

    position: int
    read: int | None
    parameter: bool
    floating: bool

    @property
    def differentiated(self) -> bool:
        """Whether the derivative makes a gradient of it.

        An input of the model lies in fixed memory and has none. A value computed from such inputs alone counts as if
        it had one.
        """
        return self.parameter or (self.read is not None and self.floating)


def derivative_of(call: Call, operands: Sequence[Operand]) -> Derivative:
    """What the derivative of a call reads and saves.

    Args:
        call: The call.
        operands: Its inputs, without optional ones that are left out.
    """
    weights = any(operand.parameter for operand in operands)
    saved = _saved(call)
    made = tuple(range(len([t for t in call.outputs if t is not None])))
    inputs, outputs = _needs(call, operands)
    activations = [operand for operand in operands if operand.read is not None and operand.floating]
    unchanged = all(call.inputs[operand.position] == call.outputs[0] for operand in activations)
    return Derivative(
        inputs=tuple(dict.fromkeys(o.read for o in operands if o.position in inputs and o.read is not None)),
        outputs=(*(made[:1] if outputs else ()), *(len(made) + k for k in range(len(saved)))),
        saved=saved,
        weights=weights,
        passes=call.op in {"Add", "Sum"} and unchanged,
        per_input=call.op in _PER_OPERAND and len(activations) > 1,
    )


def _needs(call: Call, operands: Sequence[Operand]) -> tuple[set[int], bool]:
    """Positions of the inputs that the derivative reads, and whether it reads the output."""
    everything = {operand.position for operand in operands}
    if call.op in _GRADIENT or call.op == "Dropout":
        return set(), False
    if call.op in _OUTPUT:
        return set(), True
    if call.op in _INPUT or call.op in _STATISTICS or call.op == "RMSNormalization":
        return {0}, False
    if call.op in _PICKS:
        return {_PICKS[call.op]}, False
    if call.op in _PRODUCTS:
        # The gradient of a factor is a product with the other factors, so a factor is read only if another one is
        # differentiated. A bias is added: only the first two operands of a convolution or Gemm are factors.
        factors = [o for o in operands if call.op == "Einsum" or o.position < 2]
        return {o.position for o in factors if any(p.differentiated for p in factors if p is not o)}, False
    return everything, True


def _saved(call: Call) -> tuple[int, ...]:
    """Bytes of the tensors that the forward pass saves only for the derivative: statistics, a mask."""
    source = call.inputs[0]
    if source is None:
        return ()
    number = source.bytes // max(1, source.elements)
    if call.op == "Dropout":  # one byte for every element, unless the mask is an output already
        return () if len(call.outputs) > 1 and call.outputs[1] is not None else (source.elements,)
    if call.op not in _STATISTICS and call.op != "RMSNormalization":
        return ()
    if call.op == "BatchNormalization":
        groups = source.shape[1]
    elif call.op == "InstanceNormalization":
        groups = source.shape[0] * source.shape[1]
    elif call.op == "GroupNormalization":
        groups = source.shape[0] * int(call.attributes["num_groups"])
    else:
        axis = int(call.attributes.get("axis", -1))
        groups = math.prod(source.shape[:axis])
    statistics = 1 if call.op == "RMSNormalization" else 2
    return (groups * number,) * statistics
