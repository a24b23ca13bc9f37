"""Where a schedule exceeds a budget: the steps that get rows in a model whose rows are added on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Step = TypeVar("Step")
_MOST = 12
"""Steps that get a row at a time: the highest of as many stretches of steps. Untuned."""


def highest_steps(steps: Sequence[Step], levels: Sequence[int], budget: int) -> set[Step]:
    """Steps above the budget: the highest of each stretch of them, and of those the highest.

    Args:
        steps: The steps.
        levels: Bytes in use during each.
        budget: Bytes.
    """
    tops: list[tuple[int, int]] = []
    inside = False
    for k, level in enumerate(levels):
        if level <= budget:
            inside = False
        elif not inside:
            tops.append((level, k))
            inside = True
        elif level > tops[-1][0]:
            tops[-1] = level, k
    return {steps[k] for _, k in sorted(tops, reverse=True)[:_MOST]}
