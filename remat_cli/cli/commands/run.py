"""``remat run``: run a plan on a device."""

from __future__ import annotations

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import ExitCode

_EPILOG = """\b
Examples:
  remat run step.plan.json
  remat run step.plan.json --device cuda --steps 20 --format json

Exits with 0 if all results are bit for bit those without recomputation, with 1 if not."""


@click.command("run", epilog=_EPILOG)
@click.argument("plan", type=params.READABLE)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to run the plan."
)
@click.option("--steps", type=click.IntRange(1, 100_000), default=3, show_default=True, help="Steps to time.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights, inputs and random operations.")
@params.format_option("text", "json")
@params.color_option
def command(plan: str, device: str, steps: int, seed: int, format: str, color: str) -> int:
    """Run PLAN with random weights and inputs, beside the same graph without recomputation.

    PLAN is of a graph from remat export torch:... or zoo:torch/...; nothing of your code is needed. The loss, every
    gradient and every updated buffer are compared bit for bit, and the measured peak with the predicted one. On a CPU
    the peak is that of live storages; on CUDA what was allocated and reserved. Needs the extra remat[torch].
    """
    from remat_cli.frontends.torch.run import run_plan
    from remat_cli.plan.io import load_plan
    from remat_cli.reports.jsonform import document_json
    from remat_cli.reports.runtext import run_text

    out = Output(color)
    loaded, _ = load_plan(plan)
    ran = run_plan(loaded, device=device, steps=steps, seed=seed)
    out.report(document_json(ran.document()) if format == "json" else run_text(ran.document(), out.style()))
    return ExitCode.NO if ran.identical is False else ExitCode.OK
