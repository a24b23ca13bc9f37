"""Layers on sequences: (batch, length, features), the pieces of attention, and the operators of language models.

Inside attention, shapes are (batch, heads, length, features).
"""

from collections.abc import Sequence

from remat_cli.zoo.layers import common
from remat_cli.zoo.network import Derivative, Network, Tensor


def embedding(name: str, indices: Tensor, vocabulary: int, features: int, *, shared: bool = False) -> Tensor:
    """A row of a table for every index; the derivative reads the indices, which are in fixed memory.

    A ``shared`` table was counted before.
    """
    elements = indices.elements * features
    return indices.network.add(
        name,
        "embedding",
        [indices],
        (*indices.shape, features),
        flops=elements,
        parameters=0 if shared else vocabulary * features,
        derivative=Derivative(inputs=(0,), weights=True),
    )


def add_positions(name: str, x: Tensor, *, learned: bool = True) -> Tensor:
    """A vector for every position of the sequence, added; learned, or a constant."""
    _, length, features = x.shape
    return x.network.add(
        name,
        "add_positions" if learned else "add_waves",
        [x],
        x.shape,
        flops=x.elements,
        parameters=length * features if learned else 0,
        derivative=Derivative(weights=learned, passes=True),
    )


def layer_norm(name: str, x: Tensor) -> Tensor:
    """Layer normalisation; leaves mean and reciprocal deviation of every position for its derivative."""
    per_position = x.elements // x.shape[-1] * x.network.dtype_bytes
    return x.network.add(
        name,
        "layer_norm",
        [x],
        x.shape,
        flops=common.NORMALISATION_FLOPS * x.elements,
        parameters=2 * x.shape[-1],
        derivative=Derivative(inputs=(0,), outputs=(1, 2), saved=(per_position, per_position), weights=True),
    )


def split_heads(name: str, x: Tensor, heads: int, *, part: int = 0, parts: int = 1) -> Tensor:
    """Part ``part`` of ``parts`` of the features as (batch, heads, length, features per head), copied."""
    batch, length, features = x.shape
    if not 0 <= part < parts or features % (parts * heads):
        raise ValueError(f"{x.network.name}: {name} takes part {part} of {parts} of {features} features")
    shape = (batch, heads, length, features // (parts * heads))
    derivative = common.READS_GRADIENT_ALONE
    return x.network.add(name, "split_heads", [x], shape, flops=x.elements // parts, derivative=derivative)


def merge_heads(name: str, x: Tensor) -> Tensor:
    """The heads side by side again: (batch, length, features)."""
    batch, heads, length, features = x.shape
    shape = (batch, length, heads * features)
    derivative = common.READS_GRADIENT_ALONE
    return x.network.add(name, "merge_heads", [x], shape, flops=x.elements, derivative=derivative)


def attention_scores(name: str, queries: Tensor, keys: Tensor) -> Tensor:
    """Scaled products of all queries with all keys: (batch, heads, length, length)."""
    batch, heads, length, _ = queries.shape
    return queries.network.add(
        name,
        "matmul",
        [queries, keys],
        (batch, heads, length, keys.shape[2]),
        macs=queries.elements * keys.shape[2],
        derivative=Derivative(inputs=(0, 1), per_input=True),
    )


def attention_context(name: str, weights: Tensor, values: Tensor) -> Tensor:
    """Sums of all values by weight: (batch, heads, length, features)."""
    batch, heads, length, _ = weights.shape
    return weights.network.add(
        name,
        "matmul",
        [weights, values],
        (batch, heads, length, values.shape[3]),
        macs=weights.elements * values.shape[3],
        derivative=Derivative(inputs=(0, 1), per_input=True),
    )


def tied_head(name: str, x: Tensor, vocabulary: int, *, bias: bool = False) -> Tensor:
    """Logits by product with the embedding's table, which is not counted again."""
    return x.network.add(
        name,
        "tied_dense",
        [x],
        (*x.shape[:-1], vocabulary),
        macs=x.elements * vocabulary,
        parameters=vocabulary if bias else 0,
        derivative=Derivative(inputs=(0,), weights=True),
    )


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
    """The rotation x * cos + half(x) * sin, where half() swaps the halves of the features and negates one."""
    cosine, sine = tables
    half = common.unary(f"{name}/half", "rotate_half", x, common.READS_GRADIENT_ALONE)
    return common.add(f"{name}/add", _by_table(f"{name}/cos", x, cosine), _by_table(f"{name}/sin", half, sine))


def _by_table(name: str, x: Tensor, table: Tensor) -> Tensor:
    derivative = Derivative(inputs=(1,))
    return x.network.add(name, "mul_table", [x, table], x.shape, flops=x.elements, derivative=derivative)


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
