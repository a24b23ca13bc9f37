"""From a joint graph to a graph of remat: one node per operation, one value per storage.

*Values are storages.* An operation that returns several tensors makes several values, each freed on its own. What only
looks at memory that exists already (views, ``detach``, ``getitem``) is no node: it is written into the arguments of
whoever reads it, and made again right there. Parameters, buffers, inputs and constants are fixed memory. Two fake
tensors share memory exactly if they have the same storage, whatever the operator's schema says of it.

*Tangents* (the gradient of the loss by itself, and what else comes from outside) are the outputs of a node of their
own, which reads all forward results: so every plan runs the whole forward pass before the backward pass begins.

A node's payload rebuilds it without the user's code::

    {"call": "aten.addmm.default", "args": [...], "kwargs": {...}, "values": [[{"item": null, "shape": ...}]]}

``values`` says for each value which returned tensors lie in it (``item``: the position in the returned tuple, null
for a tensor on its own). Tensors among the arguments are expressions: ``{"input": k, "part": j}`` is the j-th tensor
of the k-th value that the node reads, ``{"place": p}`` the p-th placeholder, ``{"constant": c}`` a constant, and
``{"call": ..., "args": ..., "kwargs": ..., "item": i}`` a view of such.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capturing.capture import Captured
from remat_cli.frontends.torch.capturing.naming import Names
from remat_cli.frontends.torch.capturing.order import split_order
from remat_cli.frontends.torch.capturing.placeholders import Place, places_of, result_kind
from remat_cli.frontends.torch.capturing.plannable import require_plannable
from remat_cli.frontends.torch.capturing.retained_bytes import kept_bytes, kept_dtype
from remat_cli.frontends.torch.codec import dtype_name, encode, encode_data
from remat_cli.frontends.torch.private import is_operator, schema
from remat_cli.frontends.torch.tensors import (
    constant_bytes,
    dense_bytes,
    describe,
    is_random,
    storage,
    storage_bytes,
    tensors_in,
)
from remat_cli.graph.model import Graph, Node, Phase

TANGENTS = "remat.tangents"
"""What the node of the tangents calls: nothing that PyTorch has."""
_SAME = ("aten.detach.default", "aten.alias.default")
"""Views that change nothing; without autograd they are the tensor itself."""
_LARGEST_CONSTANT = 1 << 20
"""Bytes of data that a constant in the code may have; more belongs into a buffer."""

NodeCost = Callable[[Any], float]
"""Cost of the operation of an FX node; positive."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value before it has a number in the graph.

    Attributes:
        owner: Position of the node that makes it.
        index: Which of the node's values it is.
        part: Which of the tensors in it is meant.
    """

    owner: int
    index: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """An FX node whose result lies in memory that exists already."""

    node: Any


@dataclass(frozen=True, slots=True)
class Fixed:
    """A placeholder (``key`` is ``place``) or a constant."""

    key: str
    number: int


Source = Value | View | Fixed
"""Where a tensor comes from."""


@dataclass(slots=True)
class _Draft:
    """A node under construction. ``values`` and ``sizes``: tensors and bytes of each value."""

    id: str
    op: str
    phase: Phase
    cost: float
    payload: dict[str, Any] = field(default_factory=dict)
    reads: dict[tuple[int, int], int] = field(default_factory=dict)
    values: list[list[dict[str, Any]]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    recompute: bool = True


@dataclass(slots=True)
class _Lowering:
    """State of one lowering."""

    captured: Captured
    cost: NodeCost
    places: list[Place]
    names: Names
    drafts: list[_Draft] = field(default_factory=list)
    sources: dict[Any, Any] = field(default_factory=dict)
    owners: dict[int, Source] = field(default_factory=dict)
    constants: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def place(self, node: Any, number: int) -> None:
        """A placeholder that is no tangent."""
        self.sources[node] = Fixed("place", number)
        self.owners[storage(node.meta["val"])] = self.sources[node]

    def constant(self, node: Any) -> None:
        """A tensor in the code."""
        tensor = getattr(self.captured.joint, node.target)
        size = storage_bytes(tensor)
        if size > _LARGEST_CONSTANT:
            raise CaptureFailed(
                f"the model holds a constant tensor of {size} bytes", hint="register it as a buffer of the module"
            )
        self.sources[node] = Fixed("constant", len(self.constants))
        self.owners[storage(node.meta["val"])] = self.sources[node]
        self.constants.append(encode_data(tensor))

    def operation(self, node: Any, phase: Phase) -> None:
        """A node that calls something."""
        if node.target is operator.getitem:
            self._item(node)
            return
        result = node.meta.get("val")
        if not is_operator(node.target):
            raise CaptureFailed(f"the model uses {node.target}, which remat cannot run again on its own")
        tensors = tensors_in(result)
        require_plannable(node, tensors)
        if not tensors:
            if isinstance(result, bool | int | float):
                return  # a number: written where it is read
            self.notes.append(f"left out {node.target}: it returns nothing")
            return
        if schema(node.target).is_mutable:
            raise CaptureFailed(f"{node.target} writes into its input {node.name}, even after functionalization")
        old = [storage(tensor) in self.owners for _, tensor in tensors]
        if all(old):
            self.sources[node] = View(node)
        elif any(old):
            raise CaptureFailed(f"{node.target} returns new memory and a view of old memory at once")
        else:
            self._computation(node, phase, tensors)

    def _item(self, node: Any) -> None:
        parent, item = node.args
        source = self.sources.get(parent)
        if isinstance(source, View):
            self.sources[node] = View(node)
        elif isinstance(source, dict) and item in source:
            self.sources[node] = source[item]
        elif not isinstance(node.meta.get("val"), bool | int | float | None):
            raise CaptureFailed(f"{parent.target} returns something that is not a tensor: {node.meta.get('val')!r}")

    def _computation(self, node: Any, phase: Phase, tensors: Sequence[tuple[int | None, Any]]) -> None:
        draft = _Draft(self.names.of(node, phase), schema(node.target).name.rpartition("::")[2], phase, self.cost(node))
        owner = len(self.drafts)
        draft.payload = {"call": str(node.target)} | self.arguments(node, draft)
        if is_random(node):
            draft.payload["random"] = True
        found: dict[int | None, Value] = {}
        for item, tensor in tensors:
            found[item] = self._new_tensor(draft, owner, node, item, tensor)
        draft.payload["values"] = draft.values
        self.sources[node] = found.get(None, found)
        self.drafts.append(draft)

    def _new_tensor(self, draft: _Draft, owner: int, node: Any, item: int | None, tensor: Any) -> Value:
        """A tensor that the node ``draft`` makes: in a value of its own, or beside another tensor in the same one."""
        known = self.owners.get(storage(tensor))
        description = {"item": item, **describe(tensor), "dtype": dtype_name(kept_dtype(node, item, tensor))}
        if isinstance(known, Value):
            draft.values[known.index].append(description)
            return Value(owner, known.index, len(draft.values[known.index]) - 1)
        value = Value(owner, len(draft.values))
        self.owners[storage(tensor)] = value
        draft.values.append([description])
        draft.sizes.append(kept_bytes(node, item, tensor))
        return value

    def tangents(self, nodes: Sequence[Any], results: Sequence[Any]) -> None:
        """The node that makes the tangents, after all ``results`` of the forward pass."""
        draft = _Draft(self.names.unique("tangents"), "tangents", Phase.LOSS, 1.0, recompute=False)
        owner = len(self.drafts)
        for result in results:
            value = self.root(result)
            if value is not None:
                draft.reads.setdefault((value.owner, value.index), len(draft.reads))
        for item, node in enumerate(nodes):
            tensor = node.meta["val"]
            # Each comes in memory of its own, even if what it belongs to shares memory and the fake one does too.
            self.owners[storage(tensor)] = self.sources[node] = Value(owner, item)
            draft.values.append([{"item": item, **describe(tensor)}])
            draft.sizes.append(dense_bytes(tensor))
        draft.payload = {"call": TANGENTS, "args": [], "kwargs": {}, "values": draft.values}
        self.drafts.append(draft)

    def root(self, node: Any) -> Value | None:
        """The value that holds the result of ``node``; None if it is fixed memory."""
        source = self.sources[node]
        while isinstance(source, View):
            source = self.owners[storage(tensors_in(source.node.meta["val"])[0][1])]
        return source if isinstance(source, Value) else None

    def arguments(self, node: Any, draft: _Draft) -> dict[str, Any]:
        """Arguments of ``node`` as JSON; what it reads is noted in ``draft``."""

        def tensor(argument: Any) -> Any:
            def read(value: Value) -> dict[str, Any]:
                position = draft.reads.setdefault((value.owner, value.index), len(draft.reads))
                return {"input": position} | ({"part": value.part} if value.part else {})

            return self.expression(argument, read)

        return {
            "args": [encode(argument, tensor) for argument in node.args],
            "kwargs": {key: encode(argument, tensor) for key, argument in node.kwargs.items()},
        }

    def expression(self, node: Any, read: Callable[[Value], dict[str, Any]]) -> Any:
        """What an argument that is the result of ``node`` looks like; ``read`` says how values are referred to."""
        source = self.sources.get(node)
        if isinstance(source, Value):
            return read(source)
        if isinstance(source, Fixed):
            return {source.key: source.number}
        if source is None:
            number = node.meta.get("val")
            if number is not None and not isinstance(number, bool | int | float):
                raise CaptureFailed(f"the result of {node.target} is read, and is neither a tensor nor a number")
            return encode(number, lambda _: None)
        if not isinstance(source, View):
            raise CaptureFailed(f"all results of {node.target} are read at once")
        called, item = source.node, {}
        if called.target is operator.getitem:
            item = {"item": called.args[1]}
            called = called.args[0]
        if str(called.target) in _SAME:
            return self.expression(called.args[0], read)
        return {
            "call": str(called.target),
            "args": [encode(a, lambda n: self.expression(n, read)) for a in called.args],
            "kwargs": {key: encode(a, lambda n: self.expression(n, read)) for key, a in called.kwargs.items()},
        } | item


def lower(captured: Captured, cost: NodeCost, name: str) -> Graph:
    """The graph of a captured training step.

    Args:
        captured: The joint graph.
        cost: Cost of every operation.
        name: Name of the graph.

    Returns:
        The graph; its metadata holds ``places``, ``constants``, ``results`` (loss, gradients, updates of inputs, each
        with an expression whose values are named by their ids) and ``notes`` on what was left out.

    Raises:
        CaptureFailed: If the step does something that cannot be run again without its code.
    """
    places = places_of(captured)
    work = _Lowering(captured, cost, places, Names())
    nodes = list(captured.joint.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    tangents = [node for node, place in zip(placeholders, places, strict=True) if place.kind == "tangent"]
    results = list(nodes[-1].args[0])
    for number, node in enumerate(placeholders):
        if node not in tangents:
            work.place(node, number)
    forward_results = [result for result in results[: captured.forward_outputs] if result is not None]
    forward, backward = split_order(nodes, tangents, forward_results, results)
    _all(work, forward, Phase.FORWARD)
    for result in forward_results[-1:]:
        value = work.root(result)
        if value is not None:
            work.drafts[value.owner].phase = Phase.LOSS
    work.tangents(tangents, forward_results)
    _all(work, backward, Phase.BACKWARD)
    return _graph(work, results, name)


def _all(work: _Lowering, nodes: Sequence[Any], phase: Phase) -> None:
    for node in nodes:
        if node.op == "get_attr":
            work.constant(node)
        elif node.op == "call_function":
            work.operation(node, phase)
        elif node.op != "placeholder":
            raise CaptureFailed(f"the model calls {node.target} in a way that remat does not know")


def _graph(work: _Lowering, results: Sequence[Any], name: str) -> Graph:
    first = [0]
    for draft in work.drafts:
        first.append(first[-1] + len(draft.sizes))
    kept: set[int] = set()

    def read(value: Value) -> dict[str, Any]:
        kept.add(first[value.owner] + value.index)
        named = {"value": f"{work.drafts[value.owner].id}:{value.index}"}
        return named | ({"part": value.part} if value.part else {})

    described = []
    for k, result in enumerate(results):
        kind, of = result_kind(work.captured, k, work.places)
        if result is not None:
            described.append({"kind": kind, "of": of, "tensor": work.expression(result, read)})
    constants = sum(constant_bytes(constant) for constant in work.constants)
    return Graph(
        name=name,
        nodes=tuple(
            Node(
                id=draft.id,
                cost=draft.cost,
                inputs=tuple(first[owner] + index for owner, index in draft.reads),
                outputs=tuple(draft.sizes),
                recompute=draft.recompute,
                op=draft.op,
                phase=draft.phase,
                payload=draft.payload,
            )
            for draft in work.drafts
        ),
        outputs=tuple(sorted(kept)),
        fixed_memory=_fixed_bytes(work.captured) + constants,
        metadata={
            "places": [place.document() for place in work.places],
            "constants": work.constants,
            "results": described,
            "notes": [*work.notes, *_unused(work.captured)],
        },
    )


def _fixed_bytes(captured: Captured) -> int:
    """Bytes of all parameters, buffers and inputs, each storage once, those that the step does not read included."""
    module = captured.model.module
    tensors = [*captured.tensors, *module.parameters(), *module.buffers()]
    return sum({storage(tensor): storage_bytes(tensor) for tensor in tensors}.values())


def _unused(captured: Captured) -> list[str]:
    """A note for each parameter that has no part in the step; it is in fixed memory, and gets no gradient."""
    read = {storage(tensor) for tensor in captured.tensors}
    return [
        f"parameter {name} has no part in the step"
        for name, parameter in captured.model.module.named_parameters()
        if storage(parameter) not in read
    ]
