"""Lowers a joint graph to a graph of remat: one node per operation, one value per storage.

*Values are storages.* An operation that returns several tensors makes several values, each freed on its own. A view of
existing memory (also ``detach`` and ``getitem``) is not a node. It is written into the arguments of its readers; each
reader rebuilds it. Parameters, buffers, inputs and constants are fixed memory.

*Tangents* (the gradient of the loss with respect to itself, and all other gradients from outside) are the outputs of a
node of their own, which reads all forward results. So every plan runs the whole forward pass before the backward pass
begins.

:mod:`remat_cli.frontends.aten.lower` determines the operations and values, as for files. This module gives every node
the payload that rebuilds it, see :mod:`remat_cli.frontends.torch.document`.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.aten.lower import Computation, Lowered
from remat_cli.frontends.aten.lower import lower as lower_program
from remat_cli.frontends.aten.program import TANGENTS, Call
from remat_cli.frontends.aten.retained_bytes import retained_like
from remat_cli.frontends.torch.capture.capture import Captured
from remat_cli.frontends.torch.capture.joint_program import JointProgram, joint_program, tensor_name
from remat_cli.frontends.torch.capture.naming import call_tag, called_modules, checkpointed_layers
from remat_cli.frontends.torch.capture.placeholders import JointInput, joint_inputs, result_kind
from remat_cli.frontends.torch.capture.sharded import whole_bytes
from remat_cli.frontends.torch.codec import encode, encode_data
from remat_cli.frontends.torch.compat.autograd import frees_tangents
from remat_cli.frontends.torch.compat.distributed import COLLECTIVES, group_dimensions, in_flight, staged_bytes
from remat_cli.frontends.torch.document import (
    Argument,
    Constant,
    Data,
    Input,
    Operation,
    Place,
    Result,
    Returned,
    Value,
    View,
    tensors_read,
)
from remat_cli.frontends.torch.execute.strides import copied_bytes
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes, tensors_in, total_bytes
from remat_cli.frontends.torch.types import FxNode, Tensor
from remat_cli.graph.model import Graph, Node, NodeQueue, Phase

_SAME = ("aten.detach.default", "aten.alias.default")
"""Views that change nothing: without autograd they are the tensor itself."""
_LARGEST_CONSTANT = 1 << 20
"""Most bytes of a constant in the code, since its data goes into the document; larger ones belong in a buffer. Untuned.
"""

NodeCost = Callable[[FxNode], float]
"""Cost of the operation of an FX node, or of a ``Group`` of operations; positive."""
Read = Callable[[int, int], Argument]
"""Makes the argument that refers to the tensor ``part`` of the value ``number``."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """A captured training step as a graph, and what it was made from.

    Attributes:
        graph: The graph.
        fx_nodes: The FX node of each node; None for that of the tangents.
        values: For each value, the names of the tensors in it, see :func:`tensor_name`.
    """

    graph: Graph
    fx_nodes: tuple[FxNode | None, ...]
    values: tuple[tuple[str, ...], ...]


def lower(captured: Captured, cost: NodeCost, name: str, holds: Collection[int] | None = None) -> Graph:
    """The graph of a captured training step; for the arguments see :func:`lowering`."""
    return lowering(captured, cost, name, holds).graph


def lowering(captured: Captured, cost: NodeCost, name: str, holds: Collection[int] | None = None) -> Lowering:
    """The graph of a captured training step, and what it was made from.

    Args:
        captured: The joint graph.
        cost: Cost of every operation.
        name: Name of the graph.
        holds: The results of the forward pass that the caller still has in the backward pass; None if the step is to
            run as a whole, and returns all results at its end.

    Returns:
        The graph; its metadata holds ``places``, ``constants``, ``results`` and ``notes`` on what was left out.

    Raises:
        CaptureFailed: If the step does something that cannot be repeated without the user's code.
    """
    inputs, module = joint_inputs(captured), captured.model.module
    joint = joint_program(captured, inputs)
    constants = [_constant(captured, node) for node in joint.constants]

    def cost_of(call: Call, _types: Any) -> float:
        node = joint.nodes[call.name]
        return cost(node if joint.groups is None else joint.groups.group(node))

    lowered = lower_program(joint.program, name, cost_of)
    payloads = _Payloads.of(captured, joint, lowered)
    results, outputs = _results(captured, inputs, payloads, holds)
    nodes = list(map(payloads.node, lowered.computations))
    if holds is not None:
        _hold(nodes, results, payloads, outputs)
    graph = Graph(
        name=name,
        nodes=tuple(nodes),
        outputs=tuple(sorted(outputs)),
        # Also what the step does not read.
        fixed_memory=total_bytes([*_given(captured), *module.parameters(), *module.buffers()])
        + sum(len(constant.data) for constant in constants),
    )
    metadata = {
        "places": [given.placeholder.document() for given in inputs],
        "constants": [constant.document() for constant in constants],
        "results": [result.document(graph.value_name) for result in results],
        "notes": [*joint.notes, *_unused(captured)],
        "modules": called_modules(joint.nodes.values()),
        "layers": checkpointed_layers(module),
        "tags": _tags(graph, lowered, joint),
    }
    if dimensions := group_dimensions([*captured.tensors, *module.parameters(), *module.buffers()]):
        metadata["groups"] = dimensions
    return Lowering(
        graph=replace(graph, metadata=metadata),
        fx_nodes=tuple(None if m.call.op == TANGENTS else joint.nodes[m.call.name] for m in lowered.computations),
        values=tuple(tensors for made in lowered.computations for tensors in made.values),
    )


def _tags(graph: Graph, lowered: Lowered, joint: JointProgram) -> dict[str, str]:
    """For each value of the forward pass the call that makes it, see :func:`call_tag`."""
    tags: dict[str, str] = {}
    for number, made in enumerate(lowered.computations):
        node = joint.nodes.get(made.call.name)
        tag = call_tag(node) if node is not None and made.call.phase in {Phase.FORWARD, Phase.LOSS} else None
        if tag is not None:
            tags |= {graph.value_name(value): tag for value in graph.values_of(number)}
    return tags


def _constant(captured: Captured, node: FxNode) -> Data:
    """A tensor that the code holds, with its data."""
    tensor = getattr(captured.joint, node.target)
    size = storage_bytes(tensor)
    if size > _LARGEST_CONSTANT:
        raise CaptureFailed(
            f"the model holds a constant tensor of {size} bytes", hint="register it as a buffer of the module"
        )
    return encode_data(tensor)


@dataclass(frozen=True, slots=True)
class _Payloads:
    """Makes nodes with payloads from computations.

    Attributes:
        joint: The program.
        lowered: Its computations.
        first: Number of the first value of every computation.
        fixed: Tensors in fixed memory, by name.
        computed: Number of the value, and part, of the tensors that operations make, by name.
        views: Names of the calls that are views.
    """

    joint: JointProgram
    lowered: Lowered
    first: Sequence[int]
    fixed: Mapping[str, Argument]
    computed: Mapping[str, tuple[int, int]]
    views: frozenset[str]

    @classmethod
    def of(cls, captured: Captured, joint: JointProgram, lowered: Lowered) -> _Payloads:
        """The payloads of a lowered program."""
        placeholders = captured.joint.graph.find_nodes(op="placeholder")
        fixed: dict[str, Argument] = {node.name: Place(number) for number, node in enumerate(placeholders)}
        fixed |= {node.name: Constant(number) for number, node in enumerate(joint.constants)}
        first = list(accumulate((len(made.sizes) for made in lowered.computations), initial=0))
        values = [tensors for made in lowered.computations for tensors in made.values]
        made = {name: (number, part) for number, tensors in enumerate(values) for part, name in enumerate(tensors)}
        return cls(joint, lowered, first, fixed, made, frozenset(lowered.views))

    def node(self, computation: Computation) -> Node:
        """The node of a computation."""
        call = computation.call
        reads: dict[int, int] = {}

        def read(number: int, part: int) -> Argument:
            return Input(reads.setdefault(number, len(reads)), part)

        args: tuple[Argument, ...] = ()
        kwargs: dict[str, Argument] = {}
        if call.op == TANGENTS:  # no operator to run: its inputs only place it after the forward results
            reads = {self.first[owner] + slot: position for position, (owner, slot) in enumerate(computation.reads)}
        else:
            args, kwargs = self.arguments(self.joint.nodes[call.name], read)
        slots = {output[0]: slot for slot, output in enumerate(call.outputs) if output is not None}
        values = tuple(tuple(self._returned(call, slots[name]) for name in tensors) for tensors in computation.values)
        operation = Operation(call.target, args, kwargs, values, computation.random)
        made_on = next((output[1].device for output in call.outputs if output is not None), None)
        return Node(
            id=computation.id,
            cost=float(computation.cost),
            inputs=tuple(reads),
            outputs=computation.sizes,
            recompute=call.op != TANGENTS and not (computation.random and self.joint.groups is not None),
            op=computation.op,
            phase=call.phase,
            workspace=self._workspace(call, operation, made_on or ""),
            payload=operation.document(),
            queue=NodeQueue.COMMUNICATION if in_flight(call.target) else NodeQueue.COMPUTE,
        )

    def _workspace(self, call: Call, operation: Operation, device: str) -> int:
        """Bytes that a call takes while it runs, as far as they are known without measuring."""
        staged = (
            staged_bytes(call.target, device, whole_bytes(self.joint.nodes[call.name]))
            if call.target in COLLECTIVES
            else 0
        )
        return max(copied_bytes(operation, device), staged)

    def _returned(self, call: Call, slot: int) -> Returned:
        """The description of an output of ``call`` in a document."""
        name = call.made_at(slot)
        # Some operators keep a result in another type than their fake tensor says. The document states the real one,
        # or sizes would be too small.
        spec, like = self.joint.specs[name], retained_like(call, slot, self.lowered.types)
        return Returned(
            item=slot if call.op == TANGENTS or name != call.name else None,
            spec=spec if like is None else replace(spec, dtype=self.joint.specs[like].dtype),
        )

    def arguments(self, node: FxNode, read: Read) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        """The arguments of the call of an FX node, by position and by name."""

        def tensor(argument: FxNode) -> Argument:
            return self.expression(argument, read)

        return (
            tuple(encode(argument, tensor) for argument in node.args),
            {key: encode(argument, tensor) for key, argument in node.kwargs.items()},
        )

    def expression(self, node: FxNode, read: Read) -> Argument:
        """The expression for the result of an FX node; ``read`` makes references to values."""
        name = tensor_name(node)
        if name in self.computed:  # before fixed memory: a tangent is a placeholder too
            return read(*self.computed[name])
        if name in self.fixed:
            return self.fixed[name]
        called, item = (node.args[0], node.args[1]) if node.target is operator.getitem else (node, None)
        if called.name not in self.views:
            return _number(node)
        if str(called.target) in _SAME:
            return self.expression(called.args[0], read)
        args, kwargs = self.arguments(called, read)
        return View(str(called.target), args, kwargs, item)


def _number(node: FxNode) -> Argument:
    """The number that an FX node stands for."""
    number = node.meta.get("val")
    if number is None or isinstance(number, bool | int | float):
        return encode(number, lambda _: None)
    if tensors_in(number):
        raise CaptureFailed(f"all results of {node.target} are read at once")
    raise CaptureFailed(f"the result of {node.target} is read, and is neither a tensor nor a number")


def _results(
    captured: Captured, inputs: Sequence[JointInput], payloads: _Payloads, holds: Collection[int] | None
) -> tuple[list[Result], set[int]]:
    """The results of the step, and the values that have to be there at its end."""
    outputs = set[int]()

    def read(number: int, part: int) -> Argument:
        outputs.add(number)
        return Value(number, part)

    results = []
    for k, node in enumerate(captured.joint.graph.output_node().args[0]):
        if node is None:
            continue
        kind, of = result_kind(captured, k, inputs)
        # Memory that results are views of stays if one of them does. Inductor writes updates into their places at the
        # end of the forward pass.
        unheld = holds is not None and kind == "result" and of not in holds
        if unheld or (kind == "update" and captured.inductor is not None):
            results.append(Result("dropped", of, payloads.expression(node, Value)))
        else:
            results.append(Result(kind, of, payloads.expression(node, read)))
    return results, outputs


def _hold(nodes: list[Node], results: Sequence[Result], payloads: _Payloads, outputs: set[int]) -> None:
    """Count what others hold during the backward pass, and do not compute it a second time beside that.

    Results that the caller has are there in any case. Tangents stay to the end where autograd keeps them.
    """
    owner = payloads.first
    for result in results:
        for tensor in tensors_read([result.tensor]) if result.kind == "result" else ():
            if isinstance(tensor, Value):
                at = bisect_right(owner, tensor.number) - 1
                nodes[at] = replace(nodes[at], recompute=False)
    if not frees_tangents():
        at = next(k for k, made in enumerate(payloads.lowered.computations) if made.call.op == TANGENTS)
        outputs.update(range(owner[at], owner[at + 1]))


def _given(captured: Captured) -> list[Tensor]:
    """The tensors behind the placeholders; meshes of DTensors are among the compiler's inputs too."""
    return [tensor for _, tensor in leaves(captured.tensors)]


def _unused(captured: Captured) -> list[str]:
    """A note for each parameter that the step does not read; it is in fixed memory, and gets no gradient."""
    read = set(map(storage, _given(captured)))
    return [
        f"parameter {name} has no part in the step"
        for name, parameter in captured.model.module.named_parameters()
        if storage(parameter) not in read
    ]
