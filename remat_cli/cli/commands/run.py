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
  remat run step.plan.json --graph step.json

Exits with 0 if all results equal those without recomputation bit for bit; of a plan with regions in parts, if they
differ by no more than another order of sums explains. Exits with 1 if one differs, or if the device runs out of
memory."""


@click.command("run", epilog=_EPILOG)
@click.argument("plan", type=params.READABLE)
@click.option("--device", type=params.DEVICE, default="cpu", show_default=True, help="Where to run the plan.")
@click.option("--steps", type=click.IntRange(1, 100_000), default=3, show_default=True, help="Steps to time.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights, inputs and random operations.")
@click.option("--graph", type=params.READABLE, help="Also check that the plan is for this graph.")
@click.option("--force", is_flag=True, help="Accept a PLAN that was exported for another version or device.")
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

    The graph of PLAN comes from remat export torch:..., jax:... or tf:..., or from zoo:torch/..., zoo:jax/... or
    zoo:tf/...; your own code is not needed. The loss, every gradient and every updated variable are compared bit for
    bit, and the measured peak with the predicted one. On a CPU, the peak is that of live tensors; on a GPU, it is the
    allocated memory. A plan that was exported with another minor version of its framework, or for another device, is
    refused. Devices are cpu and cuda for PyTorch and JAX, cpu and gpu for TensorFlow. Needs the extra remat[torch],
    remat[jax] or remat[tensorflow].
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
