"""The page of the overheads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.frame import Column, Table
from benchmarks.page import measured_on, written_table

TARGET = 0.05
"""Most time beyond what is recomputed, as a share of the step without recomputation."""
_HEAD = """\
# What running by plan costs

Made by `python -m benchmarks.overheads tensorflow` and `... jax`; do not edit. A step by plan beside the same
operations without recomputation, by the same program, on one core. Budgets are shares of the peak without
recomputation, and plans are for FLOPs. *extra*: how much longer the step by plan takes. *recomputed*: what the second
and later computations of operations take, each timed as the plan runs. Both are shares of the step without
recomputation. *beyond*: the difference, which is to stay below 5%. Steps with and without recomputation take turns,
and numbers are medians of {rounds}.
"""
_ROWS = Table(
    "overheads",
    "",
    (
        Column("model", "model"),
        Column("spec", "step"),
        Column("nodes", "nodes", "count"),
        Column("budget", "budget"),
        Column("recomputations", "recomputations", "count"),
        Column("plain_s", "without", "seconds"),
        Column("plan_s", "by plan", "seconds"),
        Column("extra", "extra"),
        Column("recomputed", "recomputed"),
        Column("beyond", "beyond"),
    ),
)


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of all frameworks that have been measured."""
    rounds = min(len(row["samples"]["plan"]) - 1 for found in results.values() for row in found["rows"].values())
    parts = [_HEAD.format(rounds=rounds)]
    for found in results.values():
        rows = found["rows"]
        version = ", ".join(sorted({row["version"] for row in rows.values()}))
        worst = max(row["beyond"] for row in rows.values())
        parts += [f"## {version}\n", written_table(_ROWS, [_row(name, row) for name, row in rows.items()])]
        parts.append(f"At most {worst:+.1%} beyond: the target is {'met' if worst < TARGET else 'missed'}.\n")
        dates = sorted({f"{row['date']} at commit {row['commit']}" for row in rows.values()})
        busy = [row["load"]["others_cores"] for row in rows.values()]
        known = [cores for cores in busy if cores is not None]
        load = f"; other programs used at most {max(known):.2f} of the core meanwhile" if known else ""
        parts.append(f"{', '.join(dates)}{load}.\n\nMeasured on: {measured_on(found)}\n")
    return "\n".join(parts)


def _row(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    shares = {key: f"{row[key]:+.1%}" for key in ("extra", "recomputed", "beyond")}
    return {**row, **shares, "model": name, "budget": f"{row['share']:.0%}"}
