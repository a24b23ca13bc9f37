"""FLOP counts that several importers share."""

import math
from collections.abc import Sequence


def einsum_flops(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """FLOPs of a sum of products, evaluated directly: no order of contraction is chosen.

    Every combination of all indices takes one multiplication less than there are operands, and one addition if an
    index is summed over.

    Args:
        equation: As in numpy: ``bij,bjk->bik``.
        shapes: Shapes of the operands.

    Raises:
        ValueError: If the equation does not fit the shapes.
    """
    sizes: dict[str, int] = {}
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    for term, shape in zip(terms, shapes, strict=True):
        before, dots, after = term.partition("...")
        hidden = len(shape) - len(before) - len(after)
        names = [*before, *(f".{i}" for i in range(hidden, 0, -1) if dots), *after]
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
    kept = set(right) if arrow else {c for c in left if left.count(c) == 1}
    summed = any(name not in kept for name in sizes if not name.startswith("."))
    return math.prod(sizes.values()) * (max(1, len(terms) - 1) + summed)
