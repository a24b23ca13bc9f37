"""``remat solve --budgets``: a plan for each of several budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_cli.api.showing import curve_rows
from remat_cli.cli.formats import document_format
from remat_cli.cli.output import Output, complain
from remat_cli.cli.session import current
from remat_cli.cli.targets import plan_path
from remat_cli.errors import ExitCode, Interrupted
from remat_cli.plan.io import dump_plan
from remat_cli.planning.curve import Curve, PointStatus
from remat_cli.reports.curve import CurveRow, curve_csv, curve_json, curve_text


def write_plans(curve: Curve, pattern: str, out: Output) -> list[CurveRow]:
    """Write every plan of ``curve`` to its file, and return the rows of the report."""
    rows = []
    for point, row in zip(curve.points, curve_rows(curve), strict=True):
        if point.solved is None:
            rows.append(row)
            continue
        path = plan_path(pattern, point.asked.text)
        out.write(path, dump_plan(point.solved.plan, document_format(path)))
        rows.append(replace(row, path=path))
    return rows


def report_curve(curve: Curve, rows: Sequence[CurveRow], out: Output, format: str, *, cdn: bool) -> None:
    """Print the report on ``curve``."""
    if format == "json":
        out.report(curve_json(curve.graph, rows))
    elif format == "html":
        from remat_cli.reports.web.curve import curve_page  # loads Plotly's checks

        out.write("-", curve_page(curve.graph, rows, current().command_line(), cdn=cdn))
    elif format == "csv":
        out.report(curve_csv(rows))
    else:
        out.report(curve_text(curve.graph, rows, out.style(), curve.outcome, curve.wall_s), beside=True)


def exit_code(curve: Curve, *, require_optimal: bool) -> ExitCode:
    """0 if any budget has a plan (1 if one is unproven and must not be); else 130 or 4 if one is undecided; else 1."""
    if any(point.solved is not None for point in curve.points):
        unproven = [p for p in curve.points if p.status in (PointStatus.FEASIBLE, PointStatus.UNKNOWN)]
        if require_optimal and unproven:
            names = ", ".join(point.asked.text for point in unproven)
            complain(f"remat: not proven optimal, as --require-optimal asks: {names}")
            return ExitCode.NO
        return ExitCode.OK
    refusals = [point.refusal for point in curve.points if point.refusal is not None]
    unknown = [refusal for refusal in refusals if refusal.exit_code is not ExitCode.NO]
    if any(isinstance(refusal, Interrupted) for refusal in unknown):
        return ExitCode.INTERRUPTED
    return ExitCode.LIMIT if unknown else ExitCode.NO
