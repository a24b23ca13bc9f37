"""``remat diff``: what changed from one plan to another."""

from collections.abc import Sequence
from fractions import Fraction

import click

from remat_cli.api.checking import diff
from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.errors import ExitCode, UsageError
from remat_cli.plan.difference import Difference, beyond
from remat_cli.plan.replay import Finding
from remat_cli.reports import diff as reports
from remat_cli.reports.documents import document_json

_FORMATS = ("text", "json", "github", "markdown")
_EPILOG = """\b
Examples:
  remat diff old.plan.json new.plan.json
  git show main:net.plan.json | remat diff - net.plan.json --max-cost-increase 1%
  remat diff old.plan.json new.plan.json --format markdown >> "$GITHUB_STEP_SUMMARY"

Exit code: 0, also if NEW is worse; 1 if it is invalid, over its own budget, or beyond a limit above."""


@click.command("diff", epilog=_EPILOG)
@click.argument("old", type=params.READABLE)
@click.argument("new", type=params.READABLE)
@click.option("--max-cost-increase", type=params.PERCENT, help="Largest increase of the cost: 1%.  [default: any]")
@click.option("--max-peak-increase", type=params.PERCENT, help="Largest increase of the peak: 1%.  [default: any]")
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.quiet_option
@params.color_option
def command(
    old: str,
    new: str,
    max_cost_increase: Fraction | None,
    max_peak_increase: Fraction | None,
    output: str,
    format: str,
    quiet: bool,
    color: str,
) -> int:
    """Show what changed from the plan OLD to the plan NEW: peak, cost, recomputed nodes, and claims.

    Both plans are replayed; neither is trusted. Nodes of different graphs are matched by their ids.
    """
    if old == new == "-":
        raise UsageError("the two plans cannot both come from standard input", hint="give one as a file")
    format = report_format(output, _FORMATS, format)
    difference = diff(old, new)
    if max_cost_increase is not None and not difference.same_unit:
        units = f"{difference.old.graph.cost_unit} and {difference.new.graph.cost_unit}"
        hint = "leave --max-cost-increase out"
        raise UsageError(f"the costs cannot be compared: their units differ, {units}", hint=hint)
    findings = beyond(difference, max_cost_increase=max_cost_increase, max_peak_increase=max_peak_increase)
    out = Output(color, quiet, file=output)
    tolerant = max_cost_increase is not None or max_peak_increase is not None
    out.report(_formatted(difference, findings, tolerant, format, old, new, out), secondary=format == "text")
    return ExitCode.NO if findings else ExitCode.OK


def _formatted(
    difference: Difference, findings: Sequence[Finding], tolerant: bool, format: str, old: str, new: str, out: Output
) -> str:

    if format == "json":
        return document_json(reports.diff_document(difference, findings, old_path=old, new_path=new))
    if format == "github":
        return reports.diff_github(difference, findings, new_path=new)
    if format == "markdown":
        return reports.diff_markdown(difference, findings, old_path=old, new_path=new, tolerant=tolerant)
    return reports.diff_text(difference, findings, out.style(), tolerant=tolerant)
