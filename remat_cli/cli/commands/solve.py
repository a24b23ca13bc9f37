"""``remat solve``: find a plan and write it."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from remat_cli.cli import params
from remat_cli.cli.output import Output, complain
from remat_cli.cli.output_files import one_plan, plan_path, plan_pattern, refuse_target, stem_of
from remat_cli.cli.session import current
from remat_cli.errors import ExitCode, UsageError
from remat_cli.files import make_folders
from remat_cli.planning.options import SolveOptions
from remat_cli.reports.stages import trace_text
from remat_cli.units import Budget

_EPILOG = """\b
Examples:
  remat solve graph.json --budget 16GB
  remat solve graph.json --budget 80% --time-limit 60s
  remat solve graph.json --minimize peak
  remat solve graph.json --budgets 8GB,16GB,24GB -o 'plans/{budget}.plan.json'
  remat solve graph.json --budgets 50%:95%:5% -o plans/ --format html > budgets.html
  remat solve graph.json --budget 60% --host-bandwidth 25GB/s
  remat solve graph.json --budget 80% --strategy 'checkmate-ilp{stage_split=2}' --solver cbc
  remat export zoo:unet | remat solve - --budget 60% -o - | remat check -

With -o -, the report goes to standard error. Ctrl-C stops the search and keeps the best plan found; a second Ctrl-C
stops at once.

The cache keeps plans of finished searches, and replays a plan before it is reused. Other searches for the graph
start from its newest plans in the cache.

More: docs/solving.md, docs/offload.md, docs/splitting.md"""


@click.command("solve", epilog=_EPILOG)
@click.argument("graph", type=params.READABLE)
@click.option(
    "-b",
    "--budget",
    type=params.BUDGET_OR_NONE,
    help="Memory limit: 16GB, 14.5GiB, 80% of the peak without recomputation, or none.",
)
@click.option(
    "--budgets",
    type=params.BUDGETS,
    help="Several limits: 8GB,12GB, or start:stop:step, as in 50%:95%:5%.",
)
@click.option(
    "--minimize",
    type=click.Choice(["cost", "peak"]),
    default="cost",
    show_default=True,
    help="cost: the cheapest plan within a budget; peak: the least peak, without a budget.",
)
@params.strategy_option
@params.solver_option
@click.option("--time-limit", type=params.DURATION, help="Wall time of the whole command: 60s, 5m.  [default: none]")
@params.gap_option
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(1),
    help="Threads of the search; with --budgets, searches at a time.  [default: the solver's choice; one per core]",
)
@params.seed_option
@params.host_options
@click.option("--reorder", is_flag=True, help="Also search for a better order of the nodes.")
@click.option(
    "--split/--no-split", default=True, help="Run regions in parts, where GRAPH offers that.  [default: split]"
)
@click.option("--start", metavar="PLAN", type=params.READABLE, help="Start from this plan of the same graph.")
@params.dask_option
@click.option("--cache", is_flag=True, help="Keep plans, and reuse them for the same graph and options.")
@click.option(
    "--cache-dir",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Like --cache, in this folder instead of the user's.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Plan file; with --budgets, a folder or a pattern with {budget}.  [default: GRAPH.plan.json]",
)
@click.option(
    "--write-model",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also write the MILP to this .lp or .mps file.",
)
@click.option(
    "--solver-log", metavar="FILE", type=click.Path(path_type=Path), help="Also write the solver's log to this file."
)
@click.option("-v", "--verbose", is_flag=True, help="Also show the time and the gain of each stage of the search.")
@click.option("--require-optimal", is_flag=True, help="Exit with 1 unless the plan is proven optimal.")
@params.format_option("text", "json", "csv", "html")
@params.cdn_option
@params.node_link_option
@params.quiet_option
@params.color_option
def command(graph: str, output: str | None, verbose: bool, require_optimal: bool, **options: Any) -> int:
    """Find the cheapest plan of GRAPH within a memory budget, or within each of several.

    GRAPH is a JSON or YAML file (JSON is read faster), or - for standard input. Of a plan, its graph is solved.
    """
    from remat_cli.cli.solving import graph_in, solve_one, solve_several
    from remat_cli.plan.io import load_plan

    asked = _asked(options)
    params.require_drawing(options["format"], options["cdn"])
    out = Output(options["color"], options["quiet"], payload_on_stdout=output == "-")
    host = params.host_of(options)
    chosen = params.solve_options(options, SolveOptions, started_s=current().started_s, host=host)
    if graph == options["start"] == "-":
        raise UsageError("the graph and the plan cannot both come from standard input", hint="give one as a file")
    model = graph_in(graph, options["keys"], out)
    if options["start"] is not None:
        chosen = replace(chosen, start=load_plan(options["start"])[0])
    stem = stem_of(graph, model.name)
    if isinstance(asked, tuple):
        pattern = plan_pattern(output, stem)
        for budget in asked:
            refuse_target(graph, plan_path(pattern, budget.text), "-o")
        return solve_several(model, asked, chosen, out, pattern, options, require_optimal)
    path = one_plan(output, stem)
    refuse_target(graph, path, "-o")
    for option, target in (("--write-model", chosen.write_model), ("--solver-log", chosen.solver_log)):
        if target is not None:
            refuse_target(graph, str(target), option)
            make_folders(str(target), option=option)
    solved = solve_one(model, asked, chosen, options, path, out, default_name=output is None)
    if verbose:
        out.aside(trace_text(solved.plan.run.get("stages", ()), model.no_remat_cost, out.style(sys.stderr)))
    if require_optimal and solved.plan.claim.status != "optimal":
        complain("remat: the plan is not proven optimal, as --require-optimal asks")
        return ExitCode.NO
    return ExitCode.OK


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
