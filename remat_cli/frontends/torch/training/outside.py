"""What code keeps for its backward pass that is in no planned graph.

PyTorch runs such code as it is: what lies at a graph break, parts of a module that it cannot capture, and graphs that
remat cannot plan. After a forward pass, the graph of autograd tells what each of its operations keeps, and when it ran.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from remat_cli.frontends.torch.capturing.capture import Calls, Results, Tried
from remat_cli.frontends.torch.compat.autograd import (
    gradient_bytes,
    gradient_sizes,
    gradients_for,
    kept_by,
    made_at,
    parameter_of,
)
from remat_cli.frontends.torch.compat.fake_tensors import is_fake
from remat_cli.frontends.torch.measuring.memory import changes_of
from remat_cli.frontends.torch.tensors import storage, storage_bytes

_COMPILED = "CompiledFunctionBackward"
"""The node of autograd of a compiled graph, by its name: one that only writes into what it is given returns nothing."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The backward pass of one operation.

    Attributes:
        kept: Storages that it keeps for that, and no earlier operation does, and their bytes.
        moment_bytes: Bytes that are in use besides: the gradients that it reads and makes, those that others have made
            by then, and on a CPU its workspace, if that could be measured.
    """

    kept: Mapping[int, int]
    moment_bytes: int


@dataclass(slots=True)
class Outside:
    """Code between two calls of planned parts of a module, before the first or after the last one.

    Attributes:
        moments: Its operations, in the order of the forward pass; the backward passes run in the reverse order.
        left: Parameters whose gradients it makes, and their bytes.
        passed: Other gradients that it makes: the node of autograd that gets it, the position there, and bytes.
        passing: Storages that it keeps for a backward pass that never comes, because no gradient comes to it: their
            bytes, and the time of the last that is computed from its results. They are gone after that.
    """

    moments: list[Moment] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)
    passed: list[tuple[Any, int, int]] = field(default_factory=list)
    passing: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def kept(self) -> dict[int, int]:
        """Storages that it keeps from its forward to its backward pass, and their bytes."""
        return {key: size for moment in self.moments for key, size in moment.kept.items()}

    def peak_bytes(self, known: Container[int]) -> int:
        """Most bytes that its backward pass takes at a time, beside the storages that are ``known``."""
        kept = peak = 0
        for moment in self.moments:
            kept += sum(size for key, size in moment.kept.items() if key not in known)
            peak = max(peak, kept + moment.moment_bytes)
        return peak


class Times:
    """When the nodes of autograd run, in numbers of planned calls; code without a plan before call 3 runs at 2.5.

    Args:
        planned: The results of each planned call.
    """

    def __init__(self, planned: Sequence[Results]) -> None:
        found = [[at[0] for at in one.nodes if at is not None] for one in planned]
        self.calls = {node: number for number, nodes in enumerate(found) for node in nodes}
        self._starts = [min(map(made_at, nodes)) for nodes in found if nodes]

    def of(self, node: Any) -> float:
        """The time of a node."""
        known = self.calls.get(node)
        return sum(start < made_at(node) for start in self._starts) - 0.5 if known is None else known

    def last_uses(self, calls: Calls) -> dict[Any, float]:
        """For each node of a forward pass, the time of the last that is computed from its results."""
        nodes = sorted(calls.nodes(), key=made_at)
        found = {node: self.of(node) for node in nodes}
        for node in reversed(nodes):
            for other, _ in node.next_functions:
                if other in found:
                    found[other] = max(found[other], found[node])
        return found


def outside_of(
    calls: Calls,
    planned: Sequence[Results],
    known: Collection[int],
    times: Times,
    passing: Mapping[Any, float],
) -> list[Outside]:
    """What is outside, in order: before each planned call, and after the last one.

    Args:
        calls: The calls of a forward pass.
        planned: The results of each planned call.
        known: Storages that are counted elsewhere.
        times: When the nodes of autograd run.
        passing: The nodes that no gradient comes to, and the time of the last that is computed from their results.
    """
    found = [Outside() for _ in range(len(planned) + 1)]
    every = sorted((node for node in calls.nodes() if node not in times.calls), key=made_at)
    nodes = [node for node in every if node not in passing]
    place = {node: round(times.of(node) + 0.5) for node in nodes}
    measured, seen = _measured(nodes), set(known)
    waiting = _waiting(place, [node for node in calls.nodes() if node not in passing])
    for node, at in place.items():
        new = {storage(tensor): storage_bytes(tensor) for tensor in kept_by(node) if storage(tensor) not in seen}
        seen |= new.keys()
        tried = calls.tried.get(node, Tried(0, ()))
        takes = max(sum(gradient_sizes(node)), measured.get(node, 0), tried.takes_bytes)
        found[at].moments.append(Moment(new, takes + waiting[node]))
        for parameter in (*_parameters(node), *tried.parameters):
            found[at].left[storage(parameter)] = storage_bytes(parameter)
        others = [other for other in node.next_functions if other[0] in times.calls or place.get(other[0], at) != at]
        found[at].passed += [(other, number, gradient_bytes(other, number)) for other, number in others]
    for node in every:
        if node in passing:
            there = found[round(times.of(node) + 0.5)].passing
            for tensor in kept_by(node):
                if (key := storage(tensor)) not in seen:
                    there[key] = storage_bytes(tensor), max(passing[node], there.get(key, (0, 0.0))[1])
    return found


def _waiting(place: Mapping[Any, int], nodes: Collection[Any]) -> dict[Any, int]:
    """Bytes of gradients that wait while the backward pass of each node runs, for one that runs later.

    Args:
        place: The nodes of code without a plan in the order of the forward pass, and the number of the code of each.
            What code makes for others is counted here only while that code runs.
        nodes: All nodes.
    """
    number = {node: k for k, node in enumerate(place)}
    starts = {at: number[node] for node, at in reversed(list(place.items()))}
    ends = {at: number[node] + 1 for node, at in place.items()}
    spans: dict[Any, tuple[int, int, int]] = {}  # by gradient: the first and behind the last node, and its bytes
    for node in nodes:
        for other, position in node.next_functions:
            if other is None:
                continue
            parameter = parameter_of(other)
            size = gradient_bytes(other, position) if parameter is None else storage_bytes(parameter)
            for at in {place.get(node, -1), place.get(other, -1)} - {-1}:
                key = (other, position, at)
                first = number[other] + 1 if place.get(other) == at else starts[at]
                behind = number[node] if place.get(node) == at else ends[at]
                spans[key] = first, max(behind, spans.get(key, (0, 0, 0))[1]), size
    changes = [0] * (len(number) + 1)
    for first, behind, size in spans.values():
        if first < behind:
            changes[first] += size
            changes[behind] -= size
    return dict(zip(place, accumulate(changes), strict=False))


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
    """Whether only a pass with data tells the memory of code outside of all graphs.

    Some kernels without data return an empty tensor for one that they keep, as that of an LSTM on a CPU; and the
    backward passes of autograd functions written in Python have to be tried out.
    """
    if written_in_python(calls):
        return True
    inside = _inside(calls)
    return any(
        tensor.numel() == 0 and any(other.numel() for other in kept_by(node))
        for node in calls.nodes()
        if node not in inside
        for tensor in kept_by(node)
    )


def written_in_python(calls: Calls) -> list[Any]:
    """The nodes of autograd functions written in Python outside of all graphs, such as layers that can be reversed."""
    import torch

    inside = _inside(calls)
    functions = torch.autograd.function.BackwardCFunction
    found = [node for node in calls.nodes() if isinstance(node, functions) and node not in inside]
    return [node for node in found if type(node).__name__ != _COMPILED]


def _inside(calls: Calls) -> set[Any]:
    """The nodes of compiled graphs."""
    return {at[0] for _, results in calls.made for at in results.nodes if at is not None}


def _parameters(node: Any) -> list[Any]:
    """The parameters whose gradients a node makes."""
    found = (parameter_of(other) for other, _ in node.next_functions if other is not None)
    return [parameter for parameter in found if parameter is not None]
