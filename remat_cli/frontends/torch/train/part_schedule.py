"""Describes a step as a schedule of calls of the module's parts, and the memory that lives between them.

The forward passes of the calls run one after another, then the backward passes in the reverse order. Code between two
calls that PyTorch runs as it is runs its backward pass between theirs. A part may be called several times.

Times are numbers of calls; unplanned code before call 3 runs at 2.5. In the backward pass they fall.

Memory is identified by storage, so that a tensor that one call returns and another one reads counts once. The gradient
of a parameter lives until the step ends. The gradient of what one part returns and a later one reads lives from the
backward pass of the later part to that of the earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.torch.capture.capture import Calls, Captured, Results
from remat_cli.frontends.torch.capture.results import reached_by
from remat_cli.frontends.torch.compat.distributed import without_meshes
from remat_cli.frontends.torch.document import Place, Step, Value, read_step, tensors_read
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes
from remat_cli.frontends.torch.train.loop_assumptions import LossDemand
from remat_cli.frontends.torch.train.unplanned_code import OperationBackward, Times, UnplannedCode, unplanned_code_of
from remat_cli.frontends.torch.types import AutogradNode, Tensor
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Statement

_STEP_END = -1.0
"""Later than all backward passes, whose times fall from the last call to 0. Parameter gradients live until then."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the graphs of a module.

    Attributes:
        graph: Its graph on its own; its fixed memory is that of the module and of all that it is given.
        input_bytes: The part of its fixed memory that is its own inputs, and not of all parts.
        reads: The inputs that each node reads, by position.
        results: The value behind each result of the forward pass, by the position of the result.
        held: The results that the loop still has in the backward pass.
        gradients: Bytes of the gradient of each input that has one.
        repeats: Whether each of its calls keeps its inputs up to its backward pass, to be able to compute everything a
            second time.
        copied_bytes: What a call keeps for that besides, which is counted in the fixed memory of ``graph``: copies of
            what it updates, and the state of the random generator.
    """

    graph: Graph
    input_bytes: int = 0
    reads: tuple[frozenset[int], ...] = ()
    results: Mapping[int, int] = field(default_factory=dict)
    held: frozenset[int] = frozenset()
    gradients: Mapping[int, int] = field(default_factory=dict)
    repeats: bool = False
    copied_bytes: int = 0

    @property
    def tangents_bytes(self) -> int:
        """Bytes of its tangents."""
        return sum(self.graph.size[value] for value in self.graph.values_of(tangents_of(self.graph)))

    def ending(self, saved: Saved) -> dict[int, int]:
        """The results that end with the forward pass, and their bytes; the node of the tangents reads them."""
        read = self.graph.nodes[tangents_of(self.graph)].inputs
        return {value: self.graph.size[value] for value in read if value not in saved.values}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a part.

    Attributes:
        part: The number of the part.
        inputs: The storages of its inputs that are not of the module or the batch, and their bytes.
        storages: The storage of each input; None for what is no tensor.
        results: The storage of each result, by the value of the part's graph.
        until: If no gradient reaches it, the time of the last that is computed from its results: it holds nothing
            after that. None if one does.
    """

    part: int
    inputs: Mapping[int, int] = field(default_factory=dict)
    storages: tuple[int | None, ...] = ()
    results: Mapping[int, int] = field(default_factory=dict)
    until: float | None = None

    @property
    def trains(self) -> bool:
        """Whether a gradient reaches it."""
        return self.until is None


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory that lives during a span of the backward pass: a gradient, or a result that the loop holds to the end.

    Attributes:
        of: What it belongs to. Gradients of the same thing are added in place.
        size_bytes: Bytes.
        start: The time of the backward pass that makes it.
        end: The time of the backward pass that frees it, that of the tensor it belongs to.
    """

    of: Hashable
    size_bytes: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class PartSchedule:
    """The parts of a module and their calls.

    Attributes:
        parts: The parts.
        calls: The calls, in the order of their forward passes; each part has one.
        unplanned: Unplanned code before each call, and behind the last one.
        residents: What lives during a span of the backward pass.
        output: The storages of what the module returns.
        loss_forward_bytes: What the forward pass of a loss behind the last call takes, while all of that is there.
    """

    parts: tuple[Part, ...]
    calls: tuple[Call, ...]
    unplanned: tuple[UnplannedCode, ...]
    residents: tuple[Resident, ...] = ()
    output: frozenset[int] = frozenset()
    loss_forward_bytes: int = 0

    def resident_bytes(self, time: float) -> int:
        """Bytes that live throughout the backward pass at ``time``, beside what its own code counts."""
        sizes: dict[Hashable, int] = {}
        for one in self.residents:
            if one.end < time < one.start:
                sizes[one.of] = max(one.size_bytes, sizes.get(one.of, 0))
        return sum(sizes.values())

    @property
    def unplanned_bytes(self) -> int:
        """Bytes that unplanned code keeps for its backward pass, and no part makes."""
        results = {key for call in self.calls for key in call.results.values()}
        kept = {key: size for code in self.unplanned for key, size in code.kept.items()}
        return sum(size for key, size in kept.items() if key not in results)


@dataclass(frozen=True, slots=True)
class Saved:
    """What a part saves from its forward to its backward pass, tangents left out.

    Attributes:
        values: Its values, and their bytes.
        inputs: The inputs that its backward pass reads, by position; None for all of them.
        copied_bytes: Bytes of what it copies of its inputs.
    """

    values: Mapping[int, int]
    inputs: frozenset[int] | None
    copied_bytes: int = 0

    @property
    def value_bytes(self) -> int:
        """Bytes of its values."""
        return sum(self.values.values())

    def private_bytes(self, call: Call) -> int:
        """Bytes of what only ``call`` can hold."""
        return self.copied_bytes + sum(size for value, size in self.values.items() if value not in call.results)

    def shared(self, call: Call) -> dict[int, int]:
        """What others may hold, too, since they make or read it: storages and their bytes."""
        results = {call.results[value]: size for value, size in self.values.items() if value in call.results}
        if self.inputs is None:
            return dict(call.inputs) | results
        keys = {call.storages[position] for position in self.inputs if position < len(call.storages)}
        return {key: size for key, size in call.inputs.items() if key in keys} | results


def saved_by(part: Part, statements: Sequence[Statement]) -> Saved:
    """What ``part`` saves by a plan."""
    graph, cut = part.graph, tangents_of(part.graph)
    at = next(k for k, one in enumerate(statements) if isinstance(one, Compute) and one.node == cut)
    live: dict[str, int] = {}
    for k, one in enumerate(statements):
        if isinstance(one, Deallocate):
            del live[one.register]
        elif k > at:
            break
        elif isinstance(one, Allocate):
            live[one.register] = one.value
    tangents = statements[at]
    assert isinstance(tangents, Compute)
    values = {value: graph.size[value] for register, value in live.items() if register not in tangents.registers}
    if part.repeats:
        return Saved(values, None, part.copied_bytes)
    later = {one.node for one in statements[at:] if isinstance(one, Compute)} if part.reads else ()
    return Saved(values, frozenset[int]().union(*(part.reads[node] for node in later)))


def tangents_of(graph: Graph) -> int:
    """The node that makes the tangents."""
    return next(k for k, node in enumerate(graph.nodes) if (node.payload or {}).get("call") == TANGENTS)


@dataclass(frozen=True, slots=True)
class _PartCall:
    """A call of a part as it was captured: the number of the part, its results, and its inputs."""

    part: int
    results: Results
    inputs: Sequence[Tensor]


def schedule_of(
    graphs: Sequence[Graph],
    captured: Sequence[Captured],
    calls: Calls,
    demand: LossDemand | None,
    held: Sequence[Tensor] | None = None,
    copied: Sequence[int | None] = (),
) -> PartSchedule:
    """The schedule of a step.

    Args:
        graphs: The graph of each part, its fixed memory that of the module and of what the part is given.
        captured: What each graph was made from.
        calls: How the module called them; what it did not call comes last.
        demand: What the loop asks of the results.
        held: The results that the loop still has when the backward pass begins; None for all.
        copied: For each part the bytes that a call copies to be able to run a second time; None if it never does.
    """
    model = captured[0].model
    module = _sizes([*model.module.parameters(), *model.module.buffers()])
    common = _sizes(model.tensors())
    ordered = _ordered(captured, calls)
    times = Times([one.results for one in ordered])
    forward_only = _forward_only(calls, times, demand)
    unplanned = unplanned_code_of(calls, [one.results for one in ordered], common, times, forward_only)
    first_inputs = {one.part: one.inputs for one in reversed(ordered)}
    parts = tuple(
        _part(graph, _sizes(first_inputs[k]), common, module, copied[k] if copied else None)
        for k, graph in enumerate(graphs)
    )
    planned = tuple(_call(parts[one.part], one, common, forward_only) for one in ordered)
    returned = _sizes([tensor for _, tensor in leaves(calls.output)])
    returned = {key: size for key, size in returned.items() if key not in common}
    staying = returned if held is None else {key: size for key, size in _sizes(held).items() if key in returned}
    residents = _gradients(parts, planned, unplanned, ordered, demand, times)
    residents += _held_results(parts, planned, staying) + _held_unplanned_results(planned, unplanned, staying)
    if demand is not None and demand.loss_bytes:
        unplanned[-1].operations.append(OperationBackward({}, demand.loss_bytes))
        residents.append(Resident("loss", demand.number_bytes, len(planned) - 0.5, _STEP_END))
    forward = 0
    if demand is not None and demand.forward_bytes:
        counted = {key for call in planned for key in call.results.values()}
        counted |= {key for code in unplanned for key in code.kept} | staying.keys()
        forward = demand.forward_bytes + sum(size for key, size in returned.items() if key not in counted)
    return PartSchedule(parts, planned, tuple(unplanned), tuple(residents), frozenset(returned), forward)


def _ordered(captured: Sequence[Captured], calls: Calls) -> list[_PartCall]:
    """The calls of the parts, in order; a part that was not called comes last. Meshes of DTensors are left out."""
    pairs = zip(calls.runs, calls.inputs, strict=True)
    ordered = [
        _PartCall(part, results, without_meshes(inputs)) for (part, results), inputs in pairs if part is not None
    ]
    called = {one.part for one in ordered}
    others = [(k, one) for k, one in enumerate(captured) if k not in called]
    return ordered + [_PartCall(k, Results(), without_meshes(one.tensors)) for k, one in others]


def _part(
    graph: Graph,
    inputs: Mapping[int, int],
    common: Mapping[int, int],
    module: Mapping[int, int],
    copied_bytes: int | None,
) -> Part:
    """A part from its graph, and the inputs of its first call."""
    missing = sum(size for key, size in common.items() if key not in inputs and key not in module)
    graph = replace(graph, fixed_memory=graph.fixed_memory + missing)
    step = read_step(graph)
    results: dict[int, int] = {}
    held, gradients = set[int](), dict[int, int]()
    for result in step.results:
        values = [tensor.number for tensor in tensors_read([result.tensor]) if isinstance(tensor, Value)]
        if not values or not isinstance(result.of, int):
            continue
        if result.kind == "gradient":
            gradients[result.of] = graph.size[values[0]]
        elif result.kind in {"result", "dropped"}:
            results[result.of] = values[0]
            held |= {result.of} if result.kind == "result" else set()
    return Part(
        graph=graph,
        input_bytes=sum(size for key, size in inputs.items() if key not in common),
        reads=_reads(step),
        results=results,
        held=frozenset(held),
        gradients=gradients,
        repeats=copied_bytes is not None,
        copied_bytes=copied_bytes or 0,
    )


def _reads(step: Step) -> tuple[frozenset[int], ...]:
    """The inputs that each operation reads, by position."""
    return tuple(
        frozenset(
            tensor.number for tensor in tensors_read([*one.args, *one.kwargs.values()]) if isinstance(tensor, Place)
        )
        for one in step.operations
    )


def _call(part: Part, call: _PartCall, common: Mapping[int, int], forward_only: Mapping[AutogradNode, float]) -> Call:
    results = {value: call.results[k] for k, value in part.results.items() if k < len(call.results)}
    nodes = [at[0] for at in call.results.nodes if at is not None]
    reached = not nodes or any(node not in forward_only for node in nodes)
    return Call(
        part=call.part,
        inputs={key: size for key, size in _sizes(call.inputs).items() if key not in common},
        storages=tuple(storage(tensor) if _is_tensor(tensor) else None for tensor in call.inputs),
        results={value: storage(result) for value, result in results.items() if _is_tensor(result)},
        until=None if reached else max(forward_only[node] for node in nodes),
    )


def _forward_only(calls: Calls, times: Times, demand: LossDemand | None) -> dict[AutogradNode, float]:
    """The nodes of autograd that no gradient reaches, and the time of the last that is computed from their results."""
    if demand is None:
        return {}
    reached = {node for node, _ in reached_by(demand.trained.tensors)}
    return {node: time for node, time in times.last_uses(calls).items() if node not in reached}


def _gradients(
    parts: Sequence[Part],
    calls: Sequence[Call],
    unplanned: Sequence[UnplannedCode],
    ordered: Sequence[_PartCall],
    demand: LossDemand | None,
    times: Times,
) -> list[Resident]:
    """All gradients that one part or unplanned code makes and another one, or the loop, gets."""
    residents: list[Resident] = []
    for number, code in enumerate(unplanned):
        start = number - 0.5
        residents += [Resident(("leaf", key), size, start, _STEP_END) for key, size in code.parameters.items()]
        residents += [Resident((node, at), size, start, times.of(node)) for node, at, size in code.gradients]
    for at, (call, one) in enumerate(zip(calls, ordered, strict=True)):
        sizes = parts[call.part].gradients if call.trains else {}
        residents += [_resident(one.inputs[position], size, at, times) for position, size in sizes.items()]
    for tensor in () if demand is None else demand.trained.tensors:
        residents.append(_resident(tensor, storage_bytes(tensor), len(calls) - 0.5, times))
    return residents


def _resident(tensor: Tensor, size_bytes: int, start: float, times: Times) -> Resident:
    """The gradient of a tensor."""
    node = tensor.grad_fn
    if node is None:
        return Resident(("leaf", storage(tensor)), size_bytes, start, _STEP_END)
    return Resident((node, tensor.output_nr), size_bytes, start, times.of(node))


def _held_results(parts: Sequence[Part], calls: Sequence[Call], output: Container[int]) -> list[Resident]:
    """What the module returns and the loop holds to the end, for all calls before the one that made it."""
    residents = []
    for at, call in enumerate(calls):
        part = parts[call.part]
        for number in part.held:
            value = part.results[number]
            if call.results.get(value) in output:
                residents.append(Resident(("result", call.results[value]), part.graph.size[value], at, _STEP_END))
    return residents


def _held_unplanned_results(
    calls: Sequence[Call], unplanned: Sequence[UnplannedCode], output: Mapping[int, int]
) -> list[Resident]:
    """What unplanned code makes, the module returns, and the loop holds to the end.

    It counts here for what runs its backward pass after the first call or code that keeps it, which counts it itself.
    """
    results = {key for call in calls for key in call.results.values()}
    keeping: list[tuple[float, Container[int]]] = [(number, call.inputs) for number, call in enumerate(calls)]
    keeping += [(number - 0.5, code.kept) for number, code in enumerate(unplanned)]
    return [
        Resident(("result", key), size, min((t for t, keys in keeping if key in keys), default=math.inf), _STEP_END)
        for key, size in output.items()
        if key not in results
    ]


def _sizes(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Bytes of each storage."""
    return {storage(tensor): storage_bytes(tensor) for tensor in tensors if _is_tensor(tensor)}


def _is_tensor(item: Any) -> bool:
    import torch

    return isinstance(item, torch.Tensor)
