"""What the values of a training step are for: gradients of parameters, the loss, or results between layers."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from remat_cli.graph.gathers import gathers
from remat_cli.graph.model import Graph, Node, NodeQueue, Phase


class Part(StrEnum):
    """A part of the memory of a training step."""

    GRADIENTS = "gradients of parameters"
    LOSS = "logits and loss"
    FORWARD = "results of layers"
    BACKWARD = "gradients of results"
    GATHERED = "gathered parameters"
    BUFFERS = "communication buffers"
    WORKSPACE = "workspace"


_COPIES = frozenset(("cat", "constant_pad_nd", "_to_copy", "clone"))
"""Operations that prepare a gradient for its reduction: padding, and another type or layout."""
_PRODUCTS = frozenset(
    (
        *("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "embedding", "embedding_dense"),
        *("dot_general", "conv_general_dilated", "MatMul", "BatchMatMulV2", "Conv2D", "unit", "layer"),
        *("dense", "tied_dense", "matmul", "conv2d", "depthwise_conv2d", "conv2d_transpose"),
    )
)
"""Products, in the words of PyTorch, JAX, TensorFlow and the zoo: the last one before the loss makes the logits."""


def parts_of_values(graph: Graph) -> list[Part]:
    """The part of every value of ``graph``, by index.

    The loss takes what lies between it and the last product, in both directions: logits, their copies in another type,
    probabilities, and the gradients of all these.
    """
    if graph.origin is not None:  # names in the metadata are those of the whole graph
        whole = parts_of_values(graph.origin.graph)
        return [whole[v] for v in graph.origin.values]
    values = range(len(graph.size))
    phases = [graph.nodes[graph.producer[v]].phase for v in values]
    parts = [Part.BACKWARD if phase in {Phase.BACKWARD, Phase.UPDATE} else Part.FORWARD for phase in phases]
    for value in _around_the_loss(graph):
        parts[value] = Part.LOSS
    for node in gathers(graph):
        for value in graph.values_of(node):
            parts[value] = Part.GATHERED
    for value in _gradients(graph):
        parts[value] = Part.GRADIENTS
    for value in _before_reductions(graph, parts):
        parts[value] = Part.BUFFERS
    return parts


def _before_reductions(graph: Graph, parts: Sequence[Part]) -> set[int]:
    """Whole gradients, and their padded copies, that wait for the collective that leaves a part of them."""
    chosen: set[int] = set()
    waiting = [
        k for k, node in enumerate(graph.nodes) if node.queue is NodeQueue.COMMUNICATION and _reduces(graph, k, parts)
    ]
    nodes = set(waiting)
    while waiting:
        for value in graph.nodes[waiting.pop()].inputs:
            maker = graph.producer[value]
            if parts[value] is not Part.GRADIENTS and nodes.issuperset(graph.readers[value]):
                chosen.add(value)
                if graph.nodes[maker].op in _COPIES:
                    nodes.add(maker)
                    waiting.append(maker)
    return chosen


def _reduces(graph: Graph, collective: int, parts: Sequence[Part]) -> bool:
    """Whether all that a collective makes are gradients of parameters."""
    made = graph.values_of(collective)
    return bool(made) and all(parts[v] is Part.GRADIENTS for v in made)


def _around_the_loss(graph: Graph) -> set[int]:
    losses = [i for i, node in enumerate(graph.nodes) if node.phase is Phase.LOSS]
    chosen = {v for i in losses for v in graph.values_of(i)}
    seen, waiting = set(losses), list(losses)
    while waiting:  # back to the last product, whose result is the first value of the loss
        for value in graph.nodes[waiting.pop()].inputs:
            node = graph.producer[value]
            chosen.add(value)
            if node not in seen and not _is_product(graph.nodes[node]):
                seen.add(node)
                waiting.append(node)
    waiting = list(losses)
    while waiting:  # and on to the first product that reads a gradient
        for value in graph.values_of(waiting.pop()):
            for node in graph.readers[value]:
                backward = graph.nodes[node].phase is Phase.BACKWARD
                if backward and node not in seen and not _is_product(graph.nodes[node]):
                    seen.add(node)
                    chosen.update(graph.values_of(node))
                    waiting.append(node)
    return chosen


def _is_product(node: Node) -> bool:
    return (node.op or "").removesuffix("_backward").removesuffix("_grad") in _PRODUCTS


def _gradients(graph: Graph) -> set[int]:
    """The outputs that are, or show, the gradients of parameters, as the metadata of a captured step says.

    What a collective leaves at the end of the backward pass is a gradient, too.
    """
    results = graph.metadata.get("results") if isinstance(graph.metadata, dict) else None
    if not isinstance(results, list):
        return set()
    by_kind = {"gradient": set[str](), "": set[str]()}
    for result in results:
        if isinstance(result, dict) and (kind := result.get("kind", "")) in by_kind:
            by_kind[kind].update(_named(result))

    def is_gradient(value: int) -> bool:
        maker = graph.nodes[graph.producer[value]]
        backward = maker.phase is Phase.BACKWARD
        if backward and maker.queue is NodeQueue.COMMUNICATION:
            return True
        name = graph.value_name(value)
        return name in by_kind["gradient"] or (backward and name in by_kind[""])  # TensorFlow's results have no kind

    return {v for v in graph.outputs if is_gradient(v)}


def _named(item: Any) -> Iterator[str]:
    """The values that an expression in the metadata names."""
    if isinstance(item, dict):
        if isinstance(item.get("value"), str):
            yield item["value"]
        for inner in item.values():
            yield from _named(inner)
    elif isinstance(item, list):
        for inner in item:
            yield from _named(inner)
