"""``remat check``: replay plans."""

from collections.abc import Sequence

import click

from remat_cli.api.checking import check as judged
from remat_cli.api.documents import as_graph
from remat_cli.cli import params
from remat_cli.cli.output import Output, complain
from remat_cli.cli.output_files import report_format
from remat_cli.errors import ExitCode, UsageError
from remat_cli.graph.model import Graph
from remat_cli.plan.check import Checked, check_files, matches
from remat_cli.plan.io import load_plan
from remat_cli.reports.checks import checks_document, checks_github, checks_junit, checks_text, plans_sarif, worst_code
from remat_cli.reports.documents import document_json
from remat_cli.reports.plan import plan_text
from remat_cli.units import Budget

_FORMATS = ("text", "json", "github", "junit", "sarif")
_EPILOG = """\b
Examples:
  remat check graph.plan.json
  remat check graph.plan.json --budget 16GB --format github
  remat check graph.plan.json --graph graph.json
  remat check plans/
  remat check 'plans/**/*.plan.json' --budget 16GB -o plans.sarif

Several plans give a row each and a summary; a file that cannot be read is a row, too. --format json writes a
remat-checks/1 document (remat schema checks).

Exit code: 0 if every plan is valid and within the budget, 1 if one is not, 2 if one cannot be read.

More: docs/ci.md"""


@click.command("check", epilog=_EPILOG)
@click.argument("plans", metavar="PLAN...", type=params.READABLE, nargs=-1, required=True)
@click.option("-b", "--budget", type=params.BUDGET, help="Memory limit instead of the plan's own budget: 16GB, 80%.")
@params.matching_graph_option
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.node_link_option
@params.quiet_option
@params.color_option
def command(
    plans: tuple[str, ...],
    budget: Budget | None,
    graph: str | None,
    output: str,
    format: str,
    keys: str | None,
    quiet: bool,
    color: str,
) -> int:
    """Replay every PLAN statement by statement: is it valid, and does it fit?

    PLAN is a file, a pattern in quotes, or a folder: all *.plan.json and *.plan.yaml in it, at any depth. What a plan
    says of itself is not trusted; optimality is shown as a claim.
    """
    if "-" in plans and graph == "-":
        raise UsageError("the plan and the graph cannot both come from standard input", hint="give one as a file")
    if keys is not None and graph is None:
        raise UsageError("--keys is for the graph of --graph", hint="add --graph, or leave --keys out")
    format = report_format(output, _FORMATS, format)
    out = Output(color, quiet, file=output)

    def wanted() -> Graph | None:
        return None if graph is None else as_graph(graph, keys=keys)

    if format == "text" and matches(plans[0]) == list(plans):  # one file, named: the full report, for people
        report = judged(load_plan(plans[0])[0], budget, graph=wanted())
        out.report(plan_text(report, out.style(), checking=True), secondary=True)
        return ExitCode.OK if report.ok else ExitCode.NO
    given = wanted()
    checked = check_files(plans, load_plan, lambda plan: judged(plan, budget, graph=given))
    out.report(_formatted(checked, format, out), secondary=format == "text")
    if quiet and format == "text" and output == "-":
        for problem, name in ((problem, one.name) for one in checked for problem in one.problems):
            complain(f"remat: error: {problem.text(name)}")
    return worst_code(checked)


def _formatted(plans: Sequence[Checked], format: str, out: Output) -> str:
    """The report on all plans."""
    if format == "junit":
        return checks_junit(plans)
    if format == "sarif":
        return plans_sarif(plans)
    if format == "text":
        return checks_text(plans, out.style())
    return document_json(checks_document(plans)) if format == "json" else checks_github(plans)
