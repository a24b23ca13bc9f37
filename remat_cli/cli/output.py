"""Where output goes and how it looks: payload on stdout, everything else on stderr."""

import os
import sys
from dataclasses import dataclass
from typing import TextIO

import click

from remat_cli.printable import printable, printable_lines
from remat_cli.reports.style import Style
from remat_cli.standard_output import stdout

_NARROWEST = 40
_PIPED_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Output:
    """Where to print reports and notes, and in which style.

    Attributes:
        color: ``auto``, ``always`` or ``never``.
        quiet: Whether to print only errors, and what was asked for.
        payload_on_stdout: Whether a document goes to stdout, so that reports go to stderr.
        file: Where the one report of a command goes instead; ``-`` for the streams.
    """

    color: str = "auto"
    quiet: bool = False
    payload_on_stdout: bool = False
    file: str = "-"

    @property
    def report_stream(self) -> TextIO:
        """The stream for reports."""
        return sys.stderr if self.payload_on_stdout else stdout()

    def style(self, stream: TextIO | None = None) -> Style:
        """The style of reports on a stream, by default on theirs."""
        if stream is None and self.file != "-":
            return self.file_style()
        stream = stream or self.report_stream
        return Style(
            width=max(_NARROWEST, _width(stream)),
            color=self.colourful(stream),
            unicode=(stream.encoding or "ascii").lower().replace("-", "").startswith("utf"),
        )

    def file_style(self) -> Style:
        """The style of reports in a file."""
        return Style(width=_PIPED_WIDTH, color=False, unicode=True)

    def colourful(self, stream: TextIO) -> bool:
        """Whether to colour ``stream``: as asked, else on a terminal unless NO_COLOR is set."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")

    def report(self, text: str, *, secondary: bool = False) -> None:
        """Print a report, which must end in a newline, or write it to the file.

        It is ``secondary`` if the answer is elsewhere, in a plan or in the exit code: then it is not printed if quiet.
        """
        if self.file != "-":
            self.write(self.file, text)
            return
        if self.quiet and (secondary or self.payload_on_stdout):
            return
        try:
            shown = printable_lines(text, colours=self.colourful(self.report_stream))
            click.echo(shown, nl=False, file=self.report_stream, color=True)
        except BrokenPipeError:
            # The reader has seen enough (head, grep -q). The exit code still gives the result.
            _forget(self.report_stream)

    def write(self, path: str, data: str | bytes, more: str = "") -> None:
        """Write a document to ``path`` (``-`` for standard output), and say so, with ``more`` about it."""
        from remat_cli.files import write_bytes, write_text  # --help writes nothing

        if isinstance(data, bytes):
            write_bytes(path, data)
        else:
            write_text(path, data)
        self.wrote(path, more)

    def wrote(self, path: str, more: str = "") -> None:
        """Say that ``path`` was written, unless it is standard output."""
        if path != "-":
            self.note(f"wrote {path}{more}")

    def note(self, text: str) -> None:
        """Print a note of one line on stderr, unless quiet."""
        if not self.quiet:
            complain(printable(text))

    def aside(self, text: str) -> None:
        """Print a report in the style of stderr there, unless quiet."""
        if not self.quiet:
            complain(text, color=self.colourful(sys.stderr))


def complain(text: str, *, color: bool = False) -> None:
    """Print ``text`` on stderr; every line end in it must be our own."""
    click.echo(printable_lines(text, colours=color), err=True, color=color)


def _forget(stream: TextIO) -> None:
    """Discard the rest of ``stream``, so that a later flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _width(stream: TextIO) -> int:
    """Width of ``stream`` in columns: COLUMNS if it is set, else the terminal's, else a fixed width for files."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    if not stream.isatty():
        return _PIPED_WIDTH
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return 80
