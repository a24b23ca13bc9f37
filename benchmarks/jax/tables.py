"""The tables of ``docs/jax.md`` from the results: ``python -m benchmarks.jax.tables``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.{0 if size >= 1e8 else 1}f}"


def simulated(steps: dict[str, Any]) -> list[str]:
    """Peaks of values before and after contraction, and what XLA states."""
    lines = [
        "| step | primitive operations | operations of the graph | peak, one by one | peak of the graph | XLA |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, step in steps.items():
        peaks = " | ".join(_mb(step[key]) for key in ("op_by_op", "contracted", "xla"))
        lines.append(f"| {name} | {step['equations']:,} | {step['operations']} | {peaks} |")
    return lines


def planned(steps: dict[str, Any]) -> list[str]:
    """Peaks and times of steps that ran by plan."""
    lines = [
        "| step | budget | peak without recomputation | predicted | measured | same bits | FLOPs |",
        "| --- | ---: | ---: | ---: | ---: | :-: | ---: |",
    ]
    for name, step in steps.items():
        peaks = " | ".join(f"{step[key]:,} B" for key in ("no_remat", "predicted", "measured"))
        same = "yes" if step["identical"] else "no"
        lines.append(f"| {name} | {step['budget']} | {peaks} | {same} | +{step['recomputed']:.1%} |")
    return lines


def main() -> None:
    """Print both tables."""
    for part, table in (("simulate", simulated), ("run", planned)):
        found = json.loads((RESULTS / f"{part}.json").read_text(encoding="utf-8"))
        print("\n".join(table(found["steps"])), end="\n\n")


if __name__ == "__main__":
    main()
