"""The course of a step through the parts of a module: their calls in order, and what lies between them.

The forward passes of the calls run one after another, then the backward passes in the reverse order. Code between two
calls that PyTorch runs as it is runs its backward pass between theirs. A part may be called several times.

Memory is told by storage, so that a tensor that one call returns and another one reads counts once. The gradient of a
parameter stays to the end of the step. That of what one part returns and a later one reads is there from the backward
pass of the later one to that of the earlier one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.torch.capturing.capture import Calls, Captured, Results
from remat_cli.frontends.torch.capturing.results import reached_by
from remat_cli.frontends.torch.document import Place, Step, Value, tensors_read
from remat_cli.frontends.torch.reading import read_step
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes
from remat_cli.frontends.torch.training.loss import Asked
from remat_cli.frontends.torch.training.outside import Moment, Outside, Times, outside_of
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Statement

_END = -1.0
"""Before the backward pass of what the gradient of a parameter is gone: of nothing in the step."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the graphs of a module.

    Attributes:
        graph: Its graph on its own; its fixed memory is that of the module and of all that it is given.
        given_bytes: The part of its fixed memory that not all parts share.
        reads: The numbers of the places that each node reads.
        results: The value behind each result of the forward pass, by the number of the result.
        held: The results that the caller still has in the backward pass.
        gradients: Bytes of the gradient of each place that has one.
    """

    graph: Graph
    given_bytes: int = 0
    reads: tuple[frozenset[int], ...] = ()
    results: Mapping[int, int] = field(default_factory=dict)
    held: frozenset[int] = frozenset()
    gradients: Mapping[int, int] = field(default_factory=dict)

    @property
    def tangents_bytes(self) -> int:
        """Bytes of its tangents."""
        return sum(self.graph.size[value] for value in self.graph.values_of(tangents_of(self.graph)))

    def ending_bytes(self, crossing: Crossing) -> int:
        """Bytes of the results that end with the forward pass; in the graph the node of the tangents reads them."""
        read = self.graph.nodes[tangents_of(self.graph)].inputs
        return sum(self.graph.size[value] for value in read if value not in crossing.values)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a part.

    Attributes:
        part: The number of the part.
        given: What it is given and not all parts share: storages and their bytes.
        places: The storage of each input; None for what is no tensor.
        made: The storage of each result, by the value of the part's graph.
        until: If no gradient comes to it, the time of the last that is computed from its results: it holds nothing
            after that. None if one comes.
    """

    part: int
    given: Mapping[int, int] = field(default_factory=dict)
    places: tuple[int | None, ...] = ()
    made: Mapping[int, int] = field(default_factory=dict)
    until: float | None = None

    @property
    def trains(self) -> bool:
        """Whether a gradient comes to it."""
        return self.until is None


@dataclass(frozen=True, slots=True)
class Gradient:
    """Memory that is there for a part of the backward pass: a gradient, or a result that the loop has to the end.

    Times are numbers of calls; code without a plan before call 3 runs at 2.5.

    Attributes:
        of: What it is the gradient of; gradients of the same thing are added in place.
        size_bytes: Bytes.
        made: When its backward pass has made it.
        until: When it is gone: in the backward pass of what it is the gradient of.
    """

    of: Hashable
    size_bytes: int
    made: float
    until: float


@dataclass(frozen=True, slots=True)
class Course:
    """The parts of a module and their calls.

    Attributes:
        parts: The parts.
        calls: The calls, in the order of their forward passes; each part has one.
        outside: Code without a plan before each call, and behind the last one.
        gradients: What is there for a part of the backward pass.
    """

    parts: tuple[Part, ...]
    calls: tuple[Call, ...]
    outside: tuple[Outside, ...]
    gradients: tuple[Gradient, ...] = ()

    def beside(self, time: float) -> int:
        """Bytes of the gradients that are there all the time in the backward pass at ``time``."""
        there: dict[Hashable, int] = {}
        for one in self.gradients:
            if one.until < time < one.made:
                there[one.of] = max(one.size_bytes, there.get(one.of, 0))
        return sum(there.values())

    @property
    def kept_outside_bytes(self) -> int:
        """Bytes that code without a plan keeps for its backward pass, and no part makes."""
        made = {key for call in self.calls for key in call.made.values()}
        return sum(size for key, size in self._kept().items() if key not in made)

    def _kept(self) -> dict[int, int]:
        return {key: size for code in self.outside for key, size in code.kept.items()}


@dataclass(frozen=True, slots=True)
class Crossing:
    """What a part holds between its two passes, tangents left out.

    Attributes:
        values: Its values, and their bytes.
        places: The places that its backward pass reads.
    """

    values: Mapping[int, int]
    places: frozenset[int]

    def inside_bytes(self, call: Call) -> int:
        """Bytes of what only ``call`` knows."""
        return sum(size for value, size in self.values.items() if value not in call.made)

    def shared(self, call: Call) -> dict[int, int]:
        """What others may hold, too: storages and their bytes."""
        results = {call.made[value]: size for value, size in self.values.items() if value in call.made}
        keys = {call.places[place] for place in self.places if place < len(call.places)}
        return {key: size for key, size in call.given.items() if key in keys} | results


def crossing(part: Part, statements: Sequence[Statement]) -> Crossing:
    """What ``part`` holds between its two passes by a plan."""
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
    later = {one.node for one in statements[at:] if isinstance(one, Compute)}
    return Crossing(
        values, frozenset[int]().union(*(part.reads[node] for node in later)) if part.reads else frozenset()
    )


def tangents_of(graph: Graph) -> int:
    """The node that makes the tangents."""
    return next(k for k, node in enumerate(graph.nodes) if node.payload["call"] == TANGENTS)


def course_of(graphs: Sequence[Graph], captured: Sequence[Captured], calls: Calls, asked: Asked | None) -> Course:
    """The course of a step.

    Args:
        graphs: The graph of each part, its fixed memory that of the module and of what the part is given.
        captured: What each graph was made from.
        calls: How the module called them; what it did not call comes last.
        asked: What the loop asks of the results.
    """
    model = captured[0].model
    module = _sizes([*model.module.parameters(), *model.module.buffers()])
    common = _sizes([tensor for _, tensor in leaves([model.inputs, model.keywords])]) | module
    pairs = zip(calls.made, calls.given, strict=True)
    ordered = [(number, results, given) for (number, results), given in pairs if number is not None]
    called = {number for number, _, _ in ordered}
    ordered += [(k, Results(), one.tensors) for k, one in enumerate(captured) if k not in called]
    planned = [results for _, results, _ in ordered]
    times = Times(planned)
    passing = _passing(calls, times, asked)
    outside = outside_of(calls, planned, common, times, passing)
    if asked is not None and asked.loss_bytes:
        outside[-1].moments.append(Moment({}, asked.loss_bytes))
        computed = [Gradient("loss", asked.number_bytes, len(planned) - 0.5, _END)]
    else:
        computed = []
    first = {number: given for number, _, given in reversed(ordered)}
    parts = tuple(_part(graph, _sizes(first[k]), common, module) for k, graph in enumerate(graphs))
    made = [_call(parts[number], number, results, given, common) for number, results, given in ordered]
    made = [replace(call, until=_until(one, passing)) for call, one in zip(made, planned, strict=True)]
    gradients = computed + [found for code in enumerate(outside) for found in _left(*code, times)]
    for at, (call, (number, _, given)) in enumerate(zip(made, ordered, strict=True)):
        sizes = parts[number].gradients if call.trains else {}
        gradients += [_gradient(given[place], size, at, times) for place, size in sizes.items()]
    output = [tensor for _, tensor in leaves(calls.output)]
    for tensor in () if asked is None else asked.chosen.tensors:
        gradients.append(_gradient(tensor, storage_bytes(tensor), len(made) - 0.5, times))
    gradients += _outputs(parts, made, {storage(tensor) for tensor in output})
    return Course(parts, tuple(made), tuple(outside), tuple(gradients))


def _part(graph: Graph, given: Mapping[int, int], common: Mapping[int, int], module: Mapping[int, int]) -> Part:
    """A part from its graph, and what its first call was given."""
    missing = sum(size for key, size in common.items() if key not in given and key not in module)
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
    rest = sum(size for key, size in given.items() if key not in common)
    return Part(graph, rest, _reads(step), results, frozenset(held), gradients)


def _reads(step: Step) -> tuple[frozenset[int], ...]:
    """The numbers of the places that each operation reads."""
    return tuple(
        frozenset(
            tensor.number for tensor in tensors_read([*one.args, *one.kwargs.values()]) if isinstance(tensor, Place)
        )
        for one in step.operations
    )


def _call(part: Part, number: int, results: Sequence[Any], given: Sequence[Any], common: Mapping[int, int]) -> Call:
    sizes = _sizes(given)
    found = {value: results[k] for k, value in part.results.items() if k < len(results)}
    return Call(
        part=number,
        given={key: size for key, size in sizes.items() if key not in common},
        places=tuple(storage(tensor) if _is_tensor(tensor) else None for tensor in given),
        made={value: storage(result) for value, result in found.items() if _is_tensor(result)},
    )


def _passing(calls: Calls, times: Times, asked: Asked | None) -> dict[Any, float]:
    """The nodes of autograd that no gradient comes to, and the time of the last that is computed from their results."""
    if asked is None:
        return {}
    reached = {node for node, _ in reached_by(asked.chosen.tensors)}
    return {node: time for node, time in times.last_uses(calls).items() if node not in reached}


def _until(results: Results, passing: Mapping[Any, float]) -> float | None:
    """When the last is computed from ``results``, if no gradient comes to what returned them; None if one does."""
    nodes = [at[0] for at in results.nodes if at is not None]
    return max(passing[node] for node in nodes) if nodes and all(node in passing for node in nodes) else None


def _gradient(tensor: Any, size_bytes: int, made: float, times: Times) -> Gradient:
    """The gradient of a tensor."""
    node = tensor.grad_fn
    if node is None:
        return Gradient(("leaf", storage(tensor)), size_bytes, made, _END)
    return Gradient((node, tensor.output_nr), size_bytes, made, times.of(node))


def _left(number: int, code: Outside, times: Times) -> list[Gradient]:
    """The gradients that code without a plan makes for others."""
    made = number - 0.5
    found = [Gradient(("leaf", key), size, made, _END) for key, size in code.left.items()]
    return found + [Gradient((node, at), size, made, times.of(node)) for node, at, size in code.passed]


def _outputs(parts: Sequence[Part], calls: Sequence[Call], output: set[int]) -> list[Gradient]:
    """What the module returns and the loop has to the end, for all calls before the one that made it."""
    found = []
    for at, call in enumerate(calls):
        part = parts[call.part]
        for number in part.held:
            value = part.results[number]
            if call.made.get(value) in output:
                found.append(Gradient(("result", call.made[value]), part.graph.size[value], at, _END))
    return found


def _sizes(tensors: Sequence[Any]) -> dict[int, int]:
    """Bytes of each storage."""
    return {storage(tensor): storage_bytes(tensor) for tensor in tensors if _is_tensor(tensor)}


def _is_tensor(item: Any) -> bool:
    import torch

    return isinstance(item, torch.Tensor)
