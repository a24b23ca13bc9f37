"""``remat compare``: strategies against budgets on one graph."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from remat_cli.api.documents import as_graph
from remat_cli.api.showing import formatted
from remat_cli.cli import params
from remat_cli.cli.output import Output, complain
from remat_cli.cli.output_files import refuse_terminal, report_format
from remat_cli.cli.session import current
from remat_cli.errors import ExitCode, UsageError
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Comparison, Linked, Row
from remat_cli.planning.comparison_results import unused_rows
from remat_cli.planning.options import Limits
from remat_cli.printable import printable
from remat_cli.running import usable_cores
from remat_cli.units import Budget, format_duration, format_percent

_FORMATS = ("text", "json", "csv", "html", "svg", "png")
_EPILOG = """\b
Examples:
  remat compare graph.json --budgets 50%:90%:10%
  remat compare graph.json --budgets 8GB,12GB,16GB --strategies auto,chen-sqrt,checkmate-lp --format csv
  remat compare graph.json --budgets 40%:90%:5% -o graph.svg --results graph.rows.jsonl
  remat compare graph.json --budgets 20%:80%:20% --links pcie4,pcie5,nvlink-c2c \\
      --strategies 'offload,offload{recompute=false},offload{copy=false}'

An interrupted comparison continues from the file of --results.

Exit code: 0, or 1 if no strategy has any plan.

More: docs/strategies.md"""


@click.command("compare", epilog=_EPILOG)
@click.argument("graph", type=params.READABLE)
@params.budgets_option
@click.option(
    "--strategies",
    metavar="STRATEGY,...",
    default="all",
    show_default=True,
    help="Strategies, with options in braces: see remat strategies.",
)
@params.solver_option
@click.option("--time-limit", type=params.DURATION, default="60s", show_default=True, help="Wall time of each search.")
@params.gap_option
@params.threads_option
@params.seed_option
@params.host_options
@click.option(
    "--links",
    metavar="LINK,...",
    help="Compare for each link to the host: pcie3, pcie4, pcie5, nvlink-c2c or a bandwidth.",
)
@params.jobs_option
@params.dask_option
@params.results_option
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.cdn_option
@params.node_link_option
@params.quiet_option
@params.color_option
def command(graph: str, budgets: tuple[Budget, ...], output: str, **options: Any) -> int:
    """Compare strategies on GRAPH at several memory budgets.

    GRAPH is a JSON or YAML file, or - for standard input.
    """
    from remat_cli.api.comparing import compare, compare_links
    from remat_cli.planning.executors import DaskExecutor, LocalExecutor

    out = Output(options["color"], options["quiet"])
    format = report_format(output, _FORMATS, options["format"])
    refuse_terminal(format, output)
    params.require_drawing(format, options["cdn"])
    if options["dask"] is not None and options["jobs"] is not None:
        raise UsageError("--jobs is for this machine", hint="with --dask, the cluster's workers decide")
    linked = options["links"] is not None
    if linked and options["host_bandwidth"] is not None:
        raise UsageError("--links has bandwidths of its own", hint="leave --host-bandwidth out")
    model = as_graph(graph, keys=options["keys"])
    limits = params.solve_options(options, Limits, host=None if linked else params.host_of(options))
    if options["results"] is not None and not linked:
        _note_unused(out, options["results"], model, limits)
    executor = LocalExecutor(options["jobs"] or usable_cores())
    with _progress(out, model) as listener:
        how: dict[str, Any] = {
            "executor": executor if options["dask"] is None else DaskExecutor(options["dask"]),
            "results": options["results"],
            "listener": listener,
            "note": out.note,
        }
        if linked:
            waits_s, room = options["host_latency"] or 0.0, options["host_memory"]
            chosen = (options["links"], options["strategies"], limits)
            comparison: Comparison | Linked = compare_links(
                model, budgets, *chosen, latency_s=waits_s, memory=room, **how
            )
        else:
            comparison = compare(model, budgets, options["strategies"], limits, **how)
    style = out.style() if output == "-" else out.file_style()
    out.write(output, formatted(comparison, format, style, current().command_line(), cdn=options["cdn"]))
    if comparison.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if comparison.has_plan else ExitCode.NO


def _note_unused(out: Output, results: Path, model: Graph, limits: Limits) -> None:
    """Say that rows of the results file are not reused, and why."""
    number, names = unused_rows(results, model, limits)
    if not number:
        return
    words = {"graph": "graph", "remat": "version of remat"}
    why = [words.get(name, f"--{name.removesuffix('_s').replace('_', '-')}") for name in names]
    other = f"another {' and '.join(why)}" if why else "another graph, other options or another version of remat"
    out.note(f"remat: rows in {results} that are not reused, because they are for {other}: {number}")


@contextmanager
def _progress(out: Output, model: Graph) -> Iterator[Callable[[Row, int, int], None] | None]:
    """Show progress on stderr: a live bar on a terminal, elsewhere a line for every row."""
    if out.quiet:
        yield None
        return
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda row, done, whole: complain(f"{done}/{whole}  {_words(row)}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True, no_color=not out.colourful(sys.stderr))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(printable(f"comparing on {model.name}"), total=None)
        yield lambda row, done, whole: bar.update(task, completed=done, total=whole, description=_words(row))


def _words(row: Row) -> str:
    """The outcome of a row in one line."""
    if row.cost is None:
        end = {"none": "no plan fits"}.get(row.ended.value, f"{row.ended.value}: {row.message}")
    else:
        end = f"+{format_percent(row.overhead or 0.0)}"
    return printable(f"{row.strategy} at {row.budget}: {end}, {format_duration(row.wall_s)}")
