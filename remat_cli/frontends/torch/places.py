"""The inputs of a captured step: which tensor each placeholder stands for, and what may be in it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capture import Captured
from remat_cli.frontends.torch.codec import dtype_name
from remat_cli.frontends.torch.private import descriptors, is_fake

_INDEXING = {
    # operator: (argument that is indexed, argument with indices, dimension that is indexed; a string names an argument)
    "aten.embedding.default": (0, 1, 0),
    "aten.nll_loss_forward.default": (0, 1, -1),
    "aten.nll_loss2d_forward.default": (0, 1, 1),
    "aten.index_select.default": (0, 2, 1),
    "aten.gather.default": (0, 2, 1),
}
"""Operators that read integers as indices. The dimension of the last two is itself an argument, at that position."""
_DIMENSION_IS_ARGUMENT = ("aten.index_select.default", "aten.gather.default")


@dataclass(frozen=True, slots=True)
class Place:
    """A placeholder of the joint graph.

    Attributes:
        kind: ``parameter``, ``buffer``, ``input``, ``captured`` (a tensor that the code refers to) or ``tangent``.
        name: ``conv1.weight``; ``0`` or ``mask`` for an input by position or keyword.
        number: Which of the compiler's inputs it is; which of the results, for a tangent.
        dtype: ``float32``.
        shape: Its shape.
        stride: Its strides, in elements.
        storage_bytes: Bytes of the memory it lies in.
        below: For integers that serve as indices: they have to be below this. None where nothing is known.
    """

    kind: str
    name: str
    number: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_bytes: int
    below: int | None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        document = {
            "kind": self.kind,
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "stride": list(self.stride),
            "bytes": self.storage_bytes,
        }
        return document if self.below is None else document | {"below": self.below}


def places_of(captured: Captured) -> list[Place]:
    """All placeholders, in order.

    Raises:
        CaptureFailed: If an input is something else than a plain dense tensor.
    """
    known_kinds = descriptors()
    known = _known(captured)
    places = []
    for node in captured.joint.graph.find_nodes(op="placeholder"):
        value, found = node.meta["val"], node.meta.get("desc")
        if not is_fake(value):
            raise CaptureFailed(f"an input of the model is {type(value).__name__} and not a tensor of fixed shape")
        if isinstance(found, known_kinds.PlainAOTInput):
            tensor = captured.tensors[found.idx]
            kind, name = known.get(id(tensor), ("captured", f"captured{found.idx}"))
            places.append(_place(node, kind, name, found.idx, tensor))
        elif isinstance(found, known_kinds.TangentAOTInput) and isinstance(found.output, known_kinds.PlainAOTOutput):
            places.append(_place(node, "tangent", f"tangent{found.output.idx}", found.output.idx, value))
        else:
            raise CaptureFailed(
                f"an input of the model is of a kind that remat does not know: {type(found).__name__}",
                hint="tensor subclasses and inputs that share memory and are written to are not supported",
            )
    return places


def _place(node: Any, kind: str, name: str, number: int, tensor: Any) -> Place:
    value = node.meta["val"]
    integers = not value.dtype.is_floating_point and not value.dtype.is_complex
    return Place(
        kind=kind,
        name=name,
        number=number,
        dtype=dtype_name(value.dtype),
        shape=tuple(value.shape),
        stride=tuple(value.stride()),
        storage_bytes=tensor.untyped_storage().nbytes(),
        below=_limit(node) if integers else None,
    )


def _known(captured: Captured) -> dict[int, tuple[str, str]]:
    """Kind and name of tensors by identity; the first name of one that has several."""
    import torch

    model = captured.model
    known: dict[int, tuple[str, str]] = {}
    given: list[tuple[str, str, Any]] = [("parameter", n, t) for n, t in model.module.named_parameters()]
    given += [("buffer", n, t) for n, t in model.module.named_buffers()]
    given += [("input", n, t) for n, t in _leaves(model.inputs)]
    given += [("input", n, t) for n, t in _leaves(model.keywords)]
    for kind, name, tensor in given:
        if isinstance(tensor, torch.Tensor):
            known.setdefault(id(tensor), (kind, name))
    return known


def _leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """``("0.mask", tensor)`` for everything in nested tuples, lists and mappings."""
    if isinstance(tree, Mapping):
        items = list(tree.items())
    elif isinstance(tree, list | tuple):
        items = list(enumerate(tree))
    else:
        return [(path, tree)]
    return [leaf for key, item in items for leaf in _leaves(item, f"{path}.{key}" if path else str(key))]


def _limit(placeholder: Any) -> int | None:
    """Below what the integers in ``placeholder`` have to be, by the operators that use them as indices."""
    limits: list[int] = []
    seen = {placeholder}
    stack = [placeholder]
    while stack:
        node = stack.pop()
        for user in node.users:
            if user.op != "call_function":
                continue
            limits.extend(_used_as_index(user, node))
            value = user.meta.get("val")
            dtype = getattr(value, "dtype", None)
            carries = user.target is operator.getitem or (dtype is not None and dtype == node.meta["val"].dtype)
            if carries and user not in seen:
                seen.add(user)
                stack.append(user)
    return min(limits, default=None)


def _used_as_index(user: Any, node: Any) -> list[int]:
    name = str(user.target)
    if name == "aten.index.Tensor":
        shape = user.args[0].meta["val"].shape
        return [int(shape[k]) for k, index in enumerate(user.args[1]) if index is node]
    if name not in _INDEXING:
        return []
    indexed, indices, dimension = _INDEXING[name]
    if user.args[indices] is not node:
        return []
    if name in _DIMENSION_IS_ARGUMENT:
        dimension = user.args[dimension]
    return [int(user.args[indexed].meta["val"].shape[dimension])]


def result_kind(captured: Captured, number: int, places: Sequence[Place]) -> tuple[str, Any]:
    """What the ``number``-th output of the joint graph is: ``result``, ``update`` or ``gradient``, and of what.

    Of what: the position of a place for updates and gradients, the number of the result for results.

    Raises:
        CaptureFailed: If it is something else.
    """
    known_kinds = descriptors()
    output = next(iter(reversed(captured.joint.graph.nodes)))
    inputs = [place.number for place in places if place.kind != "tangent"]
    if number >= captured.forward_outputs:
        place = number - captured.forward_outputs
        return "gradient", place
    found = output.meta["desc"][number]
    if isinstance(found, known_kinds.InputMutationAOTOutput):
        mutated = found.mutated_input
        if isinstance(mutated, known_kinds.PlainAOTInput) and mutated.idx in inputs:
            return "update", inputs.index(mutated.idx)
        raise CaptureFailed(f"the model updates an input that shares memory with another ({mutated})")
    if isinstance(found, known_kinds.PlainAOTOutput):
        return "result", found.idx
    raise CaptureFailed(f"the model returns what remat does not know: {type(found).__name__}")
