"""A framework in one file. A step is a list of operations on square matrices, which NumPy computes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from remat_cli.errors import ExecutionFailed, UsageError
from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.profiling import MeasuredOperation, OperationBench, time_call
from remat_cli.frontends.captured.running import MeasuredPlan, PlanBench, compared_tensor, median_s
from remat_cli.frontends.captured.serialiser import Reader, Stored, stored
from remat_cli.frontends.frameworks import Framework
from remat_cli.frontends.messages import Tell
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.model import Compute, Deallocate, Statement
from remat_cli.registry import Registry

FUNCTIONS: dict[str, Callable[..., Any]] = {"random": lambda generator, side: generator.random((side, side))}
FUNCTIONS |= {"tanh": np.tanh, "add": np.add, "multiply": np.multiply, "matmul": np.matmul}


@dataclass(frozen=True, slots=True)
class Operation(Stored):
    """The payload of a node: a function, and the values that it reads, by number."""

    function: str
    reads: tuple[int, ...] = field(metadata=stored(below="values"))


@dataclass(frozen=True, slots=True)
class Step:
    """A graph, the operations of its nodes, and the side of the matrices."""

    graph: Graph
    operations: tuple[Operation, ...]
    side: int

    def call(self, node: int, values: Mapping[int, Any], seed: int) -> Any:
        """The value of a node, from those that it reads."""
        operation = self.operations[node]
        function = FUNCTIONS[operation.function]
        if operation.function == "random":
            return function(np.random.default_rng(seed), self.side)
        return function(*(values[read] for read in operation.reads))


class Toy(Framework[Step]):
    """A build function returns the side of the matrices, and operations such as ``("add", 0, 2)``."""

    frontend = Frontend("toy", "Toy", "numpy", version=1, forced="functions may be missing")
    devices = ("cpu",)
    default_cost = "flops"
    architectures: ClassVar[Registry[Any]] = Registry("toy architecture", {}, "toy.architectures")

    def require_present(self, device: str) -> None:
        """NumPy comes with remat."""

    def capture(
        self, build: Callable[[], Any], name: str, source: str, *, device: str, cost: str, tell: Tell, **options: str
    ) -> list[Graph]:
        """One node with one matrix for each operation."""
        if cost != "flops":
            raise UsageError(f'"{cost}" is not a cost model of Toy', hint="leave the cost out")
        side, operations = build()
        nodes = []
        for number, (function, *reads) in enumerate(operations):
            flops = 2 * side**3 if function == "matmul" else side**2
            payload = Operation(function, tuple(reads)).document()
            inputs = tuple(sorted(set(reads)))
            nodes.append(Node(f"{function}.{number}", flops, inputs, (8 * side**2,), op=function, payload=payload))
        metadata = self.frontend.metadata(source, device, {"model": "flops"}) | {"side": side}
        return [Graph(name, tuple(nodes), (len(nodes) - 1,), "flops", metadata=metadata)]

    def read(self, graph: Graph) -> Step:
        """Documents may be damaged: whatever ``export`` does not write is refused, with its place."""
        reader = Reader(graph)
        reader.counts["values"] = len(graph.size)
        operations = [reader.part(Operation, node.payload, f"node {node.id}", ": ") for node in graph.nodes]
        for node, operation in zip(graph.nodes, operations, strict=True):
            if set(operation.reads) != set(node.inputs):
                raise reader.wrong(f"node {node.id}: reads", "they are not what the node reads")
        return Step(graph, tuple(operations), reader.number(graph.metadata.get("side"), "metadata.side"))

    def difference(self, ours: Step, theirs: Step) -> str | None:
        """Names of nodes and costs do not matter."""
        if ours.side != theirs.side:
            return f"its matrices have {theirs.side} rows, and these have {ours.side}"
        return None if ours.operations == theirs.operations else "it computes something else"

    def require_harmless(self, step: Step, device: str, libraries: Sequence[str], *, force: bool) -> None:
        """Only functions in the table run, whoever wrote the document."""
        super().require_harmless(step, device, libraries, force=force)
        for node, operation in zip(step.graph.nodes, step.operations, strict=True):
            if operation.function not in FUNCTIONS:
                raise ExecutionFailed(f"node {node.id} calls {operation.function}, which is none of Toy's functions")

    def operation_bench(self, step: Step, device: str, seed: int) -> AbstractContextManager[OperationBench]:
        """For ``remat profile``."""
        return nullcontext(Operations(step, device, seed))

    def plan_bench(self, step: Step, device: str, seed: int, peak_bytes: int) -> AbstractContextManager[PlanBench]:
        """For ``remat run``."""
        return nullcontext(Plans(step, seed))


class Operations(OperationBench):
    """Runs single operations on random matrices."""

    def __init__(self, step: Step, device: str, seed: int) -> None:
        self.graph, self.device, self.step, self.seed = step.graph, device, step, seed

    def kind(self, index: int) -> str:
        """All matrices have one form, so the function alone tells what is measured once."""
        return self.step.operations[index].function

    def measure_one(self, index: int, repeats: int, warmup: int) -> MeasuredOperation:
        """NumPy needs no workspace for these functions."""
        values = dict.fromkeys(self.graph.nodes[index].inputs, np.ones((self.step.side, self.step.side)))
        call = partial(self.step.call, index, values, self.seed)
        return MeasuredOperation(time_call(call, lambda: None, repeats, warmup), workspace_bytes=0)

    def machine(self) -> dict[str, Any]:
        """What the times depend on."""
        return {"numpy": np.__version__}


class Plans(PlanBench):
    """Runs plans, and counts the bytes of the matrices that are held."""

    def __init__(self, step: Step, seed: int) -> None:
        self.step, self.seed = step, seed

    def measure(self, statements: Sequence[Statement], steps: int) -> MeasuredPlan:
        """Once for results and memory, then for the time."""
        held, peak_bytes = self.run(statements)
        taken_s = median_s(partial(self.run, statements), lambda: None, steps)
        results = [
            compared_tensor(f"result {number}", held[value]) for number, value in enumerate(self.step.graph.outputs)
        ]
        return MeasuredPlan(results, peak_bytes, taken_s)

    def run(self, statements: Sequence[Statement]) -> tuple[dict[int, Any], int]:
        """The matrices at the end, by value, and the most bytes at once."""
        held: dict[int, Any] = {}
        value_in: dict[str, int] = {}
        peak_bytes = 0
        for statement in statements:
            if isinstance(statement, Compute):
                [register] = statement.registers
                value_in[register] = self.step.graph.first_value[statement.node]
                held[value_in[register]] = self.step.call(statement.node, held, self.seed)
                peak_bytes = max(peak_bytes, sum(matrix.nbytes for matrix in held.values()))
            elif isinstance(statement, Deallocate):
                del held[value_in.pop(statement.register)]
        return held, peak_bytes
