"""``remat show``: describe a graph or a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.session import current
from remat_cli.errors import UsageError
from remat_cli.files import require_writable, write_bytes, write_text

if TYPE_CHECKING:
    from remat_cli.graph.document import Document

_EPILOG = """\b
Examples:
  remat show graph.json
  remat show graph.plan.json
  remat show graph.json --format json -o summary.json
  remat show graph.plan.json --format html -o plan.html
  remat show graph.plan.json --format svg -o plan.svg
  remat show graph.plan.json --format trace -o plan.trace.json"""


@dataclass(frozen=True, slots=True)
class _Pages:
    """What pages need to know: the command that makes them, and whether plotly.js comes from its own network."""

    command: str
    cdn: bool


@click.command("show", epilog=_EPILOG)
@click.argument("file", metavar="GRAPH|PLAN", type=params.READABLE)
@params.output_option
@params.format_option("text", "json", "html", "svg", "png", "trace")
@params.cdn_option
@params.node_link_option
@params.color_option
def command(file: str, output: str, format: str, cdn: bool, keys: str | None, color: str) -> None:
    """Describe a graph or a plan.

    For a graph: nodes, sizes, working sets, lower bounds on its memory, and budgets to try. For a plan: its memory over
    time, the cause of its peak, and the recomputed nodes. --format html writes a self-contained page for a browser; svg
    and png are figures for papers; trace is a plan for Perfetto and other viewers of Chrome's trace format.
    """
    from remat_cli.api.reading import read_source
    from remat_cli.graph.document import kind_of

    out = Output(color)
    if format == "png" and output == "-":
        raise UsageError("a PNG must go to a file", hint="name a file with -o")
    params.require_html(format, cdn)
    document = read_source(file)
    is_plan = kind_of(document) == "plan"
    if is_plan and keys is not None:
        raise UsageError("--keys is for node-link graphs, but this is a plan", hint="leave it out")
    require_writable(output)
    pages = _Pages(current().command_line(), cdn)
    shown = _plan(document, format, pages, out) if is_plan else _graph(document, format, keys, pages, out)
    if isinstance(shown, bytes):
        write_bytes(output, shown)
    elif output == "-" and format not in {"html", "trace"}:
        out.report(shown)
    else:
        write_text(output, shown)


def _plan(document: Document, format: str, pages: _Pages, out: Output) -> str | bytes:
    from remat_cli.plan.check import check
    from remat_cli.plan.io import plan_from_document

    plan = plan_from_document(document)
    report = check(plan)
    if format == "json":
        from remat_cli.reports.jsonform import report_json

        return report_json(report)
    if format == "html":
        from remat_cli.reports.web.plan import plan_page

        return plan_page(report, plan, pages.command, cdn=pages.cdn)
    if format in {"svg", "png"}:
        from remat_cli.reports.planfigure import plan_figure

        return plan_figure(report, plan, format)
    if format == "trace":
        from remat_cli.reports.chrometrace import plan_trace

        return plan_trace(report, plan)
    from remat_cli.reports.timeline import plan_show

    return plan_show(report, plan, out.style())


def _graph(document: Document, format: str, keys: str | None, pages: _Pages, out: Output) -> str | bytes:
    if format == "trace":
        raise UsageError("a trace shows a plan, but this is a graph", hint="solve it, and show the plan")
    from remat_cli.api.reading import graph_of
    from remat_cli.graph.summary import summarize

    graph = graph_of(document, keys)
    if format in {"svg", "png"}:
        from remat_cli.reports.graphfigure import graph_figure

        return graph_figure(graph, format)
    summary = summarize(graph)
    if format == "html":
        from remat_cli.reports.web.graph import graph_page

        return graph_page(graph, summary, pages.command, cdn=pages.cdn)
    if format == "json":
        from remat_cli.reports.graphtext import graph_summary_document
        from remat_cli.reports.jsonform import document_json

        return document_json(graph_summary_document(summary))
    from remat_cli.reports.graphtext import graph_text

    return graph_text(summary, out.style())
