"""The origin of a graph's costs and sizes: stated in its document, or defaults."""

from __future__ import annotations

from remat_cli.graph.document import Document
from remat_cli.graph.model import Graph
from remat_cli.graph.nodelink import NodeLinkKeys, is_node_link


def origins(document: Document, graph: Graph, keys: NodeLinkKeys | None = None) -> list[str]:
    """One line for each kind of fact: where ``document`` states it, and the default for the others.

    Args:
        document: A graph document or node-link JSON.
        graph: The graph that it states.
        keys: The names of the attributes of node-link JSON.
    """
    names = keys or NodeLinkKeys()
    linked = is_node_link(document)
    data = document.data
    head = data.get("graph") if linked else data
    head = head if isinstance(head, dict) else {}
    total = len(data["nodes"])

    def stated(key: str) -> int:
        return sum(entry.get(key) is not None for entry in data["nodes"])

    workspaces = stated(names.workspace if linked else "workspace")
    cost = f'attribute "{names.cost}"' if linked else "field cost"
    sizes = f'attribute "{names.memory}"' if linked else "fields memory and outputs"
    unit = "read" if head.get("cost_unit") else "not stated"
    lines = [
        f"costs: {_share(_costs(document, names, linked), total, cost, '0')}; unit {graph.cost_unit}: {unit}",
        f"sizes: {_share(_sizes(document, names, linked), total, sizes, '0 bytes')}",
        f"workspace: read for {workspaces} of {total} nodes" + (", 0 bytes for the others" * (workspaces < total)),
        "fixed memory: read" if head.get("fixed_memory") is not None else "fixed memory: not stated, 0 bytes",
    ]
    stated_outputs = not linked and "outputs" in data
    lines.append("outputs of the graph: " + ("read" if stated_outputs else "not stated, those of the last node"))
    return lines


def _costs(document: Document, names: NodeLinkKeys, linked: bool) -> int:
    key = names.cost if linked else "cost"
    return sum(entry.get(key) is not None for entry in document.data["nodes"])


def _sizes(document: Document, names: NodeLinkKeys, linked: bool) -> int:
    keys = (names.memory,) if linked else ("memory", "outputs")
    return sum(any(entry.get(key) is not None for key in keys) for entry in document.data["nodes"])


def _share(number: int, total: int, where: str, default: str) -> str:
    """``read for 8 of 9 nodes from field cost, 0 for the others``."""
    return f"read for {number} of {total} nodes from {where}" + (f", {default} for the others" * (number < total))
