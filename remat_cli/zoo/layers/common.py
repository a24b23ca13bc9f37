"""Layers for tensors of any meaning: sums, joins, activations, dense layers, the loss."""

from collections.abc import Sequence

from remat_cli.zoo.network import Derivative, Network, Tensor

NORMALISATION_FLOPS = 4
"""Per element: subtract the mean, divide by the deviation, scale, shift."""
SOFTMAX_FLOPS = 3
"""Per element: exponential, sum, division."""
GELU_FLOPS = 8
"""Per element, in the tanh form."""
SQUARED_ERROR_FLOPS = 3
"""Per element: difference, square, sum."""
SILU_FLOPS = 4
"""Per element: exponential, sum, division, product."""
READS_INPUT = Derivative(inputs=(0,))
READS_OUTPUT = Derivative(outputs=(0,))
READS_GRADIENT_ALONE = Derivative()


def unary(name: str, op: str, x: Tensor, derivative: Derivative, flops_per_element: int = 1) -> Tensor:
    """An elementwise layer: as large as its input."""
    return x.network.add(name, op, [x], x.shape, flops=flops_per_element * x.elements, derivative=derivative)


def relu(name: str, x: Tensor) -> Tensor:
    """max(x, 0). The derivative reads the output, which shows where the input was positive."""
    return unary(name, "relu", x, READS_OUTPUT)


def relu6(name: str, x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return unary(name, "relu6", x, READS_OUTPUT)


def gelu(name: str, x: Tensor) -> Tensor:
    """Gaussian error linear unit; not monotone, so its derivative needs the input."""
    return unary(name, "gelu", x, READS_INPUT, GELU_FLOPS)


def silu(name: str, x: Tensor) -> Tensor:
    """Sigmoid linear unit, x / (1 + exp(-x)); not monotone, so its derivative needs the input."""
    return unary(name, "silu", x, READS_INPUT, SILU_FLOPS)


def tanh(name: str, x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return unary(name, "tanh", x, READS_OUTPUT)


def softmax(name: str, x: Tensor) -> Tensor:
    """Softmax over the last axis."""
    return unary(name, "softmax", x, READS_OUTPUT, SOFTMAX_FLOPS)


def dropout(name: str, x: Tensor) -> Tensor:
    """Dropout; leaves a mask of one byte per element for its derivative."""
    return unary(name, "dropout", x, Derivative(outputs=(1,), saved=(x.elements,)))


def add(name: str, x: Tensor, y: Tensor) -> Tensor:
    """Sum of two tensors of one shape."""
    if x.shape != y.shape:
        raise ValueError(f"{x.network.name}: {name} adds {x.shape} and {y.shape}")
    return x.network.add(name, "add", [x, y], x.shape, flops=x.elements, derivative=Derivative(passes=True))


def concat(name: str, parts: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the second axis; the derivative splits the gradient again."""
    batch, _, *rest = parts[0].shape
    if any((part.shape[0], *part.shape[2:]) != (batch, *rest) for part in parts):
        raise ValueError(f"{parts[0].network.name}: {name} joins {[part.shape for part in parts]}")
    shape = (batch, sum(part.shape[1] for part in parts), *rest)
    elements = sum(part.elements for part in parts)
    return parts[0].network.add(name, "concat", parts, shape, flops=elements, derivative=READS_GRADIENT_ALONE)


def flatten(name: str, x: Tensor) -> Tensor:
    """All axes but the first joined into one; counted as a copy, as in TensorFlow graphs."""
    shape = (x.shape[0], x.elements // x.shape[0])
    return x.network.add(name, "flatten", [x], shape, flops=x.elements, derivative=READS_GRADIENT_ALONE)


def dense(name: str, x: Tensor, units: int, *, bias: bool = True, relu: bool = False) -> Tensor:
    """A matrix product over the last axis; ``relu`` puts the activation inside."""
    features = x.shape[-1]
    return x.network.add(
        name,
        "dense_relu" if relu else "dense",
        [x],
        (*x.shape[:-1], units),
        macs=x.elements * units,
        parameters=features * units + (units if bias else 0),
        derivative=Derivative(inputs=(0,), outputs=(0,) if relu else (), weights=True),
    )


def cross_entropy(logits: Tensor, *auxiliary: Tensor) -> Network:
    """End the network with softmax and cross-entropy of the logits (and of auxiliary heads, if there are any).

    In a training graph the loss leaves the probabilities for its derivative.
    """
    network = logits.network
    heads = (logits, *auxiliary)
    network.set_loss(
        "loss",
        "cross_entropy",
        heads,
        flops=SOFTMAX_FLOPS * sum(head.elements for head in heads),
        derivative=Derivative(
            outputs=tuple(range(1, len(heads) + 1)),
            saved=tuple(head.elements * network.dtype_bytes for head in heads),
        ),
    )
    return network


def squared_error(predictions: Tensor) -> Network:
    """End the network with the mean squared distance of the predictions from targets, which are an input.

    In a training graph the derivative reads the predictions.
    """
    network = predictions.network
    network.input(*predictions.shape)
    network.set_loss(
        "loss", "squared_error", [predictions], flops=SQUARED_ERROR_FLOPS * predictions.elements, derivative=READS_INPUT
    )
    return network
