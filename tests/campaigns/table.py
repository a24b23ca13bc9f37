"""Results of campaigns as a document that grows, and as a page."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaigns.engine import CASES, FAULTS, FUZZ, Tally

CLASSES = (
    ("tracebacks", r"traceback| at [\w.]+:\d+|exit (-|70)|died"),
    ("half files", r"file|litter|saved rows|characters$"),
    ("orphans", r"orphans|temporary files left"),
    ("wrong answers", r"false|invalid|hint|peak|order|bytes|no without|wrong|table"),
)
"""Classes of failures, with what their kinds look like; the first that fits counts, and the rest is ``other``."""


def class_of(kind: str) -> str:
    """The class of a kind of failure."""
    if kind.endswith("control characters"):
        return "other"
    return next((name for name, pattern in CLASSES if re.search(pattern, kind)), "other")


def record(path: Path, campaign: str, seed: int, minutes: float, tally: Tally, version: str) -> None:
    """Add a run to the document at ``path``, and write the page beside it."""
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    runs.append(
        {
            "campaign": campaign,
            "seed": seed,
            "minutes": round(minutes, 1),
            "counts": dict(sorted(tally.counts.items())),
            "failures": dict(sorted(tally.failures.items())),
            "remat": version,
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page(runs), encoding="utf-8")


def page(runs: Sequence[dict[str, Any]]) -> str:
    """All runs in one table, and every kind of failure in another."""
    names = [name for name, _ in CLASSES] + ["other"]
    lines = [
        "# Campaigns",
        "",
        "Written by `make fuzz` and `make faults` ([how to read it](../../../docs/campaigns.md)).",
        "",
        f"| campaign | cases | of the long run | {' | '.join(names)} | what came of the cases |",
        f"|---|---:|---:|{'---:|' * len(names)}---|",
    ]
    kinds: Counter[tuple[str, str]] = Counter()
    for campaign in (*FUZZ, *FAULTS):
        own = [run for run in runs if run["campaign"] == campaign.name]
        if not own:
            continue
        counts: Counter[str] = Counter()
        classes: Counter[str] = Counter()
        for run in own:
            counts.update(run["counts"])
            for kind, times in run["failures"].items():
                classes[class_of(kind)] += times
                kinds[campaign.name, kind] += times
        cases = counts.pop(CASES, 0)
        came = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
        failed = " | ".join(f"{classes[name]:,}" for name in names)
        lines.append(f"| {campaign.name} | {cases:,} | {cases / campaign.goal:.1%} | {failed} | {came} |")
    if kinds:
        lines += ["", "| campaign | failure | times |", "|---|---|---:|"]
        lines += [f"| {name} | {kind.replace('|', '/')} | {times:,} |" for (name, kind), times in sorted(kinds.items())]
    seeds = ", ".join(f"{run['campaign']} {run['seed']} ({run['minutes']:g} min)" for run in runs)
    lines += ["", f"Seeds and minutes: {seeds}.", f"Of remat: {', '.join(sorted({run['remat'] for run in runs}))}."]
    return "\n".join(lines) + "\n"
