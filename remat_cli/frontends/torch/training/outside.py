"""What code keeps for its backward pass that is in no planned graph.

PyTorch runs such code as it is: what lies at a graph break, parts of a module that it cannot capture, and graphs that
remat cannot plan. After a forward pass, the graph of autograd tells what each of its operations keeps, and when it ran.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from remat_cli.frontends.torch.capturing.calls import Calls
from remat_cli.frontends.torch.measuring.workspace import changes_of
from remat_cli.frontends.torch.private import (
    compiled_node,
    gradient_sizes,
    gradients_for,
    is_fake,
    kept_by,
    made_at,
    parameter_of,
)
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes


@dataclass(slots=True)
class Outside:
    """Code between two planned parts of a module, before the first or after the last one.

    Attributes:
        kept: Storages that it keeps from its forward to its backward pass, and their bytes.
        moment_bytes: Most bytes that the backward pass of one of its operations takes at a time: the gradients that it
            reads and makes, and on a CPU its workspace, if that could be measured.
        left: Parameters whose gradients it makes, and their bytes.
    """

    kept: dict[int, int] = field(default_factory=dict)
    moment_bytes: int = 0
    left: dict[int, int] = field(default_factory=dict)

    @property
    def kept_bytes(self) -> int:
        """Bytes that it keeps."""
        return sum(self.kept.values())

    @property
    def left_bytes(self) -> int:
        """Bytes of the gradients that it leaves."""
        return sum(self.left.values())


def outside_of(calls: Calls, parts: int, known: Collection[int]) -> list[Outside]:
    """What is outside, in order: before each of the parts, and after the last one.

    Args:
        calls: The calls of a forward pass.
        parts: How many parts are planned.
        known: Storages that are counted elsewhere.
    """
    made = [(number, compiled_node(result)) for number, results in calls.made for result in results]
    planned = [(number, node[0]) for number, node in made if number is not None and node is not None]
    starts: dict[int, int] = {}
    for number, node in planned:
        starts[number] = min(made_at(node), starts.get(number, made_at(node)))
    inside = {node for _, node in planned}
    found = [Outside() for _ in range(parts + 1)]
    results = (t for number, returned in calls.made if number is not None for t in returned if _is_tensor(t))
    seen = {*known, *map(storage, results)}
    nodes = sorted((node for node in _nodes(calls) if node not in inside), key=made_at)
    measured = _measured(nodes)
    for node in nodes:
        at = sum(start < made_at(node) for start in starts.values())
        found[at].moment_bytes = max(found[at].moment_bytes, sum(gradient_sizes(node)), measured.get(node, 0))
        for tensor in kept_by(node):
            if storage(tensor) not in seen:
                seen.add(storage(tensor))
                found[at].kept[storage(tensor)] = storage_bytes(tensor)
        for parameter in _parameters(node):
            found[at].left[storage(parameter)] = storage_bytes(parameter)
    return found


def _measured(nodes: Sequence[Any]) -> dict[Any, int]:
    """Bytes that the backward pass of each node takes at a time, where the nodes have tensors with data on a CPU.

    The nodes of autograd functions written in Python are left out, since their code may do anything.
    """
    import torch

    def plain(node: Any) -> bool:
        kept = [] if isinstance(node, torch.autograd.function.BackwardCFunction) else kept_by(node)
        return bool(kept) and all(tensor.device.type == "cpu" and not is_fake(tensor) for tensor in kept)

    chosen = [node for node in nodes if plain(node)]

    def called(node: Any) -> Callable[[], Any]:
        given = gradients_for(node)

        def call() -> Any:
            try:
                return node(*given)
            except RuntimeError:  # it does not stand alone; the gradients that it reads and makes are counted anyway
                return None

        return call

    if not chosen:
        return {}
    with torch.no_grad():
        changes = changes_of(map(called, chosen))
    pairs = zip(chosen, changes, strict=True)
    return {node: gradient_sizes(node)[0] + max(accumulate(found, initial=0)) for node, found in pairs}


def sizes_unknown(calls: Calls) -> bool:
    """Whether an operation outside of all graphs keeps a tensor whose size its kernel without data cannot tell.

    Such kernels return an empty tensor for it, as that of an LSTM on a CPU.
    """
    inside = {node[0] for _, results in calls.made for t in results if (node := compiled_node(t)) is not None}
    return any(
        tensor.numel() == 0 and any(other.numel() for other in kept_by(node))
        for node in _nodes(calls)
        if node not in inside
        for tensor in kept_by(node)
    )


def _nodes(calls: Calls) -> Iterator[Any]:
    """All nodes of autograd behind what a module and its graphs returned, but those of parameters."""
    tensors = [tensor for _, tensor in leaves(calls.output)]
    tensors += [tensor for _, results in calls.made for tensor in results if _is_tensor(tensor)]
    stack = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set()
    while stack:
        node = stack.pop()
        if node not in seen and parameter_of(node) is None:
            seen.add(node)
            yield node
            stack += [other for other, _ in node.next_functions if other is not None]


def _parameters(node: Any) -> list[Any]:
    """The parameters whose gradients a node makes."""
    found = (parameter_of(other) for other, _ in node.next_functions if other is not None)
    return [parameter for parameter in found if parameter is not None]


def _is_tensor(item: Any) -> bool:
    import torch

    return isinstance(item, torch.Tensor)
