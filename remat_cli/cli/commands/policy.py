"""``remat policy``: the best plan that another tool can carry out."""

from typing import Any

import click

from remat_cli.api.documents import as_graph
from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.cli.progress import ProgressLine, showing
from remat_cli.cli.session import current
from remat_cli.errors import ExitCode
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.policy_tools import TOOLS
from remat_cli.reports.documents import document_json
from remat_cli.reports.policy import policy_text

_FORMATS = ("text", "json")
_TOOLS = "\n".join(f"  {tool.name:16}  {tool.title}" for tool in TOOLS.values())
_EPILOG = f"""\b
Tools:
{_TOOLS}

\b
Examples:
  remat export torch:train.py:build -o step.json
  remat policy step.json --budget 8GB --to torch-checkpoint
  remat policy step.json --budget 70% --to hf-every-n --format json
  remat policy step.json --budget 70% --to trl

Exit code: 0, or 1 if nothing that the tool can express fits the budget.

More: docs/policy.md"""


@click.command("policy", epilog=_EPILOG)
@click.argument("graph", type=params.READABLE)
@click.option(
    "-b",
    "--budget",
    type=params.BUDGET,
    required=True,
    help="Memory limit: 16GB, or 80% of the peak without recomputation.",
)
@click.option(
    "--to",
    metavar="TOOL",
    type=click.Choice(list(TOOLS)),
    required=True,
    help="Tool that carries the plan out: see below.",
)
@params.solver_option
@click.option("--time-limit", type=params.DURATION, default="60s", show_default=True, help="Wall time of all searches.")
@params.threads_option
@params.seed_option
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.node_link_option
@params.quiet_option
@params.color_option
def command(graph: str, to: str, **options: Any) -> int:
    """Find the best plan of GRAPH that another tool can carry out, and print it as code or settings.

    GRAPH comes from remat export with the tool's framework. Memory is that of the graph: a training loop may hold more,
    such as logits.
    """
    from remat_cli.api.solving import policy

    started_s = current().started_s
    format = report_format(options["output"], _FORMATS, options["format"])
    out = Output(options["color"], options["quiet"], file=options["output"])
    model = as_graph(graph, keys=options["keys"])
    chosen = params.solve_options(options, SolveOptions, started_s=started_s)
    line = ProgressLine(model.no_remat_cost, started_s)
    with showing(line, quiet=out.quiet):
        found = policy(model, options["budget"], to, chosen, listener=line.update)
    document = found.document()
    out.report(document_json(document) if format == "json" else policy_text(document, out.style()))
    return ExitCode.OK
