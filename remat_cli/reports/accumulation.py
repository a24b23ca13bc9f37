"""A batch in parts whose gradients are added up: a table of all sizes of parts, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.reports.buckets import ChoiceFacts, extra_words
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.words import cost_words
from remat_cli.units import format_bytes

ASSUMED = "of a batch in parts, a plan holds the gradients of a part until its end; adding them up takes no time"


@dataclass(frozen=True, slots=True)
class PartedFacts:
    """A batch in equal parts.

    Attributes:
        batch: Sequences or images of a part.
        parts: How many parts.
        length: Tokens of a sequence; 0 for images.
        name: The cheapest way that fits; empty if none was found.
        total_bytes: What it takes from the device.
        cost: What all parts cost, without the step of the optimizer; None if none fits.
        overhead: The extra cost of the way, as a share.
        impossible: Whether it is proven that no plan fits.
        choices: Ways to train a part.
    """

    batch: int
    parts: int
    length: int
    name: str
    total_bytes: int | None
    cost: float | None
    overhead: float | None
    impossible: bool
    choices: tuple[ChoiceFacts, ...]

    def rate(self, cost_unit: str) -> float | None:
        """Tokens, or images, per second; None if costs are no times."""
        if not self.cost or cost_unit != "us":
            return None
        return self.batch * self.parts * max(1, self.length) / self.cost * 1e6

    @property
    def way(self) -> str:
        """The way in words."""
        return self.name or ("no plan fits" if self.impossible else "none found")


def best_of(rows: Sequence[PartedFacts]) -> PartedFacts | None:
    """The cheapest parts that fit; of equal ones, the largest. None if none fit."""
    return min((row for row in rows if row.cost is not None), key=lambda row: row.cost or 0.0, default=None)


def parted_table(rows: Sequence[PartedFacts], cost_unit: str, *, lines: bool = False) -> Table[PartedFacts]:
    """A table of the parts; with ``lines``, headings have two lines, for texts."""
    number, unit = each(lambda n: f"{n:,}"), "tokens/s" if rows[0].length else "images/s"
    best = best_of(rows)
    columns: list[Column[PartedFacts]] = [
        Column("part", lambda row: row.batch, number),
        Column("parts", lambda row: row.parts, number),
        Column("way", lambda row: row.way, numeric=False, look=lambda row: "bold" if row is best else ""),
        Column("extra\ntime" if lines else "extra time", lambda row: row.overhead, each(extra_words)),
        Column("memory", lambda row: row.total_bytes, each(format_bytes)),
        Column("time", lambda row: row.cost, each(lambda cost: cost_words(cost, cost_unit))),
        Column(unit, lambda row: row.rate(cost_unit), each(lambda n: f"{n:,.0f}")),
    ]
    return Table(columns if cost_unit == "us" else columns[:-1], rows)


def best_words(rows: Sequence[PartedFacts]) -> str:
    """What to choose, in words."""
    best = best_of(rows)
    if best is None:
        return "no part was found to fit"
    whole = f"in {best.parts:,} parts of {best.batch:,}" if best.parts > 1 else f"all {best.batch:,} at once"
    return f"{whole}, {best.name}: the least time of those that fit"


def parted_document(rows: Sequence[PartedFacts], cost_unit: str) -> dict[str, Any]:
    """As JSON values."""
    best = best_of(rows)
    return {
        "global_batch": rows[0].batch * rows[0].parts,
        "best": None if best is None else best.batch,
        "rows": [
            {
                "batch": row.batch,
                "parts": row.parts,
                "way": row.name or None,
                "memory": row.total_bytes,
                "cost": row.cost,
                "overhead": row.overhead,
                "rate": row.rate(cost_unit),
                "impossible": row.impossible,
                "choices": [{"name": c.name, "memory": c.total_bytes, "parts": dict(c.parts)} for c in row.choices],
            }
            for row in rows
        ],
    }
