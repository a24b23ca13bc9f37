"""Reads what frontends say in the metadata of graphs: lines of code, parameters, gradients and inputs.

Metadata is free-form: what does not say it has no names here.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.units import format_bytes

PARAMETERS, INPUTS, OTHERS = "parameters", "inputs", "memory outside the graph"
_MOST = 0.95
"""Share of a sum that its names have to cover; smaller parts go without a name."""
LINES = "lines"
"""Entry of the lines of code that nodes come from: ``{"layer1/mm": "train.py:7 in forward"}``. They are for people, and
no part of a graph's digest: a comment above a line does not make another graph."""


_NAMES = {
    "parameter": PARAMETERS,
    "buffer": "buffers",
    "input": INPUTS,
    "argument": INPUTS,
    "variable": "variables that are not trained",
}
"""For kinds of places in the metadata, what they are; arguments of JAX with a gradient are parameters."""


def fixed_words(graph: Graph) -> str:
    """The fixed memory in words: ``45.16 MB of parameters``, or ``of fixed memory`` if the graph does not say more."""
    parts = fixed_bytes(graph)
    order = sorted(parts, key=lambda name: (name == OTHERS, -parts[name]))
    largest = [name for name in order if parts[name] > (1 - _MOST) * graph.fixed_memory] or ["fixed memory"]
    *firsts, last = largest
    return f"{format_bytes(graph.fixed_memory)} of {', '.join(firsts)}{' and ' if firsts else ''}{last}"


def fixed_bytes(graph: Graph) -> Mapping[str, int]:
    """Bytes of each kind of fixed memory; empty if the graph does not say."""
    gradients = {result.get("name") for result in _entries(graph, "results") if result.get("kind") == "gradient"}
    parts: dict[str, int] = {}
    for place in _entries(graph, "places"):
        if place.get("kind") == "captured":  # what torch.compile hands over is anything
            return {}
        name = _NAMES.get(str(place.get("kind")))
        if name is None:  # gradients of results: a node of the graph makes them
            continue
        if place.get("trainable") is True or (place.get("kind") == "argument" and place.get("name") in gradients):
            name = PARAMETERS
        parts[name] = parts.get(name, 0) + _place_bytes(place)
    if parts and (rest := graph.fixed_memory - sum(parts.values())) > 0:
        parts[OTHERS] = parts.get(OTHERS, 0) + rest
    return parts


def place_sizes(graph: Graph) -> list[tuple[str, int]]:
    """The parameters, buffers and inputs in fixed memory, as ``parameter fc.weight``, and their bytes."""
    return [
        (f"{place.get('kind')} {place.get('name')}", _place_bytes(place))
        for place in _entries(graph, "places")
        if str(place.get("kind")) in _NAMES
    ]


def gradient_bytes(graph: Graph) -> int:
    """Bytes of the outputs that are gradients of parameters; 0 if the graph does not say."""
    results = (result for result in _entries(graph, "results") if result.get("kind") == "gradient")
    named = {name for result in results for name in _values(result)}
    return sum(graph.size[v] for v in graph.outputs if graph.value_name(v) in named)


def outputs_are_gradients(graph: Graph) -> bool:
    """Whether nearly all outputs are gradients of parameters."""
    return gradient_bytes(graph) >= max(1, _MOST * sum(graph.size[v] for v in graph.outputs))


def _entries(graph: Graph, key: str) -> list[Mapping[str, Any]]:
    metadata: Any = graph.metadata
    if not isinstance(metadata, Mapping) or "frontend" not in metadata or not isinstance(metadata.get(key), list):
        return []
    return [entry for entry in metadata[key] if isinstance(entry, Mapping)]


def _place_bytes(place: Mapping[str, Any]) -> int:
    """Bytes of a tensor: as stated, or by its shape and type."""
    stated, shape, dtype = (place.get(key) for key in ("bytes", "shape", "dtype"))
    if isinstance(stated, int):
        return max(0, stated)
    bits = re.search(r"\d+", str(dtype))
    whole = isinstance(shape, list) and all(isinstance(size, int) and size >= 0 for size in shape)
    return math.prod(shape or ()) * (int(bits[0]) // 8 if bits else 1) if whole else 0


def _values(tree: Any) -> Iterator[str]:
    """The values that are named in nested mappings and lists."""
    if isinstance(tree, Mapping):
        if isinstance(tree.get("value"), str):
            yield tree["value"]
        tree = list(tree.values())
    for part in tree if isinstance(tree, list) else ():
        yield from _values(part)


def tensor_words(graph: Graph, value: int) -> str:
    """The type and the shape of a value, as ``float32 [8, 128, 768]``; empty if the graph does not say it."""
    node = graph.producer[value]
    payload: Any = graph.nodes[node].payload
    values = payload.get("values") if isinstance(payload, Mapping) else None
    at = value - graph.values_of(node).start
    views = values[at] if isinstance(values, list) and at < len(values) else None
    tensor = views[0] if isinstance(views, list) and views else views
    if not isinstance(tensor, Mapping) or not isinstance(tensor.get("shape"), list):
        return ""
    return f"{tensor.get('dtype', '')} [{', '.join(map(str, tensor['shape']))}]".strip()


def line_of(graph: Graph, node: str) -> str:
    """The line that the node with this id comes from; empty if the graph does not say it."""
    lines = graph.metadata.get(LINES) if isinstance(graph.metadata, dict) else None
    line = lines.get(node) if isinstance(lines, dict) else None
    return line if isinstance(line, str) else ""


def without_lines(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document of a graph without its lines."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or LINES not in metadata:
        return document
    return {**document, "metadata": {key: value for key, value in metadata.items() if key != LINES}}
