"""Tries the calls of a part on tensors without data: what they return, and what is in memory meanwhile."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from remat_cli.frontends.aten.division_rules import RowCount, Summed
from remat_cli.frontends.torch.codec import decode_data, empty_tensor, operator_named
from remat_cli.frontends.torch.document import Constant, Place, TensorSpec, Value, View
from remat_cli.frontends.torch.execute.cross_entropy import CROSS_ENTROPY, cross_entropy
from remat_cli.frontends.torch.execute.division import ADDED_IN, Division, NotDivisible, part_of, without_data
from remat_cli.frontends.torch.execute.part_calls import Part, PartCall
from remat_cli.frontends.torch.tensors import storage_bytes, tensors_in
from remat_cli.frontends.torch.types import FxNode, Tensor

_ADDED = "aten.add.Tensor"


class Trial:
    """The calls of a division for a part of so many rows, on tensors without data.

    Attributes:
        nodes: An FX node for each call, with what it returns.
        sums: An FX node for each summand that is added up apart from its call.
    """

    def __init__(self, divided: Division, size: int) -> None:
        import torch

        self._division, self._size = divided, size
        self._graph = torch.fx.Graph()
        self._made: dict[int, FxNode] = {}
        self.nodes: list[FxNode] = []
        self.sums: list[FxNode] = []
        with without_data():
            for call in divided.calls:
                args = [self._argument(argument) for argument in call.args]
                kwargs = {key: self._argument(argument) for key, argument in call.kwargs.items()}
                node = self._node(call.call, args, kwargs)
                found = dict(tensors_in(node.meta["val"]))
                for number, item, _ in call.made:
                    self._made[number] = node if item is None else self._item(node, item)
                self.nodes.append(node)
                if any(item not in found for _, item, _ in call.made):
                    raise NotDivisible
                if not divided.added_in_place(call):
                    self._add(found, call)

    def peak_bytes(self, kernels: Sequence[int] | None = None) -> int:
        """Most bytes within a part, besides what the operation reads and returns.

        Args:
            kernels: What each call needs besides what it reads and returns; None for nothing.
        """
        kernels = [0] * len(self.nodes) if kernels is None else kernels
        rounded = [self._spec(number).bytes for number in self._division.results if self._division.added_wider(number)]
        beyond = sum(rounded)  # sums of 32 bits take this beyond their results of 16
        live: dict[int, int] = {}
        peak = 0
        for call, node, needed, last in zip(
            self._division.calls, self.nodes, kernels, self._division.last_uses(), strict=True
        ):
            own = {item: storage_bytes(tensor) for item, tensor in tensors_in(node.meta["val"])}
            if call.over is not None:
                del live[call.over]
            if not self._division.added_in_place(call):
                live |= {number: own[item] for number, item, _ in call.made}
                unread = sum(own.values()) - sum(own[item] for _, item, _ in call.made)
                peak = max(peak, sum(live.values()) + unread + needed)
            else:
                peak = max(peak, sum(live.values()) + needed)
            for number in last:
                live.pop(number, None)
        peak += beyond
        for size in rounded:  # one by one, each beside its sum
            peak = max(peak, beyond + size)
            beyond -= size
        return peak + self._division.before_bytes

    def _node(self, call: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FxNode:
        import torch

        called: Any = cross_entropy if call == CROSS_ENTROPY else operator_named(call)
        node = self._graph.call_function(called, tuple(args), dict(kwargs))
        given, named = torch.fx.map_arg((tuple(args), dict(kwargs)), lambda one: one.meta["val"])
        try:
            node.meta["val"] = called(*given, **named)
        except Exception as error:  # operators may raise anything
            raise NotDivisible from error
        return node

    def _spec(self, number: int) -> TensorSpec:
        [returned] = self._division.step.tensors(number)
        return returned.spec

    def _add(self, found: Mapping[int | None, Tensor], call: PartCall) -> None:
        """Note the additions of what a call makes."""
        for number, item, state in call.made:
            if isinstance(state, Summed) and number in self._division.results:
                spec = self._spec(number)
                spec = replace(spec, dtype=ADDED_IN) if self._division.added_wider(number) else spec
                total = self._placeholder(empty_tensor(spec, self._division.device))
                self.sums.append(self._node(_ADDED, (total, self._placeholder(found[item])), {}))

    def _item(self, node: FxNode, item: int) -> FxNode:
        taken = self._graph.call_function(operator.getitem, (node, item))
        taken.meta["val"] = node.meta["val"][item]
        return taken

    def _argument(self, argument: Any) -> Any:
        match argument:
            case RowCount():
                return self._size
            case Value(number) if number in self._made:
                return self._made[number]
            case Part(tensor, rows):
                whole = self._argument(tensor).meta["val"]
                return self._placeholder(part_of(whole, rows, 0, self._size))
            case Value() | Place() | Constant():
                return self._placeholder(self._outer(argument))
            case View():
                args = [self._argument(one) for one in argument.args]
                kwargs = {key: self._argument(one) for key, one in argument.kwargs.items()}
                node = self._node(argument.call, args, kwargs)
                return node if argument.item is None else self._item(node, argument.item)
            case list() | tuple():
                return [self._argument(item) for item in argument]
        return argument

    def _placeholder(self, tensor: Tensor) -> FxNode:
        node = self._graph.placeholder("outer")
        node.meta["val"] = tensor
        return node

    def _outer(self, tensor: Value | Place | Constant) -> Tensor:
        step, device = self._division.step, self._division.device
        match tensor:
            case Value(number, inner):
                return empty_tensor(step.tensors(number)[inner].spec, device)
            case Place(number):
                return empty_tensor(step.places[number].spec, device)
            case Constant(number):
                return decode_data(step.constants[number], device)
