"""The time that more memory and a faster link save: as text, as CSV, and as a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from remat_cli.plan.comparison import Offer, Slope, Worth
from remat_cli.reports.documents import rate_limit
from remat_cli.reports.style import Style, render, title
from remat_cli.reports.table import Column, Format, Table, each
from remat_cli.reports.words import cost_words, graph_words, percent_over, size_column

if TYPE_CHECKING:
    from rich.console import RenderableType


def worth_text(worth: Worth, style: Style) -> str:
    """For each link a line per budget: the times of plans over no-remat, the bound, and what the next GB is worth."""
    from rich.text import Text

    graph = worth.graph
    base = cost_words(graph.no_remat_cost, graph.cost_unit)
    parts: list[RenderableType] = [
        Text.assemble((style.clean(graph.name or "graph"), "bold"), f": {graph_words(graph)}; a step takes {base}"),
        "Time over that, by memory budget; and what the next GB of memory spares, as found and as far as proven:",
    ]
    for at, (name, host) in enumerate(worth.links):
        parts += [title(style.clean(name), f"  {host.words}"), memory_table(worth, at).text(style)]
    if len(worth.links) > 1:
        parts += [
            title("A faster link", " spares, for each GB/s more in both directions"),
            links_table(worth).text(style),
        ]
    if worth.interrupted:
        parts += ["", Text("interrupted: some links or budgets have no plan for that reason", style="yellow")]
    return render(style, *parts)


@dataclass(frozen=True, slots=True)
class Point:
    """One link at one budget.

    Attributes:
        links: The names of the link and of the next one, as ``pcie3, pcie4``; empty but for the first budget.
        offer: The times of plans, and the bound.
        memory: The time that a GB of memory more saves, up to the next budget; None for the last one.
        speed: The time that a GB/s more saves, up to the next link; None for the last one.
    """

    links: str
    offer: Offer
    memory: Slope | None
    speed: Slope | None


def _points(worth: Worth, links: Sequence[int]) -> list[Point]:
    names = [name for name, _ in worth.links]
    return [
        Point(
            ", ".join(names[link : link + 2]) if budget == 0 else "",
            worth.offer(link, budget),
            worth.memory(link, budget),
            worth.speed(link, budget),
        )
        for link in links
        for budget in range(len(worth.budgets))
    ]


def memory_table(worth: Worth, link: int) -> Table[Point]:
    """For each budget the times of plans over no-remat, and what the next GB is worth."""
    base, unit = worth.graph.no_remat_cost, worth.graph.cost_unit
    over = each(lambda time: percent_over(time / base - 1 if base > 0 else 0.0))
    columns: list[Column[Point]] = [
        Column("budget", lambda point: point.offer.budget, numeric=False),
        Column("in bytes", lambda point: point.offer.budget_bytes, size_column),
        Column("recompute", lambda point: point.offer.recompute, over, missing="no plan"),
        Column("copy", lambda point: point.offer.copy, over, missing="no plan"),
        Column("both", lambda point: point.offer.both, over, missing="no plan"),
        Column("at least", lambda point: point.offer.bound, over),
        Column("next GB", attrgetter("memory"), _found(unit)),
        Column("proven between", attrgetter("memory"), _proven(unit)),
    ]
    return Table(columns, _points(worth, [link]))


def links_table(worth: Worth) -> Table[Point]:
    """For each pair of neighbouring links and each budget what a faster link is worth."""
    unit = worth.graph.cost_unit
    columns: list[Column[Point]] = [
        Column("from, to", attrgetter("links"), numeric=False),
        Column("budget", lambda point: point.offer.budget),
        Column("next GB/s", attrgetter("speed"), _found(unit)),
        Column("proven between", attrgetter("speed"), _proven(unit)),
    ]
    return Table(columns, _points(worth, range(len(worth.links) - 1)))


def _found(unit: str) -> Format:
    return each(lambda slope: _time(slope.found, unit))


def _proven(unit: str) -> Format:
    return each(lambda slope: f"{_time(slope.least, unit)} and {_time(slope.most, unit)}")


def _time(amount: float, unit: str) -> str:
    return cost_words(amount, unit) if amount > 0 else "0"


def _rows(worth: Worth) -> Table[Point]:
    """All points for programs; None for what is not known."""

    def slope(name: str, of: Callable[[Point], Slope | None]) -> list[Column[Point]]:
        def part(key: str) -> Callable[[Point], Any]:
            return lambda point: None if (found := of(point)) is None else getattr(found, key)

        return [
            Column(name, part("found")),
            Column(f"{name}_least", part("least")),
            Column(f"{name}_most", part("most")),
        ]

    columns: list[Column[Point]] = [
        Column("link", lambda point: point.offer.link),
        Column("bandwidth_out", lambda point: rate_limit(point.offer.host.out_bytes_per_s)),
        Column("bandwidth_in", lambda point: rate_limit(point.offer.host.in_bytes_per_s)),
        Column("budget", lambda point: point.offer.budget),
        Column("budget_bytes", lambda point: point.offer.budget_bytes),
        Column("recompute", lambda point: point.offer.recompute),
        Column("copy", lambda point: point.offer.copy),
        Column("both", lambda point: point.offer.both),
        Column("lower_bound", lambda point: point.offer.bound),
        Column("gap", lambda point: point.offer.gap),
        *slope("per_GB", attrgetter("memory")),
        *slope("per_GB_per_s", attrgetter("speed")),
    ]
    return Table(columns, _points(worth, range(len(worth.links))))


def worth_document(worth: Worth) -> dict[str, Any]:
    """As JSON values, ``remat-worth/1`` (schemas/worth-v1.json). Times are in the cost unit."""
    graph = worth.graph
    return {
        "schema": "remat-worth/1",
        "graph": {"name": graph.name, "nodes": len(graph.nodes), "edges": graph.edges},
        "cost_unit": graph.cost_unit,
        "no_remat_cost": graph.no_remat_cost,
        "rows": _rows(worth).records(),
        "interrupted": worth.interrupted,
    }


def worth_csv(worth: Worth) -> str:
    """One line for each link and budget, with a header; missing values are empty."""
    return _rows(worth).csv()
