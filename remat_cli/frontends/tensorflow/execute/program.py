"""Turns a plan into a Python function: one line per operation, one ``del`` per deallocation, none of the user's code.

Each operation is one eager kernel. Nothing optimises across calls, so what the plan recomputes is recomputed, in its
order; and memory is free as soon as the last reference to it is gone, which is exactly where the plan says.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, TracebackType
from typing import Any

from remat_cli.errors import ExecutionFailed, OutOfMemory, RematError, UsageError
from remat_cli.frontends.source import one_line
from remat_cli.frontends.tensorflow.codec import kernel_attributes, tensor_of
from remat_cli.frontends.tensorflow.compat import Execute, executor
from remat_cli.frontends.tensorflow.document import Attribute, Call, Constant, Input, Made, Place, Read, Ref, Step
from remat_cli.frontends.tensorflow.execute.functions import ControlFlow, add_functions, require_known
from remat_cli.plan.model import Compute, Deallocate, Statement
from remat_cli.printable import printable

_FILE = "<remat plan>"
_READ = "ReadVariableOp"


@dataclass(frozen=True, slots=True)
class Program:
    """A plan that can be run.

    Attributes:
        function: ``function(places, run)``: results in the order of the graph's metadata.
        text: Its source.
        nodes: For every line of the source, the id of the node that it computes, or None.
        constants: The tensors of constants in the code.
        execute: Runs single kernels.
        flow: Runs control flow, if there is any.
    """

    function: Callable[[Sequence[Any], Execute], list[Any]]
    text: str
    nodes: tuple[str | None, ...]
    constants: Sequence[Any]
    execute: Execute
    flow: ControlFlow | None = None

    def run(self, places: Sequence[Any], execute: Execute | None = None) -> list[Any]:
        """Run one step.

        Args:
            places: A tensor or the handle of a variable for each place.
            execute: Runs single kernels, in place of the usual function.

        Raises:
            OutOfMemory: If memory is exhausted, with the node.
            ExecutionFailed: If an operation fails, with the node.
        """
        import tensorflow as tf

        run = execute or self.execute
        try:
            return self.function(places, run if self.flow is None else self.flow.over(run))
        except BaseException as error:
            trace = error.__traceback__
            error.__traceback__ = _without_plan(trace)
            if isinstance(error, RematError) or not isinstance(error, Exception):
                raise
            place = self._place(trace)
            if isinstance(error, tf.errors.ResourceExhaustedError):
                raise OutOfMemory(
                    f"{place} does not fit the memory of the device: {one_line(error)}",
                    hint="make room there, or solve for a smaller budget",
                ) from error
            raise ExecutionFailed(  # kernels may raise anything
                f"{place} failed: {one_line(error)}",
                hint="was the graph exported for another device, or does this need other inputs than random ones?",
            ) from error

    def _place(self, trace: TracebackType | None) -> str:
        line = 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                line = _line(self.text, trace.tb_lasti)
            trace = trace.tb_next
        node = self.nodes[line - 1] if 0 < line <= len(self.nodes) else None
        return "the plan" if node is None else f"node {printable(node)}"


@dataclass(slots=True)
class Writer:
    """A function under construction.

    Attributes:
        step: The graph.
        functions: The name of each of its functions in this process.
        unseeded: Seeds for operations that draw other numbers in each process; None to leave them.
    """

    step: Step
    functions: Sequence[str]
    unseeded: int | None = None
    names: dict[str, Any] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    nodes: list[str | None] = field(default_factory=list)

    def line(self, text: str, node: str | None = None) -> None:
        """One line of the function."""
        self.lines.append(f"    {text}")
        self.nodes.append(node)

    def read(self, place: int) -> None:
        """The line that reads a variable."""
        spec = self.step.places[place].spec
        call = Call(_READ, (Place(place),), (spec,), {"dtype": Attribute("type", spec.dtype)})
        self.line(f'r{place} = run("{_READ}", [places[{place}]], {self.attributes(call, -1)}, 1)[0]')

    def attributes(self, call: Call, node: int) -> str:
        """The variable that holds the attributes of an operation."""
        attributes = kernel_attributes(call.op, call.attributes, self.functions)
        if self.unseeded is not None and "seed2" in attributes:
            attributes = _seeded(attributes, self.unseeded, node)
        key = repr((call.op, attributes))
        if key not in self.known:
            self.known[key] = variable = f"a{len(self.known)}"
            self.names[variable] = attributes
        return self.known[key]

    def calls(self, calls: Sequence[Call], prefix: str, inputs: Sequence[str], kept: Iterable[Made], node: int) -> None:
        """The lines of operations one after another; what is not in ``kept`` is freed after its last use."""
        last: dict[str, int] = {}
        for k, call in enumerate(calls):
            for ref in call.inputs:
                last[self.ref(ref, prefix, inputs)] = k
        wanted = {self.ref(ref, prefix, inputs) for ref in kept}
        name = self.step.graph.nodes[node].id if node >= 0 else None
        reads = {self.ref(ref, prefix, inputs) for call in calls for ref in call.inputs if isinstance(ref, Read)}
        for k, call in enumerate(calls):
            given = ", ".join(self.ref(ref, prefix, inputs) for ref in call.inputs)
            made = [f"{prefix}{k}_{output}" for output in range(len(call.outputs))]
            text = f'run("{call.op}", [{given}], {self.attributes(call, node)}, {len(made)})'
            used = [variable for variable in made if variable in last or variable in wanted]
            if not used:
                self.line(text, name)
            elif len(made) == 1:
                self.line(f"{made[0]} = {text}[0]", name)
            else:
                self.line(f"q = {text}", name)
                for variable in used:
                    self.line(f"{variable} = q[{made.index(variable)}]")
                self.line("q = None")
            gone = {self.ref(ref, prefix, inputs) for ref in call.inputs if isinstance(ref, Made)} - wanted
            if node == self.step.update:
                gone |= {self.ref(ref, prefix, inputs) for ref in call.inputs if isinstance(ref, Read)} & reads
            dead = sorted(variable for variable in gone if last[variable] == k)
            if dead:
                self.line(f"del {', '.join(dead)}")

    def ref(self, ref: Ref, prefix: str, inputs: Sequence[str]) -> str:
        """The variable that holds a tensor."""
        match ref:
            case Input(position):
                return inputs[position]
            case Made(op, output):
                return f"{prefix}{op}_{output}"
            case Place(number):
                return f"places[{number}]"
            case Read(place):
                return f"r{place}"
            case Constant(number):
                return f"constants[{number}]"

    def compute(self, index: int) -> None:
        """Write one computation of a node."""
        graph, operation = self.step.graph, self.step.operations[index]
        inputs = [f"v{value}" for value in graph.nodes[index].inputs]
        kept = [made for made in operation.values if made is not None]
        self.calls(operation.calls, "t", inputs, kept, index)
        for value, made in zip(graph.values_of(index), operation.values, strict=True):
            self.line(f"v{value} = {'None' if made is None else self.ref(made, 't', inputs)}")
        if kept:
            self.line(f"del {', '.join(sorted({self.ref(made, 't', inputs) for made in kept}))}")

    def results(self) -> str:
        """Write the aliases that results are, and return the text of the list of results."""
        texts = []
        for number, result in enumerate(self.step.results):
            inputs = [] if result.value is None else [f"v{result.value}"]
            tensors = [result.tensor] if isinstance(result.tensor, Made) else []
            self.calls(result.calls, f"w{number}_", inputs, tensors, -1)
            texts.append(self.ref(result.tensor, f"w{number}_", inputs))
        return f"[{', '.join(texts)}]"


def program(step: Step, statements: Sequence[Statement], device: str, *, unseeded: int | None = None) -> Program:
    """The function that does what ``statements`` say.

    Args:
        step: A graph that this frontend made.
        statements: A valid plan of it.
        device: ``cpu`` or ``gpu``.
        unseeded: Seed of operations whose random numbers otherwise differ in each process; None to leave them.

    Raises:
        UsageError: If the plan computes something after the update.
        ExecutionFailed: If the graph needs operations that this TensorFlow does not have, or that no graph holds.
    """
    require_known(step)
    _require_update_last(step, statements)
    functions = add_functions(step)
    writer = Writer(step, list(functions), unseeded)
    read = _read_by_results(step).union(*(_places_read(operation.calls) for operation in step.operations))
    for place in sorted(read):
        writer.read(place)
    holds: dict[str, int] = {}
    graph = step.graph
    for statement in statements:
        if isinstance(statement, Compute):
            if statement.node == step.update:
                _drop_reads(writer, read)
            holds |= dict(zip(statement.registers, graph.values_of(statement.node), strict=True))
            writer.compute(statement.node)
        elif isinstance(statement, Deallocate):
            writer.line(f"del v{holds.pop(statement.register)}")
    writer.line(f"return {writer.results()}")
    text = "\n".join(["def step(places, run):", *writer.lines]) + "\n"
    constants = [tensor_of(constant, device) for constant in step.constants]
    scope: dict[str, Any] = {**writer.names, "constants": constants}
    flow = ControlFlow(functions) if functions else None
    return Program(_without_lines(text, scope), text, (None, *writer.nodes), constants, executor(device), flow)


def call_function(step: Step, index: int, device: str) -> Callable[[Mapping[int, Any], Mapping[int, Any]], list[Any]]:
    """A function that runs one node alone: ``function(places, values)`` returns the tensors of its values."""
    functions = add_functions(step)
    writer = Writer(step, list(functions), 0)
    node, operation = step.graph.nodes[index], step.operations[index]
    for place in sorted(_places_read(operation.calls)):
        writer.read(place)
    for value in node.inputs:
        writer.line(f"v{value} = values[{value}]")
    writer.compute(index)
    results = ", ".join(f"v{value}" for value in step.graph.values_of(index))
    text = "\n".join(["def call(places, values, run):", *writer.lines, f"    return [{results}]"]) + "\n"
    used = {ref.number for call in operation.calls for ref in call.inputs if isinstance(ref, Constant)}
    constants = {number: tensor_of(step.constants[number], device) for number in used}
    scope: dict[str, Any] = {**writer.names, "constants": constants}
    exec(compile(text, _FILE, "exec"), scope)
    function = scope.pop("call")
    execute = ControlFlow(functions).over(executor(device))

    def call_node(places: Mapping[int, Any], values: Mapping[int, Any]) -> list[Any]:
        results: list[Any] = function(places, values, execute)
        return results

    return call_node


def _without_lines(text: str, scope: dict[str, Any]) -> Callable[..., list[Any]]:
    """The function ``step`` that ``text`` defines, without its table of line numbers.

    TensorFlow looks up the line of each call of a kernel. Python finds it by reading the table from its beginning, so
    that steps of thousands of operations would spend most of their time there.
    """
    exec(compile(text, _FILE, "exec"), scope)
    # Removed from its own namespace: a function in there would be a cycle, which keeps constants alive.
    function = scope.pop("step")
    function.__code__ = function.__code__.replace(co_linetable=b"")
    return function  # type: ignore[no-any-return]  # it comes out of a namespace


def _without_plan(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frame of the plan: Python cannot print one that has no lines."""
    if trace is None:
        return None
    after = _without_plan(trace.tb_next)
    if trace.tb_frame.f_code.co_filename == _FILE:
        return after
    return TracebackType(after, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _line(text: str, instruction: int) -> int:
    """The line of the source of a function that an instruction belongs to; 0 if it belongs to none."""
    code = next(item for item in compile(text, _FILE, "exec").co_consts if isinstance(item, CodeType))
    return next((line or 0 for start, end, line in code.co_lines() if start <= instruction < end), 0)


def _places_read(calls: Iterable[Call]) -> set[int]:
    """The places of variables whose numbers operations take from the beginning of the step."""
    return {ref.place for call in calls for ref in call.inputs if isinstance(ref, Read)}


def _read_by_results(step: Step) -> set[int]:
    """The places of variables whose numbers at the beginning of the step are results, or make some."""
    calls = (call for result in step.results for call in result.calls)
    return _places_read(calls) | {r.tensor.place for r in step.results if isinstance(r.tensor, Read)}


def _drop_reads(writer: Writer, read: set[int]) -> None:
    """Before the update: drop what was read of variables and is not used there, or each write would copy its own."""
    step = writer.step
    assert step.update is not None
    gone = sorted(read - _places_read(step.operations[step.update].calls) - _read_by_results(step))
    if gone:
        writer.line(f"del {', '.join(f'r{place}' for place in gone)}")


def _require_update_last(step: Step, statements: Sequence[Statement]) -> None:
    computes = [statement.node for statement in statements if isinstance(statement, Compute)]
    counts = Counter(computes)
    if step.update is not None and (computes[-1] != step.update or counts[step.update] != 1):
        raise UsageError(
            f"the plan computes something after {step.graph.nodes[step.update].id}, which writes variables",
            hint="solve the graph again: what runs later would read other numbers",
        )


def _seeded(attributes: tuple[Any, ...], seed: int, node: int) -> tuple[Any, ...]:
    """Attributes of an operation that draws random numbers, with a seed if it has none."""
    named = dict(zip(attributes[::2], attributes[1::2], strict=True))
    if named.get("seed") == 0 and named.get("seed2") == 0:
        named |= {"seed": seed + 1, "seed2": node + 1}
    return tuple(item for pair in named.items() for item in pair)
