"""Options that the commands that search have in common, and how to solve as they say."""

from __future__ import annotations

from typing import Any, TypeVar

import click

from remat_cli.cli import params
from remat_cli.errors import UsageError
from remat_cli.plan.host import Host
from remat_cli.planning.options import SolveOptions

Options = TypeVar("Options", bound=SolveOptions)

_FIELDS = {"time_limit": "time_limit_s"} | {
    name: name for name in ("strategy", "solver", "gap", "threads", "seed", "write_model", "solver_log", "reorder")
}
"""The options of commands that are fields of ``SolveOptions``, with the names of the fields."""


def solve_options(options: dict[str, Any], kind: type[Options], **more: Any) -> Options:
    """How to solve, as the options of a command say; ``more`` are other fields.

    Raises:
        UsageError: If an option makes no sense.
    """
    return kind(**{field: options[name] for name, field in _FIELDS.items() if name in options}, **more)


def solver_option(command: params.F) -> params.F:
    """``--solver``."""
    return click.option("--solver", type=params.SOLVER, default="highs", show_default=True, help="See remat solvers.")(
        command
    )


def gap_option(command: params.F) -> params.F:
    """``--gap``."""
    return click.option(
        "--gap",
        type=params.SHARE,
        default="0.01%",
        show_default=True,
        help="Stop when the cost is proven to be this close to the optimum: 0.01%, or as a share, 0.0001.",
    )(command)


def seed_option(command: params.F) -> params.F:
    """``--seed`` of strategies."""
    return click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")(
        command
    )


def host_options(command: params.F) -> params.F:
    """``--host-bandwidth``, ``--host-memory`` and ``--host-latency``."""
    for option in (
        click.option("--host-latency", type=params.DURATION, help="Time of every copy whatever its size: 0.01ms."),
        click.option(
            "--host-memory", type=params.SIZE, help="Most host memory for values: 64GiB.  [default: no limit]"
        ),
        click.option(
            "--host-bandwidth",
            type=params.BANDWIDTHS,
            help="Let values wait in host memory: 25GB/s, or 25GB/s:20GB/s to the host and back. Costs must be times.",
        ),
    ):
        command = option(command)
    return command


def host_of(options: dict[str, Any]) -> Host | None:
    """The host that the options describe; None without a bandwidth.

    Raises:
        UsageError: If one of the others is given without a bandwidth.
    """
    if options["host_bandwidth"] is not None:
        out, back = options["host_bandwidth"]
        return Host(out, back, options["host_latency"] or 0.0, options["host_memory"])
    for name in ("host_memory", "host_latency"):
        if options[name] is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} says nothing without a bandwidth", hint="add --host-bandwidth 25GB/s"
            )
    return None
