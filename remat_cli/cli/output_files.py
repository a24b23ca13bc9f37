"""Files that commands write: their formats, their names, and refusals of those that cannot be written.

The suffix of a file says its format, unless ``--format`` or ``--to`` says it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click
from click.core import ParameterSource

from remat_cli.errors import InputError, UsageError
from remat_cli.files import require_stdout, require_writable
from remat_cli.graph.document import Format, kind_of, read_document
from remat_cli.standard_output import stdout
from remat_cli.units import format_bytes

_PLACE = "{budget}"
"""What stands for the budget in the names of several plans."""
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


def stem_of(source: str, name: str) -> str:
    """The first part of a plan's file name: from the graph's file, or its name if it came through a pipe."""
    if source == "-":
        return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "graph"
    return re.sub(r"\.(json|ya?ml|graphml)$", "", Path(source).name, flags=re.IGNORECASE) or "graph"


def one_plan(output: str | None, stem: str) -> str:
    """Where a single plan goes: ``output``, or into it if it is a folder; None for the current folder."""
    if output is None or output == "-":
        return output or f"{stem}.plan.json"
    folder = output.endswith("/") or Path(output).is_dir()
    return str(Path(output) / f"{stem}.plan.json") if folder else output


def replaced(path: str, budget_bytes: int | None) -> str:
    """What to say of the plan in ``path`` that a new plan is about to replace, if that was for another budget."""
    if not Path(path).is_file():
        return ""
    try:
        document = read_document(path)
    except InputError:
        return ""
    old = document.data.get("budget")
    if kind_of(document) != "plan" or old == budget_bytes or not isinstance(old, int | None):
        return ""
    words = "no budget" if old is None else f"a budget of {format_bytes(old)}"
    return f"{path} held a plan for {words}, which this one replaced; name another file with -o to keep both"


def refuse_target(graph: str, target: str, option: str) -> None:
    """Refuse, before the search, a file that cannot be written, is no document, or would overwrite the graph."""
    if target == "-":
        require_stdout()
    require_writable(target, option=option)
    if option == "-o":
        document_format(target)
    if graph != "-" and target != "-" and Path(target).exists() and Path(target).samefile(graph):
        raise UsageError(f"{target} is the graph itself", hint=f"choose another file with {option}")


def plan_pattern(output: str | None, stem: str, place: str = _PLACE) -> str:
    """Where several plans go, such as those for several budgets: a path with ``place`` in it.

    Args:
        output: A folder (an existing one, or a name without a suffix), a pattern, or None for the current folder.
        stem: First part of the file names where ``output`` does not give them.
        place: What stands for the difference in the names.

    Raises:
        UsageError: If ``output`` is neither.
    """
    named = f"{stem}.{place}.plan.json"
    if output is None:
        return named
    if output == "-":
        raise UsageError("several plans cannot go to standard output", hint=f"name a folder, or files: -o '{named}'")
    if place in output:
        return output
    path = Path(output)
    if output.endswith("/") or path.is_dir() or not (path.suffix or path.exists()):
        return str(Path(output) / named)
    raise UsageError(
        f"{output} is not a folder, but there are several plans", hint=f"name a folder, or files: -o '{named}'"
    )


def plan_path(pattern: str, budget: str) -> str:
    """The file for one budget. ``50%`` becomes ``50pct``, which is safe in every shell and file system."""
    return pattern.replace(_PLACE, re.sub(r"\s+", "", budget).replace("%", "pct"))
