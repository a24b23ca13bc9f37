"""Graphs, plans and results as texts, pages and figures: what ``remat show``, ``remat compare`` and others print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.api.arguments import as_path, as_whole
from remat_cli.api.documents import Source, as_plan, document_of, graph_or_plan
from remat_cli.errors import UsageError, wrong_type
from remat_cli.extras import require_drawing
from remat_cli.files import write_bytes, write_text
from remat_cli.graph.model import Graph
from remat_cli.graph.summary import summarize
from remat_cli.plan.check import Report, check
from remat_cli.plan.comparison import Comparison, Linked, Worth
from remat_cli.plan.difference import Difference, beyond
from remat_cli.plan.explanation import Explanation
from remat_cli.plan.model import Plan
from remat_cli.reports.batches import batch_text
from remat_cli.reports.comparison import (
    comparison_csv,
    comparison_document,
    comparison_text,
    linked_csv,
    linked_document,
    linked_text,
)
from remat_cli.reports.curve import CurveRow, curve_text
from remat_cli.reports.diff import diff_text
from remat_cli.reports.documents import document_json, report_document
from remat_cli.reports.explanation import explanation_text
from remat_cli.reports.fits import FitsFacts, fits_document, fits_markdown, fits_text
from remat_cli.reports.graph import graph_summary_document, graph_text
from remat_cli.reports.plan import plan_text
from remat_cli.reports.snapshot import Recorded, recorded, snapshot_document, snapshot_text
from remat_cli.reports.style import Style
from remat_cli.reports.timeline import plan_show
from remat_cli.reports.worth import worth_csv, worth_document, worth_text
from remat_cli.tracebacks import door

if TYPE_CHECKING:
    from remat_cli.planning.curve import Curve
    from remat_cli.planning.max_batch import MaxBatch
    from remat_cli.planning.solved import Solved

    Described = (
        Graph
        | Plan
        | Solved
        | Report
        | Curve
        | MaxBatch
        | Comparison
        | Linked
        | Worth
        | Difference
        | Explanation
        | Recorded
    )
    Drawn = Graph | Plan | Solved | Comparison | Linked
    Paged = Drawn | Curve | Worth | Recorded

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
def load_snapshot(path: str | PathLike[str], plan: Plan | Solved | Source | None = None) -> Recorded:
    """A recording of CUDA memory that ``torch.cuda.memory._dump_snapshot`` wrote, for :func:`describe` and others.

    The file is a pickle; only plain data is read from it, and nothing in it runs. PyTorch is not needed.

    Args:
        path: The file; ``-`` for standard input.
        plan: A plan of the step that was recorded, beside which it is shown: tensors by size, planned and recorded.

    Raises:
        InputError, UsageError: If the file is no such recording, or the plan is invalid.
    """
    from remat_cli.frontends.cuda_snapshot import read_snapshot

    snapshot = read_snapshot(as_path(path))
    if plan is None:
        return recorded(snapshot)
    return recorded(snapshot, check(as_plan(plan)), plan if isinstance(plan, str) else "the plan")


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
    text = _TEXTS.get(type(shown)) or _search_texts().get(type(shown))
    if text is None:
        raise wrong_type("shown", shown, "a graph, a plan, or a result")
    return text(shown, style)


_TEXTS: dict[type, Callable[[Any, Style], str]] = {
    Graph: lambda graph, style: graph_text(summarize(graph), style),
    Plan: lambda plan, style: plan_show(check(plan), plan, style),
    Report: lambda report, style: plan_text(report, style, checking=True),
    Comparison: comparison_text,
    Linked: linked_text,
    Worth: worth_text,
    FitsFacts: fits_text,
    Explanation: explanation_text,
    Recorded: snapshot_text,
    Difference: lambda difference, style: diff_text(difference, beyond(difference), style),
}


def _search_texts() -> dict[type, Callable[[Any, Style], str]]:
    """The same for the results of searches, whose classes take long to import."""
    from remat_cli.planning.curve import Curve
    from remat_cli.planning.max_batch import MaxBatch
    from remat_cli.planning.solved import Solved

    return {
        Solved: lambda solved, style: plan_text(solved.report, style, run=solved.plan.run, ending=solved.ending),
        Curve: lambda curve, style: curve_text(curve.graph, curve_rows(curve), style, curve.outcome, curve.wall_s),
        MaxBatch: lambda answer, style: batch_text(answer, answer.graph, style),
    }


_DOCUMENTS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Graph: lambda graph: graph_summary_document(summarize(graph)),
    Plan: lambda plan: report_document(check(plan)),
    Comparison: comparison_document,
    Linked: linked_document,
    Worth: worth_document,
    FitsFacts: fits_document,
    Recorded: snapshot_document,
}
_CSV: dict[type, Callable[[Any], str]] = {Comparison: comparison_csv, Linked: linked_csv, Worth: worth_csv}


_MARKDOWN: dict[type, Callable[[Any], str]] = {FitsFacts: fits_markdown}


def formatted(shown: Any, format: str, style: Style, made_by: str, *, cdn: bool) -> str | bytes:
    """``shown`` in a format of the command line, of those that there are of it; ``style`` is that of texts."""
    if format in FIGURES:
        return figure_of(shown, format)
    if format == "html":
        return page_of(shown, made_by, cdn=cdn)
    if format == "markdown":
        return _MARKDOWN[type(shown)](shown)
    if format == "json":
        return document_json(_DOCUMENTS[type(shown)](shown))
    return _CSV[type(shown)](shown) if format == "csv" else text_of(shown, style)


def page_of(shown: Any, made_by: str, *, cdn: bool = False) -> str:
    """The page of ``shown``, whose last line says ``made_by`` which command it was made.

    Raises:
        UsageError: If it has no page, or a package is missing.
    """
    require_drawing("html")
    shown = getattr(shown, "plan", shown)  # what a search returned
    from remat_cli.planning.curve import Curve
    from remat_cli.reports.web.comparison import comparison_page, curve_page, linked_page, worth_page
    from remat_cli.reports.web.fits import fits_page
    from remat_cli.reports.web.graph import graph_page
    from remat_cli.reports.web.page import Page, render_page
    from remat_cli.reports.web.plan import plan_page
    from remat_cli.reports.web.snapshot import snapshot_page

    pages: dict[type, Callable[[Any], Page]] = {
        Plan: lambda plan: plan_page(check(plan), plan),
        Graph: lambda graph: graph_page(graph, summarize(graph)),
        Comparison: comparison_page,
        Linked: linked_page,
        Worth: worth_page,
        FitsFacts: fits_page,
        Recorded: snapshot_page,
        Curve: lambda curve: curve_page(curve.graph, curve_rows(curve)),
    }
    if type(shown) not in pages:
        raise wrong_type("shown", shown, "a graph, a plan, a comparison, a curve, a worth or a recording")
    return render_page(pages[type(shown)](shown), made_by, cdn=cdn)


def figure_of(shown: Any, format: str) -> bytes:
    """The figure of ``shown`` as ``svg`` or ``png``.

    Raises:
        UsageError: If it has no figure, or Matplotlib is missing.
    """
    require_drawing(format)
    shown = getattr(shown, "plan", shown)  # what a search returned
    from remat_cli.reports.figures import comparison_figure, graph_figure, linked_figure, plan_figure

    figures: dict[type, Callable[[Any, str], bytes]] = {
        Plan: lambda plan, format: plan_figure(check(plan), plan, format),
        Graph: graph_figure,
        Comparison: comparison_figure,
        Linked: linked_figure,
    }
    if type(shown) not in figures:
        raise wrong_type("shown", shown, "a graph, a plan or a comparison")
    return figures[type(shown)](shown, format)


def curve_rows(curve: Curve) -> list[CurveRow]:
    """A row for each budget of ``curve``, for a report, in words for Python."""
    return [
        CurveRow(
            point.asked.text,
            point.budget_bytes,
            point.status.value,
            None if point.solved is None else point.solved.report,
            reason="" if point.refusal is None else point.refusal.message,
            hint="" if point.refusal is None else point.refusal.hint,
        )
        for point in curve.points
    ]


def _loaded(shown: Any) -> Any:
    """The graph or plan in a document; anything else as it is."""
    if not isinstance(shown, str | PathLike | Mapping) and not hasattr(shown, "read"):
        return shown
    return graph_or_plan(document_of(shown, "shown"))
