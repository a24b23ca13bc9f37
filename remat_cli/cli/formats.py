"""The format of a file that a command writes: what its suffix says, unless ``--format`` or ``--to`` says it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click
from click.core import ParameterSource

from remat_cli.errors import UsageError
from remat_cli.files import require_writable
from remat_cli.graph.document import Format
from remat_cli.standard_output import stdout

_TRACE = ".trace.json"
"""The one suffix of two parts."""
_SUFFIXES = {
    "text": (".txt",),
    "json": (".json",),
    "yaml": (".yaml", ".yml"),
    "node-link": (".json",),
    "dot": (".dot", ".gv"),
    "csv": (".csv",),
    "html": (".html", ".htm"),
    "svg": (".svg",),
    "png": (".png",),
    "trace": (_TRACE, ".json"),
    "github": (".txt",),
    "junit": (".xml",),
    "markdown": (".md",),
    "sarif": (".sarif", ".json"),
}
"""Every format of a file, with its suffixes."""
_FOREIGN = frozenset({".gml", ".graphml", ".jpeg", ".jpg", ".onnx", ".pdf", ".pt2"})
"""Suffixes of files that no command writes."""
_KNOWN = _FOREIGN.union(*_SUFFIXES.values())


def output_format(output: str, formats: Sequence[str], asked: str | None, *, option: str = "format") -> str:
    """The format to write to ``output``.

    The suffix decides. An option on the command line must agree with it; one from the environment or a configuration
    file gives way. A suffix that says nothing (``plan.old``, none at all) leaves the option's value.

    Args:
        output: The file; ``-`` for standard output.
        formats: The formats that the command writes.
        asked: The value of the option, which may be its default; None for no default.
        option: The option's name, for messages and for where its value comes from.

    Raises:
        UsageError: If the suffix belongs to another format, or neither it nor the option says one.
    """
    suffix = "" if output == "-" else Path(output).suffix.lower()
    if output.lower().endswith(_TRACE) and "trace" in formats:
        suffix = _TRACE
    by_suffix = [name for name in formats if suffix in _SUFFIXES[name]]
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source(option)
    if asked is not None and (asked in by_suffix or suffix not in _KNOWN):
        return asked
    if asked is not None and source is ParameterSource.COMMANDLINE:
        raise UsageError(
            f"{output}: --{option} {asked} contradicts the suffix {suffix}",
            hint=f"name it {_SUFFIXES[asked][0]}, or leave --{option} out",
        )
    if by_suffix:
        return by_suffix[0]
    if asked is None and output == "-":
        return formats[0]
    known = ", ".join(dict.fromkeys(ending for name in formats for ending in _SUFFIXES[name][:1]))
    if suffix in _KNOWN:
        raise UsageError(f"{output}: this command writes no {suffix} files", hint=f"it writes {known}")
    raise UsageError(f"{output}: cannot tell the format from the suffix", hint=f"name it {known}, or add --{option}")


def report_format(output: str, formats: Sequence[str], asked: str) -> str:
    """:func:`output_format` for a report, which is refused now, before the work, if it cannot be written.

    Raises:
        UsageError: If it is so.
    """
    format = output_format(output, formats, asked)
    require_writable(output)
    return format


def document_format(output: str) -> Format:
    """The format for a graph or a plan in ``output``: JSON, or YAML if the suffix says so.

    Raises:
        UsageError: If the suffix belongs to another format.
    """
    return cast("Format", output_format(output, ("json", "yaml"), "json", option=""))


def refuse_terminal(format: str, output: str) -> None:
    """Refuse to write bytes that are not text to a terminal.

    Raises:
        UsageError: If they would go there.
    """
    if format == "png" and output == "-" and stdout().isatty():
        raise UsageError("a PNG is not text, and standard output is a terminal", hint="name a file with -o")
