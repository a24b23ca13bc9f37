"""The stages of a search, as text and as JSON values: what a strategy tries in order, and how its stages went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from remat_cli.reports.style import Style, render, title
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.words import percent_over
from remat_cli.units import format_duration, format_percent

if TYPE_CHECKING:
    from remat_cli.strategies.engine import Stage


def pipeline_text(name: str, stages: Sequence[Stage], style: Style) -> str:
    """What a strategy tries, in order: when, for how long, and why."""
    columns: list[Column[Sequence[str]]] = [
        Column("stage", itemgetter(0), numeric=False),
        Column("of the time left", itemgetter(1), numeric=False),
        Column("why, and when", itemgetter(2), numeric=False, wraps=True),
    ]
    return render(style, title(f"stages of {name}"), Table(columns, list(_pipeline_rows(stages, 0))).text(style))


def _pipeline_rows(stages: Sequence[Stage], depth: int) -> Iterator[tuple[str, str, str]]:
    """Name, share of the time, and purpose of every stage; the stages of a stage follow it, indented."""
    for stage in stages:
        most = "" if math.isinf(stage.most_s) else f", {format_duration(stage.most_s)} at most"
        when = f" (when {stage.when.text})" if stage.when.text else ""
        yield f"{'  ' * depth}{stage.name}", f"{stage.share:.0%}{most}", f"{stage.why}{when}"
        if isinstance(stage.engine, tuple):
            yield from _pipeline_rows(stage.engine, depth + 1)


def pipeline_document(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """The stages as JSON values."""
    return [
        {
            "stage": stage.name,
            "why": stage.why,
            "when": stage.when.text,
            "share": stage.share,
            "most_s": None if math.isinf(stage.most_s) else stage.most_s,
            "options": dict(stage.options),
            "stages": pipeline_document(stage.engine) if isinstance(stage.engine, tuple) else [],
        }
        for stage in stages
    ]


def trace_text(stages: Sequence[Mapping[str, Any]], base_cost: float, style: Style) -> str:
    """What every stage of a search took, and the best plan and bound when it ended."""

    def over(name: str, key: str) -> Column[Mapping[str, Any]]:
        """A cost as a share over that without recomputation."""
        write = each(lambda cost: f"+{percent_over(cost / base_cost - 1)}")
        return Column(name, lambda stage: stage.get(key) if base_cost else None, write, missing="-")

    columns: list[Column[Mapping[str, Any]]] = [
        Column("stage", lambda stage: "  " * stage.get("within", 0) + stage["stage"], numeric=False),
        Column("time", lambda stage: stage.get("seconds"), each(format_duration), missing="stopped"),
        over("plan", "cost"),
        Column(
            "gained",
            lambda stage: stage.get("gained") or None if base_cost else None,
            each(lambda cost: format_percent(cost / base_cost)),
        ),
        over("bound", "bound"),
        Column("", lambda stage: stage.get("note")),
    ]
    heading = title("stages", ": cost over no-remat when each ended")
    return render(style, heading, Table(columns, stages).text(style))
