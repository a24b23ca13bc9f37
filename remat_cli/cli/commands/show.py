"""``remat show``: what a graph or a plan looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import UsageError
from remat_cli.files import require_writable, write_text

if TYPE_CHECKING:
    from remat_cli.graph.document import Document

_EPILOG = """\b
Examples:
  remat show graph.json
  remat show graph.plan.json
  remat show graph.json --format json -o summary.json"""


@click.command("show", epilog=_EPILOG)
@click.argument("file", metavar="GRAPH|PLAN", type=params.READABLE)
@click.option("-o", "--output", type=click.Path(allow_dash=True), default="-", help="Where it goes.")
@params.format_option("text", "json")
@params.node_link_option
@params.color_option
def command(file: str, output: str, format: str, keys: str | None, color: str) -> None:
    """Show what a graph or a plan looks like.

    For a graph: nodes, sizes, working sets, what bounds its memory from below, and budgets worth trying. For a plan:
    its memory over time, why the peak is where it is, and what is recomputed.
    """
    from remat_cli.graph.document import kind_of, read_document

    out = Output(color)
    document = read_document(file)
    is_plan = kind_of(document) == "plan"
    if is_plan and keys is not None:
        raise UsageError("--keys is for node-link graphs, and this is a plan", hint="leave it out")
    require_writable(output)
    text = _plan(document, format, out) if is_plan else _graph(document, format, keys, out)
    if output == "-":
        out.report(text)
    else:
        write_text(output, text)


def _plan(document: Document, format: str, out: Output) -> str:
    from remat_cli.plan.check import check
    from remat_cli.plan.io import plan_from_document

    plan = plan_from_document(document)
    report = check(plan)
    if format == "json":
        from remat_cli.reports.jsonform import report_json

        return report_json(report)
    from remat_cli.reports.timeline import plan_show

    return plan_show(report, plan, out.style())


def _graph(document: Document, format: str, keys: str | None, out: Output) -> str:
    from remat_cli.cli.graphs import graph_of
    from remat_cli.graph.summary import summarize

    summary = summarize(graph_of(document, keys))
    if format == "json":
        from remat_cli.reports.graphtext import graph_summary_document
        from remat_cli.reports.jsonform import document_json

        return document_json(graph_summary_document(summary))
    from remat_cli.reports.graphtext import graph_text

    return graph_text(summary, out.style())
