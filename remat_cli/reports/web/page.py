"""A page as data, and the file made from it: the same bytes every time, and no network but for ``cdn``.

What is large (plotly.js, and the data of the charts) is in the file as gzip, which browsers unpack themselves.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from remat_cli.printable import printable
from remat_cli.reports.table import Table
from remat_cli.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

INK, PAPER = "#010203", "#FCFDFE"
"""Placeholders in charts for the colour of text and for a shade of the background; ``page.js`` sets both."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of plotly's.

    Attributes:
        id: Of its element; unique on the page.
        traces: Plotly's ``data``.
        layout: Plotly's ``layout``, without colours of text and background: the page sets those, light or dark.
        height: In pixels.
        words: A description for screen readers, with the numbers that matter most.
        moves_with: Charts with the same name here always show the same part of the horizontal axis; may be empty.
        square: Whether it shares a line with its neighbour if there is room.
        logarithmic: The traces and the layout on a logarithmic scale; the page then has a switch.
        begins: The scale that is shown first, if there are two scales.
        numbers: What the chart shows, in numbers; a reader unfolds it below the chart.
        numbers_title: What is unfolded.
    """

    id: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int
    words: str
    moves_with: str = ""
    square: bool = False
    logarithmic: tuple[Sequence[dict[str, Any]], dict[str, Any]] | None = None
    begins: Literal["linear", "logarithmic"] = "linear"
    numbers: Table[Any] | None = None
    numbers_title: str = "The chart in numbers"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a short text, and the charts and the table below it.

    ``search`` is the label of a box above the charts in which nodes are searched; one section of a page may have it.
    """

    title: str
    note: str = ""
    charts: tuple[Chart, ...] = ()
    table: Table[Any] | None = None
    search: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        title: Of the window, and the heading.
        facts: ``(name, text)``, shown first.
        sections: The rest.
        verdict: The answer, in a few words; may be empty.
        good: Whether the answer is yes; None if there is no answer.
        problems: The findings, as sentences.
        script: The name of the script that prepares the charts, without its suffix; empty for none.
        data: JSON values for that script.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    verdict: str = ""
    good: bool | None = None
    problems: Sequence[str] = ()
    script: str = ""
    data: Any = None

    @property
    def searchable(self) -> bool:
        """Whether the page has a search box."""
        return any(section.search for section in self.sections)


@dataclass(frozen=True, slots=True)
class _Cdn:
    """Where a browser loads plotly.js from, and the digest that it must have (subresource integrity)."""

    host: str
    address: str
    integrity: str


def render_page(page: Page, command: str, *, cdn: bool = False) -> str:
    """``page`` as one HTML file.

    Args:
        page: The page.
        command: The command that makes it.
        cdn: Whether plotly.js comes from its own network, in exactly the installed version, instead of from the file.

    Raises:
        ValueError: If a chart does not follow plotly's schema.
    """
    template = _template()
    charts = [_checked(chart) for section in page.sections for chart in section.charts]
    scripts = ["page", *(["explore"] if page.searchable else []), *([page.script] if page.script else [])]
    return template.render(
        page=page,
        command=command,
        content=_packed(json.dumps({"charts": charts, "content": page.data}, sort_keys=True, allow_nan=False)),
        cdn=_cdn() if cdn else None,
        plotly_js="" if cdn else _packed_plotly(),
        plotly_version=_plotly_version(),
        css=_file("page.css"),
        script="\n".join([*(_file(f"{name}.js") for name in scripts), "" if page.script else "start();"]),
        version=__version__,
    )


def label(text: str, most: int = 60) -> str:
    """``text`` for a chart: markup of plotly (``<b>`` and others) is escaped, and long names lose their middle."""
    half = (most - 1) // 2
    return escape(text if len(text) <= most else f"{text[:half]}…{text[-half:]}", quote=False)


def lines(name: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
    """A trace of plotly's through points; ``more`` are its other fields."""
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, **more}


def hatching(shape: str, colour: str) -> dict[str, Any]:
    """Plotly's pattern of lines on ``colour``, for print without colours; no pattern without a shape."""
    if not shape:
        return {}
    return {"shape": shape, "bgcolor": colour, "fgcolor": INK, "fgopacity": 0.45, "size": 6, "solidity": 0.2}


def _checked(chart: Chart) -> dict[str, Any]:
    """The chart as JSON values, checked against plotly's schema."""
    checked = {
        "id": chart.id,
        "movesWith": chart.moves_with,
        "square": chart.square,
        **_figure(chart.traces, chart.layout),
    }
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


def _packed(text: str) -> str:
    """``text`` as gzip in base 64, without a time."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs())


def _plotly_version() -> str:
    from plotly.offline import get_plotlyjs_version

    return str(get_plotlyjs_version())


@cache
def _cdn() -> _Cdn:
    from plotly.offline import get_plotlyjs

    host = "https://cdn.plot.ly"
    digest = base64.b64encode(hashlib.sha384(get_plotlyjs().encode()).digest()).decode()
    return _Cdn(host, f"{host}/plotly-{_plotly_version()}.min.js", f"sha384-{digest}")


def _shown(value: Any) -> Any:
    """Text of a document on one line, without characters that a terminal obeys; marked-up text is our own."""
    return printable(value) if type(value) is str else value


def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    return environment.from_string(_file("page.html.jinja"))
