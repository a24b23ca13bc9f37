"""Batches for sequences of several lengths: a table, and the lists that loaders of batches take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.words import percent_over
from remat_cli.tolerances import SAME_COST
from remat_cli.units import format_bytes

_PER_S = 1e6
"""Microseconds in a second."""


@dataclass(frozen=True, slots=True)
class ChoiceFacts:
    """A way to train.

    Attributes:
        name: What is recomputed.
        parts: Bytes by what they are for, without the context of the device.
        total_bytes: All bytes that it takes from the device.
        cost: What a step costs, in the unit of the graph.
        lower_bound: No plan within the memory costs less; None if nothing is known.
        regions: In how many parts regions run, by their ids; none if all operations are whole.
    """

    name: str
    parts: Mapping[str, int]
    total_bytes: int
    cost: float
    lower_bound: float | None
    regions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CoveredFacts:
    """The sizes at which one plan is proven to take no more than at the largest of them.

    Attributes:
        batches: The least and the largest batch.
        lengths: The least and the largest length.
        peak_bytes: Bytes of tensors at the peak.
        proof: ``expressions`` or ``enumeration``.
    """

    batches: tuple[int, int]
    lengths: tuple[int, int]
    peak_bytes: int
    proof: str


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """Sequences up to a length.

    Attributes:
        length: The length.
        without: The largest batch without recomputation; 0 if even one sequence does not fit.
        without_cost: What its step costs.
        batch: The largest batch at one more forward pass at most; 0 if even one sequence does not fit.
        cost: What its step costs.
        base_cost: What that would cost without recomputation.
        too_much: No plan fits this batch; None if none is known.
        covered: The sizes for which its plan holds; None if that is not proven.
        choices: Ways to train that batch.
        cut_short: Whether the time limit ended the search for a larger one.
    """

    length: int
    without: int
    without_cost: float | None
    batch: int
    cost: float | None
    base_cost: float | None
    too_much: int | None
    covered: CoveredFacts | None
    choices: tuple[ChoiceFacts, ...]
    cut_short: bool = False

    @property
    def overhead(self) -> float | None:
        """The extra cost of the plan, as a share."""
        if self.cost is None or not self.base_cost:
            return None
        return max(0.0, self.cost / self.base_cost - 1)


def tokens_per_s(batch: int, length: int, cost: float | None, cost_unit: str) -> float | None:
    """Tokens per second; None if costs are no times."""
    return None if not cost or cost_unit != "us" else batch * length / cost * _PER_S


def bucket_columns(cost_unit: str) -> list[Column[BucketFacts]]:
    """The columns of a table of buckets."""

    def rate(batch: int, length: int, cost: float | None) -> float | None:
        return tokens_per_s(batch, length, cost, cost_unit)

    number, speed = each(lambda n: f"{n:,}"), each(lambda n: f"{n:,.0f}")
    columns: list[Column[BucketFacts]] = [
        Column("sequences\nup to", lambda row: row.length, number),
        Column("batch without\nrecomputation", lambda row: row.without, number),
        Column("tokens/s", lambda row: rate(row.without, row.length, row.without_cost), speed),
        Column("batch with\na plan", lambda row: row.batch, number),
        Column("no plan\nfits", lambda row: row.too_much, number),
        Column("extra\ntime", lambda row: row.overhead, each(extra_words)),
        Column("tokens/s", lambda row: rate(row.batch, row.length, row.cost), speed),
        Column("one plan\nat most", lambda row: row.covered, each(_covered), missing="not proven"),
    ]
    return columns if cost_unit == "us" else [column for column in columns if column.title != "tokens/s"]


def bucket_table(rows: Sequence[BucketFacts], cost_unit: str, *, lines: bool = False) -> Table[BucketFacts]:
    """A table of buckets; with ``lines``, its headings have two lines, for texts."""
    columns = bucket_columns(cost_unit)
    if not lines:
        columns = [replace(column, title=column.title.replace("\n", " ")) for column in columns]
    return Table(columns, rows)


def extra_words(share: float) -> str:
    """An overhead in words."""
    return "none" if share <= SAME_COST else f"+{percent_over(share)}"


def _covered(proof: CoveredFacts) -> str:
    return format_bytes(proof.peak_bytes)


def what_the_time_decided(rows: Sequence[BucketFacts]) -> str:
    """For which buckets more time may find larger batches; empty if for none."""
    lengths = [f"{row.length:,}" for row in rows if row.cut_short]
    if not lengths:
        return ""
    words = f"{', '.join(lengths[:-1])} and {lengths[-1]}" if len(lengths) > 1 else lengths[0]
    return (
        f"for sequences up to {words}, the time limit ended the search for larger batches: more time may find some, up "
        "to those that no plan fits, and a busy machine finds fewer"
    )


def what_one_plan_covers(rows: Sequence[BucketFacts]) -> str:
    """What is proven of the plans of buckets; empty if nothing is."""
    proofs = [row.covered for row in rows if row.covered is not None]
    if not proofs:
        return ""
    least = max(proof.lengths[0] for proof in proofs)
    alone = [proof for proof in proofs if proof.batches == (1, 1)]
    batches = "a batch of 1" if len(alone) == len(proofs) else "all batches from 2 to the one in the table"
    batches += ", or 1 where the table has 1," if alone and len(alone) < len(proofs) else ""
    return (
        f"proven for {batches} and all lengths from {least:,} to that of the bucket: the tensors of one plan take no "
        "more; gaps that an allocator leaves as lengths change are not in it"
    )


def buckets_document(rows: Sequence[BucketFacts], cost_unit: str) -> dict[str, Any]:
    """As JSON values: the lists for loaders, and a row for each bucket."""
    fitting = [row for row in rows if row.batch]
    without = [row for row in rows if row.without]
    return {
        "with_plan": _lists([(row.length, row.batch) for row in fitting]),
        "without_remat": _lists([(row.length, row.without) for row in without]),
        "rows": [
            {
                "length": row.length,
                "without_remat": {
                    "batch": row.without,
                    "cost": row.without_cost,
                    "tokens_per_s": tokens_per_s(row.without, row.length, row.without_cost, cost_unit),
                },
                "with_plan": {
                    "batch": row.batch,
                    "cost": row.cost,
                    "no_remat_cost": row.base_cost,
                    "tokens_per_s": tokens_per_s(row.batch, row.length, row.cost, cost_unit),
                },
                "too_much": row.too_much,
                "cut_short": row.cut_short,
                "covered": None
                if row.covered is None
                else {
                    "batches": list(row.covered.batches),
                    "lengths": list(row.covered.lengths),
                    "peak": row.covered.peak_bytes,
                    "proof": row.covered.proof,
                },
                "choices": [{"name": c.name, "memory": c.total_bytes, "parts": dict(c.parts)} for c in row.choices],
            }
            for row in rows
        ],
    }


def _lists(pairs: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    return {
        "lengths": [length for length, _ in pairs],
        "boundaries": [length + 1 for length, _ in pairs],  # loaders take them as the first length beyond a bucket
        "batch_sizes": [batch for _, batch in pairs],
    }
