"""``remat solve``: find a plan and write it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import ExitCode, UsageError
from remat_cli.units import Budget

if TYPE_CHECKING:
    from remat_cli.api.solving import SolveOptions

_EPILOG = """\b
Examples:
  remat solve graph.json --budget 16GB
  remat solve graph.json --budget 80% --time-limit 60s
  remat solve graph.json --budget 80% --strategy 'checkmate-ilp{stage_split=2}' --solver cbc
  remat export zoo:unet | remat solve - --budget 60% -o - | remat check -

The plan goes to GRAPH.plan.json in the current directory unless -o says otherwise; the report goes to standard
output, or to standard error when the plan is there (-o -). Ctrl-C stops the search and keeps the best plan found;
a second Ctrl-C stops at once."""


@click.command("solve", epilog=_EPILOG)
@click.argument("graph", type=params.READABLE)
@click.option(
    "-b",
    "--budget",
    type=params.BUDGET_OR_NONE,
    required=True,
    help="Memory for everything: 16GB, 14.5GiB, 80% (of the no-remat peak), or none.",
)
@click.option("--strategy", type=params.STRATEGY, default="auto", show_default=True, help="See remat strategies.")
@click.option("--solver", type=params.SOLVER, default="highs", show_default=True, help="See remat solvers.")
@click.option("--time-limit", type=params.DURATION, help="Wall time for the whole command: 60s, 5m.  [default: none]")
@click.option(
    "--gap",
    type=click.FloatRange(0, 1, max_open=True),
    default=1e-4,
    show_default=True,
    help="Stop within this share of the optimum.",
)
@click.option("--threads", type=click.IntRange(1), help="Threads for the solver.  [default: its own choice]")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option("-o", "--output", type=click.Path(allow_dash=True), help="Where the plan goes; - for standard output.")
@click.option("--write-model", type=click.Path(path_type=Path), help="Also write the MILP: a .lp or .mps file.")
@click.option("--solver-log", type=click.Path(path_type=Path), help="Also write the solver's log.")
@click.option("--require-optimal", is_flag=True, help="Exit with 1 unless the plan is proven optimal.")
@params.format_option("text", "json")
@params.node_link_option
@params.quiet_option
@params.color_option
def command(graph: str, budget: Budget | str, output: str | None, require_optimal: bool, **options: Any) -> int:
    """Find the cheapest plan of GRAPH within a memory budget.

    GRAPH is a JSON or YAML file (JSON for big ones), or - for standard input.
    """
    from remat_cli.api.solving import SolveOptions, solve
    from remat_cli.cli.graphs import read_graph
    from remat_cli.cli.progress import ProgressLine, showing
    from remat_cli.cli.session import current
    from remat_cli.files import write_text
    from remat_cli.graph.io import dump_document
    from remat_cli.plan.io import plan_to_document

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
    )
    model = read_graph(graph, options["keys"])
    path = output or f"{_stem(graph, model.name)}.plan.json"
    _refuse_targets(graph, path, chosen)
    line = ProgressLine(model.total_cost, started_s)
    with showing(line, quiet=out.quiet):
        solved = solve(model, None if budget == "none" else budget, chosen, listener=line.update)
    write_text(path, dump_document(plan_to_document(solved.plan)))
    _report(solved, path, out, options["format"])
    if solved.plan.solver is None:
        _note_unused(out, solved.plan.strategy, chosen)
    if require_optimal and solved.plan.claim.status != "optimal":
        click.echo("remat: the plan is not proven optimal, as --require-optimal asks", err=True)
        return ExitCode.NO
    return ExitCode.OK


def _report(solved: Any, path: str, out: Output, format: str) -> None:
    if format == "json":
        from remat_cli.reports.jsonform import report_json

        out.report(report_json(solved.report))
        return
    from remat_cli.reports.text import plan_text

    shown = None if path == "-" else path
    out.report(plan_text(solved.report, out.style(), run=solved.plan.run, path=shown, outcome=solved.outcome))


def _refuse_targets(graph: str, plan: str, options: SolveOptions) -> None:
    """Refuse, before the search, files that could not be written or would take the graph's place."""
    from remat_cli.files import require_writable

    named = {"-o": plan, "--write-model": options.write_model, "--solver-log": options.solver_log}
    for option, target in named.items():
        if target is None:
            continue
        require_writable(str(target), option=option)
        if graph != "-" and Path(target).exists() and Path(target).samefile(graph):
            raise UsageError(f"{target} is the graph itself", hint=f"choose another file with {option}")


def _note_unused(out: Output, strategy: str, options: SolveOptions) -> None:
    """Say which files were asked for and not written, because no solver ran."""
    if options.write_model is not None:
        out.note(f"remat: {options.write_model} was not written: {strategy} builds no model")
    if options.solver_log is not None and not options.solver_log.exists():
        out.note(f"remat: {options.solver_log} was not written: {strategy} uses no solver")


def _stem(source: str, name: str) -> str:
    """The first part of the plan's file name: that of the graph's file, or its name when it came through a pipe."""
    if source == "-":
        return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "graph"
    return re.sub(r"\.(json|ya?ml)$", "", Path(source).name, flags=re.IGNORECASE) or "graph"
