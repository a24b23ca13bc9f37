"""``remat explain``: what a plan does with one node, and the alternatives."""

from __future__ import annotations

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import ExitCode

_EPILOG = """\b
Examples:
  remat explain vgg16.plan.json conv1_1
  remat solve vgg16.json --budget 16GB -o - | remat explain - relu1_1

Exits with 0, or with 1 if the plan is invalid."""


@click.command("explain", epilog=_EPILOG)
@click.argument("plan", type=params.READABLE)
@click.argument("node")
@params.format_option("text", "json")
@params.color_option
def command(plan: str, node: str, format: str, color: str) -> int:
    """Explain what PLAN does with NODE: when it is computed, read and dropped, and how long its values stay.

    The report also has alternatives, each from replaying a changed plan: keep the node's values instead of recomputing
    them, and drop them instead of keeping them.
    """
    from remat_cli.api.checking import explain
    from remat_cli.reports.explanation import explanation_document, explanation_text
    from remat_cli.reports.jsonform import document_json

    out, explanation = Output(color), explain(plan, node)
    if format == "json":
        out.report(document_json(explanation_document(explanation)))
    else:
        out.report(explanation_text(explanation, out.style()))
    return ExitCode.OK if explanation.report.valid else ExitCode.NO
