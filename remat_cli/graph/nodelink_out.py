"""Graphs to node-link JSON, for ``networkx.node_link_graph`` and remat's own reader."""

from __future__ import annotations

import json
from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.graph.reader import plain_number
from remat_cli.printable import escaped_json


def graph_to_node_link(graph: Graph) -> tuple[str, list[str]]:
    """The text of ``graph`` as node-link JSON, and the facts that it cannot express.

    A node of node-link JSON makes one value, so several outputs become one value of their total size, and a plan for
    the converted graph frees them together. Links are in the order in which nodes read.
    """
    nodes: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    for node in graph.nodes:
        entry: dict[str, Any] = {"id": node.id, "cost": plain_number(node.cost), "memory": sum(node.outputs)}
        entry["workspace"] = node.workspace
        entry["recompute"] = node.recompute
        if node.op is not None:
            entry["op"] = node.op
        if node.phase is not None:
            entry["phase"] = node.phase.value
        nodes.append(entry)
        makers = dict.fromkeys(graph.producer[value] for value in node.inputs)
        links += [{"source": graph.nodes[maker].id, "target": node.id} for maker in makers]
    attributes = {"name": graph.name, "cost_unit": graph.cost_unit, "fixed_memory": graph.fixed_memory}
    head = {"directed": True, "multigraph": False, "graph": attributes}
    parts = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for name, entries in (("nodes", nodes), ("links", links)):
        rows = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        parts.append(f'"{name}": [\n{rows}\n]' if rows else f'"{name}": []')
    return escaped_json("{\n" + ",\n".join(parts) + "\n}\n"), _lost(graph)


def _lost(graph: Graph) -> list[str]:
    lost = []
    several = sum(len(node.outputs) > 1 for node in graph.nodes)
    if several:
        lost.append(f"{several} nodes with several outputs: written as one value of their joint size")
    if any(not node.outputs for node in graph.nodes):
        lost.append("nodes without outputs: written with a value of 0 bytes")
    if graph.outputs != tuple(graph.values_of(len(graph.nodes) - 1)):
        lost.append("which values are outputs of the graph: a reader takes those of the last node")
    if any(node.payload is not None for node in graph.nodes) or graph.metadata is not None:
        lost.append("payload and metadata: left out")
    return lost
