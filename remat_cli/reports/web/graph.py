"""The page of a graph: its nodes in layers, and the numbers of its summary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from remat_cli.graph.layout import Layout, layered
from remat_cli.graph.model import Graph, Phase
from remat_cli.graph.summary import GraphSummary
from remat_cli.reports.web.page import INK, Chart, Page, Section, Table, label, render_page
from remat_cli.reports.words import cost_words, count, exact_bytes
from remat_cli.units import format_bytes, format_percent

SYMBOLS = {
    Phase.FORWARD: "circle",
    Phase.LOSS: "diamond",
    Phase.BACKWARD: "square",
    Phase.UPDATE: "triangle-up",
    None: "circle",
}
_GL_FROM = 1500
"""From this number of nodes or edges on, WebGL draws them, which is fast; below, SVG does, which prints better."""
_SMALLEST, _LARGEST = 5.0, 26.0
"""Diameters in pixels; with many nodes the largest is smaller, so that neighbours stay distinguishable."""


def graph_page(graph: Graph, summary: GraphSummary, command: str) -> str:
    """The page of ``graph`` as HTML.

    Args:
        graph: The graph.
        summary: Its summary.
        command: The command that makes the page.

    Raises:
        UsageError: If plotly or Jinja2 is not installed.
    """
    note = (
        "A node is to the right of the nodes that it reads; the backward pass runs from right to left below. Larger "
        "nodes make more bytes, brighter nodes cost more. Thin lines are forward values that the backward pass reads. "
        "Drag to zoom, double-click to zoom out, point at a node for its numbers."
    )
    drawing = Chart("graph", _traces(graph, layered(graph)), _layout(graph), 620, "The nodes of the graph in layers.")
    return render_page(
        Page(
            title=graph.name or "graph",
            verdict="",
            good=None,
            facts=_facts(summary),
            sections=[Section("Graph", note, (drawing,)), *_tables(summary)],
            command=command,
        )
    )


def node_sizes(graph: Graph) -> list[float]:
    """Diameters of the nodes: areas grow with the bytes that they make."""
    made = [sum(node.outputs) for node in graph.nodes]
    top = max(made, default=0) or 1
    largest = min(_LARGEST, max(1.8 * _SMALLEST, _LARGEST * math.sqrt(400 / max(1, len(made)))))
    return [_SMALLEST + (largest - _SMALLEST) * math.sqrt(amount / top) for amount in made]


def node_shades(graph: Graph) -> list[float]:
    """Powers of ten of the costs; zero costs count as the cheapest. At most six powers are distinguished."""
    costs = [node.cost for node in graph.nodes]
    top = max(costs, default=0.0)
    least = max(min((c for c in costs if c > 0), default=1.0), top * 1e-6)
    return [math.log10(max(cost, least)) if top > 0 else 0.0 for cost in costs]


def edges(graph: Graph) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Edges as (producer, reader), each once: those within a phase, and those from the forward pass to the backward."""
    within: dict[tuple[int, int], None] = {}
    across: dict[tuple[int, int], None] = {}
    late = (Phase.BACKWARD, Phase.UPDATE)
    for reader, node in enumerate(graph.nodes):
        for value in node.inputs:
            producer = graph.producer[value]
            crossing = node.phase in late and graph.nodes[producer].phase is Phase.FORWARD
            (across if crossing else within)[producer, reader] = None
    return list(within), list(across)


def _traces(graph: Graph, layout: Layout) -> list[dict[str, Any]]:
    within, across = edges(graph)
    big = max(len(graph.nodes), len(within) + len(across)) > _GL_FROM
    kind = "scattergl" if big else "scatter"
    # Many nodes touch each other, so each is fainter then.
    faint = 0.3 * min(1.0, max(0.35, 500 / max(1, len(across))))
    lines = [("read by the backward pass", across, 0.5, faint), ("edges", within, 1.1, 0.55)]
    traces: list[dict[str, Any]] = [
        {
            "type": kind,
            "name": name,
            "mode": "lines",
            "x": [x for pair in pairs for x in (*(round(at[0], 3) for at in layout.path(*pair)), None)],
            "y": [y for pair in pairs for y in (*(round(at[1], 3) for at in layout.path(*pair)), None)],
            "line": {"width": width, "color": "#808890"},
            "opacity": opacity,
            "hoverinfo": "skip",
        }
        for name, pairs, width, opacity in lines
        if pairs
    ]
    sizes, shades = node_sizes(graph), node_shades(graph)
    for phase in [*Phase, None]:
        members = [i for i, node in enumerate(graph.nodes) if node.phase is phase]
        if members:
            nodes = _nodes(graph, layout, members, phase, kind, sizes, shades)
            # Plotly warns of a legend entry whose colour is a number, so another trace stands there for this one.
            entry = {"symbol": SYMBOLS[phase], "color": "#808890", "size": 10}
            legend = {"x": [None], "y": [None], "mode": "markers", "marker": entry, "hoverinfo": "skip"}
            traces += [nodes, {"type": kind, "name": nodes["name"], "legendgroup": nodes["legendgroup"], **legend}]
    return traces


def _nodes(
    graph: Graph,
    layout: Layout,
    members: list[int],
    phase: Phase | None,
    kind: str,
    sizes: list[float],
    shades: list[float],
) -> dict[str, Any]:
    name = "nodes" if phase is None else phase.value
    return {
        "type": kind,
        "name": name,
        "legendgroup": name,
        "showlegend": False,
        "mode": "markers",
        "x": [layout.layer[i] for i in members],
        "y": [layout.y[i] for i in members],
        "text": [_hover(graph, i) for i in members],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "symbol": SYMBOLS[phase],
            "size": [round(sizes[i], 2) for i in members],
            "color": [round(shades[i], 4) for i in members],
            "coloraxis": "coloraxis",
            "opacity": 1,
            "line": {"width": 0.7 if kind == "scatter" else 0, "color": INK},
        },
    }


def _hover(graph: Graph, index: int) -> str:
    node = graph.nodes[index]
    made = ", ".join(format_bytes(size) for size in node.outputs[:4]) + (", ..." if len(node.outputs) > 4 else "")
    lines = [
        f"<b>{label(node.id)}</b>" + (f"  {label(node.op)}" if node.op else ""),
        f"cost {label(cost_words(node.cost, graph.cost_unit))}",
        f"makes {made or 'nothing'}",
    ]
    if node.workspace:
        lines.append(f"workspace {format_bytes(node.workspace)}")
    reads = [label(graph.value_name(v), 40) for v in node.inputs[:4]]
    if reads:
        lines.append(
            "reads " + ", ".join(reads) + (f" and {len(node.inputs) - 4} more" if len(node.inputs) > 4 else "")
        )
    if not node.recompute:
        lines.append("computed at most once")
    return "<br>".join(lines)


def _layout(graph: Graph) -> dict[str, Any]:
    shades = node_shades(graph)
    low, high = (math.floor(min(shades)), math.ceil(max(shades))) if shades else (0, 1)
    ticks = list(range(low, high + 1))
    return {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "hovermode": "closest",
        "dragmode": "zoom",
        "legend": {"orientation": "h", "y": -0.02, "yanchor": "top", "x": 0, "itemsizing": "constant"},
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "coloraxis": {
            "colorscale": "Cividis",
            "cmin": low,
            "cmax": max(high, low + 1),
            "colorbar": {
                "title": {"text": "cost"},
                "tickvals": ticks,
                "ticktext": [label(cost_words(10.0**k, graph.cost_unit)) for k in ticks],
                "thickness": 12,
                "len": 0.7,
                "outlinewidth": 0,
            },
        },
    }


def _facts(summary: GraphSummary) -> list[tuple[str, str]]:
    kind = "a chain" if summary.is_chain else f"longest path {count(summary.longest_path, 'node')}"
    at = "" if summary.bound_node is None else f", needed by {summary.bound_node}"
    return [
        (
            "graph",
            f"{count(summary.nodes, 'node')}, {count(summary.values, 'value')}, {count(summary.edges, 'edge')}; {kind}",
        ),
        ("phases", ", ".join(f"{n:,} {'without' if p is None else p.value}" for p, n in summary.phases)),
        ("cost", cost_words(summary.total_cost, summary.cost_unit)),
        ("fixed memory", exact_bytes(summary.fixed_bytes)),
        ("no-remat peak", exact_bytes(summary.no_remat_peak_bytes)),
        ("least budget", f"{exact_bytes(summary.bound_bytes)}{at}: every plan needs at least this"),
    ]


def _tables(summary: GraphSummary) -> Iterable[Section]:
    if summary.working_sets:
        top = max(s.bytes for s in summary.working_sets) or 1
        rows = [(s.name, format_bytes(s.bytes)) for s in summary.working_sets]
        shares = [s.bytes / top for s in summary.working_sets]
        yield Section("Largest working sets", "Beside the fixed memory.", table=Table(("node", "bytes"), rows, shares))
    if summary.costliest and summary.total_cost:
        rows3 = [
            (c.name, cost_words(c.cost, summary.cost_unit), format_percent(c.cost / summary.total_cost))
            for c in summary.costliest
        ]
        shares = [c.cost / summary.total_cost for c in summary.costliest]
        yield Section("Most expensive nodes", table=Table(("node", "cost", "of all cost"), rows3, shares, 2))
