"""The stages of a search: as they are planned, and as they went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from remat_cli.reports.style import Style, columns, render, title
from remat_cli.units import format_duration, format_percent

if TYPE_CHECKING:
    from remat_cli.strategies.engine import Stage


def pipeline_text(name: str, stages: Sequence[Stage], style: Style) -> str:
    """What a strategy tries, in order: when, for how long, and why.

    Args:
        name: Of the strategy.
        stages: Its stages.
        style: Where it goes.
    """
    rows = [("stage", "of the time left", "why, and when"), *_planned(stages, 0)]
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for cells in zip(*rows, strict=True):
        last = cells[0] == rows[0][-1]
        grid.add_column(no_wrap=not last, overflow="fold", ratio=1 if last else None)
    for name_of, share, why in rows:
        grid.add_row(f"  {name_of}", share, why)
    return render(style, title(f"stages of {name}"), grid)


def _planned(stages: Sequence[Stage], depth: int) -> Iterator[tuple[str, str, str]]:
    for stage in stages:
        most = "" if math.isinf(stage.most_s) else f", {format_duration(stage.most_s)} at most"
        when = f" (when {stage.when.text})" if stage.when.text else ""
        yield f"{'  ' * depth}{stage.name}", f"{stage.share:.0%}{most}", f"{stage.why}{when}"
        if isinstance(stage.engine, tuple):
            yield from _planned(stage.engine, depth + 1)


def pipeline_rows(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {
            "stage": stage.name,
            "why": stage.why,
            "when": stage.when.text,
            "share": stage.share,
            "most_s": None if math.isinf(stage.most_s) else stage.most_s,
            "options": dict(stage.options),
            "stages": pipeline_rows(stage.engine) if isinstance(stage.engine, tuple) else [],
        }
        for stage in stages
    ]


def trace_text(stages: Sequence[Mapping[str, Any]], base_cost: float, style: Style) -> str:
    """What every stage of a search took and what stood when it ended.

    Args:
        stages: ``stages`` of a plan's ``run``.
        base_cost: Cost without recomputation.
        style: Where it goes.
    """
    rows = [("stage", "time", "plan", "gained", "bound", "")]
    for stage in stages:
        name = f"{'  ' * stage.get('within', 0)}{stage['stage']}"
        took = format_duration(stage["seconds"]) if "seconds" in stage else "stopped"
        gained = format_percent(stage["gained"] / base_cost) if base_cost and stage.get("gained") else ""
        stood = _over(stage, "cost", base_cost), gained, _over(stage, "bound", base_cost)
        rows.append((name, took, *stood, stage.get("note", "")))
    return render(style, title("stages", ": cost over no-remat when each ended"), columns(rows, style))


def _over(stage: Mapping[str, Any], key: str, base_cost: float) -> str:
    """A cost as a share over that without recomputation."""
    if key not in stage or not base_cost:
        return "-"
    return f"+{format_percent(max(0.0, stage[key] / base_cost - 1))}"
