"""Lowers an ONNX model with known shapes to operations.

*Views are not operations.* ``Reshape``, ``Squeeze``, ``Flatten`` and similar operators give another shape to existing
memory. Their readers read that memory. ``Dropout`` outside training is a view too.

*Tensors that depend only on constants* are computed once, as every runtime does. They lie in fixed memory, like
initializers and inputs. ``Shape`` and ``Size`` are constants too, because all shapes are known.

*Each part of a ``Split``* is an operation of its own, since it can be copied without the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import InputError
from remat_cli.frontends.imported import DefaultCosts, Made, Names, Operation
from remat_cli.frontends.onnx.derivatives import Operand, derivative_of
from remat_cli.frontends.onnx.flops import flops
from remat_cli.frontends.onnx.read import STANDARD, Read
from remat_cli.frontends.onnx.tensors import Call
from remat_cli.graph.quoting import quote

VIEWS = frozenset(["Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"])
RANDOM = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]
)


@dataclass(slots=True)
class Lowered:
    """A lowered model.

    Attributes:
        operations: In execution order.
        where: Value that holds each tensor; None for fixed memory.
        parameters: Tensors that have gradients in training: initializers, and tensors computed from them and constants
            alone. For each, the initializers that it depends on.
        trained: Initializers that get gradients, because an operation reads them or a tensor computed from them.
        statistics: Initializers that normalisations track and do not differentiate.
        constants: Tensors computed from constants alone that an operation reads.
        views: Number of views that were left out.
        folded: Number of operators that depend only on constants.
        random: Ids of operations that draw random numbers.
    """

    operations: list[Operation] = field(default_factory=list)
    where: dict[str, Made | None] = field(default_factory=dict)
    parameters: dict[str, frozenset[str]] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    statistics: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)
    views: int = 0
    folded: int = 0
    random: list[str] = field(default_factory=list)


def lower(read: Read, costs: DefaultCosts) -> Lowered:
    """The operations of a model; ``costs`` are those of operators without a rule.

    Raises:
        InputError: If there are operators without a rule.
    """
    return _Lowering(read, costs).run()


class _Lowering:
    def __init__(self, read: Read, costs: DefaultCosts) -> None:
        self._read = read
        self._costs = costs
        self._names = Names()
        self._out = Lowered()
        self._fixed: set[str] = set()
        """Tensors that are the same in every step: initializers, and tensors that depend on nothing else."""
        self._roots: dict[str, str] = {}
        """For every view, the tensor whose memory it shares."""

    def run(self) -> Lowered:
        graph = self._read.model.graph
        data = {*self._read.initializers, *(tensor.name for tensor in graph.initializer)}
        self._fixed |= data
        for name in (*data, *self._read.inputs):
            self._out.where[name] = None
        self._find_parameters(graph)
        for node in graph.node:
            self._node(node)
        self._costs.require_known()
        return self._out

    def _find_parameters(self, graph: Any) -> None:
        """Initializers of floating-point numbers are parameters, except single numbers and tracked statistics."""
        for node in graph.node:
            if node.op_type == "BatchNormalization":
                self._out.statistics |= set(node.input[3:5])
        types = self._read.types
        for name in self._read.initializers:
            if name in types and types[name].floating and types[name].elements > 1:
                self._out.parameters[name] = frozenset([name])
        for name in self._out.statistics:
            self._out.parameters.pop(name, None)

    def _node(self, node: Any) -> None:
        standard = node.domain in STANDARD
        inputs = [name for name in node.input if name]
        if standard and node.op_type == "Constant":
            self._constant(node)
        elif standard and (node.op_type in VIEWS or self._is_idle_dropout(node)):
            self._view(node)
        elif standard and node.op_type in {"Shape", "Size"}:
            self._constant(node)
            self._out.folded += 1
        elif inputs and node.op_type not in RANDOM and all(name in self._fixed for name in inputs):
            self._constant(node)
            self._out.folded += 1
            self._pass_on_parameters(node, inputs)
        else:
            self._operation(node)

    def _constant(self, node: Any) -> None:
        for name in filter(None, node.output):
            self._fixed.add(name)
            self._out.where[name] = None

    def _pass_on_parameters(self, node: Any, inputs: Sequence[str]) -> None:
        """A tensor computed from a parameter and constants alone, such as its transpose, has a gradient too."""
        found = [self._out.parameters.get(self._roots.get(name, name), frozenset()) for name in inputs]
        sources = frozenset[str]().union(*found)
        if sources:
            floats = [name for name in node.output if name and self._read.types[name].floating]
            self._out.parameters.update(dict.fromkeys(floats, sources))

    def _is_idle_dropout(self, node: Any) -> bool:
        """Whether a dropout drops nothing, because this is not training, and nothing reads its mask."""
        if node.op_type != "Dropout" or (len(node.output) > 1 and node.output[1]):
            return False
        mode = node.input[2] if len(node.input) > 2 else ""
        if not mode:  # before opset 12, an attribute of opset 6 and older may say that this is training
            return all(a.i for a in node.attribute if a.name == "is_test") or self._opset() >= 7
        import onnx

        for tensor in self._read.model.graph.initializer:
            if tensor.name == mode:
                return not bool(onnx.numpy_helper.to_array(tensor))
        return False

    def _opset(self) -> int:
        return max((o.version for o in self._read.model.opset_import if o.domain in STANDARD), default=1)

    def _view(self, node: Any) -> None:
        looked_at, name = node.input[0], node.output[0]
        self._out.views += 1
        self._out.where[name] = self._out.where[looked_at]
        self._roots[name] = self._roots.get(looked_at, looked_at)
        if looked_at in self._fixed:
            self._fixed.add(name)

    def _operation(self, node: Any) -> None:
        call = self._call(node)
        cost = self._cost(node, call)
        if node.op_type == "Split" and node.domain in STANDARD:
            self._split(node, call)
            return
        reads, operands = self._operands(node, call)
        made = [name for name in node.output if name]
        types = [self._read.types[name] for name in made]
        operation = Operation(
            id=self._names.unique(node.name or f"{node.op_type}/{made[0]}"),
            op=node.op_type,
            reads=tuple(reads),
            outputs=tuple(t.bytes for t in types),
            flops=cost,
            recompute=not self._is_random(node),
            differentiable=tuple(t.floating for t in types),
            derivative=derivative_of(call, operands) if node.domain in STANDARD else None,
        )
        self._add(operation, made)

    def _add(self, operation: Operation, made: Sequence[str]) -> None:
        for slot, name in enumerate(made):
            self._out.where[name] = (len(self._out.operations), slot)
        if not operation.recompute:
            self._out.random.append(operation.id)
        self._out.operations.append(operation)

    def _split(self, node: Any, call: Call) -> None:
        """Make an operation for every part."""
        base = node.name or f"Split/{next(filter(None, node.output))}"
        for k, name in enumerate(node.output):
            if name:
                part = Call("Split", call.inputs, (self._read.types[name],), call.attributes)
                reads, operands = self._operands(node, part)
                kind = self._read.types[name]
                operation = Operation(
                    id=self._names.unique(f"{base}/{k}"),
                    op="Split",
                    reads=tuple(reads),
                    outputs=(kind.bytes,),
                    flops=max(1, kind.elements),
                    differentiable=(kind.floating,),
                    derivative=derivative_of(part, operands),
                )
                self._add(operation, [name])

    def _is_random(self, node: Any) -> bool:
        """Whether it draws random numbers. A dropout that is not idle may be in training, and counts."""
        return node.op_type in RANDOM or node.op_type == "Dropout"

    def _call(self, node: Any) -> Call:
        import onnx

        types = self._read.types
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        return Call(
            op=node.op_type,
            inputs=tuple(types.get(name) if name else None for name in node.input),
            outputs=tuple(types[name] if name else None for name in node.output),
            attributes={k: v.decode(errors="replace") if isinstance(v, bytes) else v for k, v in attributes.items()},
        )

    def _cost(self, node: Any, call: Call) -> int:
        """FLOPs of a node."""
        name = node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"
        try:
            found = flops(call) if node.domain in STANDARD else None
        except (IndexError, KeyError, TypeError, ValueError) as error:
            message = f"node {quote(node.name)} ({name}) cannot be costed: {error}"
            raise InputError.of(self._costs.source, message, "check its inputs") from None
        return self._costs.of(name, max(call.made, call.read)) if found is None else found

    def _operands(self, node: Any, call: Call) -> tuple[list[Made], list[Operand]]:
        """The values that a node reads, each once, and its inputs as operands for its derivative."""
        reads: list[Made] = []
        operands = []
        for position, name in enumerate(node.input):
            if not name:
                continue
            value = self._out.where.get(name)
            if value is not None and value not in reads:
                reads.append(value)
            kind = call.inputs[position]
            root = self._roots.get(name, name)
            if root in self._out.parameters:
                self._out.trained |= self._out.parameters[root]
            if root in self._fixed and root not in self._read.initializers:
                self._out.constants.add(root)
            operands.append(
                Operand(
                    position=position,
                    read=None if value is None else reads.index(value),
                    parameter=root in self._out.parameters,
                    floating=kind is not None and kind.floating,
                )
            )
        return reads, operands
