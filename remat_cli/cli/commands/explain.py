"""``remat explain``: what a plan does with one node, and the alternatives."""

import click
from click.shell_completion import CompletionItem

from remat_cli.api.checking import explain
from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.errors import ExitCode, RematError
from remat_cli.plan.io import load_plan
from remat_cli.reports.documents import document_json
from remat_cli.reports.explanation import explanation_document, explanation_text

_FORMATS = ("text", "json")
_EPILOG = """\b
Examples:
  remat explain vgg16.plan.json conv1_1
  remat solve vgg16.json --budget 16GB -o - | remat explain - relu1_1

Exit code: 0, or 1 if the plan is invalid."""


def _nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The nodes of the plan that is on the command line; none if it cannot be read, for a shell takes no errors."""
    plan = ctx.params.get("plan")
    if plan is None or plan == "-":
        return []
    try:
        nodes = load_plan(plan)[0].graph.nodes
    except RematError:
        return []
    return [CompletionItem(node.id) for node in nodes if node.id.startswith(incomplete)]


@click.command("explain", epilog=_EPILOG)
@click.argument("plan", type=params.READABLE)
@click.argument("node", shell_complete=_nodes)
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.quiet_option
@params.color_option
def command(plan: str, node: str, output: str, format: str, quiet: bool, color: str) -> int:
    """Explain when PLAN computes, reads and drops the values of NODE, and what other choices would change."""
    format = report_format(output, _FORMATS, format)
    out, explanation = Output(color, quiet, file=output), explain(plan, node)
    if format == "json":
        out.report(document_json(explanation_document(explanation)))
    else:
        out.report(explanation_text(explanation, out.style()))
    return ExitCode.OK if explanation.report.valid else ExitCode.NO
