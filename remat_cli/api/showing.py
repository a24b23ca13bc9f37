"""Graphs, plans and results as texts, pages and figures: what ``remat show``, ``remat compare`` and others print."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.api.arguments import as_path, as_whole
from remat_cli.api.reading import Source, document_of, graph_of
from remat_cli.errors import UsageError, on_command_line, wrong_type
from remat_cli.extras import require_drawing
from remat_cli.files import write_bytes, write_text
from remat_cli.graph.document import kind_of
from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report, check
from remat_cli.plan.comparison import Comparison
from remat_cli.plan.difference import Difference, beyond
from remat_cli.plan.explanation import Explanation
from remat_cli.plan.io import plan_from_document
from remat_cli.plan.linked import Linked
from remat_cli.plan.model import Plan
from remat_cli.plan.worth import Worth
from remat_cli.reports.style import Style
from remat_cli.tracebacks import door

if TYPE_CHECKING:
    from remat_cli.planning.curve import Curve
    from remat_cli.planning.max_batch import MaxBatch
    from remat_cli.planning.solved import Solved
    from remat_cli.reports.curve import CurveRow

    Described = (
        Graph | Plan | Solved | Report | Curve | MaxBatch | Comparison | Linked | Worth | Difference | Explanation
    )
    Drawn = Graph | Plan | Solved | Comparison | Linked
    Paged = Drawn | Curve | Worth

FIGURES = ("svg", "png")
MOST_COLUMNS = 10_000
"""The widest text: a chart in it has so many columns, and each takes time. Untuned."""


@door
def describe(shown: Described | Source, *, width: int = 100) -> str:
    """What the command line prints of a graph, a plan, or a result of another function of this package.

    >>> import remat_cli as remat
    >>> print(remat.describe(remat.build_graph("unit-chain{n=17}")).splitlines()[0])
    unit-chain: 17 nodes, 17 values, 24 edges

    Args:
        shown: A graph or a plan, the path or the data of one, or a result.
        width: Columns of the text.

    Raises:
        InputError, UsageError: If it is nothing of these.
    """
    return text_of(_loaded(shown), Style(as_whole(width, "width", most=MOST_COLUMNS), color=False, unicode=True))


@door
def page(shown: Paged | Source, *, cdn: bool = False) -> str:
    """A page for a browser, as HTML without links to other files: of a graph, a plan or a result.

    Args:
        shown: A graph, a plan, the result of :func:`solve`, :func:`solve_curve`, :func:`compare` or :func:`worth`, or
            the path or the data of a document.
        cdn: Load plotly.js from its own network, for a small page.

    Raises:
        InputError, UsageError: If it is nothing of these, or Plotly or Jinja2 is not installed.
    """
    return page_of(_loaded(shown), "remat.page()", cdn=cdn)


@door
def save_page(shown: Paged | Source, path: str | PathLike[str], *, cdn: bool = False) -> None:
    """Write the :func:`page` of ``shown`` to a file.

    Raises:
        InputError, UsageError: As :func:`page`, or if the file cannot be written.
    """
    write_text(as_path(path), page(shown, cdn=cdn))


@door
def figure(shown: Drawn | Source, format: str = "svg") -> bytes:
    """A figure for a paper: of a graph, a plan or a comparison. The same bytes every time.

    Args:
        shown: As :func:`page` takes it.
        format: ``svg`` or ``png``.

    Raises:
        InputError, UsageError: If it is nothing of these, or Matplotlib is not installed.
    """
    if format not in FIGURES:
        raise UsageError(f"there is no figure format {format!r}", hint=f"choose one of {', '.join(FIGURES)}")
    return figure_of(_loaded(shown), format)


@door
def save_figure(shown: Drawn | Source, path: str | PathLike[str]) -> None:
    """Write the :func:`figure` of ``shown`` to a file whose name ends in ``.svg`` or ``.png``.

    Raises:
        InputError, UsageError: As :func:`figure`, or if the file cannot be written.
    """
    target = as_path(path)
    suffix = Path(target).suffix.lower()[1:]
    if suffix not in FIGURES:
        raise UsageError(f"{target}: cannot tell the format from the suffix", hint="name it .svg or .png")
    write_bytes(target, figure(shown, suffix))


def text_of(shown: Any, style: Style) -> str:
    """The text that the command line prints of ``shown``.

    Raises:
        UsageError: If it is nothing that can be described.
    """
    if isinstance(shown, Graph):
        from remat_cli.graph.summary import summarize
        from remat_cli.reports.graph import graph_text

        return graph_text(summarize(shown), style)
    if isinstance(shown, Plan):
        from remat_cli.reports.timeline import plan_show

        return plan_show(check(shown), shown, style)
    if isinstance(shown, Report):
        from remat_cli.reports.plan import plan_text

        return plan_text(shown, style, checking=True)
    if isinstance(shown, Comparison):
        from remat_cli.reports.comparison import comparison_text

        return comparison_text(shown, style)
    if isinstance(shown, Linked):
        from remat_cli.reports.comparison import linked_text

        return linked_text(shown, style)
    if isinstance(shown, Worth):
        from remat_cli.reports.worth import worth_text

        return worth_text(shown, style)
    if isinstance(shown, Explanation):
        from remat_cli.reports.explanation import explanation_text

        return explanation_text(shown, style)
    if isinstance(shown, Difference):
        from remat_cli.reports.diff import diff_text

        return diff_text(shown, beyond(shown), style)
    return _search_text(shown, style)


def _search_text(shown: Any, style: Style) -> str:
    """The same for the result of a search, whose classes take long to import."""
    from remat_cli.planning.curve import Curve
    from remat_cli.planning.max_batch import MaxBatch
    from remat_cli.planning.solved import Solved

    if isinstance(shown, Solved):
        from remat_cli.reports.plan import plan_text

        return plan_text(shown.report, style, run=shown.plan.run, ending=shown.ending)
    if isinstance(shown, Curve):
        from remat_cli.reports.curve import curve_text

        return curve_text(shown.graph, curve_rows(shown), style, shown.outcome, shown.wall_s)
    if isinstance(shown, MaxBatch):
        from remat_cli.reports.batches import batch_text

        return batch_text(shown.facts(), shown.graph, style)
    raise wrong_type("shown", shown, "a graph, a plan, or a result")


def page_of(shown: Any, made_by: str, *, cdn: bool = False) -> str:
    """The page of ``shown``, whose last line says ``made_by`` which command it was made.

    Raises:
        UsageError: If it has no page, or a package is missing.
    """
    require_drawing("html")
    shown = getattr(shown, "plan", shown)  # what a search returned
    if isinstance(shown, Plan):
        from remat_cli.reports.web.plan import plan_page

        return plan_page(check(shown), shown, made_by, cdn=cdn)
    if isinstance(shown, Graph):
        from remat_cli.graph.summary import summarize
        from remat_cli.reports.web.graph import graph_page

        return graph_page(shown, summarize(shown), made_by, cdn=cdn)
    if isinstance(shown, Comparison):
        from remat_cli.reports.web.comparison import comparison_page

        return comparison_page(shown, made_by, cdn=cdn)
    if isinstance(shown, Linked):
        from remat_cli.reports.web.comparison import linked_page

        return linked_page(shown, made_by, cdn=cdn)
    if isinstance(shown, Worth):
        from remat_cli.reports.web.worth import worth_page

        return worth_page(shown, made_by, cdn=cdn)
    from remat_cli.planning.curve import Curve

    if isinstance(shown, Curve):
        from remat_cli.reports.web.curve import curve_page

        return curve_page(shown.graph, curve_rows(shown), made_by, cdn=cdn)
    raise wrong_type("shown", shown, "a graph, a plan, a comparison, a curve or a worth")


def figure_of(shown: Any, format: str) -> bytes:
    """The figure of ``shown`` as ``svg`` or ``png``.

    Raises:
        UsageError: If it has no figure, or Matplotlib is missing.
    """
    require_drawing(format)
    shown = getattr(shown, "plan", shown)  # what a search returned
    if isinstance(shown, Plan):
        from remat_cli.reports.figures import plan_figure

        return plan_figure(check(shown), shown, format)
    if isinstance(shown, Graph):
        from remat_cli.reports.figures import graph_figure

        return graph_figure(shown, format)
    if isinstance(shown, Comparison):
        from remat_cli.reports.figures import comparison_figure

        return comparison_figure(shown, format)
    if isinstance(shown, Linked):
        from remat_cli.reports.figures import linked_figure

        return linked_figure(shown, format)
    raise wrong_type("shown", shown, "a graph, a plan or a comparison")


def curve_rows(curve: Curve) -> list[CurveRow]:
    """A row for each budget of ``curve``, for a report."""
    from remat_cli.reports.curve import CurveRow

    return [
        CurveRow(
            point.asked.text,
            point.budget_bytes,
            point.status.value,
            None if point.solved is None else point.solved.report,
            reason="" if point.refusal is None else point.refusal.message,
            hint="" if point.refusal is None else on_command_line(point.refusal.hint),
        )
        for point in curve.points
    ]


def _loaded(shown: Any) -> Any:
    """The graph or plan in a document; anything else as it is."""
    if not isinstance(shown, str | PathLike | Mapping) and not hasattr(shown, "read"):
        return shown
    document = document_of(shown, "shown")
    return plan_from_document(document) if kind_of(document) == "plan" else graph_of(document, None)
