"""What ``remat solve`` does once its options are read: make, write and report one plan, or one for each budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.api.documents import graph_or_plan, read_source
from remat_cli.cli.output import Output, complain
from remat_cli.cli.output_files import document_format, plan_path, replaced
from remat_cli.cli.progress import ProgressLine, showing
from remat_cli.cli.session import current
from remat_cli.control import Control
from remat_cli.errors import ExitCode, Interrupted, on_command_line
from remat_cli.files import require_writable, write_text
from remat_cli.graph.model import Graph
from remat_cli.plan.io import dump_plan
from remat_cli.planning.cache import PlanCache, user_folder
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solved import Solved
from remat_cli.planning.solving import solve
from remat_cli.reports.curve import CurveRow, curve_csv, curve_document, curve_text
from remat_cli.reports.documents import document_json, report_document
from remat_cli.reports.plan import plan_text
from remat_cli.running import interruptible, usable_cores
from remat_cli.units import Budget, format_bytes, format_percent

if TYPE_CHECKING:
    from remat_cli.planning.curve import Curve


def graph_in(path: str, keys: str | None, out: Output) -> Graph:
    """The graph in a file, which may be a plan: plans contain theirs."""
    subject = graph_or_plan(read_source(path), keys)
    if isinstance(subject, Graph):
        return subject
    out.note(f"remat: {path} is a plan; solving the graph in it")
    return subject.graph.whole


def solve_one(
    graph: Graph,
    asked: Budget | None,
    chosen: SolveOptions,
    options: dict[str, Any],
    path: str,
    out: Output,
    *,
    default_name: bool,
) -> Solved:
    """Make a single plan, write it to ``path``, and report on it."""
    line = ProgressLine(graph.no_remat_cost, current().started_s)
    cache = _cache(options, out)
    with showing(line, quiet=out.quiet):
        if options["minimize"] == "peak":
            solved = solve_smallest(graph, chosen, cache=cache, listener=line.update)
        else:
            solved = solve(graph, asked, chosen, cache=cache, dask=options["dask"], listener=line.update)
    note = replaced(path, solved.plan.budget_bytes) if default_name else ""
    with interruptible(Control()):  # there is a plan: the first Ctrl-C comes too late
        write_text(path, dump_plan(solved.plan, document_format(path)))
        if note:
            out.note(f"remat: {note}")
        _report(solved, out, options["format"])
        out.wrote(path)
    if options["start"] is not None:
        _note_start(out, solved, options["start"])
    _note_solver_files(out, solved.plan.strategy, chosen)
    return solved


def _cache(options: dict[str, Any], out: Output) -> PlanCache | None:
    """The plan cache; None for none. Its folder is checked now, before a search."""
    chosen: Path | None = options["cache_dir"]
    if chosen is None and not options["cache"]:
        return None
    folder = user_folder() if chosen is None else chosen
    require_writable(str(folder / "plan.json"), option="--cache-dir")
    return PlanCache(folder, note=lambda text: out.note(f"remat: {text}"))


def _report(solved: Solved, out: Output, format: str) -> None:
    cached = None if solved.recalled_from is None else str(solved.recalled_from)
    if format == "json":
        if cached is not None:
            out.note(f"remat: not solved again, only replayed: {cached}")
        out.report(document_json(report_document(solved.report)))
        return
    out.report(
        plan_text(solved.report, out.style(), run=solved.plan.run, ending=solved.ending, cached=cached),
        secondary=True,
    )


def _note_start(out: Output, solved: Solved, path: str) -> None:
    """Say what the plan to start from was good for."""
    old, budget_bytes, cost = solved.plan.provenance["start"], solved.plan.budget_bytes, solved.report.replay.time
    if budget_bytes is not None and old["peak_memory"] > budget_bytes:
        over = format_bytes(old["peak_memory"] - budget_bytes)
        out.note(f"remat: the plan in {path} was of no use: its peak is {over} over the budget")
    elif cost < old["cost"]:
        out.note(f"remat: the plan costs {format_percent(1 - cost / old['cost'])} less than the one in {path}")
    else:
        out.note(f"remat: nothing cheaper was found than the plan in {path}")


def _note_solver_files(out: Output, strategy: str, options: SolveOptions) -> None:
    """Name the requested files of a solver: those that were written, and those that were not, because none ran."""
    began = time.time() - (time.monotonic() - current().started_s)
    for path, why in ((options.write_model, "builds no model"), (options.solver_log, "uses no solver")):
        if path is not None:
            new = path.exists() and path.stat().st_mtime >= began
            out.note(f"wrote {path}" if new else f"remat: {path} was not written: {strategy} {why}")


def solve_several(
    graph: Graph,
    budgets: tuple[Budget, ...],
    options: SolveOptions,
    out: Output,
    pattern: str,
    given: dict[str, Any],
    require_optimal: bool,
) -> int:
    """A plan for each of several budgets."""
    from remat_cli.planning.curve import solve_curve  # with what starts processes

    assert options.started_s is not None
    line = ProgressLine(graph.no_remat_cost, options.started_s)
    # One budget at a time for each thread or core; one alone if it writes a model or a log.
    alone = options.write_model is not None or options.solver_log is not None
    jobs = 1 if alone else options.threads or usable_cores()
    with showing(line, quiet=out.quiet):
        curve = solve_curve(graph, budgets, options, jobs=jobs, dask=given["dask"], listener=line.update)
    with interruptible(Control()):  # there are plans: the first Ctrl-C comes too late
        _report_curve(curve, _write_plans(curve, pattern, out), out, given["format"], cdn=given["cdn"])
    return _curve_code(curve, require_optimal=require_optimal)


def _write_plans(curve: Curve, pattern: str, out: Output) -> list[CurveRow]:
    """Write every plan of ``curve`` to its file, and return the rows of the report."""
    from remat_cli.api.showing import curve_rows

    rows = []
    for point, row in zip(curve.points, curve_rows(curve), strict=True):
        if point.solved is None:
            rows.append(replace(row, reason=on_command_line(row.reason), hint=on_command_line(row.hint)))
            continue
        path = plan_path(pattern, point.asked.text)
        out.write(path, dump_plan(point.solved.plan, document_format(path)))
        rows.append(replace(row, path=path))
    return rows


def _report_curve(curve: Curve, rows: Sequence[CurveRow], out: Output, format: str, *, cdn: bool) -> None:
    """Print the report on ``curve``."""
    if format == "json":
        out.report(document_json(curve_document(curve.graph, rows)))
    elif format == "html":
        from remat_cli.reports.web.comparison import curve_page
        from remat_cli.reports.web.page import render_page  # with Plotly's checks

        out.write("-", render_page(curve_page(curve.graph, rows), current().command_line(), cdn=cdn))
    elif format == "csv":
        out.report(curve_csv(rows))
    else:
        out.report(curve_text(curve.graph, rows, out.style(), curve.outcome, curve.wall_s), secondary=True)


def _curve_code(curve: Curve, *, require_optimal: bool) -> ExitCode:
    """0 if any budget has a plan (1 if one is unproven and must not be); else 130 or 4 if one is undecided; else 1."""
    if any(point.solved is not None for point in curve.points):
        if require_optimal and (unproven := curve.unproven()):
            names = ", ".join(point.asked.text for point in unproven)
            complain(f"remat: not proven optimal, as --require-optimal asks: {names}")
            return ExitCode.NO
        return ExitCode.OK
    refusals = [point.refusal for point in curve.points if point.refusal is not None]
    unknown = [refusal for refusal in refusals if refusal.exit_code is not ExitCode.NO]
    if any(isinstance(refusal, Interrupted) for refusal in unknown):
        return ExitCode.INTERRUPTED
    return ExitCode.LIMIT if unknown else ExitCode.NO
