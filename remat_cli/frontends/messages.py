"""Messages to the user: lines on standard error, a line that is written over on a terminal, and warnings.

Warnings point to the user's line, however deep in a framework remat is called.
"""

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from remat_cli.printable import printable

Tell = Callable[[str], None]
"""Takes what the user should know now, a sentence at a time."""

_CLEAR = "\r\x1b[K"
_live = [False]
"""Whether the last thing on the terminal is a line that is to be written over."""
_OWN = str(Path(__file__).parents[1])
_FRAMEWORKS = ("torch", "jax", "tensorflow", "keras")


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


def warn(message: str) -> None:
    """Warn with ``message``, as of the innermost line that is neither remat's nor a framework's."""
    modules = [sys.modules[name] for name in _FRAMEWORKS if name in sys.modules]
    libraries = (_OWN, *(str(Path(module.__file__).parent) for module in modules if module.__file__ is not None))
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(libraries):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]  # None ends it
    clear_live()
    warnings.warn(message, stacklevel=level)
