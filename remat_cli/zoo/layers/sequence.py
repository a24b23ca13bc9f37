"""Layers on sequences: (batch, length, features), and the pieces of attention."""

from __future__ import annotations

from remat_cli.zoo.layers import common
from remat_cli.zoo.network import Derivative, Tensor


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
