"""``remat show``: describe a graph, a plan, or a recording of CUDA memory."""

import click

from remat_cli.api.documents import as_plan, read_shown
from remat_cli.api.showing import formatted
from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import refuse_terminal, report_format
from remat_cli.cli.session import current
from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.model import Plan
from remat_cli.plan.snapshot import Snapshot
from remat_cli.reports.chrome_trace import plan_trace
from remat_cli.reports.snapshot import Recorded, recorded

_FORMATS = ("text", "json", "html", "svg", "png", "trace")
_RECORDED = ("text", "json", "html")
_EPILOG = """\b
Examples:
  remat show graph.json
  remat show graph.plan.json -o plan.html
  remat show graph.plan.json -o plan.trace.json
  remat show snapshot.pickle --plan step.plan.json

More: docs/pages.md"""


@click.command("show", epilog=_EPILOG)
@click.argument("file", metavar="GRAPH|PLAN|SNAPSHOT", type=params.READABLE)
@click.option("--plan", metavar="PLAN", type=params.READABLE, help="For a snapshot: the plan to compare it with.")
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.cdn_option
@params.node_link_option
@params.quiet_option
@params.color_option
def command(
    file: str, plan: str | None, output: str, format: str, cdn: bool, keys: str | None, quiet: bool, color: str
) -> None:
    """Describe a graph, a plan, or a snapshot of CUDA memory.

    Of a graph: sizes, lower bounds on its memory, and budgets to try. Of a plan: its memory over time, the cause of its
    peak, and the recomputed nodes. Of a snapshot (torch.cuda.memory._dump_snapshot): its peak, and the lines of code
    behind it.

    html is a page for a browser, svg and png are figures, and trace is a plan for Perfetto.
    """
    out = Output(color, quiet)
    format = report_format(output, _FORMATS, format)
    refuse_terminal(format, output)
    params.require_drawing(format, cdn)
    subject = _subject(file, plan, format, keys)
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


def _subject(file: str, plan: str | None, format: str, keys: str | None) -> Graph | Plan | Recorded:
    """What is shown: the graph or the plan in a file, or the recording, beside a plan if one is named."""
    subject = read_shown(file, keys)
    if not isinstance(subject, Snapshot):
        if plan is not None:
            raise UsageError("--plan goes with a snapshot, but this is none", hint="compare two plans with remat diff")
        return subject
    if format not in _RECORDED:
        raise UsageError(f"a snapshot has no {format}", hint=f"choose one of {', '.join(_RECORDED)}")
    return recorded(subject) if plan is None else recorded(subject, check(as_plan(plan)), plan)
