"""``remat max-batch``: find the largest batch that fits."""

from __future__ import annotations

from typing import Any

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import ExitCode

_ONE_FORWARD = "one-forward"
_EPILOG = """\b
Examples:
  remat max-batch vgg16.json --memory 16GB
  remat export 'zoo:unet{batch=8}' | remat max-batch - --memory 16GB --max-overhead 10%

All memory of the graph except fixed_memory grows with the batch. Exits with 1 if not even one sample fits."""


@click.command("max-batch", epilog=_EPILOG)
@click.argument("graph", type=params.READABLE)
@click.option("--memory", type=params.SIZE, required=True, help="Memory for everything: 16GB, 14.5GiB.")
@click.option(
    "--max-overhead",
    type=params.OVERHEAD,
    default=_ONE_FORWARD,
    show_default=True,
    help="Limit on recomputation: one-forward, or a percentage of the cost without recomputation.",
)
@click.option(
    "--batch", type=click.IntRange(1), help="Batch for which the graph was made.  [default: from its metadata]"
)
@click.option("--strategy", type=params.STRATEGY, default="auto", show_default=True, help="See remat strategies.")
@params.solver_option
@click.option("--time-limit", type=params.DURATION, help="Wall time for the whole command.  [default: 60s per batch]")
@click.option("--threads", type=click.IntRange(1), help="Threads for the solver.  [default: its own choice]")
@params.seed_option
@params.host_options
@params.format_option("text", "json")
@params.node_link_option
@params.quiet_option
@params.color_option
def command(graph: str, memory: int, max_overhead: str, batch: int | None, **options: Any) -> int:
    """Find the largest batch of GRAPH that fits into a memory at bounded extra cost.

    Every batch that is reported has a replayed plan. A batch is called impossible only if that is proven.
    """
    from remat_cli.api.reading import read_graph
    from remat_cli.api.solving import max_batch
    from remat_cli.cli.progress import ProgressLine, showing
    from remat_cli.cli.session import current
    from remat_cli.planning.options import SolveOptions
    from remat_cli.reports.batches import batch_json, batch_text

    started_s = current().started_s
    out = Output(options["color"], options["quiet"])
    model = read_graph(graph, options["keys"])
    chosen = SolveOptions(
        strategy=options["strategy"],
        solver=options["solver"],
        time_limit_s=options["time_limit"],
        threads=options["threads"],
        seed=options["seed"],
        started_s=started_s,
        host=params.host_of(options),
    )
    line = ProgressLine(model.total_cost, started_s)
    with showing(line, quiet=out.quiet):
        answer = max_batch(
            model, memory, graph_batch=batch, max_overhead=max_overhead, options=chosen, listener=line.update
        )
    facts = answer.facts()
    out.report(batch_json(facts) if options["format"] == "json" else batch_text(facts, model, out.style()))
    return ExitCode.OK if answer.found else ExitCode.NO
