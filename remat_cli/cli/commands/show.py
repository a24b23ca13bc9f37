"""``remat show``: describe a graph or a plan."""

import click

from remat_cli.api.documents import graph_or_plan, read_source
from remat_cli.api.showing import formatted
from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import refuse_terminal, report_format
from remat_cli.cli.session import current
from remat_cli.errors import UsageError
from remat_cli.plan.check import check
from remat_cli.plan.model import Plan
from remat_cli.reports.chrome_trace import plan_trace

_FORMATS = ("text", "json", "html", "svg", "png", "trace")
_EPILOG = """\b
Examples:
  remat show graph.json
  remat show graph.plan.json
  remat show graph.json -o summary.json
  remat show graph.plan.json -o plan.html
  remat show graph.plan.json -o plan.svg
  remat show graph.plan.json --format png | display
  remat show graph.plan.json -o plan.trace.json"""


@click.command("show", epilog=_EPILOG)
@click.argument("file", metavar="GRAPH|PLAN", type=params.READABLE)
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.cdn_option
@params.node_link_option
@params.quiet_option
@params.color_option
def command(file: str, output: str, format: str, cdn: bool, keys: str | None, quiet: bool, color: str) -> None:
    """Describe a graph or a plan.

    For a graph: nodes, sizes, working sets, lower bounds on its memory, and budgets to try. For a plan: its memory over
    time, the cause of its peak, and the recomputed nodes. --format html writes a self-contained page for a browser; svg
    and png are figures for papers; trace is a plan for Perfetto and other viewers of Chrome's trace format.
    """
    out = Output(color, quiet)
    format = report_format(output, _FORMATS, format)
    refuse_terminal(format, output)
    params.require_drawing(format, cdn)
    subject = graph_or_plan(read_source(file), keys)
    if format != "trace":
        shown = formatted(subject, format, out.style(), current().command_line(), cdn=cdn)
    elif isinstance(subject, Plan):
        shown = plan_trace(check(subject), subject)
    else:
        raise UsageError("a trace shows a plan, but this is a graph", hint="solve it, and show the plan")
    if output == "-" and isinstance(shown, str) and format in {"text", "json"}:
        out.report(shown)
    else:
        out.write(output, shown)
