"""The page of ``remat fits``: the memory of every way to train as bars, by what it is for."""

from collections.abc import Mapping, Sequence
from typing import Any

from remat_cli.reports.accumulation import parted_table
from remat_cli.reports.buckets import ChoiceFacts, bucket_table
from remat_cli.reports.charts import BUDGET, COLOURS
from remat_cli.reports.fits import CONTEXT, FitsFacts, details, fits_table, model_words, verdict
from remat_cli.reports.web.page import Chart, Page, Section, hatching
from remat_cli.units import format_bytes

_GB = 1e9
_SHAPES = ("", "/", ".", "x")
"""Patterns that tell bars of one colour apart: one for each round through the colours."""


def fits_page(facts: FitsFacts) -> Page:
    """The page of an answer."""
    word, why, _ = verdict(facts)
    note = (
        "At the peak of each way to train, by what the memory is for. The line is the memory of the card. "
        "Times and bounds are below."
    )
    sections = [
        Section("Memory", note, (_bars("memory", {"": facts.choices}, facts),), fits_table(facts, fits_mark="fits"))
    ]
    if facts.buckets:
        sections.append(_by_length(facts))
    if facts.parted:
        sections.append(_in_parts(facts))
    if facts.advice:
        said = "; ".join(f"{format_bytes(size)} {sentence}" for size, sentence in facts.advice)
        sections.append(Section("What to change first", f"{said}."))
    good = {"yes": True, "no": False}.get(word)
    shown = [("model", model_words(facts)), ("answer", why), *details(facts)]
    return Page(title=f"Will {facts.title} fit?", facts=shown, sections=sections, verdict=word, good=good)


def _by_length(facts: FitsFacts) -> Section:
    """The batches of all lengths: a bar for each way to train them, and the table."""
    groups = {f"{row.batch:,} × {row.length:,}": row.choices for row in facts.buckets if row.choices}
    note = (
        "The largest batch with a plan for each length, as sequences × tokens, and what it takes at the peak of each "
        "way to train. The line is the memory of the card."
    )
    return Section(
        "Batches by length",
        note,
        (_bars("lengths", groups, facts),) if groups else (),
        bucket_table(facts.buckets, facts.cost_unit),
    )


def _in_parts(facts: FitsFacts) -> Section:
    """The parts of a batch: a bar for each way to train a part, and the table."""
    groups = {f"{row.parts:,} × {row.batch:,}": row.choices for row in facts.parted if row.choices}
    note = (
        "Parts × sequences or images of a part, and what a part takes at the peak of each way to train, with the "
        "gradients of earlier parts. The line is the memory of the card."
    )
    bars = (_bars("parts", groups, facts),) if groups else ()
    return Section("A batch in parts", note, bars, parted_table(facts.parted, facts.cost_unit))


def _parts(facts: FitsFacts) -> list[str]:
    """What memory is for, in an order in which it has the same colour in every chart of the page."""
    groups = [facts.choices, *(row.choices for row in facts.buckets), *(row.choices for row in facts.parted)]
    return [*dict.fromkeys(part for choices in groups for choice in choices for part in choice.parts), CONTEXT]


def _bars(name: str, groups: Mapping[str, Sequence[ChoiceFacts]], facts: FitsFacts) -> Chart:
    """A bar for each choice of each group, the first at the top; an only group has no label."""
    bars = [(group, choice) for group, choices in groups.items() for choice in choices][::-1]
    names = _parts(facts)
    used = {part for _, choice in bars for part in choice.parts} | {CONTEXT}
    labels: list[Any] = [choice.name for _, choice in bars]
    rows = labels if len(groups) == 1 else [[group for group, _ in bars], labels]
    traces: list[dict[str, Any]] = []
    for at, part in enumerate(names):
        if part not in used:
            continue
        sizes = [(dict(choice.parts) | {CONTEXT: facts.context_bytes}).get(part, 0) for _, choice in bars]
        colour = COLOURS[at % len(COLOURS)]
        shape = _SHAPES[at // len(COLOURS) % len(_SHAPES)]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": part,
                "x": [size / _GB for size in sizes],
                "y": rows,
                "customdata": list(map(format_bytes, sizes)),
                "hovertemplate": f"{part}: %{{customdata}}<extra>%{{y}}</extra>",
                "marker": {"color": colour, "pattern": hatching(shape, colour)},
            }
        )
    line = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": BUDGET, "width": 2}}
    memory = facts.memory_bytes / _GB
    most = max(memory, *(choice.total_bytes / _GB for _, choice in bars))
    layout = {
        "barmode": "stack",
        "shapes": [line | {"x0": memory, "x1": memory}],
        "xaxis": {"title": {"text": "memory (GB)"}, "showgrid": False, "range": [0, 1.03 * most]},
        "yaxis": {"automargin": True},
        "legend": {"orientation": "h", "y": -0.35 * 4 / max(4, len(bars)), "traceorder": "normal"},
        "margin": {"l": 10, "r": 20, "t": 10, "b": 10},
    }
    words = "; ".join(
        f"{group + ', ' if len(groups) > 1 else ''}{choice.name}: {format_bytes(choice.total_bytes)}"
        for group, choice in reversed(bars)
    )
    return Chart(name, traces, layout, 160 + 50 * len(bars) + 24 * len(used) // 2, f"Memory of a step. {words}")
