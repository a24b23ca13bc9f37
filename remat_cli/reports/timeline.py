"""The memory timeline of a plan for the terminal, and the reason for its peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.model import Graph, Phase
from remat_cli.plan.check import Report
from remat_cli.plan.model import Compute, Plan, Statement
from remat_cli.reports.plan import (
    budget_rows,
    claim_line,
    cost_rows,
    findings_lines,
    peak_section,
    recomputed_section,
    verdict_line,
)
from remat_cli.reports.style import Mark, Style, cells, fields, render, ruler
from remat_cli.reports.words import cost_words, graph_words, maker
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_ROWS = 12
_AGAIN = "recomputed"
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class _Plot:
    """Columns of the drawing.

    Attributes:
        tops: Largest memory in use in each column, bytes.
        again: Whether something is recomputed in each column.
        marks: Where phases begin and the peak is.
    """

    tops: list[int]
    again: list[bool]
    marks: list[Mark]


def plan_show(report: Report, plan: Plan, style: Style) -> str:
    """The output of ``remat show PLAN``: verdict, claim, timeline, values at the peak, recomputed nodes."""
    graph = report.graph
    rows = [
        ("graph", f"{style.clean(graph.name)}: {graph_words(graph)}"),
        ("made by", style.clean(maker(report))),
        *budget_rows(report, style),
        *cost_rows(report, style),
        ("claim", claim_line(report, style, checking=True)),
    ]
    parts: list[RenderableType] = [verdict_line(report, style)]
    parts += [*findings_lines(report, style), "", fields(rows, style), ""]
    parts += timeline_lines(report, plan.statements, style)
    return render(style, *parts, *recomputed_section(report, style))


def timeline_lines(report: Report, statements: Sequence[Statement], style: Style) -> list[RenderableType]:
    """Memory over statements, the values at the peak, and why the peak is where it is."""
    from rich.text import Text

    if not report.replay.profile:
        return [Text("The plan is empty.")]
    scale, budget = report.replay.peak_bytes, report.budget_bytes
    if budget is not None and scale < budget <= 2 * scale:  # one farther away would flatten the drawing
        scale = budget
    labels = _axis(report, scale)
    gutter = max(len(label) for label in [*labels.values(), _AGAIN]) + 2
    plot = _plot(report, statements, style.columns - gutter)
    lines = _area(report, plot, scale, style, labels, gutter)
    corner = style.glyph("└" + "─" * len(plot.tops), "+" + "-" * len(plot.tops))
    lines.append(Text(f"{'0 B':>{gutter - 2}} {corner}", style="dim"))
    if any(plot.again):
        dots = "".join(style.glyph("•", "*") if here else " " for here in plot.again)
        lines.append(Text.assemble((f"{_AGAIN:>{gutter - 2}}  ", "dim"), (dots, "yellow")))
    below = ruler(plot.marks, len(plot.tops), style)
    lines += [Text.assemble(" " * gutter, line) for line in below]
    parts: list[RenderableType] = [*lines, *peak_section(report, style), ""]
    return [*parts, Text(why_peak(report, statements, style))]


def _plot(report: Report, statements: Sequence[Statement], width: int) -> _Plot:
    """Sort the statements into ``width`` columns; a column holds several statements, or a statement several columns."""
    profile = report.replay.profile
    n = len(profile)
    spans = [(c * n // width, max(c * n // width + 1, (c + 1) * n // width)) for c in range(width)]
    again = [False] * n
    seen: set[int] = set()
    begins: dict[Phase | None, int] = {}
    for at, statement in enumerate(statements):
        if isinstance(statement, Compute):
            again[at] = statement.node in seen
            seen.add(statement.node)
            begins.setdefault(report.graph.nodes[statement.node].phase, at)
    peak = report.replay.peak_statement or 0
    first, last = _columns(peak, n, width)
    marks = [Mark((first + last) // 2, f"peak {format_bytes(report.replay.peak_bytes)}", "bold")]
    marks += [Mark(_columns(at, n, width)[0], phase.value, "dim") for phase, at in begins.items() if phase is not None]
    return _Plot([max(profile[a:b]) for a, b in spans], [any(again[a:b]) for a, b in spans], marks)


def _columns(statement: int, n: int, width: int) -> tuple[int, int]:
    """The first and the last column of ``statement`` out of ``n``."""
    last = ((statement + 1) * width - 1) // n
    return min(last, -(-statement * width // n)), last


def _axis(report: Report, scale: int) -> dict[int, str]:
    """Labels of the rows, from 0 at the top; if two fall on one row, the more important one."""
    amounts = [(report.graph.fixed_memory, "fixed"), (report.replay.peak_bytes, "peak")]
    if report.budget_bytes is not None:
        amounts.append((report.budget_bytes, "budget"))
    return {_row(amount, scale): f"{name} {format_bytes(amount)}" for amount, name in amounts if 0 < amount <= scale}


def _row(amount: int, scale: int) -> int:
    """The row, from the top, in which a column of ``amount`` bytes ends."""
    return _ROWS - max(1, -(-amount * _ROWS // scale)) if scale else _ROWS - 1


def _area(report: Report, plot: _Plot, scale: int, style: Style, labels: dict[int, str], gutter: int) -> list[Text]:
    """The rows of the drawing, from the top."""
    from rich.text import Text

    budget, fixed = report.budget_bytes, report.graph.fixed_memory
    limit_row = None if budget is None or budget > scale else _row(budget, scale)
    empty = style.glyph("╌", "-")
    lines = []
    for row in range(_ROWS):
        label = labels.get(row, "")
        axis = Text.assemble((f"{label:>{gutter - 2}} {style.glyph('┤' if label else '│', '|')}", "dim"))
        base = (_ROWS - 1 - row) * scale  # all amounts of this row times the number of rows
        characters = []
        for top in plot.tops:
            eighths = _eighths(top * _ROWS - base, scale)
            if eighths == 0:
                characters.append((empty if row == limit_row else " ", "bold"))
            elif base + scale <= fixed * _ROWS:
                characters.append((style.glyph("▒", "="), "blue"))
            else:
                glyph = style.glyph(_EIGHTHS[eighths], "#" if eighths > 4 else ".")
                characters.append((glyph, "red" if budget is not None and top > budget else "cyan"))
        lines.append(axis.append_text(cells(characters)))
    return lines


def _eighths(part: int, whole: int) -> int:
    """``part`` of ``whole`` in eighths, 0 to 8; at least 1 for a part above zero."""
    if part <= 0 or whole <= 0:
        return 0
    return min(8, max(1, (16 * part + whole) // (2 * whole)))


def why_peak(report: Report, statements: Sequence[Statement], style: Style) -> str:
    """Why the peak is where it is: what the node itself needs, and which other values are in memory then."""
    graph, at = report.graph, report.replay.peak_statement
    here = next((s.node for s in statements[at:] if isinstance(s, Compute)), None) if at is not None else None
    if at is None or here is None:
        return "Why: the peak comes after the last computation."
    node = graph.nodes[here]
    reads, makes = sum(graph.size[v] for v in node.inputs), sum(node.outputs)
    needs = [f"{format_bytes(n)} of {what}" for n, what in ((reads, "inputs"), (makes, "outputs")) if n]
    needs += [f"{format_bytes(node.workspace)} of workspace"] if node.workspace else []
    own = {*node.inputs, *graph.values_of(here)}
    waiting = [(v, size) for v, size in report.replay.residents if v not in own]
    name = style.short(node.id, style.columns // 2)
    why = f"Why: {name} needs {_listed(needs)} at once" if needs else f"Why: {name} itself needs nothing"
    if waiting:
        total, (largest, size) = sum(size for _, size in waiting), waiting[0]
        values = "1 other value is" if len(waiting) == 1 else f"{len(waiting):,} other values are"
        why += f". {values} in memory ({format_bytes(total)})"
        if len(waiting) > 1:
            why += (
                f"; the largest, {style.short(graph.value_name(largest), style.columns // 2)} ({format_bytes(size)}),"
            )
        else:
            why += f"; {style.short(graph.value_name(largest), style.columns // 2)}"
        why += f" is {_next_use(graph, statements, at, largest, style)}. {_droppable_words(graph, waiting, style)}"
    elif graph.fixed_memory:
        why += ", and only the fixed memory is in memory beside it"
    else:
        why += ", and nothing else is in memory"
    bound = peak_bound(graph).bytes
    if report.valid and report.replay.peak_bytes == bound:
        return f"{why}. No plan of this graph has a smaller peak."
    return f"{why}. Every plan of this graph needs at least {format_bytes(bound)}."


def _droppable_words(graph: Graph, waiting: Sequence[tuple[int, int]], style: Style) -> str:
    """How many of the ``waiting`` values could be dropped and recomputed, and the cheapest of them per byte."""
    free = [(v, size) for v, size in waiting if size and graph.nodes[graph.producer[v]].recompute]
    if not free:
        return "It may not be recomputed" if len(waiting) == 1 else "None of them may be recomputed"
    best, size = min(free, key=lambda item: (graph.nodes[graph.producer[item[0]]].cost / item[1], item[0]))
    cost = style.clean(cost_words(graph.nodes[graph.producer[best]].cost, graph.cost_unit))
    if len(waiting) == 1:
        return f"It may be recomputed, for {cost}"
    total = format_bytes(sum(size for _, size in free))
    some = "All of them" if len(free) == len(waiting) else f"{len(free):,} of them ({total})"
    name = style.short(graph.value_name(best), style.columns // 2)
    return f"{some} may be recomputed; the cheapest per byte is {name}, {cost} for {format_bytes(size)}"


def _next_use(graph: Graph, statements: Sequence[Statement], at: int, value: int, style: Style) -> str:
    """The next use of ``value``, which is in memory at statement ``at``."""
    computes = [(i, s.node) for i, s in enumerate(statements[at:], at) if isinstance(s, Compute)]
    for position, node in computes:
        if value in graph.nodes[node].inputs:
            return f"read next by {style.short(graph.nodes[node].id, style.columns // 2)} at statement {position:,}"
        if graph.producer[value] == node:
            break
    return "an output of the graph" if value in graph.outputs else "not read again"


def _listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
