"""Replaces single rows of a stored result by new measurements; the result records which, when and at what commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.frame import Benchmark, Row


def merged(benchmark: Benchmark, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``old`` with the rows of ``new`` in place of those of the same name.

    A row that ``old`` does not have is inserted after the last one with the same first column. The circumstances of
    ``old`` stay; ``again`` lists those of the new rows, and of earlier ones that are still there.

    Args:
        benchmark: The benchmark; its tables state the columns that name a row.
        old: The stored result.
        new: The result of some rows.
    """
    measured = {_name(benchmark, row): row for row in new["rows"]}
    rows = [measured.get(_name(benchmark, row), row) for row in old["rows"]]
    present = {_name(benchmark, row) for row in rows}
    for name, row in measured.items():
        if name not in present:
            alike = [k for k, other in enumerate(rows) if _name(benchmark, other)[:2] == name[:2]]
            rows.insert(alike[-1] + 1 if alike else len(rows), row)
    texts = [" ".join(name[1:]) for name in measured]
    again = []
    for record in old.get("again", ()):
        kept = [text for text in record["rows"] if text not in texts]
        again += [{**record, "rows": kept}] if kept else []
    again.append({**{key: value for key, value in new.items() if key != "benchmark"}, "rows": texts})
    return {**old, "again": again, "rows": rows}


def _name(benchmark: Benchmark, row: Row) -> tuple[str, ...]:
    """The name of a row: its table, and its values in the columns that name it."""
    table = next(table for table in benchmark.tables if table.key == row["table"])
    return (table.key, *(str(row[key]) for key in table.named_by))
