"""A solver's log: written to a file during the run, with its last lines kept for outcomes and error messages."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from remat_cli.errors import UsageError, Worded

KEPT_LINES = 40
"""The number of last lines in an outcome."""


class SolverLog:
    """Collects the log of one run. Use it as a context manager.

    Args:
        path: File to append to, so that the runs of one command follow each other; None for no file.

    Raises:
        UsageError: If the file cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._partial = ""
        try:
            self._stream = None if path is None else path.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(
                f"{path}: the solver's log cannot be written: {error.strerror or error}",
                hint=Worded("choose another file as solver_log", "choose another file with --solver-log"),
            ) from None

    def write(self, text: str) -> list[str]:
        """Append ``text``, whole lines or not, and return the lines that it completes."""
        if self._stream is not None and not self._stream.closed:
            self._stream.write(text)
            self._stream.flush()
        *lines, self._partial = (self._partial + text).split("\n")
        lines = [line.rstrip("\r") for line in lines]
        self._lines.extend(line for line in lines if line.strip())
        return lines

    def note(self, text: str) -> None:
        """Add a remark of remat's own."""
        self.write(f"remat: {text}\n" if not self._partial else f"\nremat: {text}\n")

    def text(self) -> str:
        """The last lines."""
        return "\n".join([*self._lines, self._partial]).strip()

    def __enter__(self) -> Self:
        """Return the log itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        """Close the file. Later output of an abandoned solver is dropped."""
        if self._stream is not None:
            self._stream.close()
