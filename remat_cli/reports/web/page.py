"""A page as data, and the file made from it: plotly.js embedded, no network, the same bytes every time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from remat_cli.errors import UsageError
from remat_cli.extras import install_command
from remat_cli.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

INK, PAPER = "#010203", "#FCFDFE"
"""Placeholders in charts for the colour of text and for a shade of the background; the page sets both."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of plotly's.

    Attributes:
        id: Of its element; unique on the page.
        traces: Plotly's ``data``.
        layout: Plotly's ``layout``, without colours of text and background: the page sets those, light or dark.
        height: In pixels.
        words: A description for screen readers.
        square: Whether it shares a line with its neighbour if there is room.
        logarithmic: The traces and the layout on a logarithmic scale; the page then has a switch.
        begins: The scale that is shown first, if there are two scales.
    """

    id: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    words: str
    square: bool = False
    logarithmic: tuple[Sequence[dict[str, Any]], dict[str, Any]] | None = None
    begins: Literal["linear", "logarithmic"] = "linear"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; ``shares``, where given, is a bar behind the last column of each row, 0 to 1.

    ``numbers`` is the number of columns at the right that hold numbers.
    """

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    shares: Sequence[float] = ()
    numbers: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a short text, and the charts and the table below it."""

    title: str
    note: str = ""
    charts: tuple[Chart, ...] = ()
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        title: Of the window, and the heading.
        verdict: The answer, in a few words; may be empty.
        good: Whether the answer is yes; None if there is no answer.
        facts: ``(name, text)``, shown first.
        sections: The rest.
        command: The command that made the page.
        problems: The findings, as sentences.
    """

    title: str
    verdict: str
    good: bool | None
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    command: str
    problems: Sequence[str] = ()


def render_page(page: Page) -> str:
    """``page`` as one HTML file.

    Raises:
        UsageError: If plotly or Jinja2 is not installed.
        ValueError: If a chart does not follow plotly's schema.
    """
    template = _template()
    charts = [chart for section in page.sections for chart in section.charts]
    return template.render(
        page=page,
        charts_json=_embeddable([_checked(chart) for chart in charts]),
        plotly_js=_plotly_js(),
        ink=INK,
        paper=PAPER,
        version=__version__,
    )


def label(text: str, most: int = 60) -> str:
    """``text`` for a chart: markup of plotly (``<b>`` and others) is escaped, and long names lose their middle."""
    half = (most - 1) // 2
    return escape(text if len(text) <= most else f"{text[:half]}…{text[-half:]}", quote=False)


def _checked(chart: Chart) -> dict[str, Any]:
    """The chart as JSON values, checked against plotly's schema."""
    checked = {"id": chart.id, "square": chart.square, **_figure(chart.traces, chart.layout)}
    if chart.logarithmic is not None:
        checked["logarithmic"] = _figure(*chart.logarithmic)
    return checked


def _figure(traces: Sequence[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
    import plotly.graph_objects as go
    from plotly.io.json import to_json_plotly

    figure = go.Figure(data=list(traces), layout={**layout, "template": "none"})
    document = json.loads(to_json_plotly(figure.to_plotly_json()))
    document["layout"].pop("template", None)
    return {"data": document["data"], "layout": document["layout"]}


def _embeddable(document: Any) -> str:
    """``document`` as JSON that is safe inside a script element."""
    text = json.dumps(document, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _template() -> Template:
    try:
        import plotly  # noqa: F401 - only to test whether it is installed
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed", hint=f"install it with: {install_command('plot')}") from None
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files(__package__).joinpath("page.html.jinja").read_text(encoding="utf-8"))
