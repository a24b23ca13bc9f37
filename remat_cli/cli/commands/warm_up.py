"""``remat warm-up``: compile the inner loops of this installation."""

import time

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output, complain
from remat_cli.control import Control
from remat_cli.errors import ExitCode

_EPILOG = """\b
Examples:
  remat warm-up
  NUMBA_CACHE_DIR=/var/cache/remat remat warm-up"""


@click.command("warm-up", epilog=_EPILOG)
@params.quiet_option
@params.color_option
def command(quiet: bool, color: str) -> int:
    """Compile what solving needs, so that no later command has to: once, after an installation.

    Says where the machine code is kept; exit code 1 if there is no folder for it.
    """
    from remat_cli.kernels.compiling import GROUPS, kept, wait

    out, started_s = Output(color, quiet), time.monotonic()
    for group in GROUPS:
        out.note(f"compiling {group}")
        wait(group, Control())
    took_s, folders = time.monotonic() - started_s, kept()
    if folders is None:
        complain(f"remat: error: compiled in {took_s:.1f} s for nothing: there is no folder to keep machine code in")
        complain("  hint: set NUMBA_CACHE_DIR to a folder that can be written, now and for later commands")
        return ExitCode.NO
    out.report(f"Ready after {took_s:.1f} s. The machine code is in {', '.join(map(str, folders))}\n", secondary=True)
    return ExitCode.OK
