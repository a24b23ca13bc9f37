"""Reads TensorFlow's graph of a step: order, pruning, constants, places, and how often each operation may run.

*Order.* TensorFlow lists operations as they were made, which is not an order in which they can run if a loop has a
gradient; they are sorted first.

*Variables.* What a step reads of a variable before it writes it is the same from its beginning on. All writes, and all
that depends on one, come last, in the order of the code. So whatever is recomputed reads the same numbers again.
Reading takes no memory, but for variables that are used by rows: TensorFlow copies them, so it is an operation like
others.

*Aliases.* Some operations give out the memory of an input, always (Reshape) or for some shapes: a slice of leading rows
if they are aligned, a sum over no axis, a cast to the same type. For these a trial decides: they run once on zeros.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.tensorflow.capture.capture import Captured, refused_xla
from remat_cli.frontends.tensorflow.capture.layers import called_by_name, layer_path, plain_name, without_root
from remat_cli.frontends.tensorflow.capture.program import Kind, Op, Program
from remat_cli.frontends.tensorflow.codec import attributes_of, called_functions, data_of, kernel_attributes, tensor_of
from remat_cli.frontends.tensorflow.compat import (
    address,
    captures_of,
    control_outputs_of,
    executor,
    function_definitions,
    op_def,
)
from remat_cli.frontends.tensorflow.document import (
    ITEM_BYTES,
    OPAQUE,
    Call,
    Constant,
    Data,
    Made,
    Place,
    Placeholder,
    Read,
    Ref,
    TensorSpec,
)
from remat_cli.frontends.tensorflow.operators import (
    ALIASES,
    ASSIGNS,
    BY_ROWS,
    CALLS,
    GENERATORS,
    LEFT_OUT,
    LISTS,
    MAYBE_ALIASES,
    RANDOM,
    REACHES_OUT,
    READS,
    SHAPES,
    SLICES,
)
from remat_cli.graph.model import Phase

_BACKWARD = "gradient_tape/"
"""Part of the names that TensorFlow gives the operations of gradients."""
_FOLDED_BYTES = 1 << 16
"""Most bytes of the result of an operation on constants that becomes a constant itself. Untuned."""
_LEFT_OPEN = ("BroadcastGradientArgs", "FusedBatchNormV3")
"""Operations that make small tensors of a shape that TensorFlow does not tell; their bytes are left out."""
_LARGEST_CONSTANT = 1 << 20
"""Most bytes of a constant whose data goes into the document; larger ones are places. Untuned."""


def read_graph(captured: Captured) -> Program:
    """The program of a captured step.

    Raises:
        CaptureFailed: If the step does something that cannot be done again without the user's code.
    """
    program = _GraphReader(captured).program()
    _find_aliases(program)
    return program


def sorted_operations(graph: Any) -> list[Any]:
    """The operations of a graph in an order in which they can run, as close to that of the code as possible."""
    operations = graph.get_operations()
    number = {op.name: k for k, op in enumerate(operations)}
    waiting: dict[int, int] = {}
    followers: dict[int, list[int]] = defaultdict(list)
    for k, op in enumerate(operations):
        before = {number[t.op.name] for t in op.inputs} | {number[c.name] for c in op.control_inputs}
        waiting[k] = len(before)
        for other in before:
            followers[other].append(k)
    ready = [k for k, count in waiting.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        k = heapq.heappop(ready)
        found.append(operations[k])
        for other in followers[k]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    return found


def needed_operations(operations: Sequence[Any], outputs: Iterable[Any], effects: Iterable[Any]) -> list[Any]:
    """Those of ``operations`` that the tensors ``outputs`` and the operations ``effects`` need."""
    todo = [*(tensor.op for tensor in outputs), *effects]
    seen: set[str] = set()
    while todo:
        op = todo.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        todo += [tensor.op for tensor in op.inputs]
        todo += [c for c in op.control_inputs if c.type == "NoOp" or (c.op_def.is_stateful and c.type not in READS)]
    return [op for op in operations if op.name in seen]


@dataclass(slots=True)
class _GraphReader:
    """Builds the program of one graph."""

    captured: Captured
    made: Program = field(default_factory=Program)
    refs: dict[str, Ref] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    drawn: set[int] = field(default_factory=set)
    left_out: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    opaque: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    open: int = 0
    last_gradient: int = -1
    first_gradient: int | None = None

    def program(self) -> Program:
        graph = self.captured.graph
        self.functions = function_definitions(graph)
        operations = needed_operations(
            sorted_operations(graph), graph.outputs, control_outputs_of(self.captured.concrete)
        )
        self._places(graph)
        used = [self.refs.get(op.inputs[0].name) for op in operations if op.type in BY_ROWS]
        self.made.by_rows = {ref.number for ref in used if isinstance(ref, Place)}
        gradients = [k for k, op in enumerate(operations) if _BACKWARD in op.name]
        if gradients:
            self.first_gradient = gradients[0]
            if any(op.type in ASSIGNS | CALLS and op.op_def.is_stateful for op in operations[gradients[-1] + 1 :]):
                self.last_gradient = gradients[-1]
        for k, op in enumerate(operations):
            self._operation(k, op)
        self.made.results = [self.refs[tensor.name] for tensor in graph.outputs]
        self.made.specs = [self.made.spec(ref) for ref in self.made.results]
        for op, layer in zip(self.made.ops, without_root([op.layer for op in self.made.ops]), strict=True):
            op.layer = layer
        self._loss()
        self.made.functions = [self._serialised(name) for name in self.numbers]
        self.made.notes = self._notes()
        return self.made

    def _places(self, graph: Any) -> None:
        captured = {placeholder.name: held for held, placeholder in captures_of(self.captured.concrete)}
        arguments = [tensor for tensor in graph.inputs if tensor.name not in captured]
        variables = {id(variable.handle): variable for variable in graph.variables}
        tensors = [item for item in self.captured.inputs if hasattr(item, "dtype")]
        for k, tensor in enumerate(arguments):
            item = tensors[k] if len(tensors) == len(arguments) else None
            below = _limit(item)
            self._place(tensor, Placeholder("input", tensor.op.name, _spec(tensor), below=below), k)
        for held, tensor in captures_of(self.captured.concrete):
            if tensor.dtype.name == "resource":
                self._variable(tensor, held, variables)
            elif ITEM_BYTES.get(tensor.dtype.name) and _spec(tensor).bytes <= _LARGEST_CONSTANT:
                self.refs[tensor.name] = self.made.constant(data_of(held))
            else:
                self._place(tensor, Placeholder("captured", tensor.op.name, _spec(tensor), below=_limit(held)), held)

    def _variable(self, tensor: Any, held: Any, variables: Mapping[int, Any]) -> None:
        variable = variables.get(id(held))
        if variable is None:
            raise CaptureFailed(
                f"the step uses {tensor.op.name}, a resource that is not a variable, such as a table or a queue",
                hint="look things up before the step, in the pipeline of the data",
            )
        spec = TensorSpec(variable.dtype.name, tuple(variable.shape.as_list()))
        scalar = not spec.shape and spec.dtype != "string"
        number = float(variable.numpy()).hex() if scalar else None
        name = str(getattr(variable, "path", None) or variable.name).removesuffix(":0")
        trainable = bool(variable.trainable)
        self._place(tensor, Placeholder("variable", name, spec, trainable=trainable, number=number), variable)

    def _place(self, tensor: Any, place: Placeholder, bound: Any) -> None:
        self.refs[tensor.name] = Place(len(self.made.places))
        self.made.places.append(place)
        self.made.bound.append(bound)

    def _operation(self, position: int, op: Any) -> None:
        if op.type in {"Placeholder", "NoOp"}:
            return
        if op.type in LEFT_OUT:
            self.left_out[op.type] += 1
            return
        inputs = tuple(self.refs[tensor.name] for tensor in op.inputs)
        if op.type == "Const":
            self.refs[op.outputs[0].name] = self._constant(op)
            return
        kind = self._kind(position, op, inputs)
        place = inputs[0] if op.type == "ReadVariableOp" and kind is Kind.PURE else None
        if isinstance(place, Place) and place.number not in self.made.by_rows:
            self.refs[op.outputs[0].name] = Read(place.number)
            return
        specs = tuple(self._made(tensor, kind) for tensor in op.outputs)
        folded = self._folded(op, inputs, specs) if kind is Kind.PURE else None
        if folded is not None:
            self.refs.update(zip((tensor.name for tensor in op.outputs), folded, strict=True))
            return
        call = Call(op.type, inputs, specs, self._attributes(op))
        number = len(self.made.ops)
        self.made.by_name.update(called_by_name(op.name))
        phase, layer = self._phase(position, kind), layer_path(op.name)
        self.made.ops.append(Op(plain_name(op.name), call, kind, phase, op.node_def, layer))
        self.refs.update({tensor.name: Made(number, k) for k, tensor in enumerate(op.outputs)})

    def _made(self, tensor: Any, kind: Kind) -> TensorSpec:
        """Type and shape of a tensor. In the update, an axis whose length depends on numbers counts as empty."""
        if kind is not Kind.UPDATE or tensor.shape.is_fully_defined() or tensor.dtype.name in OPAQUE:
            return _spec(tensor)
        self.open += 1
        return TensorSpec(
            tensor.dtype.name, tuple(n or 0 for n in tensor.shape.as_list()) if tensor.shape.rank else (0,)
        )

    def _constant(self, op: Any) -> Ref:
        import tensorflow as tf

        array = tf.make_ndarray(op.get_attr("value"))
        if array.nbytes <= _LARGEST_CONSTANT:
            return self.made.constant(data_of(tf.constant(array, op.outputs[0].dtype)))
        tensor = tf.constant(array)
        self._place(
            op.outputs[0], Placeholder("captured", plain_name(op.name), _spec(tensor), below=_limit(tensor)), tensor
        )
        return self.refs[op.outputs[0].name]

    def _attributes(self, op: Any) -> Any:
        if op.type in CALLS:
            for name in self._called(op.node_def):
                self.numbers.setdefault(name, len(self.numbers))
        return attributes_of(op.node_def, op.op_def, self.numbers)

    def _phase(self, position: int, kind: Kind) -> Phase:
        if kind is Kind.UPDATE:
            return Phase.UPDATE
        return Phase.FORWARD if self.first_gradient is None or position < self.first_gradient else Phase.BACKWARD

    def _loss(self) -> None:
        """Mark the operation that makes the first scalar among the results as that of the loss."""
        for ref, spec in zip(self.made.results, self.made.specs, strict=True):
            root = ref
            while isinstance(root, Made) and self.made.ops[root.op].call.op == "Identity":
                root = self.made.ops[root.op].call.inputs[0]
            if isinstance(root, Made) and not spec.shape and self.made.ops[root.op].phase is Phase.FORWARD:
                self.made.ops[root.op].phase = Phase.LOSS
                return

    # How often an operation may run.

    def _kind(self, position: int, op: Any, inputs: Sequence[Ref]) -> Kind:
        given = [ref.number for ref in inputs if isinstance(ref, Place)]
        handles = [number for number in given if self.made.places[number].kind == "variable"]
        late = 0 <= self.last_gradient < position or any(
            isinstance(ref, Made) and self.made.ops[ref.op].kind is Kind.UPDATE for ref in inputs
        )
        writes, draws = self._effects(op)
        if writes:
            self.written.update(handles)
            return Kind.UPDATE
        if late or self.written.intersection(handles):
            return Kind.UPDATE
        if draws:
            self.drawn.update(handles)
            return Kind.ONCE
        if op.type in ALIASES:
            return Kind.PURE
        lists = op.type in LISTS or any(tensor.dtype.name == "variant" for tensor in op.outputs)
        return Kind.ONCE if lists or self.drawn.intersection(handles) else Kind.PURE

    def _effects(self, op: Any) -> tuple[bool, bool]:
        """Whether an operation writes variables, and whether it draws random numbers that differ the next time."""
        if op.type in CALLS:
            self.opaque[op.type] += 1
            bodies = [node for name in self._called(op.node_def) for node in self.functions[name].node_def]
            effects = [self._effect(node.op, node.name) for node in bodies]
            return any(w for w, _ in effects), any(d for _, d in effects)
        return self._effect(op.type, op.name)

    def _effect(self, kind: str, name: str) -> tuple[bool, bool]:
        if kind in ASSIGNS:
            return True, False
        if kind in RANDOM | GENERATORS:
            return False, True
        if kind in READS | CALLS | LEFT_OUT:
            return False, False
        definition = op_def(kind)
        if definition is None or definition.is_stateful or kind in REACHES_OUT:
            raise CaptureFailed(
                f"the step runs {plain_name(name)} ({kind}), which does more than compute tensors",
                hint="take it out of the step; py_function and data pipelines belong before it",
            )
        return False, False

    def _called(self, node_def: Any) -> list[str]:
        """The names of the functions that an operation calls, and of those that they call."""
        todo = [func.name for func in called_functions(node_def)]
        names: dict[str, None] = {}
        while todo:
            name = todo.pop(0)
            if name in names:
                continue
            if name not in self.functions:
                raise CaptureFailed(f"{node_def.name} calls {name}, which is not in the graph")
            if self.functions[name].attr["_XlaMustCompile"].b:
                raise refused_xla()
            names[name] = None
            todo += [func.name for node in self.functions[name].node_def for func in called_functions(node)]
        return list(names)

    def _serialised(self, name: str) -> bytes:
        """A FunctionDef under its name in documents, ``remat_0``, and without what differs between processes."""
        definition = type(self.functions[name])()
        definition.CopyFrom(self.functions[name])
        definition.signature.name = f"remat_{self.numbers[name]}"
        definition.attr.clear()
        for node in definition.node_def:
            for func in called_functions(node):
                func.name = f"remat_{self.numbers[func.name]}"
            for skipped in [key for key in node.attr if key.startswith("_")]:
                del node.attr[skipped]
        return bytes(definition.SerializeToString(deterministic=True))

    # Constants.

    def _folded(self, op: Any, inputs: Sequence[Ref], specs: Sequence[TensorSpec]) -> list[Ref] | None:
        """The outputs as constants, if they depend on nothing but constants and shapes, and are small."""
        if any(not ITEM_BYTES[spec.dtype] for spec in specs) or sum(spec.bytes for spec in specs) > _FOLDED_BYTES:
            return None
        if op.type in SHAPES and not any(
            self.made.spec(ref).dtype in OPAQUE and isinstance(ref, Made) for ref in inputs
        ):
            return [self.made.constant(data) for data in self._shapes(op, inputs, specs)]
        if op.type in CALLS or not inputs or not all(isinstance(ref, Constant) for ref in inputs):
            return None
        constants = [tensor_of(self.made.constants[ref.number], "cpu") for ref in inputs if isinstance(ref, Constant)]
        attributes = kernel_attributes(op.type, attributes_of(op.node_def, op.op_def, {}), ())
        results = executor("cpu")(op.type, constants, attributes, len(specs))
        return [self.made.constant(data_of(result)) for result in results]

    def _shapes(self, op: Any, inputs: Sequence[Ref], specs: Sequence[TensorSpec]) -> list[Data]:
        """The results of Shape, Size or Rank; the shapes that they read are fixed."""
        import tensorflow as tf

        found = []
        for ref, spec in zip(inputs, specs, strict=True):
            shape = self.made.spec(ref).shape
            number = {"Size": math.prod(shape), "Rank": len(shape)}.get(op.type)
            found.append(data_of(tf.constant(list(shape) if number is None else number, spec.dtype, shape=spec.shape)))
        return found

    def _notes(self) -> list[str]:
        notes = [f"{count} times {kind} is left out" for kind, count in sorted(self.left_out.items())]
        if self.opaque:
            kinds = ", ".join(f"{kind} {count} times" for kind, count in sorted(self.opaque.items()))
            notes.append(f"control flow and calls of functions are one operation each: {kinds}")
        if self.open:
            notes.append(f"{self.open} tensors of the update have lengths that depend on numbers, and no bytes here")
        lists = sum(
            1 for op in self.made.ops for spec in op.call.outputs if spec.dtype == "variant" and op.kind is Kind.ONCE
        )
        if lists:
            notes.append(f"{lists} lists of tensors have no bytes in the graph, since their type does not tell them")
        return notes


def _spec(tensor: Any) -> TensorSpec:
    """Type and shape of a tensor in a graph."""
    name = tensor.dtype.name.removesuffix("_ref")
    if name not in ITEM_BYTES:
        raise CaptureFailed(f"{tensor.name} has the type {name}, which graphs of remat do not hold")
    if name in {"variant", "resource"}:
        return TensorSpec(name, ())
    if not tensor.shape.is_fully_defined():
        if tensor.op.type in _LEFT_OPEN or ITEM_BYTES[name] == 0:
            return TensorSpec(name, (0,))
        raise CaptureFailed(
            f"the shape of {tensor.name} ({tensor.op.type}) is {tensor.shape}: it depends on numbers, not on shapes",
            hint="sizes of memory need fixed shapes: give every input a fixed shape, and do not use tf.where, "
            "tf.unique or tf.boolean_mask for a number of elements that is not known",
        )
    return TensorSpec(name, tuple(tensor.shape.as_list()))


def _limit(item: Any) -> int | None:
    """One more than the largest of the whole numbers in a tensor; None if it has none, or a negative one."""
    import tensorflow as tf

    if not isinstance(item, tf.Tensor) or not item.dtype.is_integer or not item.shape.num_elements():
        return None
    least, most = int(tf.reduce_min(item)), int(tf.reduce_max(item))
    return most + 1 if least >= 0 else None


Aliases = tuple[int | None, ...]


def _find_aliases(program: Program) -> None:
    """Set ``alias_of`` of every operation of ``program``."""
    known: dict[str, Aliases] = {}
    for op in program.ops:
        op.alias_of = _aliases(program, op, known)
        if any(source is not None for source in op.alias_of) and None in op.alias_of:
            op.alias_of = (None,) * len(op.alias_of)  # partly an alias: charge all of it


def _aliases(program: Program, op: Op, known: dict[str, Aliases]) -> Aliases:
    outputs = len(op.call.outputs)
    if op.call.op == "ReadVariableOp":
        place = op.call.inputs[0]
        copied = isinstance(place, Place) and place.number in program.by_rows
        return (0,) if op.kind is Kind.UPDATE and not copied else (None,)
    if op.kind is Kind.ONCE:
        return (None,) * outputs
    if op.call.op in ALIASES:
        return tuple(range(outputs)) if op.call.op == "IdentityN" else (0,) * outputs
    if op.call.op not in MAYBE_ALIASES or not _may_alias(program, op):
        return (None,) * outputs
    key = repr((op.call.op, op.call.attributes, [_form(program, ref) for ref in op.call.inputs]))
    if key not in known:
        known[key] = _trial(program, op)
    return known[key]


def _may_alias(program: Program, op: Op) -> bool:
    """Whether the shapes allow it; this spares most trials."""
    made = op.call.outputs[0]
    if any(spec.dtype in OPAQUE for spec in op.call.outputs):
        return False
    if op.call.op in SLICES:
        return True
    tensors = [spec for spec in map(program.spec, op.call.inputs) if spec.bytes == made.bytes]
    return any(spec.dtype == made.dtype for spec in tensors) and not (op.call.op == "AddN" and len(tensors) > 1)


def _form(program: Program, ref: Ref) -> Any:
    return ref if isinstance(ref, Constant) else program.spec(ref)


def _trial(program: Program, op: Op) -> Aliases:
    """For each output, the input whose memory it is in, by running the operation on zeros."""
    import tensorflow as tf

    def given(ref: Ref) -> Any:
        if isinstance(ref, Constant):
            return tensor_of(program.constants[ref.number], "cpu")
        spec = program.spec(ref)
        with tf.device("/device:CPU:0"):
            return tf.zeros(spec.shape, tf.dtypes.as_dtype(spec.dtype))

    try:
        inputs = [given(ref) for ref in op.call.inputs]
        results = executor("cpu")(
            op.call.op, inputs, kernel_attributes(op.call.op, op.call.attributes, ()), len(op.call.outputs)
        )
    except (tf.errors.OpError, TypeError, ValueError):  # zeros are not valid for it, so it does more than alias
        return (None,) * len(op.call.outputs)
    memory = [address(tensor) for tensor in inputs]
    return tuple(_inside(address(result), memory) for result in results)


def _inside(place: tuple[int, int] | None, memory: list[tuple[int, int] | None]) -> int | None:
    if place is None or not place[1]:
        return None
    for position, memory_of in enumerate(memory):
        if memory_of is not None and memory_of[0] <= place[0] and place[0] + place[1] <= memory_of[0] + memory_of[1]:
            return position
    return None
