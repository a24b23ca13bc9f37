"""What of a joint graph runs before the gradients come from outside, and what after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.tensors import is_random


def split_order(
    nodes: Sequence[Any], tangents: Sequence[Any], forward_results: Sequence[Any], results: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """What runs before and after the tangents come, in the order of the joint graph; dead nodes are left out.

    Random operations that nobody reads stay: without them the others would draw other numbers.

    Raises:
        CaptureFailed: If a result of the forward pass depends on a gradient.
    """
    after: set[Any] = set(tangents)
    for node in nodes:
        if any(argument in after for argument in node.all_input_nodes):
            after.add(node)
    needed = _ancestors([*(r for r in results if r is not None), *(n for n in nodes if is_random(n))])
    early = _ancestors(forward_results)
    kept = [node for node in nodes if node in needed and node.op in {"call_function", "get_attr"}]
    first = next((k for k, node in enumerate(kept) if node in after), len(kept))
    forward = [node for k, node in enumerate(kept) if k < first or node in early]
    if any(node in after for node in forward):
        raise CaptureFailed("a result of the forward pass depends on a gradient")
    return forward, [node for k, node in enumerate(kept) if k >= first and node not in early]


def _ancestors(nodes: Sequence[Any]) -> set[Any]:
    seen: set[Any] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return seen
