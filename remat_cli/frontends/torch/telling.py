"""Messages of one line to the user while something is prepared."""

from __future__ import annotations

import sys
from collections.abc import Callable

from remat_cli.printable import printable

Tell = Callable[[str], None]
"""Receives a message of one line for the user."""


def tell_stderr(text: str) -> None:
    """One line on standard error, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"remat: {printable(text)}\n")
