"""A graph in numbers, as text and as a document; the graphs of a divided step as text; and a graph as DOT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from remat_cli.graph.model import Graph, Phase
from remat_cli.graph.summary import BudgetHint, Costly, Divisible, GraphSummary, OpShare, Sized
from remat_cli.printable import printable
from remat_cli.reports.style import Style, fields, render, title
from remat_cli.reports.table import Column, Table, each, text_columns
from remat_cli.reports.words import (
    cost_column,
    cost_words,
    count,
    exact_bytes,
    share_column,
    share_words,
    size_column,
)
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


_SHOWN_OPS = 6


def graph_text(summary: GraphSummary, style: Style) -> str:
    """Size, memory, bounds, largest values, costliest operations, and budgets to try, as lines of text."""
    from rich.text import Text

    shape = f"{count(summary.nodes, 'node')}, {count(summary.values, 'value')}, {count(summary.edges, 'edge')}"
    parts: list[RenderableType] = [
        Text.assemble((style.clean(summary.name), "bold"), f": {shape}"),
        "",
        fields([*_structure(summary), *_memory(summary, style)], style),
    ]
    if summary.working_sets:
        heading = title("Largest working sets", ": inputs, outputs and workspace of one node")
        parts += _section(heading, working_sets_table(summary), style)
    if summary.largest_values:
        parts += _section(title("Largest values"), _values_table(summary), style)
    parts += _expensive(summary, style)
    parts += _budgets(summary, style)
    return render(style, *parts)


def _structure(summary: GraphSummary) -> list[tuple[str, str]]:
    """Phases, shape and cost."""
    numbers = [f"{phase.value if phase else 'none'} {number:,}" for phase, number in summary.phases]
    phases = ", ".join(numbers) if any(phase for phase, _ in summary.phases) else "not given"
    shape = "a chain: every node reads the one before it" if summary.is_chain else "not a chain"
    cost = cost_words(summary.total_cost, summary.cost_unit)
    if summary.communication_cost:
        parts = (summary.total_cost - summary.communication_cost, summary.communication_cost)
        computing, communicating = (cost_words(part, summary.cost_unit) for part in parts)
        whole = cost_words(summary.no_remat_cost, summary.cost_unit)
        cost = f"{computing} of computations and {communicating} of collectives beside them, {whole} in all,"
    notes = [f"{count(summary.zero_cost_nodes, 'node')} free of cost"] if summary.zero_cost_nodes else []
    if summary.only_once_nodes:
        notes.append(f"{count(summary.only_once_nodes, 'node')} with recompute: false")
    return [
        ("phases", phases),
        ("shape", f"{shape}; longest path {count(summary.longest_path, 'node')}"),
        ("cost", "; ".join([f"{cost} for computing every node once", *notes])),
    ]


def _memory(summary: GraphSummary, style: Style) -> list[tuple[str, str]]:
    """Values, peak and the bound on every peak."""
    peak, bound = summary.no_remat_peak_bytes, summary.bound_bytes
    room = style.columns // 2
    at = f" at {style.short(summary.no_remat_peak_node, room)}" if summary.no_remat_peak_node is not None else ""
    if summary.bound_node is None:
        why = "the outputs at the end"
    else:
        why = f"the working set of {style.short(summary.bound_node, room)}"
    why += " with fixed memory" if summary.fixed_bytes else ""
    fixed = f", fixed memory {format_bytes(summary.fixed_bytes)}"
    outputs = f"{count(summary.outputs, 'output')} of {format_bytes(summary.output_bytes)}"
    share = ", the same as no-remat" if bound == peak else f", {share_words(bound, peak)} of no-remat" if peak else ""
    rows = [
        ("memory", f"all values {format_bytes(summary.value_bytes)}{fixed}, {outputs}"),
        ("no-remat", f"peak {exact_bytes(peak)}{at}"),
        ("bound", f"every plan needs at least {exact_bytes(bound)}{share}: {why}"),
    ]
    if summary.regions:
        whole = f"; with whole operations at least {format_bytes(summary.whole_bound_bytes)}"
        rows.append(("in parts", f"{', '.join(map(region_words, summary.regions))}{whole}"))
    return rows


def region_words(region: Divisible) -> str:
    """``loss in 2, 4 or 8 parts of the tokens``."""
    *first, last = map(str, region.parts)
    counts = f"{', '.join(first)} or {last}" if first else last
    return f"{region.name} in {counts} parts{f' of the {region.along}' if region.along else ''}"


def working_sets_table(summary: GraphSummary) -> Table[Sized]:
    """The largest working sets; bars are relative to the largest."""
    largest = summary.working_sets[0].bytes or 1
    columns: list[Column[Sized]] = [
        Column("node", attrgetter("name"), numeric=False),
        Column("bytes", attrgetter("bytes"), size_column),
    ]
    return Table(columns, summary.working_sets, share=lambda item: item.bytes / largest)


def _values_table(summary: GraphSummary) -> Table[Sized]:
    """The largest values, with their shares of all values."""
    whole = summary.value_bytes
    columns: list[Column[Sized]] = [
        Column("value", attrgetter("name"), numeric=False),
        Column("bytes", attrgetter("bytes"), size_column),
        Column("of all bytes", attrgetter("bytes"), lambda sizes: share_column(sizes, whole)),
    ]
    return Table(columns, summary.largest_values, share=lambda item: item.bytes / whole)


def most_expensive_table(summary: GraphSummary) -> Table[Costly]:
    """The most expensive nodes of a graph whose cost is not zero."""
    whole = summary.total_cost
    columns: list[Column[Costly]] = [
        Column("node", attrgetter("name"), numeric=False),
        Column("cost", attrgetter("cost"), lambda costs: cost_column(costs, summary.cost_unit, sign="")),
        Column("of all cost", attrgetter("cost"), lambda costs: share_column(costs, whole)),
    ]
    return Table(columns, summary.costliest, share=lambda item: item.cost / whole)


def _operations_table(summary: GraphSummary) -> Table[tuple[str, OpShare]]:
    """The most expensive kinds of operation of a graph whose cost is not zero, and the others as one row."""
    rows = [("(no op)" if share.op is None else share.op, share) for share in summary.ops[:_SHOWN_OPS]]
    if rest := summary.ops[_SHOWN_OPS:]:
        others = OpShare(None, sum(r.nodes for r in rest), sum(r.cost for r in rest), sum(r.bytes for r in rest))
        rows.append((f"and {len(rest):,} more", others))
    columns: list[Column[tuple[str, OpShare]]] = [
        Column("operation", itemgetter(0), numeric=False),
        Column("nodes", lambda row: row[1].nodes, each(lambda nodes: count(nodes, "node"))),
        Column("", lambda row: row[1].cost, lambda costs: share_column(costs, summary.total_cost), unit="of cost"),
        Column("", lambda row: row[1].bytes, lambda sizes: share_column(sizes, summary.value_bytes), unit="of bytes"),
    ]
    return Table(columns, rows, share=lambda row: row[1].cost / summary.total_cost)


def _section(heading: Text, table: Table[Any], style: Style) -> list[RenderableType]:
    return [heading, table.text(style, head=False)]


def _expensive(summary: GraphSummary, style: Style) -> list[RenderableType]:
    """The most expensive kinds of operation; the most expensive nodes if no node names its operation."""
    if not summary.total_cost:
        return []
    if all(share.op is None for share in summary.ops):
        return _section(title("Costliest nodes"), most_expensive_table(summary), style)
    return _section(title("Costliest operations"), _operations_table(summary), style)


def _budgets(summary: GraphSummary, style: Style) -> list[RenderableType]:
    """Budgets worth trying."""
    from rich.text import Text

    if not summary.budgets:
        return [title("Budgets", ": no plan can save anything, the no-remat peak is the bound")]
    hints = summary.budgets
    sizes = size_column([hint.bytes for hint in hints])
    rows = [
        (f"{hint.percent:.4g}%", size, f"{hint.bytes:,} bytes", _note(hint, summary.bound_bytes))
        for hint, size in zip(hints, sizes, strict=True)
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines: list[RenderableType] = [title("Budgets worth trying", ": of the no-remat peak, fixed memory included")]
    for hint, row in zip(hints, rows, strict=True):
        left, middle, exact = (cell.rjust(width) for cell, width in zip(row[:3], widths, strict=True))
        line = f"  {left}  {middle}  {exact}  {row[3]}".rstrip()
        if len(line) > style.columns:
            line = f"  {left}  {middle}  {row[3]}".rstrip()
        lines.append(Text(line, style="" if hint.possible else "dim"))
    return lines


def _note(hint: BudgetHint, bound_bytes: int) -> str:
    if not hint.possible:
        return "impossible: below the bound"
    return "about the bound" if hint.bytes * 1000 <= bound_bytes * 1002 else ""


def parts_text(files: Sequence[str], graphs: Sequence[Graph], style: Style) -> str:
    """The parts of a step, the files of their graphs, what crosses between them, and why each ends."""
    from rich.text import Text

    parts = [graph.metadata["part"] for graph in graphs]
    rows = [
        (file, f"{len(graph.nodes):,}", str(part["runs"]), _inputs(part))
        for file, graph, part in zip(files, graphs, parts, strict=True)
    ]
    reasons = [(f"part {part['number']} ends", str(part["ends"])) for part in parts if part["ends"]]
    return render(
        style,
        Text(f"PyTorch divides the step into {len(graphs)} parts, and each is a graph:"),
        Table(text_columns("file", "nodes", "runs", "takes from others"), rows).text(style),
        fields(
            [
                *reasons,
                ("to train", "solve every part, and pass all plans to remat_backend"),
                ("memory", "a plan knows its own part; what other parts hold meanwhile is not in it, so leave room"),
            ],
            style,
        ),
    )


def _inputs(part: Mapping[str, Any]) -> str:
    """``1.05 MB of part 0``: the bytes that a part reads from each other part, and from code between the parts."""
    sizes: dict[int | None, int] = {}
    for taken in part["takes"]:
        sizes[taken["from"]] = sizes.get(taken["from"], 0) + int(taken["bytes"])
    by_source = sorted(sizes.items(), key=lambda item: -1 if item[0] is None else item[0])
    return (
        ", ".join(
            f"{format_bytes(size)} of {'code between' if source is None else f'part {source}'}"
            for source, size in by_source
        )
        or "-"
    )


def graph_summary_document(summary: GraphSummary) -> dict[str, Any]:
    """The summary as JSON values, ``remat-graph-summary/1``; fields are named as in :class:`GraphSummary`."""
    document = asdict(summary)
    document["schema"] = "remat-graph-summary/1"
    document["phases"] = {(phase.value if phase else "none"): number for phase, number in summary.phases}
    return document


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

    ``times`` says how often a plan computes each node; recomputed nodes get a bold frame.
    """
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        "  rankdir=TB;",
        '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=8];',
    ]
    outputs = set(graph.outputs)
    for i, node in enumerate(graph.nodes):
        label = [node.id if node.op is None or node.op == node.id else f"{node.id} ({node.op})"]
        label.append(cost_words(node.cost, graph.cost_unit))
        sizes = " + ".join(format_bytes(size) for size in node.outputs) or "no output"
        label.append(sizes + (f", workspace {format_bytes(node.workspace)}" if node.workspace else ""))
        attributes = [f"fillcolor={_quoted(_FILL[node.phase])}"]
        if times is not None and times[i] > 1:
            label.append(f"computed {times[i]} times")
            attributes.append("penwidth=3")
        if outputs.intersection(graph.values_of(i)):
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
