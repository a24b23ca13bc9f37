"""``remat solve``: find a plan and write it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from remat_cli.cli import params
from remat_cli.cli.formats import document_format
from remat_cli.cli.output import Output, complain
from remat_cli.cli.session import current
from remat_cli.cli.targets import one_plan, plan_path, plan_pattern, refuse_target, replaced, stem_of
from remat_cli.control import Control
from remat_cli.cores import usable_cores
from remat_cli.errors import ExitCode, UsageError
from remat_cli.files import make_folders, require_writable, write_text
from remat_cli.running import interruptible
from remat_cli.units import Budget

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph
    from remat_cli.planning.cache import PlanCache
    from remat_cli.planning.options import SolveOptions
    from remat_cli.planning.solved import Solved

_EPILOG = """\b
Examples:
  remat solve graph.json --budget 16GB
  remat solve graph.json --budget 80% --time-limit 60s
  remat solve graph.json --minimize peak
  remat solve graph.json --budgets 50%:95%:5%
  remat solve graph.json --budgets 8GB,16GB,24GB -o 'plans/{budget}.plan.json'
  remat solve graph.json --budgets 50%:95%:5% -o plans/ --format html > budgets.html
  remat solve graph.json --budget 60% --host-bandwidth 25GB/s
  remat solve graph.json --budget 60% --reorder
  remat solve graph.json --budget 60% --start graph.plan.json --time-limit 10m
  remat solve graph.json --budget 80% --strategy 'checkmate-ilp{stage_split=2}' --solver cbc
  remat export zoo:unet | remat solve - --budget 60% -o - | remat check -

The plan goes to GRAPH.plan.json in the current directory unless -o names another file. The report goes to standard
output, or to standard error with -o -. Ctrl-C stops the search and keeps the best plan found; a second Ctrl-C stops at
once.

With --cache, a plan for the same graph, budget, options and version of remat is not searched for again if an earlier
search for it came to its end. It is replayed before it is used. A search starts from the newest plans for other budgets
in the cache, and finds nothing more expensive than one of these that fits.

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
@params.host_options
@click.option("--reorder", is_flag=True, help="Also search for a better order of the nodes than the document's.")
@click.option("--start", metavar="PLAN", type=params.READABLE, help="Start from this old plan of the graph.")
@click.option(
    "--dask", metavar="ADDRESS", help="Search on the cluster of this Dask scheduler; its workers share plans."
)
@click.option("--cache", is_flag=True, help="Keep plans, and find them again for the same graph and options.")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Folder for --cache.  [default: the user's caches]")
@click.option("-o", "--output", type=click.Path(allow_dash=True), help="File for the plan; - for standard output.")
@click.option("--write-model", type=click.Path(path_type=Path), help="Also write the MILP to this .lp or .mps file.")
@click.option("--solver-log", type=click.Path(path_type=Path), help="Also write the solver's log to this file.")
@click.option("-v", "--verbose", is_flag=True, help="Also show each stage of the search: its time, and what it gained.")
@click.option("--require-optimal", is_flag=True, help="Exit with 1 unless the plan is proven optimal.")
@params.format_option("text", "json", "csv", "html")
@params.cdn_option
@params.node_link_option
@params.quiet_option
@params.color_option
def command(graph: str, output: str | None, verbose: bool, require_optimal: bool, **options: Any) -> int:
    """Find the cheapest plan of GRAPH within a memory budget, or within each of several.

    GRAPH is a JSON or YAML file (JSON is faster for big graphs), or - for standard input. Of a plan, its graph is
    solved.
    """
    from remat_cli.planning.options import SolveOptions

    asked = _asked(options)
    params.require_drawing(options["format"], options["cdn"])
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
        started_s=current().started_s,
        reorder=options["reorder"],
        host=params.host_of(options),
    )
    if graph == options["start"] == "-":
        raise UsageError("the graph and the plan cannot both come from standard input", hint="give one as a file")
    model = _graph_in(graph, options["keys"], out)
    if options["start"] is not None:
        from remat_cli.plan.io import load_plan

        chosen = replace(chosen, start=load_plan(options["start"])[0])
    stem = stem_of(graph, model.name)
    if isinstance(asked, tuple):
        pattern = plan_pattern(output, stem)
        for budget in asked:
            refuse_target(graph, plan_path(pattern, budget.text), "-o")
        return _curve(model, asked, chosen, out, pattern, options, require_optimal)
    path = one_plan(output, stem)
    refuse_target(graph, path, "-o")
    for option, target in (("--write-model", chosen.write_model), ("--solver-log", chosen.solver_log)):
        if target is not None:
            refuse_target(graph, str(target), option)
            make_folders(str(target), option=option)
    solved = _one(model, asked, chosen, options, path, out, default_name=output is None)
    if verbose:
        from remat_cli.reports.stages import trace_text

        out.aside(trace_text(solved.plan.run.get("stages", ()), model.total_cost, out.style(sys.stderr)))
    if require_optimal and solved.plan.claim.status != "optimal":
        complain("remat: the plan is not proven optimal, as --require-optimal asks")
        return ExitCode.NO
    return ExitCode.OK


def _graph_in(path: str, keys: str | None, out: Output) -> Graph:
    """The graph in a file, which may be a plan: plans contain theirs."""
    from remat_cli.api.reading import graph_of, read_source
    from remat_cli.graph.document import kind_of

    document = read_source(path)
    if kind_of(document) != "plan":
        return graph_of(document, keys)
    from remat_cli.plan.io import plan_from_document

    if keys is not None:
        raise UsageError("--keys is for node-link graphs, but this is a plan", hint="leave it out")
    graph = plan_from_document(document).graph
    out.note(f"remat: {path} is a plan; solving the graph in it")
    return graph


def _one(
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
    from remat_cli.cli.progress import ProgressLine, showing
    from remat_cli.plan.io import dump_plan
    from remat_cli.planning.least_peak import solve_smallest
    from remat_cli.planning.solving import solve

    line = ProgressLine(graph.total_cost, current().started_s)
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
    from remat_cli.planning.cache import PlanCache, user_folder

    chosen: Path | None = options["cache_dir"]
    if chosen is None and not options["cache"]:
        return None
    folder = user_folder() if chosen is None else chosen
    require_writable(str(folder / "plan.json"), option="--cache-dir")
    return PlanCache(folder, note=lambda text: out.note(f"remat: {text}"))


def _jobs(options: SolveOptions) -> int:
    """How many budgets to solve at a time: one per thread or core; one alone if it writes a model or a log."""
    if options.write_model is not None or options.solver_log is not None:
        return 1
    return options.threads or usable_cores()


def _curve(
    graph: Graph,
    budgets: tuple[Budget, ...],
    options: SolveOptions,
    out: Output,
    pattern: str,
    given: dict[str, Any],
    require_optimal: bool,
) -> int:
    """A plan for each of several budgets."""
    from remat_cli.cli.curves import exit_code, report_curve, write_plans
    from remat_cli.cli.progress import ProgressLine, showing
    from remat_cli.planning.curve import solve_curve

    assert options.started_s is not None
    line = ProgressLine(graph.total_cost, options.started_s)
    with showing(line, quiet=out.quiet):
        curve = solve_curve(graph, budgets, options, jobs=_jobs(options), dask=given["dask"], listener=line.update)
    with interruptible(Control()):  # there are plans: the first Ctrl-C comes too late
        report_curve(curve, write_plans(curve, pattern, out), out, given["format"], cdn=given["cdn"])
    return exit_code(curve, require_optimal=require_optimal)


def _asked(options: dict[str, Any]) -> Budget | tuple[Budget, ...] | None:
    """The budget (None for none), or several."""
    source = click.get_current_context().get_parameter_source
    given = {f"--{name}": source(name) for name in ("budget", "budgets") if options[name] is not None}
    if options["minimize"] == "peak":
        given["--minimize peak"] = source("minimize")
    # What is typed beats the environment, and that a configuration file.
    chosen = [name for name, place in given.items() if place is min(given.values(), key=_PRECEDENCE.index)]
    if not chosen:
        raise UsageError("no budget given", hint="add --budget 16GB, --budget 80% or --budgets 50%:95%:5%")
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other", hint="leave one of them out")
    if chosen == ["--budgets"]:
        _refuse_files(options, "a single --budget")
        for name in ("cache", "cache_dir"):
            if options[name] and source(name) is ParameterSource.COMMANDLINE:
                raise UsageError(f"--{name.replace('_', '-')} is for a single --budget", hint="leave it out")
        budgets: tuple[Budget, ...] = options["budgets"]
        return budgets
    if options["dask"] is not None:
        _refuse_files(options, "searches on this machine")
        if chosen == ["--minimize peak"]:
            raise UsageError("--dask is for --budget and --budgets", hint="leave it out")
    if options["format"] == "csv":
        raise UsageError("--format csv is for --budgets", hint="take --format json")
    if options["format"] == "html":
        raise UsageError("--format html is for --budgets", hint="remat show PLAN --format html draws a plan")
    if chosen == ["--minimize peak"]:
        _refuse_files(options, "--minimize cost")
        return None
    return None if options["budget"] == "none" else options["budget"]


_PRECEDENCE: list[ParameterSource | None] = [
    ParameterSource.COMMANDLINE,
    ParameterSource.ENVIRONMENT,
    ParameterSource.DEFAULT_MAP,
]


def _refuse_files(options: dict[str, Any], purpose: str) -> None:
    """Refuse ``--write-model`` and ``--solver-log`` where several runs would write to the same file."""
    for name in ("write_model", "solver_log"):
        if options[name] is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for {purpose}", hint="leave it out")


def _report(solved: Solved, out: Output, format: str) -> None:
    cached = None if solved.recalled_from is None else str(solved.recalled_from)
    if format == "json":
        if cached is not None:
            out.note(f"remat: not solved again, only replayed: {cached}")
        from remat_cli.reports.documents import report_json

        out.report(report_json(solved.report))
        return
    from remat_cli.reports.plan import plan_text

    out.report(
        plan_text(solved.report, out.style(), run=solved.plan.run, ending=solved.ending, cached=cached),
        beside=True,
    )


def _note_start(out: Output, solved: Solved, path: str) -> None:
    """Say what the plan to start from was good for."""
    from remat_cli.units import format_bytes, format_percent

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
