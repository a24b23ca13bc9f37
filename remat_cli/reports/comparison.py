"""Comparisons of strategies, for one link to a host or for several: as text, as CSV, and as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from remat_cli.plan.comparison import Comparison, Ended, Linked, Proof, Row
from remat_cli.plan.host import Host
from remat_cli.plan.model import Scope
from remat_cli.reports.documents import rate_limit
from remat_cli.reports.style import Style, render, title
from remat_cli.reports.table import Column, Table
from remat_cli.reports.words import AMONG, count, exact_bytes, percent_over
from remat_cli.tolerances import SAME_COST
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

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
_LOOKS = {
    Ended.FAILED: "red",
    Ended.NONE: "dim",
    Ended.LIMIT: "yellow",
    Ended.REFUSED: "dim",
    Ended.INTERRUPTED: "dim",
}


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
        table = _table(comparison, comparison.budgets[at : at + each], style)
        parts += [table.text(style, indent=0, gap=1, longest_name=_NAME_COLUMNS - 1), ""]
    parts += [Text(line, style="dim") for line in _legend(comparison, style)]
    parts += [Text(f"CONTRADICTION: {line}", style="bold red") for line in comparison.contradictions()]
    return render(style, *parts)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the table: its name, and a text and a look for each budget."""

    name: str
    cells: Sequence[tuple[str, str]]
    look: str = ""


def _table(comparison: Comparison, budgets: Sequence[tuple[str, int]], style: Style) -> Table[_Line]:
    """Cost over no-remat of every strategy at ``budgets``, and below them what is proven."""
    best: dict[int, float] = {}
    for row in comparison.rows:
        if row.cost is not None:
            best[row.budget_bytes] = min(row.cost, best.get(row.budget_bytes, row.cost))
    lines = [
        _Line(strategy, [_cell(comparison.row(strategy, amount), best.get(amount), style) for _, amount in budgets])
        for strategy in comparison.strategies
    ]
    base = comparison.graph.no_remat_cost
    if base > 0:
        bounds = [(percent_over(comparison.bound(amount) / base - 1), "dim") for _, amount in budgets]
        lines.append(_Line("proven lower bound", bounds, "dim"))
    return Table(
        [Column("", attrgetter("name"), numeric=False, look=attrgetter("look")), *_budget_columns(budgets)], lines
    )


def _budget_columns(budgets: Sequence[tuple[str, int]]) -> list[Column[_Line]]:
    def column(k: int, text: str, amount: int) -> Column[_Line]:
        return Column(
            f"{text}\n{format_bytes(amount)}",
            lambda line: line.cells[k][0],
            least_width=_CELL_COLUMNS - 1,
            look=lambda line: line.cells[k][1],
        )

    return [column(k, text, amount) for k, (text, amount) in enumerate(budgets)]


def _cell(row: Row, best: float | None, style: Style) -> tuple[str, str]:
    """The text of a cell and its look; the best of its budget stands out."""
    if row.cost is None:
        return _WORDS[row.ended], _LOOKS[row.ended]
    leads = best is not None and row.cost <= best * (1 + SAME_COST)
    return percent_over(row.overhead or 0.0) + _mark(row.proof, style), "bold green" if leads else ""


def _mark(proof: Proof, style: Style) -> str:
    return {Proof.OPTIMAL: style.glyph("✓", "="), Proof.GAP: style.glyph("≈", "~")}.get(proof, "")


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
    outcomes = {row.ended for row in comparison.rows}
    lines += [meaning for ended, meaning in _MEANING.items() if ended in outcomes]
    reasons = dict.fromkeys(
        f"  {row.strategy}: {row.message}" for row in comparison.rows if row.ended in {Ended.REFUSED, Ended.FAILED}
    )
    return lines + [style.clean(reason) for reason in reasons]


def _results(comparison: Comparison) -> Table[Row]:
    """The result of every strategy at every budget for programs; None for what is not known."""
    names = [field.name for field in fields(Row)]
    return Table([Column(name, attrgetter(name)) for name in names], comparison.rows)


def comparison_csv(comparison: Comparison) -> str:
    """One line for each strategy and budget, with a header; missing values are empty."""
    return _results(comparison).csv()


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values, ``remat-comparison/1`` (schemas/comparison-v1.json)."""
    graph = comparison.graph
    return {
        "schema": "remat-comparison/1",
        "graph": {"name": graph.name, "nodes": len(graph.nodes), "edges": graph.edges},
        "no_remat_peak": comparison.no_remat_peak_bytes,
        "no_remat_cost": graph.no_remat_cost,
        "cost_unit": graph.cost_unit,
        "limits": dict(comparison.limits),
        "budgets": [
            {"budget": text, "bytes": amount, "lower_bound": comparison.bound(amount)}
            for text, amount in comparison.budgets
        ],
        "strategies": list(comparison.strategies),
        "rows": _results(comparison).records(),
        "contradictions": comparison.contradictions(),
        "interrupted": comparison.interrupted,
    }


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
        "bandwidth_out": rate_limit(host.out_bytes_per_s),
        "bandwidth_in": rate_limit(host.in_bytes_per_s),
        "latency_s": host.latency_s,
        "memory": host.memory_bytes,
    }


def linked_document(linked: Linked) -> dict[str, Any]:
    """As JSON values, ``remat-comparisons/1`` (schemas/comparisons-v1.json)."""
    return {
        "schema": "remat-comparisons/1",
        "links": [
            {**_link(name, host), "comparison": comparison_document(comparison)}
            for (name, host), comparison in zip(linked.links, linked.comparisons, strict=True)
        ],
        "interrupted": linked.interrupted,
    }


def linked_csv(linked: Linked) -> str:
    """One line for each link, strategy and budget, with a header; missing values are empty."""
    rows = [
        {**_link(name, host), **record}
        for (name, host), comparison in zip(linked.links, linked.comparisons, strict=True)
        for record in _results(comparison).records()
    ]
    return Table([Column(name, itemgetter(name)) for name in rows[0]], rows).csv()
