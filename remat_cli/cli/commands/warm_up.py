"""``remat warm-up``: compile the inner loops of this installation."""

import time
from pathlib import Path

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output, complain
from remat_cli.control import Control
from remat_cli.errors import ExitCode

_EPILOG = """\b
Examples:
  remat warm-up
  NUMBA_CACHE_DIR=/var/cache/remat remat warm-up

More: docs/ci.md"""


@click.command("warm-up", epilog=_EPILOG)
@params.quiet_option
@params.color_option
def command(quiet: bool, color: str) -> int:
    """Compile what solving needs once after an installation, so that no later command has to.

    Exit code: 0, or 1 if there is no folder for the machine code.
    """
    from remat_cli.kernels.compiling import GROUPS, kept, wait

    out, started_s = Output(color, quiet), time.monotonic()
    folders: set[Path] = set()
    for group in GROUPS:
        out.note(f"compiling {group}")
        wait(group, Control())
        found = kept(group)
        if found is None:
            complain("remat: error: there is no folder to keep machine code in")
            complain("  hint: set NUMBA_CACHE_DIR to a folder that can be written, now and for later commands")
            return ExitCode.NO
        folders |= found
    where, took_s = ", ".join(map(str, sorted(folders))), time.monotonic() - started_s
    out.report(f"Ready after {took_s:.1f} s. The machine code is in {where}\n", secondary=True)
    return ExitCode.OK
