"""Turns a plan into a Python function: one line per computation, one ``del`` per deallocation, none of the user's code.

Code is generated, and not interpreted, for two reasons: a local variable is freed exactly where the plan says, and a
step costs little more than the dispatch of its operators.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.torch.codec import decode, decode_data, operator_named
from remat_cli.frontends.torch.compat.distributed import WAIT, in_flight
from remat_cli.frontends.torch.document import (
    FRONTEND,
    Argument,
    Constant,
    Input,
    Operation,
    Place,
    Result,
    Step,
    Tensor,
    Value,
    View,
    read_step,
)
from remat_cli.frontends.torch.execute.host_copies import HostLink
from remat_cli.frontends.torch.execute.in_parts import complete, write_parts
from remat_cli.frontends.torch.execute.out_of_memory import no_memory, out_of_memory
from remat_cli.frontends.torch.execute.strides import OTHER_STRIDES, in_layout
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Offload, Prefetch, Release, Statement
from remat_cli.printable import printable

Tangent = Callable[[int], Any]
"""Makes the k-th tangent: the gradient of a result from outside; ones for a loss."""
_FILE = "<remat plan>"


class _Text(str):
    """A piece of generated code among the arguments of an operator."""

    __repr__ = str.__str__


@dataclass(frozen=True, slots=True)
class Program:
    """A plan that can be run.

    Attributes:
        function: ``function(places, tangent)``: results in the order of the graph's metadata.
        text: Its source.
        nodes: For every line of the source, the id of the node that it computes, or None.
        device: The device that it was written for.
        host: What makes its copies.
    """

    function: Callable[[Sequence[Any], Tangent], list[Any]]
    text: str
    nodes: tuple[str | None, ...]
    device: str
    host: HostLink

    def run(self, places: Sequence[Any], tangent: Tangent) -> list[Any]:
        """Run one step without autograd.

        Args:
            places: A tensor for each place of the graph that is not a tangent.
            tangent: Makes tangents.

        Returns:
            A tensor for each of the graph's results that are there at the end: losses, gradients, updates.

        Raises:
            OutOfMemory: If memory is exhausted, with the node.
            ExecutionFailed: If an operator fails, with the node.
        """
        import torch

        try:
            with torch.no_grad():
                return self.function(places, tangent)
        except Exception as error:  # operators may raise anything
            if out_of_memory(error):
                raise no_memory(error, self.device, self._place(error)) from error
            raise ExecutionFailed(
                f"{self._place(error)} failed: {words(error)}",
                hint="was the graph exported for another device, or does this need other inputs than random ones?",
            ) from error

    def _place(self, error: Exception) -> str:
        trace = error.__traceback__
        line = 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                line = trace.tb_lineno
            trace = trace.tb_next
        node = self.nodes[line - 1] if 0 < line <= len(self.nodes) else None
        return "the plan" if node is None else f"node {printable(node)}"


@dataclass(slots=True)
class Held:
    """What registers and slots hold, where the code of a plan stands.

    Attributes:
        values: The value in each register that holds one.
        slots: For each slot its number and its value.
        into: The value of each register that was allocated.
        numbers: The number of slots so far.
    """

    values: dict[str, int] = field(default_factory=dict)
    slots: dict[str, tuple[int, int]] = field(default_factory=dict)
    into: dict[str, int] = field(default_factory=dict)
    numbers: int = 0


@dataclass(slots=True)
class Writer:
    """A function under construction.

    Attributes:
        step: The graph.
        device: Device for tensors that operators make without inputs.
        names: Operators and other objects that the code refers to, by variable.
        operators: The variable of each operator.
        lines: The lines so far.
        nodes: For every line, the id of the node that it computes, or None.
        repeats: How often the plan computes each node.
        done: How often the code so far computes each node.
        filling: For values whose register a copy fills, the variable of the event of its end, until it is waited for.
        leaving: For values whose register was copied to the host, the variables of the events of the copies' ends.
        sent: For values that a collective makes and nothing has waited for, the values that it reads.
    """

    step: Step
    device: str
    names: dict[str, Any] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    nodes: list[str | None] = field(default_factory=list)
    repeats: Counter[int] = field(default_factory=Counter)
    done: Counter[int] = field(default_factory=Counter)
    filling: dict[int, str] = field(default_factory=dict)
    leaving: dict[int, list[str]] = field(default_factory=dict)
    sent: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def scope(self) -> dict[str, Any]:
        """The objects that the code refers to, by variable."""
        get_state, set_state = generator_state(self.device)
        constants = [decode_data(constant, self.device) for constant in self.step.constants]
        beside = {"get_state": get_state, "set_state": set_state, "host": HostLink.of(self.device)}
        return {**self.names, "constants": constants, **beside}

    def line(self, text: str, node: str | None = None) -> None:
        """One line of the function."""
        self.lines.append(f"    {text}")
        self.nodes.append(node)

    def operator(self, name: str) -> str:
        """The variable that holds an operator."""
        if name not in self.operators:
            self.operators[name] = variable = f"op{len(self.operators)}"
            self.names[variable] = operator_named(name)
        return self.operators[name]

    def call(self, called: Operation | View, inputs: Sequence[int]) -> str:
        """The text of a call; ``inputs`` are the values that the node reads."""
        arguments = [self.argument(argument, inputs) for argument in called.args]
        arguments += [f"{key}={self.argument(argument, inputs)}" for key, argument in called.kwargs.items()]
        return f"{self.operator(called.call)}({', '.join(arguments)})"

    def beside(self, name: str, value: Any) -> str:
        """The variable ``name`` of the code, which is ``value``."""
        self.names[name] = value
        return name

    def argument(self, value: Argument, inputs: Sequence[int]) -> str:
        """The text of an argument; objects without a literal become variables."""
        home = self.step.device or self.device.partition(":")[0]
        decoded = decode(value, lambda tensor: _Text(self.tensor(tensor, inputs)), {home: self.device})
        return self.literal(decoded)

    def literal(self, value: Any) -> str:
        """``value`` as text."""
        if isinstance(value, _Text) or value is None or type(value) in {bool, int, str}:
            return repr(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.literal, value))}]"
        variable = f"x{len(self.names)}"
        self.names[variable] = value
        return variable

    def tensor(self, tensor: Tensor, inputs: Sequence[int]) -> str:
        """The text of a tensor among the arguments."""
        match tensor:
            case View():
                text = self.call(tensor, inputs)
                return text if tensor.item is None else f"{text}[{tensor.item}]"
            case Place(number):
                return f"places[{number}]"
            case Constant(number):
                return f"constants[{number}]"
            case Input(position, part):
                return f"v{inputs[position]}_{part}"
            case Value(number, part):
                return f"v{number}_{part}"

    def result(self, result: Result) -> str:
        """The text of a result of the step."""
        return self.argument(result.tensor, ())

    def write(self, statements: Sequence[Statement], held: Held) -> None:
        """Write code for ``statements``, a part of a plan, and keep ``held`` up to date."""
        for statement in statements:
            match statement:
                case Allocate(register, value):
                    held.into[register] = value
                case Compute(node, registers):
                    held.values |= dict(zip(registers, self.step.graph.values_of(node), strict=True))
                    self.compute(node)
                case Deallocate(register):
                    freed = held.values.pop(register, None)
                    if freed is not None:  # else it did not cross from the forward to the backward function
                        self.free(freed)
                case Offload(register, slot):
                    held.slots[slot] = held.numbers, held.values[register]
                    held.numbers += 1
                    self.offload(held.values[register], held.slots[slot][0])
                case Prefetch(slot, register):
                    held.values[register] = value = held.into[register]
                    self.prefetch(value, held.slots[slot][0])
                case Release(slot):
                    if slot in held.slots:  # else it did not cross, either
                        self.line(f"del h{held.slots.pop(slot)[0]}")

    def compute(self, index: int) -> None:
        """Write one computation of a node."""
        graph, operation = self.step.graph, self.step.operations[index]
        node, numbers = graph.nodes[index], graph.values_of(index)
        self.done[index] += 1
        for value in node.inputs:
            self.wait_filled(value)
            self.sent.pop(value, None)  # where it is read, ``wait_tensor`` is called
        if index == self.step.tangents:
            for k, value in enumerate(numbers):
                self.line(f"v{value}_0 = tangent({k})", node.id)
            self.complete(self.step.ahead)
            return
        if index in self.step.parts:
            write_parts(self, index)
            return
        repeated = operation.random and self.repeats[index] > 1
        if repeated:
            self._before_random(index)
        text = self.call(operation, node.inputs)
        parts = [
            (f"v{value}_{part}", tensor.item)
            for value, tensors in zip(numbers, operation.values, strict=True)
            for part, tensor in enumerate(tensors)
        ]
        if [item for _, item in parts] == [None]:
            self.line(f"{parts[0][0]} = {text}", node.id)
        else:
            self.line(f"t = {text}", node.id)
            for name, item in parts:
                self.line(f"{name} = t[{item}]", node.id)
            self.line("t = None")
        if in_flight(operation.call):
            self._send(index)
        if operation.call in OTHER_STRIDES:
            self._in_layout(index)
        if repeated and self.done[index] > 1:
            self.line("set_state(now)")
        if repeated and self.done[index] == self.repeats[index]:
            self.line(f"del s{index}")

    def complete(self, values: Iterable[int]) -> None:
        """Write that the tangent, which is there now, is multiplied into values that were made ahead of it."""
        for value in values:
            self.names["complete"] = complete
            [tangent] = self.step.graph.values_of(self.step.tangents)
            self.line(f"complete(v{value}_0, v{tangent}_0)")

    def _in_layout(self, index: int) -> None:
        """Give the results of a node the strides that the graph says, since its readers may rely on them."""
        step = self.step
        self.names["in_layout"] = in_layout
        for value, tensors in zip(step.graph.values_of(index), step.operations[index].values, strict=True):
            for part, tensor in enumerate(tensors):
                name = f"v{value}_{part}"
                self.line(f"{name} = in_layout({name}, {tensor.spec.stride!r})", step.graph.nodes[index].id)

    def waiting(self, index: int) -> bool:
        """Whether a random node has been computed and will be recomputed, so its generator state is saved."""
        return self.step.operations[index].random and 0 < self.done[index] < self.repeats[index]

    def _before_random(self, index: int) -> None:
        """Save the generator's state before the first computation; restore it before every recomputation."""
        if self.done[index] == 1:
            self.line(f"s{index} = get_state()")
        else:
            self.line("now = get_state()")
            self.line(f"set_state(s{index})")

    def offload(self, value: int, slot: int) -> None:
        """Write the copy of a value to the host."""
        self.wait_sent(value)
        filled = f", {self.filling[value]}" if value in self.filling else ""
        self.line(f"h{slot}, e{slot} = host.to_host({slot}, [{', '.join(self.parts(value))}]{filled})")
        self.leaving.setdefault(value, []).append(f"e{slot}")

    def prefetch(self, value: int, slot: int) -> None:
        """Write the copy of a slot back into new tensors."""
        self.line(f"{', '.join(self.parts(value))}, f{value} = host.from_host({slot}, h{slot}, e{slot})")
        self.filling[value] = f"f{value}"

    def wait_filled(self, value: int) -> None:
        """Write that computations wait for the copy into a value, if they do not yet."""
        event = self.filling.pop(value, None)
        if event is not None:
            self.line(f"host.wait({event})")

    def _send(self, index: int) -> None:
        """Take note of a collective that has begun; if it takes more than its result, let computations wait for it."""
        node = self.step.graph.nodes[index]
        self.sent |= dict.fromkeys(self.step.graph.values_of(index), node.inputs)
        if node.workspace:
            for value in self.step.graph.values_of(index):
                self.wait_sent(value)

    def wait_sent(self, value: int) -> None:
        """Write that computations wait for the collective that makes a value, if they do not yet."""
        if self.sent.pop(value, None) is not None:
            for part in self.parts(value):
                self.line(f"{self.operator(WAIT)}({part})")

    def settle(self, value: int) -> None:
        """Write that computations wait for all copies into and from a value, and for collectives that use it."""
        self.wait_filled(value)
        for made in [made for made, read in self.sent.items() if value in (made, *read)]:
            self.wait_sent(made)
        for event in self.leaving.pop(value, ()):
            self.line(f"host.wait({event})")

    def parts(self, value: int) -> list[str]:
        """The variables of a value's tensors."""
        return [f"v{value}_{part}" for part in range(len(self.step.tensors(value)))]

    def free(self, value: int) -> None:
        """Write the end of an instance of a value."""
        self.settle(value)
        self.line("del " + ", ".join(self.parts(value)))


def program(graph: Graph, statements: Sequence[Statement], device: str) -> Program:
    """The function that does what ``statements`` say.

    Args:
        graph: A graph that this frontend made.
        statements: A valid plan of it.
        device: Device for tensors that operators make without inputs.

    Raises:
        UsageError: If the graph is not of this frontend, or damaged.
        ExecutionFailed: If it needs operators that this torch does not have.
    """
    FRONTEND.require(graph)
    writer = Writer(read_step(graph), device)
    writer.repeats.update(s.node for s in statements if isinstance(s, Compute))
    writer.write(statements, Held())
    for value in [*writer.filling, *writer.leaving]:
        writer.settle(value)
    results = [result for result in writer.step.results if result.kind != "dropped"]
    writer.line(f"return [{', '.join(map(writer.result, results))}]")
    text = "\n".join(["def step(places, tangent):", *writer.lines]) + "\n"
    scope = writer.scope()
    host = scope["host"]
    [step] = defined(text, scope, "step")
    return Program(step, text, (None, *writer.nodes), device, host)


def defined(text: str, scope: dict[str, Any], *names: str) -> list[Any]:
    """The functions ``names`` that ``text`` defines.

    They are removed from ``scope``, the namespace that they refer to. A function in its own namespace would be a
    reference cycle, which keeps all its tensors alive until the garbage collector runs.
    """
    exec(compile(text, _FILE, "exec"), scope)
    return [scope.pop(name) for name in names]


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors that calls read.

    Attributes:
        places: Those of places, by number.
        constants: Those of constants, by number.
        values: Those in each value.
    """

    places: Mapping[int, Any]
    constants: Mapping[int, Any]
    values: Mapping[int, Sequence[Any]]


def call_function(step: Step, index: int, device: str, tensors: Tensors) -> Callable[[], Any]:
    """A function that calls the operator of one node and returns its result.

    Args:
        step: A graph that this frontend made.
        index: The node; not that of the tangents.
        device: Device for tensors that the operator makes without inputs.
        tensors: All tensors that it reads.

    Raises:
        ExecutionFailed: If this torch does not have the operator.
    """
    writer = Writer(step, device)
    return _returning(writer, writer.call(step.operations[index], step.graph.nodes[index].inputs), tensors)


def result_function(step: Step, number: int, device: str, tensors: Tensors) -> Callable[[], Any]:
    """A function that returns one result of the step; the arguments are as for :func:`call_function`."""
    writer = Writer(step, device)
    return _returning(writer, writer.result(step.results[number]), tensors)


def _returning(writer: Writer, expression: str, tensors: Tensors) -> Callable[[], Any]:
    scope = {**writer.names, "places": tensors.places, "constants": tensors.constants}
    scope |= {f"v{value}_{part}": t for value, parts in tensors.values.items() for part, t in enumerate(parts)}
    [function] = defined(f"def call():\n    return {expression}\n", scope, "call")
    return cast("Callable[[], Any]", function)


def generator_state(device: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Functions that read and set the state of the random generator of ``device``: ``cpu``, ``cuda``, ``cuda:1``."""
    import torch

    if device.startswith("cuda"):
        return partial(torch.cuda.get_rng_state, device), partial(torch.cuda.set_rng_state, device=device)
    return torch.get_rng_state, torch.set_rng_state


def words(error: Exception) -> str:
    """The text of an operator's error, in one line."""
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."
