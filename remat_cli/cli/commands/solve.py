"""``remat solve``: find a plan and write it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from remat_cli.cli import params
from remat_cli.cli.output import Output, complain
from remat_cli.cli.targets import plan_path, plan_pattern, refuse_target, stem_of
from remat_cli.control import Control
from remat_cli.errors import ExitCode, UsageError
from remat_cli.running import interruptible
from remat_cli.units import Budget

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph
    from remat_cli.planning.solving import SolveOptions

_EPILOG = """\b
Examples:
  remat solve graph.json --budget 16GB
  remat solve graph.json --budget 80% --time-limit 60s
  remat solve graph.json --minimize peak
  remat solve graph.json --budgets 50%:95%:5%
  remat solve graph.json --budgets 8GB,16GB,24GB -o 'plans/{budget}.plan.json'
  remat solve graph.json --budget 60% --reorder
  remat solve graph.json --budget 80% --strategy 'checkmate-ilp{stage_split=2}' --solver cbc
  remat export zoo:unet | remat solve - --budget 60% -o - | remat check -

The plan goes to GRAPH.plan.json in the current directory unless -o names another file. The report goes to standard
output, or to standard error with -o -. Ctrl-C stops the search and keeps the best plan found; a second Ctrl-C stops at
once.

With --budgets, each plan goes to GRAPH.BUDGET.plan.json; -o names a folder, or a pattern with {budget} in it. The time
limit is for all budgets together."""


@click.command("solve", epilog=_EPILOG)
@click.argument("graph", type=params.READABLE)
@click.option(
    "-b",
    "--budget",
    type=params.BUDGET_OR_NONE,
    help="Memory for everything: 16GB, 14.5GiB, 80% (of the no-remat peak), or none.",
)
@click.option(
    "--budgets",
    type=params.BUDGETS,
    help="Several budgets, one plan for each: 4GB:16GB:1GB (start:stop:step), 50%:95%:5%, or 8GB,12GB.",
)
@click.option(
    "--minimize",
    type=click.Choice(["cost", "peak"]),
    default="cost",
    show_default=True,
    help="cost: the cheapest plan within a budget. peak: the least peak of any plan, then the cheapest such plan.",
)
@click.option("--strategy", type=params.STRATEGY, default="auto", show_default=True, help="See remat strategies.")
@params.solver_option
@click.option("--time-limit", type=params.DURATION, help="Wall time for the whole command: 60s, 5m.  [default: none]")
@params.gap_option
@click.option("--threads", type=click.IntRange(1), help="Threads for the solver.  [default: its own choice]")
@params.seed_option
@click.option("--reorder", is_flag=True, help="Also search for a better order of the nodes than the document's.")
@click.option("-o", "--output", type=click.Path(allow_dash=True), help="File for the plan; - for standard output.")
@click.option("--write-model", type=click.Path(path_type=Path), help="Also write the MILP to this .lp or .mps file.")
@click.option("--solver-log", type=click.Path(path_type=Path), help="Also write the solver's log to this file.")
@click.option("-v", "--verbose", is_flag=True, help="Also show each stage of the search: its time, and what it gained.")
@click.option("--require-optimal", is_flag=True, help="Exit with 1 unless the plan is proven optimal.")
@params.format_option("text", "json", "csv")
@params.node_link_option
@params.quiet_option
@params.color_option
def command(graph: str, output: str | None, verbose: bool, require_optimal: bool, **options: Any) -> int:
    """Find the cheapest plan of GRAPH within a memory budget, or within each of several.

    GRAPH is a JSON or YAML file (JSON is faster for big graphs), or - for standard input.
    """
    from remat_cli.api.reading import read_graph
    from remat_cli.cli.progress import ProgressLine, showing
    from remat_cli.cli.session import current
    from remat_cli.files import write_text
    from remat_cli.plan.io import dump_plan
    from remat_cli.planning.smallest import solve_smallest
    from remat_cli.planning.solving import SolveOptions, solve

    asked = _asked(options)
    started_s = current().started_s
    out = Output(options["color"], options["quiet"], payload_on_stdout=output == "-")
    chosen = SolveOptions(
        strategy=options["strategy"],
        solver=options["solver"],
        time_limit_s=options["time_limit"],
        gap=options["gap"],
        threads=options["threads"],
        seed=options["seed"],
        write_model=options["write_model"],
        solver_log=options["solver_log"],
        started_s=started_s,
        reorder=options["reorder"],
    )
    model = read_graph(graph, options["keys"])
    stem = stem_of(graph, model.name)
    if isinstance(asked, tuple):
        pattern = plan_pattern(output, stem)
        for budget in asked:
            refuse_target(graph, plan_path(pattern, budget.text), "-o")
        return _curve(model, asked, chosen, out, pattern, options["format"], require_optimal)
    path = output or f"{stem}.plan.json"
    for option, target in (("-o", path), ("--write-model", chosen.write_model), ("--solver-log", chosen.solver_log)):
        if target is not None:
            refuse_target(graph, str(target), option)
    line = ProgressLine(model.total_cost, started_s)
    with showing(line, quiet=out.quiet):
        if options["minimize"] == "peak":
            solved = solve_smallest(model, chosen, listener=line.update)
        else:
            solved = solve(model, asked, chosen, listener=line.update)
    with interruptible(Control()):  # there is a plan: the first Ctrl-C comes too late
        write_text(path, dump_plan(solved.plan))
        _report(solved, path, out, options["format"])
    if verbose:
        from remat_cli.reports.stages import trace_text

        out.aside(trace_text(solved.plan.run.get("stages", ()), model.total_cost, out.style(sys.stderr)))
    if solved.plan.solver is None:
        _note_unused(out, solved.plan.strategy, chosen)
    if require_optimal and solved.plan.claim.status != "optimal":
        complain("remat: the plan is not proven optimal, as --require-optimal asks")
        return ExitCode.NO
    return ExitCode.OK


def _jobs(options: SolveOptions) -> int:
    """How many budgets to solve at a time: one per thread or core; one alone if it writes a model or a log."""
    import os

    if options.write_model is not None or options.solver_log is not None:
        return 1
    return options.threads or os.cpu_count() or 1


def _curve(
    graph: Graph,
    budgets: tuple[Budget, ...],
    options: SolveOptions,
    out: Output,
    pattern: str,
    format: str,
    require_optimal: bool,
) -> int:
    """A plan for each of several budgets."""
    from remat_cli.cli.curves import exit_code, report_curve, write_plans
    from remat_cli.cli.progress import ProgressLine, showing
    from remat_cli.planning.curve import solve_curve

    assert options.started_s is not None
    line = ProgressLine(graph.total_cost, options.started_s)
    with showing(line, quiet=out.quiet):
        curve = solve_curve(graph, budgets, options, jobs=_jobs(options), listener=line.update)
    with interruptible(Control()):  # there are plans: the first Ctrl-C comes too late
        report_curve(curve, write_plans(curve, pattern), out, format)
    return exit_code(curve, require_optimal=require_optimal)


def _asked(options: dict[str, Any]) -> Budget | tuple[Budget, ...] | None:
    """The budget (None for none), or several. The command line comes before the environment."""
    source = click.get_current_context().get_parameter_source
    given = [name for name in ("budget", "budgets") if options[name] is not None]
    typed = [name for name in given if source(name) is ParameterSource.COMMANDLINE]
    chosen = typed or given
    least = options["minimize"] == "peak"
    if least and (typed or (given and source("minimize") is not ParameterSource.COMMANDLINE)):
        raise UsageError(f"--minimize peak and --{chosen[0]} exclude each other", hint=_ONE)
    if least:
        chosen = []
    elif not chosen:
        raise UsageError("no budget given", hint="add --budget 16GB, --budget 80% or --budgets 50%:95%:5%")
    if len(chosen) > 1:
        raise UsageError("--budget and --budgets exclude each other", hint=_ONE)
    if chosen == ["budgets"]:
        _refuse_files(options, "a single --budget")
        budgets: tuple[Budget, ...] = options["budgets"]
        return budgets
    if options["format"] == "csv":
        raise UsageError("--format csv is for --budgets", hint="take --format json")
    if least:
        _refuse_files(options, "--minimize cost")
        return None
    return None if options["budget"] == "none" else options["budget"]


_ONE = "leave one of them out"


def _refuse_files(options: dict[str, Any], purpose: str) -> None:
    """Refuse ``--write-model`` and ``--solver-log`` where several runs would write to the same file."""
    for name in ("write_model", "solver_log"):
        if options[name] is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for {purpose}", hint="leave it out")


def _report(solved: Any, path: str, out: Output, format: str) -> None:
    if format == "json":
        from remat_cli.reports.jsonform import report_json

        out.report(report_json(solved.report))
        return
    from remat_cli.reports.text import plan_text

    shown = None if path == "-" else path
    out.report(plan_text(solved.report, out.style(), run=solved.plan.run, path=shown, ending=solved.ending))


def _note_unused(out: Output, strategy: str, options: SolveOptions) -> None:
    """Name the requested files that were not written, because no solver ran."""
    if options.write_model is not None:
        out.note(f"remat: {options.write_model} was not written: {strategy} builds no model")
    if options.solver_log is not None and not options.solver_log.exists():
        out.note(f"remat: {options.solver_log} was not written: {strategy} uses no solver")
