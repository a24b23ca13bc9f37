"""``remat check``: replay a plan."""

from __future__ import annotations

from typing import Any

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import ExitCode, UsageError
from remat_cli.units import Budget

_EPILOG = """\b
Examples:
  remat check graph.plan.json
  remat check graph.plan.json --budget 16GB --format github
  remat check graph.plan.json --graph graph.json

Exits with 0 if the plan is valid and within the budget, with 1 if not."""


@click.command("check", epilog=_EPILOG)
@click.argument("plan", type=params.READABLE)
@click.option(
    "-b", "--budget", type=params.BUDGET, help="Hold the plan against this budget instead of the one it was made for."
)
@click.option("--graph", type=params.READABLE, help="Make sure that the plan is for this graph.")
@params.format_option("text", "json", "github", "junit")
@params.node_link_option
@params.color_option
def command(plan: str, budget: Budget | None, graph: str | None, format: str, keys: str | None, color: str) -> int:
    """Replay PLAN statement by statement: is it valid, and does it fit?

    The replay trusts nothing the plan says of itself. What the plan's maker claims (that no plan is cheaper, say)
    is shown as a claim.
    """
    from dataclasses import replace

    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.plan.check import check, other_graph
    from remat_cli.plan.io import load_plan

    if plan == "-" and graph == "-":
        raise UsageError("the plan and the graph cannot both come from standard input", hint="give one as a file")
    if keys is not None and graph is None:
        raise UsageError("--keys is for the graph of --graph", hint="add --graph, or leave it out")
    loaded, document = load_plan(plan)
    budget_bytes = None if budget is None else budget.bytes_for(no_remat_peak(loaded.graph))
    report = check(loaded, budget_bytes=budget_bytes, budget_text="" if budget is None else budget.text)
    if graph is not None:
        from remat_cli.cli.graphs import read_graph

        given = read_graph(graph, keys)
        report = replace(report, findings=(*other_graph(loaded.graph, given), *report.findings))
    out = Output(color)
    out.report(_formatted(report, format, plan, document, out))
    return ExitCode.OK if report.ok else ExitCode.NO


def _formatted(report: Any, format: str, path: str, document: Any, out: Output) -> str:
    if format == "json":
        from remat_cli.reports.jsonform import report_json

        return report_json(report)
    if format == "github":
        from remat_cli.reports.github import plan_github

        def line_of(statement: int) -> int | None:
            place = document.locate(f"/statements/{statement}")
            return None if place is None else place[0]

        return plan_github(report, plan_path=path, line_of=line_of)
    if format == "junit":
        from remat_cli.reports.junit import plan_junit

        return plan_junit(report, plan_path=path)
    from remat_cli.reports.text import plan_text

    return plan_text(report, out.style(), checking=True)
