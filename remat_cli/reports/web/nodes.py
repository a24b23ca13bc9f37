"""The nodes of a graph as data for the scripts of a page, which search them and describe the one that is pinned."""

from __future__ import annotations

from typing import Any

from remat_cli.graph.lines import line_of
from remat_cli.graph.model import Graph
from remat_cli.reports.words import cost_words
from remat_cli.units import format_bytes


def node_documents(graph: Graph) -> list[dict[str, Any]]:
    """For each node its id, the nodes that it reads, and ``facts``: (name, text) as they are shown."""
    return [
        {
            "id": node.id,
            "op": node.op or "",
            "reads": list(dict.fromkeys(graph.producer[v] for v in node.inputs)),
            "facts": _facts(graph, i),
        }
        for i, node in enumerate(graph.nodes)
    ]


def _facts(graph: Graph, index: int) -> list[tuple[str, str]]:
    node = graph.nodes[index]
    kind = ", ".join(word for word in (node.op, None if node.phase is None else node.phase.value) if word)
    facts = [("operation", kind)] if kind else []
    if line := line_of(graph, node.id):
        facts.append(("line", line))
    cost = cost_words(node.cost, graph.cost_unit)
    facts.append(("cost", cost if node.recompute else f"{cost}, computed at most once"))
    facts.append(("makes", ", ".join(format_bytes(size) for size in node.outputs) or "nothing"))
    if node.workspace:
        facts.append(("workspace", format_bytes(node.workspace)))
    return facts
