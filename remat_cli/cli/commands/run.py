"""``remat run``: run a plan on a device."""

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.errors import ExitCode, UsageError
from remat_cli.frontends.frameworks import framework_of
from remat_cli.graph.io import load_graph
from remat_cli.plan.io import load_plan
from remat_cli.reports.documents import document_json
from remat_cli.reports.run import run_text

_FORMATS = ("text", "json")
_EPILOG = """\b
Examples:
  remat run step.plan.json
  remat run step.plan.json --device cuda --steps 20 --format json

Exit code: 0 if all results equal those without recomputation bit for bit (of regions in parts, up to the order of
sums), 1 if one differs or the device runs out of memory.

More: docs/costs.md"""


@click.command("run", epilog=_EPILOG)
@click.argument("plan", type=params.READABLE)
@click.option("--device", type=params.DEVICE, default="cpu", show_default=True, help=params.DEVICE_HELP)
@click.option(
    "--steps", metavar="N", type=click.IntRange(1, 100_000), default=3, show_default=True, help="Steps to time."
)
@click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Random seed.")
@params.matching_graph_option
@click.option("--force", is_flag=True, help="Accept an export for another version or device.")
@params.library_option
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.quiet_option
@params.color_option
def command(
    plan: str,
    device: str,
    steps: int,
    seed: int,
    graph: str | None,
    force: bool,
    library: tuple[str, ...],
    output: str,
    format: str,
    quiet: bool,
    color: str,
) -> int:
    """Run PLAN with random weights and inputs, and compare it with the same graph without recomputation.

    Its graph comes from remat export with PyTorch, JAX or TensorFlow, of this minor version and for this device; your
    code is not needed. The loss, gradients and updated variables are compared bit for bit, and the measured peak with
    the predicted one: of live tensors on a CPU, of allocated memory on a GPU.
    """
    if plan == "-" and graph == "-":
        raise UsageError("the plan and the graph cannot both come from standard input", hint="give one as a file")

    format = report_format(output, _FORMATS, format)
    out = Output(color, quiet, file=output)
    loaded, _ = load_plan(plan)
    wanted = None if graph is None else load_graph(graph)
    framework = framework_of(loaded.graph)
    ran = framework.run(loaded, device=device, steps=steps, seed=seed, graph=wanted, force=force, libraries=library)
    if format == "json":
        out.report(document_json(ran.document()))
    else:
        out.report(run_text(ran.document(), out.style()), secondary=True)
    return ExitCode.OK if ran.as_expected else ExitCode.NO
