"""Turns a plan into two functions, forward and backward, as autograd needs them.

The plan is cut at the tangents. Tensors made before the cut and read after it are returned by the forward function,
after its results, and passed to the backward function::

    def forward(args):                         def backward(args):
        places = list(args)                        places = {3: args[0], 7: args[1]}
        args.clear()                               v5_0 = args[2]
        v5_0 = op0(places[3], ...)                 s9 = args[3]
        s9 = get_state()                           v8_0 = args[4]
        v6_0 = op1(v5_0)                           args.clear()
        del v6_0                                   now = get_state()
        ...                                        set_state(s9)
        return [                                   v6_0 = op1(v5_0)
            v7_0,  # results, updates              set_state(now)
            places[3],  # places read later        ...
            places[7].clone(),  # updated          return [
            v5_0,  # values read later                 None,  # a gradient for each place
            s9,  # states of generators                v11_0,
        ]                                          ]
                                                   # v8_0: the tangent, which autograd adds

Both functions empty their argument list, or the list would keep tensors alive longer than the plan.

Copies in host memory that are read after the cut cross it too, and so do values whose copies may not have ended. The
events of these copies are handed over beside the tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.torch.document import Argument, Place, Step, TensorSpec, Value, read_step, tensors_read
from remat_cli.frontends.torch.execute.program import Held, Writer, defined
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Offload, Prefetch, Statement

Half = Callable[[list[Any]], list[Any]]
"""A function that takes a list of tensors, empties it, and returns a list."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that crosses the cut.

    Attributes:
        spec: Its type and layout.
        host: Whether it is in host memory, even if the plan runs on another device.
    """

    spec: TensorSpec
    host: bool = False


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """A plan in two parts.

    Attributes:
        forward: Takes a tensor for each place that is not a tangent; returns the forward results, then ``saved``.
        backward: Takes ``saved``, then the tangents; returns a gradient or None for each place.
        saved: The tensors that cross the cut, in order.
        text: The source of both.
    """

    forward: Half
    backward: Half
    saved: tuple[Saved, ...]
    text: str


@dataclass(frozen=True, slots=True)
class _Cut:
    """Numbers of the places and values that cross the cut, of the nodes whose generator state does, and of slots.

    Attributes:
        places: Numbers of places.
        values: Numbers of values.
        states: Numbers of nodes.
        slots: For each slot its number and its value.
    """

    places: list[int]
    values: list[int]
    states: list[int]
    slots: dict[str, tuple[int, int]]


def forward_backward(graph: Graph, statements: Sequence[Statement], device: str) -> ForwardBackward:
    """The two functions for ``statements``, a valid plan of ``graph``; see :func:`.program.program`.

    Raises:
        UsageError: If the graph is damaged.
        ExecutionFailed: If this torch does not have an operator.
    """
    step = read_step(graph)
    # The tangents are computed exactly once, since their node must not be recomputed: that statement is the cut.
    computes = [(k, one) for k, one in enumerate(statements) if isinstance(one, Compute)]
    at, cut_registers = next((k, one.registers) for k, one in computes if one.node == step.tangents)
    left, right = statements[:at], statements[at + 1 :]
    writer = Writer(step, device)
    # Over both parts: a random node computed once in each has to save its generator state across the cut.
    writer.repeats.update(one.node for _, one in computes)
    held = Held()
    writer.write(left, held)
    cut = _cut(writer, right, held)
    crossing = _crossing(step, cut)
    events = _events(writer, cut)
    forward_lines = _forward(writer, cut, crossing, events)
    # Values that the backward part never reads do not cross, so their deallocations there have nothing to free.
    held.values = {register: value for register, value in held.values.items() if value in cut.values}
    held.values |= dict(zip(cut_registers, graph.values_of(step.tangents), strict=True))
    held.slots = dict(cut.slots)
    backward_lines = _backward(writer, cut, crossing, events, right, held)
    text = "\n".join(["def forward(args):", *forward_lines, "", "def backward(args):", *backward_lines, ""])
    scope = writer.scope()
    state_bytes = int(scope["get_state"]().numel()) if cut.states else 0
    forward, backward = defined(text, scope, "forward", "backward")
    return ForwardBackward(forward, backward, _saved(step, cut, state_bytes), text)


def _events(writer: Writer, cut: _Cut) -> dict[str, str]:
    """For each variable that crosses the event of its copy to the host, if there is one.

    Computations wait for all copies from the host: results leave this function, and nothing may be written to later.
    They wait for copies of what does not cross, and for collectives, too.
    """
    for value in list(writer.filling):
        writer.wait_filled(value)
    for value in (set(writer.leaving) | set(writer.sent)) - set(cut.values):
        writer.settle(value)
    events = {f"h{number}": f"e{number}" for number, _ in cut.slots.values()}
    for value, copies in writer.leaving.items():
        del copies[:-1]  # copies to the host end one after another: the last one is that to wait for
        events[writer.parts(value)[0]] = copies[0]
    return events


def _forward(writer: Writer, cut: _Cut, crossing: Sequence[str], events: Mapping[str, str]) -> list[str]:
    """All lines of the forward function. Empties ``writer.lines``, so that the backward function starts with none."""
    results = writer.step.results
    updated = {result.of for result in results if result.kind == "update"}
    outcomes = [writer.result(result) for result in results if result.kind != "gradient"]
    # AOTAutograd writes the update into the buffer before the backward function reads it, so save a copy.
    places = [f"places[{p}].clone()" if p in updated else f"places[{p}]" for p in cut.places]
    handed = [f"host.hand_over({name}, {events[name]})" if name in events else name for name in crossing]
    writer.line(f"return [{', '.join([*outcomes, *places, *handed])}]")
    lines, writer.lines = writer.lines, []
    return ["    places = list(args)", "    args.clear()", *lines]


def _backward(
    writer: Writer,
    cut: _Cut,
    crossing: Sequence[str],
    events: Mapping[str, str],
    statements: Sequence[Statement],
    held: Held,
) -> list[str]:
    """All lines of the backward function; ``held`` is what there is at its start."""
    step = writer.step
    places = ", ".join(f"{place}: args[{k}]" for k, place in enumerate(cut.places))
    writer.line(f"places = {{{places}}}")
    tangents = [f"v{value}_0" for value in step.graph.values_of(step.tangents)]
    for k, name in enumerate([*crossing, *tangents], start=len(cut.places)):
        writer.line(f"{name} = args[{k}]")
    writer.line("args.clear()")
    for name, event in events.items():
        writer.line(f"{event} = host.handed_over({name})")
    writer.complete(value for value in step.ahead if value in cut.values)
    writer.write(statements, held)
    for value in [*writer.filling, *writer.leaving]:
        writer.settle(value)
    gradients = {result.of: writer.result(result) for result in step.results if result.kind == "gradient"}
    outcomes = [gradients.get(number, "None") for number in range(len(step.given))]
    writer.line(f"return [{', '.join(outcomes)}]")
    return writer.lines


def _cut(writer: Writer, statements: Sequence[Statement], held: Held) -> _Cut:
    """What the forward part, which ``writer`` has written, holds, and ``statements``, the backward part, use."""
    step = writer.step
    here, read, places = set(held.values.values()), set[int](), set[int]()
    slots: dict[str, tuple[int, int]] = {}
    for statement in statements:
        match statement:
            case Compute(node):
                operation = step.operations[node]
                places |= _numbers((*operation.args, *operation.kwargs.values()), Place)
                # Once a value is made anew, later statements read the new instance, which does not cross the cut.
                read |= here & set(step.graph.nodes[node].inputs)
                here -= set(step.graph.values_of(node))
            case Allocate(_, value):
                here.discard(value)
            case Offload(register):
                read |= here & {held.values.get(register, -1)}
            case Deallocate(register):
                # Its memory is not free before the copies have ended.
                value = held.values.get(register, -1)
                read |= here & {value} & set(writer.leaving)
            case Prefetch(slot) if slot in held.slots:
                slots[slot] = held.slots[slot]
    gradients = [result.tensor for result in step.results if result.kind == "gradient"]
    return _Cut(
        places=sorted(places | _numbers(gradients, Place)),
        values=sorted(read | (here & _numbers(gradients, Value))),
        states=sorted(node for node, count in writer.repeats.items() if count > 1 and writer.waiting(node)),
        slots=slots,
    )


def _numbers(arguments: Sequence[Argument], kind: type[Place] | type[Value]) -> set[int]:
    """Numbers of the places, or of the values, in ``arguments``."""
    return {tensor.number for tensor in tensors_read(arguments) if isinstance(tensor, kind)}


def _crossing(step: Step, cut: _Cut) -> list[str]:
    """Names of the variables that cross the cut."""
    values = [f"v{value}_{part}" for value in cut.values for part in range(len(step.tensors(value)))]
    return values + [f"s{node}" for node in cut.states] + [f"h{number}" for number, _ in cut.slots.values()]


def _saved(step: Step, cut: _Cut, state_bytes: int) -> tuple[Saved, ...]:
    places = [Saved(step.places[place].spec) for place in cut.places]
    values = [Saved(tensor.spec) for value in cut.values for tensor in step.tensors(value)]
    states = [Saved(TensorSpec("uint8", (state_bytes,), (1,)), host=True) for _ in cut.states]
    slots = [Saved(TensorSpec("uint8", (step.graph.size[v],), (1,)), host=True) for _, v in cut.slots.values()]
    return (*places, *values, *states, *slots)
