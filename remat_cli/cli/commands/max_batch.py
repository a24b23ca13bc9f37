"""``remat max-batch``: find the largest batch that fits."""

from typing import Any

import click

from remat_cli.api.documents import as_graph
from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.cli.progress import ProgressLine, showing
from remat_cli.cli.session import current
from remat_cli.errors import ExitCode, UsageError
from remat_cli.planning.options import SolveOptions
from remat_cli.reports.batches import batch_document, batch_text
from remat_cli.reports.documents import document_json

_ONE_FORWARD = "one-forward"
_FORMATS = ("text", "json")
_EPILOG = """\b
Examples:
  remat max-batch vgg16.json --memory 16GB
  remat export 'zoo:unet{batch=8}' | remat max-batch - --memory 16GB --max-overhead 10%
  for b in 8 16 32; do remat export "zoo:unet{batch=$b}" --cost roofline:v100 -o unet$b.json; done
  remat max-batch unet8.json unet16.json unet32.json --memory 16GB

Exit code: 0, or 1 if not even one sample fits.

More: docs/quickstart.md"""


@click.command("max-batch", epilog=_EPILOG)
@click.argument("graphs", metavar="GRAPH...", nargs=-1, required=True, type=params.READABLE)
@click.option("--memory", type=params.SIZE, required=True, help="Memory limit: 16GB, 14.5GiB.")
@click.option(
    "--max-overhead",
    type=params.OVERHEAD,
    default=_ONE_FORWARD,
    show_default=True,
    help="Limit on recomputation: one-forward, or a percentage of the cost without it: 10%.",
)
@click.option(
    "--batch",
    type=params.BATCHES,
    metavar="N[,N...]",
    help="Batch of each graph.  [default: from its metadata]",
)
@params.strategy_option
@params.solver_option
@click.option("--time-limit", type=params.DURATION, help="Wall time of the whole command.  [default: 60s per batch]")
@params.threads_option
@params.seed_option
@params.host_options
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.node_link_option
@params.quiet_option
@params.color_option
def command(
    graphs: tuple[str, ...], memory: int, max_overhead: str, batch: tuple[int, ...] | None, **options: Any
) -> int:
    """Find the largest batch of GRAPH that fits into a memory at bounded extra cost.

    Costs and memory of GRAPH, except fixed_memory, grow with the batch. Of several, one for each batch of a network,
    they lie on the lines through the nearest two.

    Every batch that is reported has a replayed plan; a batch is called impossible only if that is proven.
    """
    from remat_cli.api.solving import max_batch

    started_s = current().started_s
    format = report_format(options["output"], _FORMATS, options["format"])
    out = Output(options["color"], options["quiet"], file=options["output"])
    if graphs.count("-") > 1:
        raise UsageError("standard input is one graph", hint="give the others as files")
    models = [as_graph(graph, keys=options["keys"]) for graph in graphs]
    several = len(models) > 1
    if batch is not None and len(batch) != len(models):
        raise UsageError(
            f"--batch names {len(batch)}, and the number of graphs is {len(models)}",
            hint="say for which batch each graph was made, in order: --batch 8,16,32",
        )
    given: Any = None if batch is None else batch if several else batch[0]
    host = params.host_of(options)
    chosen = params.solve_options(options, SolveOptions, started_s=started_s, host=host)
    line = ProgressLine(models[0].no_remat_cost, started_s)
    with showing(line, quiet=out.quiet):
        answer = max_batch(
            models if several else models[0],
            memory,
            graph_batch=given,
            max_overhead=max_overhead,
            options=chosen,
            listener=line.update,
        )
    out.report(
        document_json(batch_document(answer)) if format == "json" else batch_text(answer, answer.graph, out.style())
    )
    return ExitCode.OK if answer.found else ExitCode.NO
