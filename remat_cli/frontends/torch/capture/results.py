"""What a loop does with the results of a module: which take a gradient, and which stay until the backward pass.

A module returns more than its loss: logits, keys and values, hidden states. A result that takes no gradient needs no
backward pass of its own, and one that the loop lets go before the backward pass needs no memory there.

The backward pass is linear in the tangents. So what depends only on tangents that do not come is zero, and autograd
does not compute it: it leaves such gradients undefined. :func:`with_tangents` removes it from the joint graph in the
same way. Where it would be added to another gradient, the other one stays; every other reader gets zeros, as autograd
would give them to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.aten.phases import dependent
from remat_cli.frontends.torch.capture.capture import Calls, Captured, Results
from remat_cli.frontends.torch.capture.joint_program import itself, reads
from remat_cli.frontends.torch.capture.placeholders import joint_inputs
from remat_cli.frontends.torch.compat.autograd import nodes_behind
from remat_cli.frontends.torch.tensors import leaves, storage
from remat_cli.frontends.torch.types import AutogradNode, FxGraph, FxNode, Operator, Tensor
from remat_cli.printable import printable

Returns = str | int | Sequence[str | int]
"""Results by key, attribute or position."""
Number = int | str
"""A result of a compiled graph: its position, or ``1.base`` for memory that results are views of."""
_ADD = "aten.add.Tensor"


@dataclass(frozen=True, slots=True)
class Use:
    """What a loop does with the results of one compiled graph.

    Attributes:
        takes: The results that take a gradient.
        holds: The results that the loop still has when the backward pass begins; they stay in memory to its end.
    """

    takes: frozenset[Number]
    holds: frozenset[int]


@dataclass(frozen=True, slots=True)
class TrainedResults:
    """The results of a module that are assumed to take a gradient.

    Attributes:
        tensors: Those tensors.
        names: Their names.
        others: Number of other results that could take one.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]
    others: int


def trained_results(output: Any, returns: Returns | None) -> TrainedResults:
    """The results in ``output``, what a module returned, that take a gradient.

    These are those that ``returns`` names; else the ``loss``; else all numbers that are called losses, as detectors of
    torchvision return them; else the first number; else all.

    Raises:
        UsageError: If there is no such result, or it cannot take a gradient.
    """
    candidates = [(name, tensor) for name, tensor in leaves(output) if tensor.requires_grad]
    if returns is not None:
        picked = []
        for name in _listed(returns):
            leaves_there = [leaf for leaf in _named(output, name, "returns") if leaf[1].requires_grad]
            if not leaves_there:
                hint = f"the module returns {_there(output)}"
                raise UsageError(f'returns="{name!s}": it takes no gradient', hint=hint)
            picked += leaves_there
        return _trained(picked, candidates)
    loss = _get(output, "loss")
    if loss is not None and (named := [leaf for leaf in leaves(loss, "loss") if leaf[1].requires_grad]):
        return _trained(named, candidates)
    scalars = [leaf for leaf in candidates if leaf[1].numel() == 1]
    losses = [leaf for leaf in scalars if "loss" in leaf[0].rpartition(".")[2]]
    return _trained(losses or scalars[:1] or candidates, candidates)


def _trained(picked: Sequence[tuple[str, Tensor]], candidates: Sequence[tuple[str, Tensor]]) -> TrainedResults:
    same = {id(tensor) for _, tensor in picked}
    others = sum(id(tensor) not in same for _, tensor in candidates)
    return TrainedResults(tuple(t for _, t in picked), tuple(name for name, _ in picked), others)


def held_results(output: Any, holds: Returns | None) -> list[Tensor] | None:
    """The tensors in ``output``, what a module returned, that a loop still has when the backward pass begins.

    These are those that ``holds`` names, and all numbers: a loop has its loss until then. None for all of them.

    Raises:
        UsageError: If there is no such result.
    """
    if holds is None:
        return None
    tensors = [tensor for name in _listed(holds) for _, tensor in _named(output, name, "holds")]
    return tensors + [tensor for _, tensor in leaves(output) if tensor.numel() == 1]


def _listed(names: Returns) -> list[str | int]:
    return [names] if isinstance(names, str | int) else list(names)


def _named(output: Any, name: str | int, argument: str) -> list[tuple[str, Tensor]]:
    """The tensors in the result ``name``, which an argument of ``fit`` asks for."""
    tensors = list(leaves(_get(output, name), str(name)))
    if tensors:
        return tensors
    raise UsageError(f'{argument}="{name!s}": there is no such result', hint=f"the module returns {_there(output)}")


def _there(output: Any) -> str:
    return ", ".join(printable(path or "the result itself") for path, _ in leaves(output)) or "no tensors"


def _get(output: Any, name: str | int) -> Any:
    """An item of ``output`` by key, attribute or position; None if there is none."""
    import torch

    if isinstance(output, Mapping):
        return output.get(name)
    if isinstance(name, int):
        items = [output] if isinstance(output, torch.Tensor) else output
        return items[name] if isinstance(items, Sequence) and -len(items) <= name < len(items) else None
    return None if isinstance(output, torch.Tensor) else getattr(output, name, None)


def uses(
    parts: Sequence[Captured], calls: Calls, trained: TrainedResults | None, held: Sequence[Tensor] | None = None
) -> list[Use]:
    """What is assumed of the results of each captured graph, if ``trained`` take a gradient.

    A graph's result takes a gradient if one of ``trained`` depends on it through autograd. Of what the module returns,
    ``held`` stays until the backward pass; all of it if that is None. What only goes from one part to another does not:
    it stays if the other part or the code between them keeps it, which counts there. None for ``trained``: nothing is
    known, and all results take a gradient and stay.
    """
    reached = reached_by([] if trained is None else trained.tensors)
    returned = None
    if trained is not None and (held is not None or len(parts) > 1):
        staying = [tensor for _, tensor in leaves(calls.output)] if held is None else held
        returned = set(map(storage, staying))
    assumed = []
    for part, captured in enumerate(parts):
        numbers = frozenset(tangent_numbers(captured))
        outs = [results for number, results in calls.runs if number == part]
        takes = {name for results in outs for at, name in result_names(results).items() if at in reached}
        # What is only an input handed on has its node elsewhere, and no tangent here.
        longest = max((len(results) for results in outs), default=len(numbers))
        holds = set(range(longest)) if returned is None else _among(outs, returned)
        assumed.append(Use(frozenset(takes & numbers) or numbers, frozenset(holds)))
    return assumed


def _among(calls: Sequence[Sequence[Any]], storages: Collection[int]) -> set[int]:
    """The numbers of the results, of any of these calls, that lie in these storages."""
    import torch

    return {
        k
        for results in calls
        for k, result in enumerate(results)
        if isinstance(result, torch.Tensor) and storage(result) in storages
    }


def result_names(results: Results) -> dict[tuple[AutogradNode, int], Number]:
    """The number of each differentiable result of a compiled graph, by its node of autograd and its position there."""
    names: dict[tuple[AutogradNode, int], Number] = {}
    for direct in (True, False):
        for k, at in enumerate(results.nodes):
            if at is not None and at[2] == direct:
                names.setdefault(at[:2], k if direct else f"{k}.base")
    return names


def reached_by(tensors: Sequence[Tensor]) -> set[tuple[AutogradNode, int]]:
    """The nodes of autograd that the gradients of ``tensors`` come to, each with the position of the result there."""
    roots = {(tensor.grad_fn, tensor.output_nr) for tensor in tensors if tensor.grad_fn is not None}
    nodes = nodes_behind(node for node, _ in roots)
    return roots | {edge for node in nodes for edge in node.next_functions if edge[0] is not None}


def tangent_numbers(captured: Captured) -> list[int | str]:
    """The result of each tangent, in order: its number, or ``1.base`` for memory that results are views of."""
    return [given.number for given in joint_inputs(captured) if given.is_tangent]


def whole_use(captured: Captured) -> Use:
    """What Inductor assumes of results: all take a gradient and stay."""
    return Use(frozenset(tangent_numbers(captured)), frozenset(range(captured.forward_outputs)))


def with_tangents(captured: Captured, takes: Collection[int | str]) -> Captured:
    """``captured`` with the tangents of the results ``takes`` only; all others are undefined."""
    import torch

    joint = captured.joint
    placeholders = joint.graph.find_nodes(op="placeholder")
    numbers = [place.number if place.is_tangent else None for place in joint_inputs(captured)]
    dropped = {node for node, of in zip(placeholders, numbers, strict=True) if of is not None and of not in takes}
    if not dropped:
        return captured
    remaining = {node for node, of in zip(placeholders, numbers, strict=True) if of is not None} - dropped
    body = [node for node in joint.graph.nodes if node.op != "output"]
    vanishing = dependent(body, reads, itself, dropped) - dependent(body, reads, itself, remaining)
    graph = torch.fx.Graph()
    copies: dict[FxNode, FxNode] = {}
    copier = _Copier(graph, copies, vanishing)
    for node in joint.graph.nodes:
        if node.op == "output":
            results = [None if result in vanishing else copier.read(result) for result in node.args[0]]
            last = graph.output(tuple(results))
            last.meta = dict(node.meta)
        elif node not in vanishing:
            copies[node] = copier.copied(node)
    inductor = captured.inductor
    if inductor is not None:
        metas = {**inductor.metas, **{zero: zero.meta for zero in copier.zero_nodes}}
        metas |= {copy: inductor.metas[node] for node, copy in copies.items()}
        inductor = replace(inductor, metas=metas)
    return replace(captured, joint=torch.fx.GraphModule(joint, graph), inductor=inductor)


def gradient_sources(captured: Captured) -> list[frozenset[int | str]]:
    """For each gradient that the joint graph returns, the results whose tangents it depends on."""
    joint = captured.joint
    inputs = zip(joint.graph.find_nodes(op="placeholder"), joint_inputs(captured), strict=True)
    sources: dict[FxNode, frozenset[int | str]] = {
        node: frozenset([given.number] if given.is_tangent else []) for node, given in inputs
    }
    for node in joint.graph.nodes:
        if node.op == "output":
            return [sources.get(result, frozenset()) for result in node.args[0][captured.forward_outputs :]]
        if node not in sources:
            sources[node] = frozenset().union(*(sources[argument] for argument in node.all_input_nodes))
    raise AssertionError("a joint graph has an output")


class _Copier:
    """Copies nodes into ``graph``; ``copies`` holds the copies, and nothing for nodes that are ``vanishing``."""

    def __init__(self, graph: FxGraph, copies: dict[FxNode, FxNode], vanishing: set[FxNode]) -> None:
        self.graph, self.copies, self.vanishing = graph, copies, vanishing
        self.zeros: dict[FxNode, FxNode] = {}
        self.zero_nodes: list[FxNode] = []

    def copied(self, node: FxNode) -> FxNode:
        """The copy of a node that does not vanish."""
        if (other := self._summand(node)) is not None:
            return self.copies[other]
        copy = self.graph.node_copy(node, self.read)
        copy.meta = dict(node.meta)
        return copy

    def read(self, node: FxNode | None) -> FxNode | None:
        """The copy of an argument of a node; zeros in place of one that vanishes."""
        if node is None or node not in self.vanishing:
            return None if node is None else self.copies[node]
        if node not in self.zeros:
            self.zeros[node] = self._zero(node)
        return self.zeros[node]

    def _summand(self, node: FxNode) -> FxNode | None:
        """What remains of a sum of two if one of them vanishes; None if ``node`` is not such a sum."""
        if str(node.target) != _ADD or node.kwargs or len(node.args) != 2:
            return None
        rest = [argument for argument in node.args if argument not in self.vanishing]
        if len(rest) != 1 or not hasattr(rest[0], "meta"):
            return None
        return rest[0] if _form(rest[0]) == _form(node) else None

    def _zero(self, node: FxNode) -> FxNode:
        """Zeros of the form of ``node``."""
        import torch

        value = node.meta["val"]
        shape, form = list(value.shape), {"dtype": value.dtype, "device": value.device, "layout": value.layout}
        aten = torch.ops.aten
        if value.is_contiguous():
            return self._called(value, aten.full.default, (shape, 0), {**form, "pin_memory": False})
        empty = self._called(value, aten.empty_strided.default, (shape, list(value.stride())), form)
        return self._called(value, aten.fill.Scalar, (empty, 0), {})

    def _called(self, like: Tensor, call: Operator, args: tuple[Any, ...], named: dict[str, Any]) -> FxNode:
        """A new call, which is on its own in the graph; its fake result is made with the mode of ``like``."""
        import torch

        zero = self.graph.call_function(call, args, named)
        values = torch.fx.map_arg(args, lambda node: node.meta["val"])
        with like.fake_mode:
            zero.meta = {"val": call(*values, **named)}
        self.zero_nodes.append(zero)
        return zero


def _form(node: FxNode) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.dtype, tuple(value.shape), tuple(value.stride()), value.device
