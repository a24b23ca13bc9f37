"""``remat explain``: what a plan does with one node, and the alternatives."""

from __future__ import annotations

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import ExitCode, UsageError

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
    from remat_cli.plan.check import check
    from remat_cli.plan.explanation import explain
    from remat_cli.plan.io import load_plan
    from remat_cli.reports.explanation import explanation_document, explanation_text, no_such_node
    from remat_cli.reports.jsonform import document_json

    loaded, _ = load_plan(plan)
    places = {item.id: i for i, item in enumerate(loaded.graph.nodes)}
    values = {loaded.graph.value_name(v): producer for v, producer in enumerate(loaded.graph.producer)}
    found = places.get(node, values.get(node))  # a node (relu1) or one of its values (relu1:0)
    if found is None:
        message, hint = no_such_node(node, loaded.graph)
        raise UsageError(message, hint=hint)
    report = check(loaded)
    out, explanation = Output(color), explain(loaded, report, found)
    if format == "json":
        out.report(document_json(explanation_document(explanation)))
    else:
        out.report(explanation_text(explanation, out.style()))
    return ExitCode.OK if report.valid else ExitCode.NO
