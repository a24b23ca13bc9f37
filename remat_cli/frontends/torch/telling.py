"""Messages of one line to the user while something is prepared, and a line on a terminal that says where it stands."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

from remat_cli.printable import printable

Tell = Callable[[str], None]
"""Receives a message of one line for the user."""

_CLEAR = "\r\x1b[K"
_live = [False]
"""Whether the last thing on the terminal is a line that is to be written over."""


def tell_stderr(text: str) -> None:
    """One line on standard error, if there is one."""
    if sys.stderr is not None:
        clear_live()
        sys.stderr.write(f"remat: {printable(text)}\n")


def show_live(text: str) -> None:
    """Show ``text`` on a terminal, in place of what was shown there before; elsewhere nothing."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"{_CLEAR}{f'remat: {printable(text)}'[:width]}")
    sys.stderr.flush()
    _live[0] = True


def clear_live() -> None:
    """Take the line of :func:`show_live` away, so that another begins where it did."""
    if _live[0] and sys.stderr is not None:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
    _live[0] = False
