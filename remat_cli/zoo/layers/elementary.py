"""Elementary operators of language models: products, powers, means and rotations, one layer each.

They have the shapes of (batch, length, features), or of (batch, heads, length, features) inside attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.zoo.layers import common
from remat_cli.zoo.network import Derivative, Network, Tensor

_STOPS = Derivative(stops=True)


def times(name: str, x: Tensor, y: Tensor) -> Tensor:
    """The product of two tensors; the shape of ``x``, to which that of ``y`` is broadcast. Derivatives read both."""
    derivative = Derivative(inputs=(0, 1), per_input=True)
    return x.network.add(name, "mul", [x, y], x.shape, flops=x.elements, derivative=derivative)


def scale(name: str, x: Tensor) -> Tensor:
    """The product with a number."""
    return common.unary(name, "scale", x, common.READS_GRADIENT_ALONE)


def rms_norm(name: str, x: Tensor) -> Tensor:
    """Division by the root mean square of the features, and a weight for each (Zhang and Sennrich, 2019).

    Five operators, as the reference implementation runs them: square, mean, reciprocal root, product, weight.
    """
    network, per_position = x.network, (*x.shape[:-1], 1)
    square = common.unary(f"{name}/pow", "pow", x, common.READS_INPUT)
    mean = network.add(
        f"{name}/mean", "mean", [square], per_position, flops=x.elements, derivative=common.READS_GRADIENT_ALONE
    )
    root = common.unary(f"{name}/rsqrt", "rsqrt", mean, common.READS_OUTPUT, 2)
    normal = times(f"{name}/normal", x, root)
    derivative = Derivative(inputs=(0,), weights=True)
    return network.add(
        f"{name}/weight",
        "mul_weight",
        [normal],
        x.shape,
        flops=x.elements,
        parameters=x.shape[-1],
        derivative=derivative,
    )


def rotation_tables(name: str, network: Network, length: int, features: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions (Su et al., 2021), which all blocks read; they have no gradient."""
    shape = (1, 1, length, features)
    angles = network.add(f"{name}/angles", "outer", [], shape, flops=length * features, derivative=_STOPS)
    cosine, sine = (
        network.add(f"{name}/{part}", part, [angles], shape, flops=length * features, derivative=_STOPS)
        for part in ("cos", "sin")
    )
    return cosine, sine


def rotate(name: str, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """x * cos + half(x) * sin, where half() swaps the halves of the features and negates one."""
    cosine, sine = tables
    half = common.unary(f"{name}/half", "rotate_half", x, common.READS_GRADIENT_ALONE)
    return common.add(f"{name}/add", _by_table(f"{name}/cos", x, cosine), _by_table(f"{name}/sin", half, sine))


def _by_table(name: str, x: Tensor, table: Tensor) -> Tensor:
    derivative = Derivative(inputs=(1,))
    return x.network.add(name, "mul", [x, table], x.shape, flops=x.elements, derivative=derivative)


def repeat_heads(name: str, x: Tensor, times_each: int) -> Tensor:
    """Every head several times, for grouped queries (Ainslie et al., 2023); the derivative sums them."""
    if times_each == 1:
        return x
    batch, heads, length, features = x.shape
    shape = (batch, heads * times_each, length, features)
    return x.network.add(
        name, "repeat_heads", [x], shape, flops=x.elements * times_each, derivative=common.READS_GRADIENT_ALONE
    )


def causal_mask(name: str, network: Network, length: int) -> Tensor:
    """Minus infinity above the diagonal, which all blocks add to their scores."""
    return network.add(name, "triu", [], (1, 1, length, length), flops=length * length, derivative=_STOPS)


def masked(name: str, x: Tensor, mask: Tensor) -> Tensor:
    """The sum of scores and mask."""
    return x.network.add(name, "add_mask", [x, mask], x.shape, flops=x.elements, derivative=Derivative(passes=True))


def rows(name: str, x: Tensor, part: int, parts: int) -> Tensor:
    """Part ``part`` of ``parts`` of the positions, copied; ``x`` itself if it is the only one.

    The derivative is a tensor as large as ``x`` with zeros elsewhere, as in PyTorch.
    """
    if parts == 1:
        return x
    batch, heads, length, features = x.shape
    shape = (batch, heads, length // parts, features)
    return x.network.add(name, "rows", [x], shape, flops=x.elements // parts, derivative=common.READS_GRADIENT_ALONE)


def join_rows(name: str, parts: Sequence[Tensor]) -> Tensor:
    """The positions of all parts one after the other; the only part itself if there is just one."""
    if len(parts) == 1:
        return parts[0]
    batch, heads, length, features = parts[0].shape
    shape = (batch, heads, length * len(parts), features)
    elements = sum(part.elements for part in parts)
    return parts[0].network.add(name, "concat", parts, shape, flops=elements, derivative=common.READS_GRADIENT_ALONE)
