"""The passes of a stage of a pipeline: where the backward pass of its graph begins, and what is counted beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import InputError
from remat_cli.graph.metadata import INPUTS, fixed_bytes
from remat_cli.graph.model import Graph, Node, Phase

RECEIVED = "tangents"
"""The operation that stands for gradients that arrive from outside of a captured module."""


@dataclass(frozen=True, slots=True)
class StageGraph:
    """A graph of one microbatch's passes through a stage.

    Attributes:
        graph: The graph, its nodes in the order of the passes.
        cuts: The first node of each pass but the forward pass: of the backward pass, and of the pass for gradients of
            parameters if the schedule has one.
        input_bytes: Bytes of the fixed memory that are inputs, which each microbatch in flight has for itself.
        gradient_bytes: Bytes of gradients of parameters that the graph returns; they are added up over microbatches.
        says_inputs: Whether the graph says which fixed memory is inputs.
        offers_parts: Whether it offered regions that may run in parts; here they are whole.
    """

    graph: Graph
    cuts: tuple[int, ...]
    input_bytes: int = 0
    gradient_bytes: int = 0
    says_inputs: bool = False
    offers_parts: bool = False

    @classmethod
    def of(cls, graph: Graph, *, split: bool, source: str = "") -> StageGraph:
        """The stage that ``graph`` is; ``split`` if gradients of parameters have a pass of their own.

        Nodes that lead to gradients of parameters alone then run last. ``source`` names the graph in errors.

        Raises:
            InputError: If the graph does not tell its passes, or has none, or holds an update of parameters.
        """
        source = source or graph.name
        if graph.overlaps:
            raise InputError.of(
                source,
                "the graph has nodes in the communication queue, whose time depends on what runs beside them",
                "give the stages of a pipeline without collectives",
            )
        cut = _backward_from(graph, source)
        gradients = frozenset(_parameter_gradients(graph))
        fixed = fixed_bytes(graph)
        stage = cls(
            replace(graph, splits=()),
            (cut,),
            input_bytes=min(fixed.get(INPUTS, 0), graph.fixed_memory),
            gradient_bytes=sum(graph.size[v] for v in gradients),
            says_inputs=bool(fixed),
            offers_parts=bool(graph.splits),
        )
        return stage._split(gradients, source) if split else stage

    def _split(self, gradients: frozenset[int], source: str) -> StageGraph:
        """The stage with gradients of parameters in a pass of their own."""
        if not gradients:
            raise InputError.of(
                source,
                "the graph does not say which of its outputs are gradients of parameters, which this schedule delays",
                "graphs that remat exports from PyTorch say it; take another schedule, such as 1f1b",
            )
        graph, [cut] = self.graph, self.cuts
        others = [graph.producer[v] for v in graph.outputs if v not in gradients]
        leading = {k for k in range(cut, len(graph.nodes)) if not any(graph.readers[v] for v in graph.values_of(k))}
        leading -= {graph.producer[v] for v in gradients}
        waiting = [*others, *leading]
        needed: set[int] = set()
        while waiting:  # what leads to anything but gradients of parameters
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += [graph.producer[v] for v in graph.nodes[node].inputs]
        rest = range(cut, len(graph.nodes))
        order = [*range(cut), *(k for k in rest if k in needed), *(k for k in rest if k not in needed)]
        last = cut + sum(k in needed for k in rest)
        return replace(self, graph=_reordered(graph, order), cuts=(cut, last))


def _backward_from(graph: Graph, source: str) -> int:
    """The first node of the backward pass."""
    cut = len(graph.nodes)
    for at, node in enumerate(graph.nodes):
        if node.phase is None:
            raise InputError.of(
                source,
                f"node {node.id} has no phase, and a stage has to tell its forward from its backward pass",
                "add phase: forward, loss or backward to every node",
            )
        if node.phase is Phase.UPDATE:
            raise InputError.of(
                source,
                f"node {node.id} updates parameters, which happens once a step and not for every microbatch",
                "leave the update out of the graph",
            )
        if node.phase is Phase.BACKWARD or node.op == RECEIVED:
            cut = min(cut, at)
        elif node.phase is Phase.FORWARD and at > cut:
            raise InputError.of(source, f"forward node {node.id} comes after backward node {graph.nodes[cut].id}")
    if not 0 < cut < len(graph.nodes):
        missing = "backward" if cut else "forward"
        raise InputError.of(source, f"the graph has no {missing} nodes", "give the whole training step of a stage")
    return cut


def _reordered(graph: Graph, order: list[int]) -> Graph:
    """``graph`` with its nodes in another order."""
    values = [v for k in order for v in graph.values_of(k)]
    number = {v: new for new, v in enumerate(values)}

    def moved(node: Node) -> Node:
        return replace(node, inputs=tuple(number[v] for v in node.inputs))

    return replace(
        graph,
        nodes=tuple(moved(graph.nodes[k]) for k in order),
        outputs=tuple(sorted(number[v] for v in graph.outputs)),
        origin=None,
    )


def _parameter_gradients(graph: Graph) -> Iterator[int]:
    """The outputs that are, or show, gradients of parameters, as the metadata of a captured step says."""
    metadata: Any = graph.metadata
    if not isinstance(metadata, Mapping):
        return
    places, results = metadata.get("places"), metadata.get("results")
    if not isinstance(places, list) or not isinstance(results, list):
        return
    names = {graph.value_name(v): v for v in graph.outputs}
    found: set[int] = set()
    for result in results:
        if isinstance(result, Mapping) and result.get("kind") == "gradient" and _of_parameter(result, places):
            found.update(names[name] for name in _named(result.get("tensor")) if name in names)
    yield from sorted(found)


def _of_parameter(result: Mapping[str, Any], places: list[Any]) -> bool:
    """Whether a gradient is of a parameter, and not of an input."""
    at = result.get("of")
    place = places[at] if isinstance(at, int) and 0 <= at < len(places) else None
    return isinstance(place, Mapping) and place.get("kind") == "parameter"


def _named(tree: Any) -> Iterator[str]:
    """The values that are named in nested mappings and lists."""
    if isinstance(tree, Mapping):
        if isinstance(tree.get("value"), str):
            yield tree["value"]
        tree = list(tree.values())
    for part in tree if isinstance(tree, list) else ():
        yield from _named(part)
