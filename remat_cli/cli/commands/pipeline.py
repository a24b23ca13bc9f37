"""``remat pipeline``: choose recomputation for every stage of a pipeline."""

from dataclasses import replace
from typing import Any

import click

from remat_cli.api.documents import as_graph
from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import document_format, plan_pattern, refuse_target, stem_of
from remat_cli.cli.progress import ProgressLine, showing
from remat_cli.cli.session import current
from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.plan.io import dump_plan
from remat_cli.planning.options import SolveOptions
from remat_cli.reports.documents import document_json
from remat_cli.reports.pipelines import pipeline_document, pipeline_text
from remat_cli.running import interruptible

_PLACE = "{stage}"
_EPILOG = """\b
Examples:
  remat pipeline first.json middle.json middle.json last.json --microbatches 8 --memory 80GB
  remat pipeline s0.json s1.json s2.json s3.json --schedule gpipe --microbatches 4 --memory 24GB
  remat pipeline s*.json --schedule 'interleaved{chunks=2}' --microbatches 16 --memory 80GB
  remat pipeline a.json b.json --microbatches 8 --memory 80GB,40GB -o plans/ --format json

More: docs/pipelines.md"""


@click.command("pipeline", epilog=_EPILOG)
@click.argument("graphs", metavar="GRAPH...", nargs=-1, required=True, type=params.READABLE)
@click.option("--memory", type=params.SIZES, required=True, help="Memory of every device: 80GB; or of each: 80GB,40GB.")
@click.option("--microbatches", metavar="N", type=click.IntRange(1), required=True, help="Microbatches of a step.")
@click.option(
    "--schedule",
    metavar="NAME",
    default="1f1b",
    show_default=True,
    help="gpipe, 1f1b, interleaved{chunks=V}, zb-h1, zb-h2 or zb-v.",
)
@click.option(
    "--transfer",
    metavar="TIME",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Time of a transfer between devices, in the cost unit of the graphs.",
)
@params.strategy_option
@params.solver_option
@click.option(
    "--time-limit", type=params.DURATION, help="Wall time of all searches.  [default: 60s per different device]"
)
@params.gap_option
@params.threads_option
@params.seed_option
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=click.Path(allow_dash=True),
    help="Folder or {stage} pattern of the plans.  [default: GRAPH.stageN.plan.json]",
)
@params.format_option("text", "json")
@params.node_link_option
@params.quiet_option
@params.color_option
def command(
    graphs: tuple[str, ...], memory: tuple[int, ...], microbatches: int, schedule: str, transfer: float, **options: Any
) -> int:
    """Choose what each stage of a pipeline recomputes, for the shortest step within the memory.

    Each GRAPH is one microbatch's forward and backward pass through a stage, in the order of the stages; a file may be
    given several times.
    """
    from remat_cli.api.pipelining import pipeline

    out = Output(options["color"], options["quiet"])
    if graphs.count("-") > 1:
        raise UsageError("standard input is one graph", hint="give the others as files")
    models = {path: as_graph(path, keys=options["keys"]) for path in dict.fromkeys(graphs)}
    paths = []
    for stage, path in enumerate(graphs):
        pattern = plan_pattern(options["output"], stem_of(path, models[path].name), _PLACE)
        paths.append(pattern.replace(_PLACE, f"stage{stage}"))
        refuse_target(path, paths[-1], "-o")
    line = ProgressLine(models[graphs[0]].total_cost, current().started_s)
    with showing(line, quiet=out.quiet):
        answer = pipeline(
            [models[path] for path in graphs],
            list(memory),
            schedule=schedule,
            microbatches=microbatches,
            transfer=transfer,
            options=params.solve_options(options, SolveOptions, started_s=current().started_s),
            listener=line.update,
        )
    with interruptible(Control()):  # there are plans: the first Ctrl-C comes too late
        for path, plan in zip(paths, answer.plans, strict=True):
            out.write(path, dump_plan(plan, document_format(path)))
        stages = [replace(one, path=path) for one, path in zip(answer.facts.stages, paths, strict=True)]
        facts = replace(answer.facts, stages=tuple(stages))
        if options["format"] == "json":
            out.report(document_json(pipeline_document(facts)))
        else:
            out.report(pipeline_text(facts, out.style()), secondary=True)
    return 0
