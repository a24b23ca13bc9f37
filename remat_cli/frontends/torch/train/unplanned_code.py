"""Measures what code keeps and needs for its backward pass that is in no planned graph.

PyTorch runs such code as it is: what lies at a graph break, parts of a module that it cannot capture, and graphs that
remat cannot plan. After a forward pass, the graph of autograd tells what each of its operations keeps, and when it ran.
What autograd functions written in Python need while they run cannot be known otherwise than by running them: they may
compute a forward pass again, as those of layers that can be reversed and of PyTorch's checkpoints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from remat_cli.frontends.torch.capture.capture import Calls, PythonBackward, Results
from remat_cli.frontends.torch.capture.random_state import undisturbed
from remat_cli.frontends.torch.compat.autograd import (
    gradient_bytes,
    gradient_sizes,
    gradients_for,
    kept_by,
    made_at,
    parameter_of,
)
from remat_cli.frontends.torch.compat.fake_tensors import is_fake
from remat_cli.frontends.torch.measure.memory import changes_of
from remat_cli.frontends.torch.tensors import storage, storage_bytes
from remat_cli.frontends.torch.types import AutogradNode, Tensor

_COMPILED = "CompiledFunctionBackward"
"""The node of autograd of a compiled graph, by its name: one that only writes into what it is given returns nothing."""


@dataclass(frozen=True, slots=True)
class OperationBackward:
    """The backward pass of one operation.

    Attributes:
        kept: The storages, with their bytes, that it keeps for that and no earlier operation does.
        running_bytes: Bytes that are in use besides: the gradients that it reads and makes, those that others have made
            by then, and on a CPU its workspace, if that could be measured.
    """

    kept: Mapping[int, int]
    running_bytes: int


@dataclass(slots=True)
class UnplannedCode:
    """Code between two calls of planned parts of a module, before the first or after the last one.

    Attributes:
        operations: Its operations, in the order of the forward pass; the backward passes run in the reverse order.
        parameters: The storages of the parameters whose gradients it makes, and their bytes.
        gradients: Other gradients that it makes: the node of autograd that gets it, the position there, and bytes.
        forward_only: Storages saved for backward although no gradient reaches them: their bytes, and the time of the
            last operation that is computed from its results. They are gone after that.
    """

    operations: list[OperationBackward] = field(default_factory=list)
    parameters: dict[int, int] = field(default_factory=dict)
    gradients: list[tuple[AutogradNode, int, int]] = field(default_factory=list)
    forward_only: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def kept(self) -> dict[int, int]:
        """Storages that it keeps from its forward to its backward pass, and their bytes."""
        return {key: size for one in self.operations for key, size in one.kept.items()}

    def peak_bytes(self, counted: Container[int]) -> int:
        """Most bytes that its backward pass takes at a time, beside the storages that are ``counted`` elsewhere."""
        kept = peak = 0
        for one in self.operations:
            kept += sum(size for key, size in one.kept.items() if key not in counted)
            peak = max(peak, kept + one.running_bytes)
        return peak


class Times:
    """When the nodes of autograd run, in numbers of planned calls; code without a plan before call 3 runs at 2.5.

    Args:
        planned: The results of each planned call.
    """

    def __init__(self, planned: Sequence[Results]) -> None:
        by_call = [[at[0] for at in one.nodes if at is not None] for one in planned]
        self.calls = {node: number for number, nodes in enumerate(by_call) for node in nodes}
        self._starts = [min(map(made_at, nodes)) for nodes in by_call if nodes]

    def of(self, node: AutogradNode) -> float:
        """The time of a node."""
        call = self.calls.get(node)
        return sum(start < made_at(node) for start in self._starts) - 0.5 if call is None else call

    def last_uses(self, calls: Calls) -> dict[AutogradNode, float]:
        """For each node of a forward pass, the time of the last that is computed from its results."""
        nodes = sorted(calls.nodes(), key=made_at)
        last = {node: self.of(node) for node in nodes}
        for node in reversed(nodes):
            for other, _ in node.next_functions:
                if other in last:
                    last[other] = max(last[other], last[node])
        return last


def unplanned_code_of(
    calls: Calls,
    planned: Sequence[Results],
    counted: Collection[int],
    times: Times,
    forward_only: Mapping[AutogradNode, float],
) -> list[UnplannedCode]:
    """The unplanned code of a step, in order: before each planned call, and after the last one.

    Args:
        calls: The calls of a forward pass.
        planned: The results of each planned call.
        counted: Storages that are counted elsewhere.
        times: When the nodes of autograd run.
        forward_only: The nodes that no gradient reaches, and the time of the last that is computed from their results.
    """
    codes = [UnplannedCode() for _ in range(len(planned) + 1)]
    every = sorted((node for node in calls.nodes() if node not in times.calls), key=made_at)
    nodes = [node for node in every if node not in forward_only]
    place = {node: round(times.of(node) + 0.5) for node in nodes}
    measured, seen = _measured(nodes, set(calls.nodes()).difference(nodes)), set(counted)
    waiting = _waiting_bytes(place, [node for node in calls.nodes() if node not in forward_only])
    for node, at in place.items():
        new = {storage(tensor): storage_bytes(tensor) for tensor in kept_by(node) if storage(tensor) not in seen}
        seen |= new.keys()
        measured_whole = calls.python_backward.get(node, PythonBackward(0, ()))
        running = max(sum(gradient_sizes(node)), measured.get(node, 0), measured_whole.takes_bytes)
        codes[at].operations.append(OperationBackward(new, running + waiting[node]))
        for parameter in (*_parameters(node), *measured_whole.parameters):
            codes[at].parameters[storage(parameter)] = storage_bytes(parameter)
        others = [other for other in node.next_functions if other[0] in times.calls or place.get(other[0], at) != at]
        codes[at].gradients += [(other, number, gradient_bytes(other, number)) for other, number in others]
    for node in every:
        if node in forward_only:
            saved = codes[round(times.of(node) + 0.5)].forward_only
            for tensor in kept_by(node):
                if (key := storage(tensor)) not in seen:
                    saved[key] = storage_bytes(tensor), max(forward_only[node], saved.get(key, (0, 0.0))[1])
    return codes


def _waiting_bytes(place: Mapping[AutogradNode, int], nodes: Collection[AutogradNode]) -> dict[AutogradNode, int]:
    """Bytes of gradients that wait while the backward pass of each node runs, for one of ``nodes`` that runs later.

    ``place`` has the nodes of unplanned code in the order of the forward pass, and the number of the code of each. What
    code makes for others is counted here only while that code runs.
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


def _measured(nodes: Sequence[AutogradNode], others: Collection[AutogradNode]) -> dict[AutogradNode, int]:
    """Bytes that the backward pass of each node takes at a time, where the nodes have tensors with data on a CPU.

    They run one by one in the order of a backward pass, on zeros that lie in memory as the gradients there do, since
    some operations copy what lies in another order. The nodes of autograd functions written in Python are left out,
    since their code may do anything. Of ``others``, which also make gradients, nothing is known.
    """
    import torch

    def plain(node: AutogradNode) -> bool:
        return not isinstance(node, torch.autograd.function.BackwardCFunction)

    def measurable(node: AutogradNode) -> bool:
        kept = kept_by(node) if plain(node) else []
        return bool(kept) and all(tensor.device.type == "cpu" and not is_fake(tensor) for tensor in kept)

    with_data = {node for node in nodes if measurable(node)}
    if not with_data:
        return {}
    ordered = [node for node in sorted(nodes, key=made_at, reverse=True) if plain(node)]
    layouts = _Layouts({*others, *nodes}.difference(ordered))

    def called(node: AutogradNode) -> Callable[[], Any]:
        gradients = gradients_for(node, layouts.known(node))

        def call() -> Any:
            try:
                results = node(*gradients)
            except RuntimeError:  # it does not stand alone; the gradients that it reads and makes are counted anyway
                layouts.leave_open(node)
                return None
            layouts.add(node, results if isinstance(results, tuple) else (results,))
            return results

        return call

    with torch.no_grad():
        changes = changes_of(map(called, ordered))
    pairs = zip(ordered, changes, strict=True)
    return {node: gradient_sizes(node)[0] + max(accumulate(own, initial=0)) for node, own in pairs if node in with_data}


class _Layouts:
    """How gradients lie in memory, as far as that is known: strides by the node that reads one and the position there.

    The layout of a gradient that several nodes add to is known if all of them make the same one.

    Args:
        unknown: Nodes that do not run, so that nothing is known of what they make.
    """

    def __init__(self, unknown: Collection[AutogradNode]) -> None:
        self._strides: defaultdict[AutogradNode, dict[int, tuple[int, ...] | None]] = defaultdict(dict)
        for node in unknown:
            self.leave_open(node)

    def known(self, node: AutogradNode) -> dict[int, tuple[int, ...]]:
        """The strides of the gradients that a node reads, by position, where they are known."""
        return {position: strides for position, strides in self._strides[node].items() if strides is not None}

    def leave_open(self, node: AutogradNode) -> None:
        """Take note that nothing is known of the gradients that a node makes."""
        for other, position in node.next_functions:
            self._strides[other][position] = None

    def add(self, node: AutogradNode, gradients: Sequence[Tensor | None]) -> None:
        """Take note of the gradients that a node has made."""
        for (other, position), tensor in zip(node.next_functions, gradients, strict=False):
            if other is None or tensor is None:
                continue
            strides, before = tuple(tensor.stride()), self._strides[other]
            before[position] = strides if before.get(position, strides) == strides else None


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


def written_in_python(calls: Calls) -> list[AutogradNode]:
    """The nodes of autograd functions written in Python outside of all graphs, such as layers that can be reversed."""
    import torch

    inside = _inside(calls)
    functions = torch.autograd.function.BackwardCFunction
    nodes = [node for node in calls.nodes() if isinstance(node, functions) and node not in inside]
    return [node for node in nodes if type(node).__name__ != _COMPILED]


def _inside(calls: Calls) -> set[AutogradNode]:
    """The nodes of compiled graphs."""
    return {at[0] for _, results in calls.runs for at in results.nodes if at is not None}


def _parameters(node: AutogradNode) -> list[Tensor]:
    """The parameters whose gradients a node makes."""
    behind = (parameter_of(other) for other, _ in node.next_functions if other is not None)
    return [parameter for parameter in behind if parameter is not None]


def measure_python_functions(calls: Calls, parameters: Sequence[Tensor]) -> list[str]:
    """Note in ``calls`` what the backward passes of autograd functions written in Python need.

    The gradients of ``parameters`` are afterwards what they were. Returns the names of the functions that could not be
    tried: only a pass on a CPU with data can be measured, and one process alone, since they may send to others.
    """
    untried: list[str] = []
    for node in written_in_python(calls):
        measured = _measured_whole(node, parameters) if _can_be_tried(node, parameters) else None
        if measured is None:
            untried.append(type(node).__name__.removesuffix("Backward"))
        else:
            calls.python_backward[node] = measured
    return list(dict.fromkeys(untried))


def _can_be_tried(node: AutogradNode, parameters: Sequence[Tensor]) -> bool:
    import torch

    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    return alone and all(t.device.type == "cpu" and not is_fake(t) for t in [*kept_by(node), *parameters])


def _measured_whole(node: AutogradNode, parameters: Sequence[Tensor]) -> PythonBackward | None:
    """What the backward pass of ``node`` needs; None if it does not stand alone."""
    import torch

    failed: list[str] = []

    def called() -> Iterator[Callable[[], Any]]:
        gradients = gradients_for(node)

        def call() -> Any:
            try:
                return node.apply(*gradients)
            except Exception as error:  # it is the user's code, and expects what a backward pass is given
                failed.append(type(error).__name__)
                return None

        yield call

    with undisturbed(), torch.no_grad(), _without_gradients(parameters):
        [changes] = changes_of(called())
        with_gradients = tuple(parameter for parameter in parameters if parameter.grad is not None)
    if failed:
        return None
    return PythonBackward(gradient_sizes(node)[0] + max(accumulate(changes, initial=0)), with_gradients)


@contextmanager
def _without_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Within this context the parameters have none; then they have those that they had."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
