"""Shared by all importers of models: operations, and the graphs made of them.

An importer reads a file and makes a list of :class:`Operation`. The list has no views, and fixed memory is only a
number of bytes. This module makes a graph of the list: of the forward pass alone, or with a backward pass derived by a
rule of the zoo.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.errors import InputError, UsageError, Worded
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.reader import MAX_BYTES, MAX_COST
from remat_cli.printable import CONTROLS, printable
from remat_cli.zoo.layers.common import SOFTMAX_FLOPS
from remat_cli.zoo.network import Derivative, Layer, Network, Tensor
from remat_cli.zoo.training import Backward, to_graph

Made = tuple[int, int]
"""A value: the position of the operation that makes it, and the number of the output."""
LARGEST_DIMENSION = 2**40
_CHECKMATE = Worded(
    'take backward="checkmate", which needs no derivatives',
    "take --backward checkmate, which needs no derivatives",
)
_PORT = re.compile(r":(\d+)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a model.

    Attributes:
        id: Unique name.
        op: Kind of operation.
        reads: Values of earlier operations, each once.
        outputs: Bytes of every value that it makes.
        flops: Cost in FLOPs; at least 1.
        phase: Part of the training step.
        recompute: False if it may be computed only once.
        differentiable: For each of its values whether it can have a gradient.
        derivative: What its derivative reads, by position in ``reads``; None if unknown.
    """

    id: str
    op: str
    reads: tuple[Made, ...]
    outputs: tuple[int, ...]
    flops: int
    phase: Phase = Phase.FORWARD
    recompute: bool = True
    differentiable: tuple[bool, ...] = ()
    derivative: Derivative | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A model as operations.

    Attributes:
        name: Name of the graph.
        operations: In execution order.
        outputs: Values resident at the end, each once.
        fixed_memory: Bytes of inputs, parameters and constants.
        gradient_memory: Bytes of the gradients of its parameters.
        element_bytes: Bytes of one number of its activations; gradients are summed in that type.
        metadata: Its origin.
    """

    name: str
    operations: tuple[Operation, ...]
    outputs: tuple[Made, ...]
    fixed_memory: int
    gradient_memory: int = 0
    element_bytes: int = 4
    metadata: Mapping[str, Any] = field(default_factory=dict)


_BATCH = frozenset({"batch", "batch_size"})
"""Names that exporters give to the dimension of the batch."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How to import a model. By default nothing is added, and the file must state all sizes.

    Attributes:
        sizes: Sizes of symbolic dimensions, and of those that depend on data, by name or as ``tensor:axis``.
        backward: Rule by which a loss and a backward pass are derived; ``none`` adds neither.
        default_cost: FLOPs per element for operators without a rule; None refuses them.

    Raises:
        UsageError: If a size or the cost is not positive.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    backward: Backward = Backward.NONE
    default_cost: int | None = None

    def __post_init__(self) -> None:
        """Check sizes and cost."""
        for name, size in self.sizes.items():
            if type(size) is not int or not 0 < size <= LARGEST_DIMENSION:
                raise UsageError(
                    f'dimension "{name}": {size!r} is not a size',
                    hint=f"give a whole number from 1 to {LARGEST_DIMENSION}",
                )
        if self.default_cost is not None and self.default_cost < 1:
            raise UsageError("the default cost is not positive", hint="no operation is free: choose 1 or more")

    def facts(self, notes: Sequence[str]) -> dict[str, Any]:
        """What the metadata of a graph keep of this: also the batch, if a dimension is called that."""
        batches = {size for name, size in self.sizes.items() if name.lower() in _BATCH}
        batch = {"batch": batches.pop()} if len(batches) == 1 else {}
        return {"backward": str(self.backward), "notes": list(notes), **batch}


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, and notes on the origin of its costs and sizes, one line each."""

    graph: Graph
    notes: tuple[str, ...]


@dataclass(slots=True)
class DefaultCosts:
    """Costs of operators without a rule: by their elements as the user asks, or refused, all of them in one error.

    Attributes:
        source: Name of the file, for messages.
        per_element: FLOPs per element of the largest tensor; None refuses such operators.
        counts: Number of uses of each operator that got the default cost.
        refused: Number of uses of each operator that got none.
    """

    source: str
    per_element: int | None
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def of(self, operator: str, elements: int) -> int:
        """FLOPs of a use of an operator, at least 1."""
        if self.per_element is None:
            self.refused[operator] += 1
            return 1
        self.counts[operator] += 1
        return max(1, self.per_element * elements)

    def require_known(self, what: str = "operators") -> None:
        """Check that every operator has a cost.

        Raises:
            InputError: If one has none.
        """
        if self.refused:
            told = printable(", ".join(f"{name} ({times} times)" for name, times in sorted(self.refused.items())))
            hint = Worded(
                "say default_cost=1 for one FLOP per element of the largest tensor that they touch",
                "say --default-cost 1 for one FLOP per element of the largest tensor that they touch",
            )
            raise InputError.of(self.source, f"{what} without a rule for their cost: {told}", hint)

    def notes(self) -> list[str]:
        """A note on the operators that got the default cost, if there are any."""
        told = ", ".join(f"{name} ({times})" for name, times in sorted(self.counts.items()))
        return [f"costs by the default cost: {told}"] if told else []

    def description(self) -> dict[str, Any]:
        """What the metadata of a graph say of its costs."""
        return {"model": "flops", "by": "formulas", "by_default": dict(sorted(self.counts.items()))}


class Names:
    """Makes valid and unique ids; ``first`` is the number of the first id that is taken already."""

    def __init__(self, first: int = 1) -> None:
        self._first = first
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        """``wanted`` without forbidden characters, with a number if it is taken."""
        clean = _PORT.sub(r".\1", CONTROLS.sub("_", wanted)) or "node"
        unique, number = clean, self._next.get(clean, self._first)
        while unique in self._taken:
            unique, number = f"{clean}.{number}", number + 1
        self._taken.add(unique)
        self._next[clean] = number
        return unique


def dimensions(texts: Sequence[str]) -> dict[str, int]:
    """The sizes in ``batch=32`` texts, by name.

    Raises:
        UsageError: If a text is not a dimension and its size, or a name is given twice.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        name, separator, size = (part.strip() for part in text.rpartition("="))
        if not separator or not name or not re.fullmatch("[0-9]{1,13}", size) or not 0 < int(size) <= LARGEST_DIMENSION:
            raise UsageError(_of_dim(f'"{text}" is not a dimension and its size'), hint="write it like batch=32")
        if name in sizes:
            raise UsageError(_of_dim(f'"{name}" is given twice'), hint="leave one of them out")
        sizes[name] = int(size)
    return sizes


def _of_dim(message: str) -> Worded:
    return Worded(f"sizes: {message}", f"--dim: {message}")


def model_graph(model: Model, backward: Backward, source: str) -> Graph:
    """The graph of a model.

    Args:
        model: The model.
        backward: ``none`` for the model as it is; otherwise its operations are the forward pass, and a loss and a
            backward pass are derived from them.
        source: Name of the file, for messages.

    Raises:
        InputError: If there is nothing to compute, or costs or sizes are too large for a document.
        UsageError: If no backward pass can be derived.
    """
    if not model.operations:
        raise InputError.of(source, "nothing is computed in it: all results are inputs or constants")
    too_large = InputError.of(source, "all sizes or costs together are too large", "use smaller dimensions")
    if any(operation.flops > MAX_COST for operation in model.operations):  # before any of them becomes a float
        raise too_large
    graph = _forward(model) if backward is Backward.NONE else _training(model, backward, source)
    total = graph.fixed_memory + sum(sum(node.outputs) + node.workspace for node in graph.nodes)
    if total > MAX_BYTES or not graph.total_cost <= MAX_COST:
        raise too_large
    return graph


def live(model: Model, outputs: Sequence[Made]) -> Model:
    """``model`` with these outputs, without operations that no output depends on."""
    needed: set[int] = set()
    stack = [operation for operation, _ in outputs]
    while stack:
        i = stack.pop()
        if i not in needed:
            needed.add(i)
            stack.extend(operation for operation, _ in model.operations[i].reads)
    place = {old: new for new, old in enumerate(sorted(needed))}
    operations = tuple(
        replace(model.operations[i], reads=tuple((place[j], slot) for j, slot in model.operations[i].reads))
        for i in place
    )
    return replace(model, operations=operations, outputs=tuple((place[i], slot) for i, slot in outputs))


def _forward(model: Model) -> Graph:
    first = [0]
    for operation in model.operations:
        first.append(first[-1] + len(operation.outputs))
    nodes = tuple(
        Node(
            id=operation.id,
            cost=float(operation.flops),
            inputs=tuple(first[i] + slot for i, slot in operation.reads),
            outputs=operation.outputs,
            recompute=operation.recompute,
            op=operation.op,
            phase=operation.phase,
        )
        for operation in model.operations
    )
    return Graph(
        name=model.name,
        nodes=nodes,
        outputs=tuple(sorted({first[i] + slot for i, slot in model.outputs})),
        cost_unit="flops",
        fixed_memory=model.fixed_memory,
        metadata=dict(model.metadata),
    )


def _training(model: Model, backward: Backward, source: str) -> Graph:
    """The training step: the forward pass, a loss, and the backward pass by a rule of the zoo."""
    results = [made for made in model.outputs if model.operations[made[0]].differentiable[made[1]]]
    if not results:
        raise UsageError(
            f"{source}: a backward rule derives gradients, and no output of the model is a floating-point number",
            hint=Worded("leave backward out", "leave --backward out"),
        )
    model = live(model, results)
    if backward is Backward.OPERATOR:
        _refuse_lost_gradients(model, source)
    network = Network(model.name, model.element_bytes)
    layers = [_layer(network, operation) for operation in model.operations]
    if _is_loss(model):
        own = layers.pop()
        network.loss = replace(own, derivative=replace(own.derivative, passes=False))
    else:
        network.loss = _loss(network, model)
    network.layers.extend(layers)
    graph = to_graph(network, backward, metadata=dict(model.metadata))
    once = {operation.id for operation in model.operations if not operation.recompute}
    nodes = tuple(replace(node, recompute=False) if node.id in once else node for node in graph.nodes)
    return replace(graph, nodes=nodes, fixed_memory=model.fixed_memory + model.gradient_memory)


def _is_loss(model: Model) -> bool:
    """Whether the model has a loss of its own: its last operation makes the only output, a single number."""
    last = len(model.operations) - 1
    gradients = any(any(operation.differentiable) for operation in model.operations[:-1])
    return gradients and model.outputs == ((last, 0),) and model.operations[-1].outputs[0] <= model.element_bytes


def _layer(network: Network, operation: Operation) -> Layer:
    derivative = operation.derivative or Derivative()
    if not any(operation.differentiable):
        derivative = replace(derivative, stops=True)
    inputs = tuple(Tensor(network, (), i, slot) for i, slot in operation.reads)
    return Layer(operation.id, operation.op, inputs, operation.outputs, operation.flops, 0, 0, derivative)


def _loss(network: Network, model: Model) -> Layer:
    """Softmax and cross-entropy of all results; it saves the probabilities for its derivative."""
    sizes = [model.operations[i].outputs[slot] for i, slot in model.outputs]
    elements = sum(max(1, size // model.element_bytes) for size in sizes)
    names = {operation.id for operation in model.operations}
    name = next(n for n in ("loss", *(f"loss.{k}" for k in range(1, len(names) + 2))) if n not in names)
    return Layer(
        id=name,
        op="cross_entropy",
        inputs=tuple(Tensor(network, (), i, slot) for i, slot in model.outputs),
        outputs=(model.element_bytes,),
        flops=SOFTMAX_FLOPS * elements,
        macs=0,
        parameters=0,
        derivative=Derivative(outputs=tuple(range(1, len(sizes) + 1)), saved=tuple(sizes)),
    )


def _refuse_lost_gradients(model: Model, source: str) -> None:
    """Refuse models that would lose a gradient: the rule ``operator`` differentiates only the first output."""
    unknown = sorted({operation.op for operation in model.operations if operation.derivative is None})
    if unknown:
        raise UsageError(
            f"{source}: what the derivatives of {', '.join(unknown)} read is not known",
            hint=_CHECKMATE,
        )
    reads = [(i, slot) for operation in model.operations for i, slot in operation.reads]
    for i, slot in (*reads, *model.outputs):
        operation = model.operations[i]
        if slot and operation.differentiable[slot]:
            raise UsageError(
                f"{source}: output {slot} of {operation.id} ({operation.op}) is read, and the rule operator"
                " differentiates first outputs alone",
                hint=_CHECKMATE,
            )


def some(names: Sequence[str], most: int = 8) -> str:
    """``a, b and 3 more``: the first of them, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def count(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def contents(shape: Sequence[int], bits: int) -> int:
    """Bytes of a dense tensor; elements of less than a byte are packed."""
    return -(-math.prod(shape) * bits // 8)
