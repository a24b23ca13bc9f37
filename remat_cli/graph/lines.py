"""The lines of code that nodes come from, in ``metadata["lines"]``: ``{"layer1/mm": "train.py:7 in forward"}``.

They are for people, and no part of a graph's digest: a comment above a line does not make another graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remat_cli.graph.model import Graph

LINES = "lines"


def line_of(graph: Graph, node: str) -> str:
    """The line that the node with this id comes from; empty if the graph does not say it."""
    found = graph.metadata.get(LINES) if isinstance(graph.metadata, dict) else None
    line = found.get(node) if isinstance(found, dict) else None
    return line if isinstance(line, str) else ""


def without_lines(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document of a graph without its lines."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or LINES not in metadata:
        return document
    return {**document, "metadata": {key: value for key, value in metadata.items() if key != LINES}}
