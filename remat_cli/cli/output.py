"""Where output goes and how it looks: payload on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from remat_cli.reports.style import Style

_NARROWEST = 40
_PIPED_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Output:
    """What to print where.

    Attributes:
        color: ``auto``, ``always`` or ``never``.
        quiet: Nothing on stderr but errors.
        payload_on_stdout: Whether stdout is taken by a document, so that reports go to stderr.
    """

    color: str = "auto"
    quiet: bool = False
    payload_on_stdout: bool = False

    @property
    def report_stream(self) -> TextIO:
        """Where reports go."""
        return sys.stderr if self.payload_on_stdout else sys.stdout

    def style(self) -> Style:
        """How reports look on the stream they go to."""
        from remat_cli.reports.style import Style

        stream = self.report_stream
        return Style(
            width=max(_NARROWEST, _width(stream)),
            color=self.colourful(stream),
            unicode=(stream.encoding or "ascii").lower().replace("-", "").startswith("utf"),
        )

    def file_style(self) -> Style:
        """How reports look in a file."""
        from remat_cli.reports.style import Style

        return Style(width=_PIPED_WIDTH, color=False, unicode=True)

    def colourful(self, stream: TextIO) -> bool:
        """Whether to colour ``stream``: as told, else on a terminal unless NO_COLOR is set."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")

    def report(self, text: str) -> None:
        """Print a report (which ends in a newline)."""
        if self.quiet and self.payload_on_stdout:
            return
        try:
            click.echo(text, nl=False, file=self.report_stream, color=True)
        except BrokenPipeError:
            # The reader has seen enough (head, grep -q). Our exit code still says what we found.
            _forget(self.report_stream)

    def note(self, text: str) -> None:
        """Print a note about what was done."""
        if not self.quiet:
            click.echo(text, err=True)


def _forget(stream: TextIO) -> None:
    """Send what is left for ``stream`` nowhere, so that a later flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _width(stream: TextIO) -> int:
    """Columns of what ``stream`` goes to: COLUMNS if it is set, else those of the terminal, else enough for a file."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    if not stream.isatty():
        return _PIPED_WIDTH
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return 80
