"""Converts a joint graph of FX to a program of ATen operators: facts that need a live PyTorch become plain data.

These facts are: the memory of each tensor, read from its fake tensor, because schemas of operators can be wrong about
it; the operations that draw random numbers; the module of each operation; and the operations that no plan supports.
"""

import operator
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.aten.phases import ancestors, dependent, split, tangents_call
from remat_cli.frontends.aten.program import Call, Input, Program, Ref, TensorType
from remat_cli.frontends.torch.capture.capture import Captured, Groups
from remat_cli.frontends.torch.capture.naming import module_path, place_in, places_told
from remat_cli.frontends.torch.capture.placeholders import JointInput
from remat_cli.frontends.torch.capture.refusals import require_plannable
from remat_cli.frontends.torch.codec import spec_of
from remat_cli.frontends.torch.compat.operators import is_operator, schema
from remat_cli.frontends.torch.document import TensorSpec
from remat_cli.frontends.torch.tensors import dense_bytes, is_random, storage, storage_bytes, tensors_in
from remat_cli.frontends.torch.types import FxNode, Tensor
from remat_cli.graph.model import Phase

_BRANCHES = ("cond", "while_loop", "scan", "map_impl", "associative_scan")
"""Control flow of PyTorch that holds graphs of its own."""


@dataclass(frozen=True, slots=True)
class JointProgram:
    """A joint graph as a program.

    Attributes:
        program: The program, with phases and tangents.
        nodes: The FX node of each call, by the call's name.
        specs: Type and layout of every tensor, for documents.
        constants: FX nodes of the tensors that the code holds, in order.
        notes: Notes on operations that were left out.
        groups: The groups that a compiler makes of the operations; None if they run one by one.
    """

    program: Program
    nodes: Mapping[str, FxNode]
    specs: Mapping[str, TensorSpec]
    constants: Sequence[FxNode]
    notes: Sequence[str]
    groups: Groups | None


def tensor_name(node: FxNode) -> str:
    """Name of the tensor that an FX node makes: its own, or ``name:k`` for the k-th result of node ``name``."""
    if node.target is operator.getitem:
        return f"{node.args[0].name}:{node.args[1]}"
    return str(node.name)


def joint_program(captured: Captured, inputs: Sequence[JointInput]) -> JointProgram:
    """The program of a captured training step, whose placeholders are ``inputs``.

    Raises:
        CaptureFailed: If the step does something that cannot be repeated without the user's code.
    """
    nodes = list(captured.joint.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    kinds = [(node, one.placeholder.kind) for node, one in zip(placeholders, inputs, strict=True)]
    tangents = [node for node, kind in kinds if kind == "tangent"]
    results = [result for result in nodes[-1].args[0] if result is not None]
    forward_results = [r for r in nodes[-1].args[0][: captured.forward_outputs] if r is not None]
    forward, backward = _order(nodes, tangents, forward_results, results)
    program_inputs = [
        Input(node.name, kind, tensor_type(node.meta["val"])) for node, kind in kinds if kind != "tangent"
    ]
    groups = None if captured.inductor is None else captured.inductor.groups(captured.joint)
    work = _Calls({one.type.storage for one in program_inputs}, frozenset() if groups is None else groups.inlined)
    work.specs.update((node.name, spec_of(node.meta["val"])) for node in placeholders)
    calls = work.of(forward, Phase.FORWARD)
    # The last forward result counts as the loss. Its memory identifies it, since a view may come last.
    loss = {storage(tensor) for node in forward_results[-1:] for _, tensor in tensors_in(node.meta["val"])}
    for k, call in enumerate(calls):
        if any(kind.storage in loss for _, kind in filter(None, call.outputs)):
            calls[k] = replace(call, phase=Phase.LOSS)
    # The memory of a tangent is dense: the result that it belongs to may lie in a larger one.
    values = [(node.name, node.meta["val"]) for node in tangents]
    types = [(name, replace(tensor_type(one), storage_bytes=dense_bytes(one))) for name, one in values]
    middle = tangents_call([tensor_name(node) for node in forward_results], types)
    work.known.update(kind.storage for _, kind in filter(None, middle.outputs))
    calls += [middle, *work.of(backward, Phase.BACKWARD)]
    constants = [Input(node.name, "constant", tensor_type(node.meta["val"])) for node in work.constants]
    outputs = tuple((tensor_name(node), "output") for node in results)
    program = Program((*program_inputs, *constants), tuple(calls), outputs)
    return JointProgram(program, work.nodes, work.specs, work.constants, work.notes, groups)


def _order(
    nodes: Sequence[FxNode], tangents: Sequence[FxNode], forward_results: Sequence[FxNode], results: Sequence[FxNode]
) -> tuple[list[FxNode], list[FxNode]]:
    """The nodes that run before and after the tangents, in the order of the joint graph; dead nodes are left out.

    Random operations without readers stay: without them, the others would draw other numbers.
    """
    after = dependent(nodes, reads, itself, tangents)
    needed = ancestors(nodes, reads, itself, [*results, *(node for node in nodes if is_random(node))])
    for node in nodes:
        if node.op not in {"placeholder", "call_function", "get_attr", "output"} and node in needed:
            raise CaptureFailed(f"the model calls {node.target} in a way that remat does not know")
    ordered = [node for node in nodes if node in needed and node.op in {"call_function", "get_attr"}]
    forward, backward = split(ordered, reads, itself, after, forward_results)
    if not after.isdisjoint(forward):
        raise CaptureFailed("a result of the forward pass depends on a gradient")
    return forward, backward


def reads(node: FxNode) -> Iterable[FxNode]:
    """The nodes that an FX node reads."""
    nodes: Iterable[FxNode] = node.all_input_nodes
    return nodes


def itself(node: FxNode) -> tuple[FxNode]:
    """What an FX node makes, where nodes stand for their results."""
    return (node,)


@dataclass(slots=True)
class _Calls:
    """Makes calls from FX nodes. ``known`` holds all memory made so far. For the rest see ``JointProgram``."""

    known: set[Hashable]
    inlined: Collection[FxNode] = ()
    nodes: dict[str, FxNode] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    constants: list[FxNode] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of(self, nodes: Sequence[FxNode], phase: Phase) -> list[Call]:
        """The calls of ``nodes``, in their order; constants and items of results are not calls."""
        calls = []
        for node in nodes:
            if node.op == "get_attr" and "val" not in node.meta:
                raise _unknown(next(iter(node.users)))  # it holds a graph for that operator, such as a branch
            if node.op == "get_attr":
                self.constants.append(node)
                self.specs[node.name] = spec_of(node.meta["val"])
                self.known.add(storage(node.meta["val"]))
            elif node.target is operator.getitem:
                _require_tensor(node)
            elif (call := self._call(node, phase)) is not None:
                calls.append(call)
                self.known.update(kind.storage for _, kind in filter(None, call.outputs))
                self.nodes[call.name] = node
        return calls

    def _call(self, node: FxNode, phase: Phase) -> Call | None:
        """The call of an FX node; None if it makes no tensor."""
        result = node.meta.get("val")
        if not is_operator(node.target):
            raise _unknown(node)
        tensors = tensors_in(result)
        require_plannable(node, tensors)
        if not tensors:
            if not isinstance(result, bool | int | float):  # a number is written into the arguments of its readers
                self.notes.append(f"left out {node.target}: it returns nothing")
            return None
        if schema(node.target).is_mutable:
            raise CaptureFailed(f"{node.target} writes into its input {node.name}, even after functionalization")
        # A call is either a view or a computation, so a mixture cannot be represented.
        old = [storage(tensor) in self.known for _, tensor in tensors]
        if any(old) and not all(old):
            raise CaptureFailed(f"{node.target} returns new memory and a view of old memory at once")
        outputs: list[tuple[str, TensorType] | None] = [None] * (1 + max(item or 0 for item, _ in tensors))
        for item, tensor in tensors:
            name = node.name if item is None else f"{node.name}:{item}"
            outputs[item or 0] = (name, tensor_type(tensor))
            self.specs[name] = spec_of(tensor)
        return Call(
            name=node.name,
            target=str(node.target),
            positional=_refs(node.args),
            named=_refs(dict(node.kwargs)),
            outputs=tuple(outputs),
            module=module_path(node),
            phase=phase,
            random=is_random(node),
            inlined=node in self.inlined,
        )


def _unknown(node: FxNode) -> CaptureFailed:
    """The error for a node that calls something other than an operator."""
    place = place_in(places_told(node.meta.get("stack_trace") or ""))
    return CaptureFailed(
        f"{place + ': ' if place else ''}the model uses {node.target}, which remat cannot run again on its own",
        hint="torch.where computes both sides of a branch, and a loop in Python is captured step by step"
        if str(node.target) in _BRANCHES
        else "",
    )


def _require_tensor(node: FxNode) -> None:
    """Check that an item of a result is a tensor or a number."""
    parent, item = node.args
    value = node.meta.get("val")
    tensors = dict(tensors_in(parent.meta.get("val")))
    if item not in tensors and not isinstance(value, bool | int | float | None):
        raise CaptureFailed(f"{parent.target} returns something that is not a tensor: {value!r}")


def _refs(arguments: Any) -> Any:
    """Arguments with a ``Ref`` for every FX node that makes a tensor, and None for every other node."""
    import torch

    def ref(node: FxNode) -> Any:
        value = node.meta.get("val")
        return Ref(tensor_name(node)) if isinstance(value, torch.Tensor) else None

    return torch.fx.map_arg(arguments, ref)


def tensor_type(tensor: Tensor) -> TensorType:
    """Type, layout and memory of a (fake) tensor."""
    return TensorType(
        itemsize=int(tensor.dtype.itemsize),
        floating=bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        device=tensor.device.type,
        storage=storage(tensor),
        storage_bytes=storage_bytes(tensor),
    )
