"""Graphs and the computations of a plan as DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.graph.model import Graph, Phase
from remat_cli.printable import printable
from remat_cli.reports.words import cost_words
from remat_cli.units import format_bytes

_FILL = {
    Phase.FORWARD: "#cfe2f3",
    Phase.LOSS: "#fff2cc",
    Phase.BACKWARD: "#f4cccc",
    Phase.UPDATE: "#d9ead3",
    None: "#eeeeee",
}
"""Light colours, so that black text on them is easy to read."""


def dot_text(graph: Graph, times: Sequence[int] | None = None) -> str:
    """``graph`` as a DOT digraph: a box per node with its cost and size, coloured by phase; an edge per value read.

    Args:
        graph: The graph.
        times: How often a plan computes each node; recomputed nodes get a bold frame. None without a plan.
    """
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        "  rankdir=TB;",
        '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=8];',
    ]
    kept = set(graph.outputs)
    for i, node in enumerate(graph.nodes):
        label = [node.id if node.op is None or node.op == node.id else f"{node.id} ({node.op})"]
        label.append(cost_words(node.cost, graph.cost_unit))
        sizes = " + ".join(format_bytes(size) for size in node.outputs) or "no output"
        label.append(sizes + (f", workspace {format_bytes(node.workspace)}" if node.workspace else ""))
        attributes = [f"fillcolor={_quoted(_FILL[node.phase])}"]
        if times is not None and times[i] > 1:
            label.append(f"computed {times[i]} times")
            attributes.append("penwidth=3")
        if kept.intersection(graph.values_of(i)):
            attributes.append("peripheries=2")
        lines.append(f"  n{i} [label={_label(label)}, {', '.join(attributes)}];")
    for reader, node in enumerate(graph.nodes):
        for value in node.inputs:
            maker = graph.producer[value]
            several = len(graph.nodes[maker].outputs) > 1
            which = f" [label={_quoted(str(value - graph.first_value[maker]))}]" if several else ""
            lines.append(f"  n{maker} -> n{reader}{which};")
    return "\n".join([*lines, "}"]) + "\n"


def _label(lines: Sequence[str]) -> str:
    """Lines as one quoted label. Graphviz interprets escapes and HTML entities in labels, so the text is escaped."""
    return '"' + "\\n".join(map(_escaped, lines)) + '"'


def _escaped(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")


def _quoted(text: str) -> str:
    return _label([text])
