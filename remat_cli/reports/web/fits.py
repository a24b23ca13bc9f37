"""The page of ``remat fits``: the memory of every way to train as bars, by what it is for."""

from typing import Any

from remat_cli.reports.charts import BUDGET, COLOURS
from remat_cli.reports.fits import CONTEXT, FitsFacts, details, fits_table, verdict
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
    sections = [Section("Memory", note, (_bars(facts),), fits_table(facts, fits_mark="fits"))]
    if facts.advice:
        said = "; ".join(f"{format_bytes(size)} {sentence}" for size, sentence in facts.advice)
        sections.append(Section("What to change first", f"{said}."))
    good = {"yes": True, "no": False}.get(word)
    shown = [("model", f"{facts.title}; {facts.sizes}; {facts.optimizer}"), ("answer", why), *details(facts)]
    return Page(title=f"Will {facts.title} fit?", facts=shown, sections=sections, verdict=word, good=good)


def _bars(facts: FitsFacts) -> Chart:
    names = [*dict.fromkeys(name for choice in facts.choices for name in choice.parts), CONTEXT]
    rows = [choice.name for choice in reversed(facts.choices)]  # plotly draws the first one at the bottom
    traces: list[dict[str, Any]] = []
    for at, name in enumerate(names):
        parts = [dict(choice.parts) | {CONTEXT: facts.context_bytes} for choice in reversed(facts.choices)]
        colour = COLOURS[at % len(COLOURS)]
        shape = _SHAPES[at // len(COLOURS) % len(_SHAPES)]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "x": [part.get(name, 0) / _GB for part in parts],
                "y": rows,
                "customdata": [format_bytes(part.get(name, 0)) for part in parts],
                "hovertemplate": f"{name}: %{{customdata}}<extra>%{{y}}</extra>",
                "marker": {"color": colour, "pattern": hatching(shape, colour)},
            }
        )
    line = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": BUDGET, "width": 2}}
    memory = facts.memory_bytes / _GB
    most = max(memory, *(choice.total_bytes / _GB for choice in facts.choices))
    layout = {
        "barmode": "stack",
        "shapes": [line | {"x0": memory, "x1": memory}],
        "xaxis": {"title": {"text": "memory (GB)"}, "showgrid": False, "range": [0, 1.03 * most]},
        "yaxis": {"automargin": True},
        "legend": {"orientation": "h", "y": -0.35, "traceorder": "normal"},
        "margin": {"l": 10, "r": 20, "t": 10, "b": 10},
    }
    words = "; ".join(f"{choice.name}: {format_bytes(choice.total_bytes)}" for choice in facts.choices)
    return Chart("memory", traces, layout, 160 + 50 * len(rows) + 24 * len(names) // 2, f"Memory of a step. {words}")
