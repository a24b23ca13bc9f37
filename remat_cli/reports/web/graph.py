"""The page of a graph: its blocks and nodes in layers, and the numbers of its summary."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from remat_cli.graph.drawing import Block, blocks, condensed, layered
from remat_cli.graph.metadata import line_of
from remat_cli.graph.model import Graph, Phase
from remat_cli.graph.summary import GraphSummary
from remat_cli.reports.charts import LIGHT, Shades, box_height
from remat_cli.reports.graph import most_expensive_table, working_sets_table
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.web.page import Chart, Page, Section, label
from remat_cli.reports.words import cost_words, count, exact_bytes, share_words, tensor_size
from remat_cli.units import format_bytes

_LATE = (Phase.BACKWARD, Phase.UPDATE)


def graph_page(graph: Graph, summary: GraphSummary) -> Page:
    """The page of ``graph``."""
    whole = blocks(graph)
    items = _items(graph, whole)
    return Page(
        title=graph.name or "graph",
        facts=_facts(summary),
        sections=[_drawing(graph, whole, items), *_tables(graph, summary)],
        script="graph",
        data={"items": items, "nodes": len(graph.nodes)},
    )


def _drawing(graph: Graph, whole: Block, items: list[dict[str, Any]]) -> Section:
    """The section with the chart ``graph``, which its script fills, and the parts of the whole in numbers."""
    boxes = [part for part in whole.parts if part.parts]
    note = (
        "Each box is to the right of those that it reads; the backward pass runs from right to left below. Higher "
        "boxes make more bytes, brighter ones cost more. Thin lines are forward values that the backward pass reads. "
        "Drag to zoom in, which makes room for names; double-click to zoom out; click a node to pin it."
    )
    words = f"{count(len(graph.nodes), 'node')} and {count(graph.edges, 'edge')} in layers"
    if boxes:
        note += " A box with a thick edge is a block of several nodes: click it to open it."
        words += f", drawn as {count(len(boxes), 'block')} and {count(len(whole.parts) - len(boxes), 'single node')}"
    index = {(item["first"], item["end"]): k for k, item in enumerate(items)}
    columns: list[Column[Block]] = [
        Column("block or node", attrgetter("name"), numeric=False),
        Column("nodes", lambda part: part.end - part.first, each("{:,}".format)),
        Column("cost", lambda part: _cost(graph, part), each(lambda cost: cost_words(cost, graph.cost_unit))),
        Column("of all cost", lambda part: _cost(graph, part), each(lambda cost: share_words(cost, graph.total_cost))),
        Column("makes", lambda part: _output_bytes(graph, part), each(format_bytes)),
    ]
    table = Table(columns, whole.parts, pin=lambda part: index[part.first, part.end])
    chart = Chart(
        "graph",
        [],
        _layout(graph, _shades(graph, whole)),
        620,
        f"{words}. The table below has their numbers.",
        numbers=table,
        numbers_title="The drawing in numbers",
    )
    return Section("Graph", note, (chart,), search="Find a node by its name or operation")


def _cost(graph: Graph, part: Block) -> float:
    return math.fsum(node.cost for node in graph.nodes[part.first : part.end])


def _output_bytes(graph: Graph, part: Block) -> int:
    return sum(sum(node.outputs) for node in graph.nodes[part.first : part.end])


def _shades(graph: Graph, whole: Block) -> Shades:
    """The scale for all nodes and the parts of the whole."""
    return Shades.of([node.cost for node in (*graph.nodes, *condensed(graph, whole.parts).nodes)])


def _items(graph: Graph, whole: Block) -> list[dict[str, Any]]:
    """Nodes, which come first, and blocks as data for the script: their place in their block, and what to say of them.

    ``x`` and ``y`` are the layer and the row in the drawing of ``parent``, which is -1 for the whole, the last item.
    """
    shades = _shades(graph, whole)
    most = max((sum(node.outputs) for node in condensed(graph, whole.parts).nodes), default=0)
    colours = _colours(shades, [node.cost for node in graph.nodes])
    items: list[dict[str, Any]] = []
    for i, (node, document) in enumerate(zip(graph.nodes, node_documents(graph), strict=True)):
        document |= {"colour": colours[i], "height": box_height(sum(node.outputs), most)}
        items.append({**document, "label": node.id, "late": node.phase in _LATE, "first": i, "end": i + 1})

    def add(block: Block) -> int:
        part_graph = condensed(graph, block.parts)
        positions = layered(part_graph)
        colours = _colours(shades, [node.cost for node in part_graph.nodes])
        members = [add(part) if part.parts else part.first for part in block.parts]
        for k, (part, member) in enumerate(zip(block.parts, members, strict=True)):
            items[member] |= {"x": positions.layer[k], "y": positions.y[k], "parent": len(items)}
            if part.parts:
                items[member] |= {"colour": colours[k], "height": box_height(sum(part_graph.nodes[k].outputs), most)}
            if block is not whole and part.name.startswith(block.name):
                items[member]["label"] = part.name[len(block.name) :].lstrip("/._") or part.name
        cost = math.fsum(node.cost for node in part_graph.nodes)
        output_bytes = sum(sum(node.outputs) for node in part_graph.nodes)
        share = share_words(cost, graph.total_cost)
        facts = [
            ("block", count(block.end - block.first, "node")),
            ("cost", cost_words(cost, graph.cost_unit) + (f", {share} of all" if share else "")),
            ("makes", format_bytes(output_bytes)),
        ]
        item = {"id": block.name, "label": block.name, "op": "", "facts": facts, "parent": -1, "parts": members}
        items.append({**item, "first": block.first, "end": block.end})
        return len(items) - 1

    add(whole)
    return items


def _colours(shades: Shades, costs: Sequence[float]) -> list[tuple[str, str]]:
    """The colour of the box of each cost, and that of the text in it."""
    from plotly.colors import sample_colorscale, sequential

    shares = [shades.share(cost) for cost in costs]
    colours = sample_colorscale(sequential.Cividis, shares)
    return [(str(colour), "#000000" if at > LIGHT else "#ffffff") for colour, at in zip(colours, shares, strict=True)]


def _layout(graph: Graph, shades: Shades) -> dict[str, Any]:
    ticks = shades.ticks()
    return {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "hovermode": "closest",
        "dragmode": "zoom",
        "barmode": "overlay",
        "uniformtext": {"mode": "hide", "minsize": 8},
        "legend": {"orientation": "h", "y": -0.02, "yanchor": "top", "x": 0},
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "coloraxis": {
            "colorscale": "Cividis",
            "cmin": shades.low,
            "cmax": shades.high,
            "colorbar": {
                "title": {"text": "cost", "side": "right"},
                "tickvals": ticks,
                "ticktext": [label(cost_words(10.0**k, graph.cost_unit)) for k in ticks],
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.0,
                "yanchor": "bottom",
                "thickness": 10,
                "len": 290,
                "lenmode": "pixels",
                "tickangle": 0,
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


def _tables(graph: Graph, summary: GraphSummary) -> Iterator[Section]:
    index = {node.id: i for i, node in enumerate(graph.nodes)}
    if summary.working_sets:
        sets = replace(working_sets_table(summary), pin=lambda item: index[item.name])
        yield Section("Largest working sets", "Beside the fixed memory.", table=sets)
    if summary.costliest and summary.total_cost:
        nodes = replace(most_expensive_table(summary), pin=lambda item: index[item.name])
        yield Section("Most expensive nodes", table=nodes)


def node_documents(graph: Graph) -> list[dict[str, Any]]:
    """For each node its id, the nodes that it reads, and ``facts``: (name, text) as they are shown."""
    return [
        {
            "id": node.id,
            "op": node.op or "",
            "reads": list(dict.fromkeys(graph.producer[v] for v in node.inputs)),
            "facts": _node_facts(graph, i),
        }
        for i, node in enumerate(graph.nodes)
    ]


def _node_facts(graph: Graph, index: int) -> list[tuple[str, str]]:
    node = graph.nodes[index]
    kind = ", ".join(word for word in (node.op, None if node.phase is None else node.phase.value) if word)
    facts = [("operation", kind)] if kind else []
    if line := line_of(graph, node.id):
        facts.append(("line", line))
    cost = cost_words(node.cost, graph.cost_unit)
    facts.append(("cost", cost if node.recompute else f"{cost}, computed at most once"))
    facts.append(("makes", "; ".join(tensor_size(graph, v) for v in graph.values_of(index)) or "nothing"))
    if node.workspace:
        facts.append(("workspace", format_bytes(node.workspace)))
    return facts
