"""Captures a step whose batch and length are symbols: one graph for many sizes, with bytes as functions of them.

``torch.compile`` captures the step once with symbolic shapes, so that AOTAutograd says of every tensor what memory it
takes as an expression in the sizes of the inputs, and under which conditions (*guards*) PyTorch would use this graph.
For the graph at certain sizes, all operators run again on tensors without data of these sizes. That does not use the
expressions, so each such graph also checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.messages import Tell
from remat_cli.frontends.torch.capture.capture import Captured, Model, capture
from remat_cli.frontends.torch.capture.construction import build_model
from remat_cli.frontends.torch.capture.lower import Lowering, lowering
from remat_cli.frontends.torch.capture.symbolic import (
    Functions,
    rises,
    table,
    truth,
    with_numbers,
    without_whole_slices,
)
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.compat.symbols import conditions, expression, let_vary
from remat_cli.frontends.torch.export import with_origin
from remat_cli.frontends.torch.measure.costs import CostModel, cost_model
from remat_cli.frontends.torch.tensors import leaves, tensors_in
from remat_cli.frontends.torch.types import GraphModule
from remat_cli.graph.model import Graph
from remat_cli.graph.sized import SizedGraph

Build = Callable[[Mapping[str, int]], tuple[Any, ...]]
"""Makes a module, its inputs and its loss, at the sizes of ``batch`` and, if there is one, ``length``."""
_KEPT = 64
"""Graphs that are kept."""


def sized_graph(
    build: Build, sizes: Mapping[str, int], name: str, source: str, *, cost: str = "flops", tell: Tell
) -> SizedGraph:
    """The graph of the step of what ``build`` makes, at every batch and length.

    Args:
        build: Makes the step at certain sizes.
        sizes: Sizes near those that matter; conditions on sizes are met as they are met there. A batch of 1 stays 1:
            PyTorch makes another graph of it.
        name: Name of the graph.
        source: Its origin, for the metadata.
        cost: See :class:`~remat_cli.frontends.torch.export.ExportOptions`.
        tell: See there.

    Raises:
        CaptureFailed: If the step cannot be captured with sizes that vary, or a size of an input is none of these.
    """
    ones = {axis: 1 for axis, size in sizes.items() if axis == "batch" and size == 1}
    family = _Family.of(
        lambda found: build({**ones, **found}), _hints(sizes, ones), name, source, cost_model(cost, "cpu", tell), tell
    )
    return family.sized()


def _hints(sizes: Mapping[str, int], ones: Collection[str]) -> dict[str, int]:
    """Sizes for the capture: no 0 or 1, which PyTorch treats as constants, and no two alike, which it takes for one."""
    hints = {axis: max(2, size) for axis, size in sizes.items() if axis not in ones}
    if "batch" in hints and hints.get("length") == hints["batch"]:
        hints["batch"] += 1
    return hints


@dataclass(frozen=True, slots=True)
class _Family:
    """A step with symbols for its sizes.

    Attributes:
        captured: Its joint graph, with symbols.
        hints: The sizes that it was captured with.
        axes: What each symbol is: ``batch`` or ``length``.
        guards: Conditions for this graph, expressions in the symbols.
        limits: The least and largest number of each symbol.
        name: Name of its graphs.
        source: Their origin.
        costs: What operations cost.
    """

    captured: Captured
    hints: Mapping[str, int]
    axes: Mapping[Any, str]
    guards: Sequence[Any]
    limits: Mapping[Any, tuple[int, int | None]]
    name: str
    source: str
    costs: CostModel

    @classmethod
    def of(
        cls, build: Build, hints: Mapping[str, int], name: str, source: str, costs: CostModel, tell: Tell
    ) -> _Family:
        mode = new_fake_mode()
        model = build_model(lambda: build(hints), mode, "cpu", tell)
        _let_vary(model, build, hints, tell)
        captured = capture(model, mode, varying=True)
        numbers, guards, limits = conditions(captured.joint)
        axes = {}
        for symbol in {s for made in [*_values(captured.joint), *guards] for s in made.free_symbols}:
            axis = next((axis for axis, size in hints.items() if numbers.get(symbol) == size), None)
            if axis is None:
                raise CaptureFailed("the step has a size that depends on data, or that is neither batch nor length")
            axes[symbol] = axis
        guards += without_whole_slices(captured, axes)
        return cls(captured, hints, axes, guards, limits, name, source, costs)

    def sized(self) -> SizedGraph:
        """The graph at every size, with its functions checked at the sizes of the capture.

        Raises:
            CaptureFailed: If a size is no function of batch and length that is known here.
        """
        import sympy

        captured, low = self.lowered(self.hints)
        functions = Functions.of(self.captured, self.axes, captured, low)
        classes: dict[Any, int] = {}
        of_value = tuple(classes.setdefault(functions.value(v), len(classes)) for v in range(len(low.graph.size)))
        of_workspace = tuple(classes.setdefault(functions.workspace(n), len(classes)) for n in low.fx_nodes)
        expressions = [sympy.sympify(made) for made in (*classes, functions.fixed_memory())]
        graphs = lru_cache(maxsize=_KEPT)(self.graph)
        found = SizedGraph(
            graph=self.described(captured, low),
            axes=tuple(self.hints),
            of_value=of_value,
            of_workspace=of_workspace,
            bytes_of=table(expressions),
            holds=truth([functions.renamed(guard) for guard in self.guards], self._limits()),
            rising=tuple(map(rises, expressions)),
            exact=lambda batch, length: _checked(found, graphs(batch, length), batch, length),
        )
        _checked(found, found.graph, self.hints.get("batch", 1), self.hints.get("length", 0))
        return found

    def _limits(self) -> list[tuple[str, int, int | None]]:
        limits = [(axis, *self.limits[symbol]) for symbol, axis in self.axes.items() if symbol in self.limits]
        return limits if "batch" in self.hints else [*limits, ("batch", 1, 1)]

    def graph(self, batch: int, length: int) -> Graph:
        """The graph at a batch and a length."""
        sizes = {"batch": batch, "length": length}
        return self.described(*self.lowered({axis: sizes[axis] for axis in self.hints}))

    def described(self, captured: Captured, low: Lowering) -> Graph:
        """A lowered step with metadata on its origin."""
        return with_origin(low, captured, self.costs, source=self.source, device="cpu")

    def lowered(self, sizes: Mapping[str, int]) -> tuple[Captured, Lowering]:
        """The step at certain sizes, and its graph."""
        captured = with_numbers(self.captured, {symbol: sizes[axis] for symbol, axis in self.axes.items()})
        return captured, lowering(captured, self.costs.cost, self.name)


def _checked(sized: SizedGraph, graph: Graph, batch: int, length: int) -> Graph:
    """``graph``, whose bytes are those that the functions say.

    Raises:
        CaptureFailed: If they are not.
    """
    if not sized.same_bytes(graph, batch, length):
        raise CaptureFailed(f"bytes at a batch of {batch} and a length of {length} do not follow from those elsewhere")
    return graph


def _let_vary(model: Model, build: Build, hints: Mapping[str, int], tell: Tell) -> None:
    """Let those dimensions of inputs vary that are other ones at other sizes.

    Raises:
        CaptureFailed: If one is neither the batch nor the length.
    """
    others = {axis: size - 1 if axis == "length" and size > 2 else size + 1 for axis, size in hints.items()}
    other = build_model(lambda: build(others), new_fake_mode(), "cpu", tell)
    pairs = zip(leaves([model.inputs, model.keywords]), leaves([other.inputs, other.keywords]), strict=True)
    for (name, one), (_, two) in pairs:
        for dimension, (size, changed) in enumerate(zip(one.shape, two.shape, strict=True)):
            if size == changed:
                continue
            if not any(size == hints[axis] and changed == others[axis] for axis in hints):
                raise CaptureFailed(f"dimension {dimension} of input {name} is neither the batch nor the length")
            let_vary(one, dimension)


def _values(joint: GraphModule) -> list[Any]:
    """All sizes in a joint graph that depend on symbols, as expressions."""
    found = []
    for node in joint.graph.nodes:
        for _, tensor in tensors_in(node.meta.get("val")):
            sizes = (*tensor.shape, *tensor.stride(), tensor.untyped_storage().nbytes())
            found += [expression(size) for size in sizes if not isinstance(size, int)]
    return found
