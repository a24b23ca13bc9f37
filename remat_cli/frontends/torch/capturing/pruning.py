"""Removes tangents from a joint graph: results that take no gradient then cost nothing in the backward pass.

The backward pass is linear in the tangents. So what depends only on tangents that do not come is zero, and autograd
does not compute it: it leaves such gradients undefined. Here it is removed in the same way. Where it would be added to
another gradient, the other one stays; every other reader gets zeros, as autograd would give them to it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from remat_cli.frontends.torch.capturing.capture import Captured
from remat_cli.frontends.torch.capturing.placeholders import joint_inputs

_ADD = "aten.add.Tensor"


def tangent_numbers(captured: Captured) -> list[int | str]:
    """The result of each tangent, in order: its number, or ``1.base`` for memory that results are views of."""
    return [given.number for given in joint_inputs(captured) if given.is_tangent]


def with_tangents(captured: Captured, takes: Collection[int | str]) -> Captured:
    """``captured`` with the tangents of the results ``takes`` only; all others are undefined."""
    import torch

    joint = captured.joint
    given = joint.graph.find_nodes(op="placeholder")
    numbers = [place.number if place.is_tangent else None for place in joint_inputs(captured)]
    dropped = {node for node, of in zip(given, numbers, strict=True) if of is not None and of not in takes}
    if not dropped:
        return captured
    kept = {node for node, of in zip(given, numbers, strict=True) if of is not None} - dropped
    vanishing = _dependent(joint.graph, dropped) - _dependent(joint.graph, kept)
    graph = torch.fx.Graph()
    made: dict[Any, Any] = {}
    copier = _Copier(graph, made, vanishing)
    for node in joint.graph.nodes:
        if node.op == "output":
            results = [None if result in vanishing else copier.read(result) for result in node.args[0]]
            last = graph.output(tuple(results))
            last.meta = dict(node.meta)
        elif node not in vanishing:
            made[node] = copier.copied(node)
    inductor = captured.inductor
    if inductor is not None:
        copies = {copy: inductor.metas[node] for node, copy in made.items()}
        metas = {**inductor.metas, **{zero: zero.meta for zero in copier.zero_nodes}, **copies}
        inductor = replace(inductor, metas=metas)
    return replace(captured, joint=torch.fx.GraphModule(joint, graph), inductor=inductor)


def gradient_sources(captured: Captured) -> list[frozenset[int | str]]:
    """For each gradient that the joint graph returns, the results whose tangents it depends on."""
    joint = captured.joint
    inputs = zip(joint.graph.find_nodes(op="placeholder"), joint_inputs(captured), strict=True)
    sources: dict[Any, frozenset[int | str]] = {
        node: frozenset([given.number] if given.is_tangent else []) for node, given in inputs
    }
    for node in joint.graph.nodes:
        if node.op == "output":
            return [sources.get(result, frozenset()) for result in node.args[0][captured.forward_outputs :]]
        if node not in sources:
            sources[node] = frozenset().union(*(sources[argument] for argument in node.all_input_nodes))
    raise AssertionError("a joint graph has an output")


def _dependent(graph: Any, roots: set[Any]) -> set[Any]:
    """``roots``, and all nodes that depend on them, except the output."""
    found = set(roots)
    for node in graph.nodes:
        if node.op != "output" and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


class _Copier:
    """Copies nodes into ``graph``; ``made`` holds the copies, and nothing for nodes that are ``vanishing``."""

    def __init__(self, graph: Any, made: dict[Any, Any], vanishing: set[Any]) -> None:
        self.graph, self.made, self.vanishing = graph, made, vanishing
        self.zeros: dict[Any, Any] = {}
        self.zero_nodes: list[Any] = []

    def copied(self, node: Any) -> Any:
        """The copy of a node that does not vanish."""
        if (other := self._summand(node)) is not None:
            return self.made[other]
        copy = self.graph.node_copy(node, self.read)
        copy.meta = dict(node.meta)
        return copy

    def read(self, node: Any) -> Any:
        """The copy of an argument of a node; zeros in place of one that vanishes."""
        if node is None or node not in self.vanishing:
            return None if node is None else self.made[node]
        if node not in self.zeros:
            self.zeros[node] = self._zero(node)
        return self.zeros[node]

    def _summand(self, node: Any) -> Any:
        """What remains of a sum of two if one of them vanishes; None if ``node`` is not such a sum."""
        if str(node.target) != _ADD or node.kwargs or len(node.args) != 2:
            return None
        rest = [argument for argument in node.args if argument not in self.vanishing]
        if len(rest) != 1 or not hasattr(rest[0], "meta"):
            return None
        return rest[0] if _form(rest[0]) == _form(node) else None

    def _zero(self, node: Any) -> Any:
        """Zeros of the form of ``node``."""
        import torch

        value = node.meta["val"]
        shape, form = list(value.shape), {"dtype": value.dtype, "device": value.device, "layout": value.layout}
        aten = torch.ops.aten
        if value.is_contiguous():
            return self._made(value, aten.full.default, (shape, 0), {**form, "pin_memory": False})
        empty = self._made(value, aten.empty_strided.default, (shape, list(value.stride())), form)
        return self._made(value, aten.fill.Scalar, (empty, 0), {})

    def _made(self, like: Any, call: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A new call, which is on its own in the graph; its fake result is made with the mode of ``like``."""
        import torch

        made = self.graph.call_function(call, args, named)
        given = torch.fx.map_arg(args, lambda node: node.meta["val"])
        with like.fake_mode:
            made.meta = {"val": call(*given, **named)}
        self.zero_nodes.append(made)
        return made


def _form(node: Any) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.dtype, tuple(value.shape), tuple(value.stride()), value.device
