"""Comparisons of strategies, for one link to a host or for several: as text, as CSV, and as documents."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from remat_cli.plan.comparison import Comparison, Ended, Proof, Row
from remat_cli.plan.host import Host
from remat_cli.plan.linked import Linked
from remat_cli.plan.model import Scope
from remat_cli.printable import printable
from remat_cli.reports.documents import document_json
from remat_cli.reports.style import Style, render, title
from remat_cli.reports.words import AMONG, count, exact_bytes
from remat_cli.units import format_bytes, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


_NAME_COLUMNS = 26
_CELL_COLUMNS = 11
_WORDS = {
    Ended.NONE: "no fit",
    Ended.LIMIT: "time",
    Ended.REFUSED: "n/a",
    Ended.FAILED: "FAILED",
    Ended.INTERRUPTED: "not run",
}
_EVERY = frozenset({Scope.ANY_ORDER, Scope.DOCUMENT_ORDER})
_MEANING = {
    Ended.NONE: "no fit: the strategy has no plan within the budget",
    Ended.LIMIT: "time: no plan before the time limit",
    Ended.REFUSED: "n/a: the strategy does not take this graph, or needs a package that is not installed",
    Ended.FAILED: "FAILED: the strategy, its solver or its process failed",
    Ended.INTERRUPTED: "not run: interrupted before its turn",
}
_COLOURS = {
    Ended.FAILED: "red",
    Ended.NONE: "dim",
    Ended.LIMIT: "yellow",
    Ended.REFUSED: "dim",
    Ended.INTERRUPTED: "dim",
}
_COLUMNS = (
    "strategy",
    "budget",
    "budget_bytes",
    "ended",
    "peak_bytes",
    "cost",
    "overhead",
    "computes",
    "lower_bound",
    "scope",
    "optimal",
    "wall_s",
    "message",
)


def comparison_text(comparison: Comparison, style: Style) -> str:
    """Overheads of all strategies at all budgets, with the best of each budget marked and empty cells explained."""
    from rich.text import Text

    graph = comparison.graph
    head = Text.assemble(
        (style.clean(graph.name or "graph"), "bold"),
        f": {count(len(graph.nodes), 'node')}, no-remat peak {exact_bytes(comparison.no_remat_peak_bytes)}",
    )
    parts: list[RenderableType] = [head, "Cost over no-remat, by memory budget:", ""]
    each = max(1, (style.columns - _NAME_COLUMNS) // _CELL_COLUMNS)
    for at in range(0, len(comparison.budgets), each):
        parts += [_table(comparison, comparison.budgets[at : at + each], style), ""]
    parts += [Text(line, style="dim") for line in _legend(comparison, style)]
    parts += [Text(f"CONTRADICTION: {line}", style="bold red") for line in comparison.contradictions()]
    return render(style, *parts)


def _table(comparison: Comparison, budgets: tuple[tuple[str, int], ...], style: Style) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True, max_width=_NAME_COLUMNS - 1)
    for text, amount in budgets:
        table.add_column(
            f"{text} \n{format_bytes(amount)} ", justify="right", no_wrap=True, min_width=_CELL_COLUMNS - 1
        )
    best = {amount: _least_cost(comparison, amount) for _, amount in budgets}
    for strategy in comparison.strategies:
        rows = [comparison.row(strategy, amount) for _, amount in budgets]
        cells = [_cell(row, best[row.budget_bytes], style) for row in rows]
        table.add_row(style.short(strategy, _NAME_COLUMNS - 1), *cells)
    base = comparison.graph.total_cost
    if base > 0:
        bounds = [format_percent(comparison.bound(amount) / base - 1) for _, amount in budgets]
        table.add_row(Text("proven lower bound", style="dim"), *[Text(b + " ", style="dim") for b in bounds])
    return table


def _least_cost(comparison: Comparison, amount: int) -> float | None:
    costs = [row.cost for row in comparison.rows if row.budget_bytes == amount and row.cost is not None]
    return min(costs, default=None)


def _cell(row: Row, best: float | None, style: Style) -> Text:
    from rich.text import Text

    if row.cost is None:
        return Text(_WORDS[row.ended] + " ", style=_COLOURS[row.ended])
    words = format_percent(row.overhead) if row.overhead is not None else "0%"
    words += _mark(row.proof, style)
    leads = best is not None and row.cost <= best * (1 + 1e-9)
    return Text(words, style="bold green" if leads else "")


def _mark(proof: Proof, style: Style) -> str:
    return {Proof.OPTIMAL: style.glyph("✓", "="), Proof.GAP: style.glyph("≈", "~")}.get(proof, " ")


def _legend(comparison: Comparison, style: Style) -> list[str]:
    lines = []
    words = {
        Proof.OPTIMAL: "claimed optimal by the strategy, among the schedules for which its bound holds",
        Proof.GAP: "claimed within the accepted gap of the optimum among these",
    }
    proofs = {row.proof for row in comparison.rows}
    lines += [f"{_mark(proof, style)} {meaning}" for proof, meaning in words.items() if proof in proofs]
    claims = dict.fromkeys((row.strategy, row.scope) for row in comparison.rows if row.optimal and row.scope)
    narrow = [(strategy, Scope(scope)) for strategy, scope in claims if scope not in _EVERY]
    lines += [f"  {strategy}: only among {AMONG[scope]} ({scope})" for strategy, scope in narrow]
    seen = {row.ended for row in comparison.rows}
    lines += [meaning for ended, meaning in _MEANING.items() if ended in seen]
    reasons = dict.fromkeys(
        f"  {row.strategy}: {row.message}" for row in comparison.rows if row.ended in {Ended.REFUSED, Ended.FAILED}
    )
    return lines + [style.clean(reason) for reason in reasons]


def comparison_csv(comparison: Comparison) -> str:
    """One line for each strategy and budget, with a header; missing values are empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        values = row.document()
        writer.writerow({key: "" if values[key] is None else _plain(values[key]) for key in _COLUMNS})
    return out.getvalue()


def _plain(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    return str(value).lower() if isinstance(value, bool) else value


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values, ``remat-comparison/1`` (schemas/comparison-v1.json)."""
    graph = comparison.graph
    return {
        "schema": "remat-comparison/1",
        "graph": {"name": graph.name, "nodes": len(graph.nodes), "edges": graph.edges},
        "no_remat_peak": comparison.no_remat_peak_bytes,
        "no_remat_cost": graph.total_cost,
        "cost_unit": graph.cost_unit,
        "limits": dict(comparison.limits),
        "budgets": [
            {"budget": text, "bytes": amount, "lower_bound": comparison.bound(amount)}
            for text, amount in comparison.budgets
        ],
        "strategies": list(comparison.strategies),
        "rows": [row.document() for row in comparison.rows],
        "contradictions": comparison.contradictions(),
        "interrupted": comparison.interrupted,
    }


def comparison_json(comparison: Comparison) -> str:
    """:func:`comparison_document` as text."""
    return document_json(comparison_document(comparison))


def linked_text(linked: Linked, style: Style) -> str:
    """The table of each link under its name and bandwidths."""
    parts = []
    for (name, host), comparison in zip(linked.links, linked.comparisons, strict=True):
        head = render(style, title(style.clean(name), f"  {host.words}")).lstrip("\n")
        parts.append(head + comparison_text(comparison, style))
    return "\n".join(parts)


def _link(name: str, host: Host) -> dict[str, Any]:
    return {
        "link": name,
        "bandwidth_out": _limited(host.out_bytes_per_s),
        "bandwidth_in": _limited(host.in_bytes_per_s),
        "latency_s": host.latency_s,
        "memory": host.memory_bytes,
    }


def _limited(rate: float) -> float | None:
    return None if math.isinf(rate) else rate


def linked_document(linked: Linked) -> Mapping[str, Any]:
    """As JSON values, ``remat-comparisons/1`` (schemas/comparisons-v1.json)."""
    return {
        "schema": "remat-comparisons/1",
        "links": [
            {**_link(name, host), "comparison": comparison_document(comparison)}
            for (name, host), comparison in zip(linked.links, linked.comparisons, strict=True)
        ],
        "interrupted": linked.interrupted,
    }


def linked_json(linked: Linked) -> str:
    """:func:`linked_document` as text."""
    return document_json(dict(linked_document(linked)))


def linked_csv(linked: Linked) -> str:
    """One line for each link, strategy and budget, with a header; missing values are empty."""
    lines: list[dict[str, Any]] = []
    for (name, host), comparison in zip(linked.links, linked.comparisons, strict=True):
        link = {key: "" if value is None else value for key, value in _link(name, host).items()}
        lines += [{**link, **row} for row in csv.DictReader(io.StringIO(comparison_csv(comparison)))]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
