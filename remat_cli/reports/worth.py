"""What memory and links are worth: tables for people, rows for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from remat_cli.plan.worth import Slope, Worth
from remat_cli.reports.documents import document_json
from remat_cli.reports.style import Style, columns, render, title
from remat_cli.reports.words import cost_words, graph_words, size_column
from remat_cli.units import format_cost, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

_EXACT = 1e-9


def worth_text(worth: Worth, style: Style) -> str:
    """For each link a line per budget: the times of plans over no-remat, the bound, and what the next GB is worth."""
    from rich.text import Text

    graph = worth.graph
    base = cost_words(graph.total_cost, graph.cost_unit)
    parts: list[RenderableType] = [
        Text.assemble((style.clean(graph.name or "graph"), "bold"), f": {graph_words(graph)}; a step takes {base}"),
        "Time over that, by memory budget; and what the next GB of memory spares, as found and as far as proven:",
    ]
    for at, (name, host) in enumerate(worth.links):
        parts += [title(style.clean(name), f"  {host.words}"), columns(memory_cells(worth, at), style)]
    if len(worth.links) > 1:
        parts += [
            title("A faster link", " spares, for each GB/s more in both directions"),
            columns(link_cells(worth), style),
        ]
    if worth.interrupted:
        parts += ["", Text("interrupted: some links or budgets have no plan for that reason", style="yellow")]
    return render(style, *parts)


def memory_cells(worth: Worth, link: int) -> list[tuple[str, ...]]:
    """A head, and for each budget the times of plans over no-remat and what the next GB is worth."""
    head = ("budget", "in bytes", "recompute", "copy", "both", "at least", "next GB", "proven between")
    cells: list[tuple[str, ...]] = [head]
    sizes = size_column([amount for _, amount in worth.budgets])
    graph = worth.graph
    for place, (budget, _) in enumerate(worth.budgets):
        offer = worth.offer(link, place)
        times = [_over(time, graph.total_cost) for time in (offer.recompute, offer.copy, offer.both, offer.bound)]
        cells.append((budget, sizes[place], *times, *_slope(worth.memory(link, place), graph.cost_unit)))
    return cells


def link_cells(worth: Worth) -> list[tuple[str, ...]]:
    """A head, and for each pair of neighbouring links and each budget what a faster link is worth."""
    cells: list[tuple[str, ...]] = [("from, to", "budget", "next GB/s", "proven between")]
    for at in range(len(worth.links) - 1):
        for place, (budget, _) in enumerate(worth.budgets):
            step = f"{worth.links[at][0]}, {worth.links[at + 1][0]}"
            cells.append((step if place == 0 else "", budget, *_slope(worth.speed(at, place), worth.graph.cost_unit)))
    return cells


def _over(time: float | None, base: float) -> str:
    if time is None:
        return "no plan"
    share = time / base - 1 if base > 0 else 0.0
    return format_percent(share if share > _EXACT else 0.0)


def _slope(slope: Slope | None, unit: str) -> tuple[str, str]:
    if slope is None:
        return "", ""
    least, most = (_time(amount, unit) for amount in (slope.least, slope.most))
    return _time(slope.found, unit), f"{least} and {most}"


def _time(amount: float, unit: str) -> str:
    return format_cost(amount, unit) if amount > 0 else "0"


def _row(worth: Worth, link: int, budget: int) -> dict[str, Any]:
    offer = worth.offer(link, budget)
    row: dict[str, Any] = {
        "link": offer.link,
        "bandwidth_out": _limited(offer.host.out_bytes_per_s),
        "bandwidth_in": _limited(offer.host.in_bytes_per_s),
        "budget": offer.budget,
        "budget_bytes": offer.budget_bytes,
        "recompute": offer.recompute,
        "copy": offer.copy,
        "both": offer.both,
        "lower_bound": offer.bound,
        "gap": offer.gap,
    }
    for name, slope in (("per_GB", worth.memory(link, budget)), ("per_GB_per_s", worth.speed(link, budget))):
        row |= {
            name: None if slope is None else slope.found,
            f"{name}_least": None if slope is None else slope.least,
            f"{name}_most": None if slope is None else slope.most,
        }
    return row


def _limited(rate: float) -> float | None:
    return None if math.isinf(rate) else rate


def _rows(worth: Worth) -> list[dict[str, Any]]:
    return [_row(worth, at, place) for at in range(len(worth.links)) for place in range(len(worth.budgets))]


def worth_document(worth: Worth) -> Mapping[str, Any]:
    """As JSON values, ``remat-worth/1`` (schemas/worth-v1.json). Times are in the cost unit."""
    graph = worth.graph
    return {
        "schema": "remat-worth/1",
        "graph": {"name": graph.name, "nodes": len(graph.nodes), "edges": graph.edges},
        "cost_unit": graph.cost_unit,
        "no_remat_cost": graph.total_cost,
        "rows": _rows(worth),
        "interrupted": worth.interrupted,
    }


def worth_json(worth: Worth) -> str:
    """:func:`worth_document` as text."""
    return document_json(dict(worth_document(worth)))


def worth_csv(worth: Worth) -> str:
    """One line for each link and budget, with a header; missing values are empty."""
    rows = _rows(worth)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["link"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
