"""``remat worth``: what the next GB of memory, and a faster link to the host, are worth."""

from typing import Any

import click

from remat_cli.api.documents import as_graph
from remat_cli.api.showing import formatted
from remat_cli.cli import params
from remat_cli.cli.output import Output, complain
from remat_cli.cli.output_files import report_format
from remat_cli.cli.session import current
from remat_cli.errors import ExitCode
from remat_cli.plan.comparison import Row
from remat_cli.planning.options import Limits
from remat_cli.printable import printable
from remat_cli.running import usable_cores
from remat_cli.units import Budget, format_duration

_FORMATS = ("text", "json", "csv", "html")
_EPILOG = """\b
Examples:
  remat worth unet.json --budgets 40%:80%:20%
  remat worth unet.json --budgets 8GB,12GB,16GB --links pcie4,pcie5,400GB/s:300GB/s --time-limit 30s
  remat worth unet.json --budgets 40%:80%:10% -o worth.html

Exit code: 0, or 1 if there is no plan at all.

More: docs/offload.md"""


@click.command("worth", epilog=_EPILOG)
@click.argument("graph", type=params.READABLE)
@params.budgets_option
@click.option(
    "--links",
    metavar="LINK,...",
    default="pcie3,pcie4,pcie5,nvlink-c2c",
    show_default=True,
    help="Links to the host: names, or bandwidths such as 25GB/s:20GB/s (out:back).",
)
@params.host_latency_option
@params.host_memory_option
@params.solver_option
@click.option("--time-limit", type=params.DURATION, default="60s", show_default=True, help="Wall time of each search.")
@params.gap_option
@params.threads_option
@params.seed_option
@params.jobs_option
@params.results_option
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.cdn_option
@params.node_link_option
@params.quiet_option
@params.color_option
def command(graph: str, budgets: tuple[Budget, ...], **options: Any) -> int:
    """Say what the next GB of device memory is worth on GRAPH, and what a faster link to the host is.

    The report compares, for each link and budget, plans that recompute, copy, or do both. GRAPH is a JSON or YAML file
    with costs that are times, or - for standard input.
    """
    from remat_cli.api.comparing import worth
    from remat_cli.planning.executors import LocalExecutor

    format = report_format(options["output"], _FORMATS, options["format"])
    params.require_drawing(format, options["cdn"])
    out = Output(options["color"], options["quiet"], file=options["output"])
    model = as_graph(graph, keys=options["keys"])
    limits = params.solve_options(options, Limits)

    def report(row: Row, done: int, whole: int) -> None:
        cell = f"{row.strategy} at {row.budget}: {row.ended.value}, {format_duration(row.wall_s)}"
        complain(printable(f"{done}/{whole}  {cell}"))

    result = worth(
        model,
        budgets,
        options["links"],
        limits,
        latency_s=options["host_latency"] or 0.0,
        memory=options["host_memory"],
        executor=LocalExecutor(options["jobs"] or usable_cores()),
        results=options["results"],
        listener=None if out.quiet else report,
        note=out.note,
    )
    text = formatted(result, format, out.style(), current().command_line(), cdn=options["cdn"])
    if format == "html":
        out.write(options["output"], text)
    else:
        out.report(str(text))
    if result.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if any(offer.both is not None for offer in result.offers) else ExitCode.NO
