"""Names of output files, and checks that refuse them before the search."""

from __future__ import annotations

import re
from pathlib import Path

from remat_cli.cli.formats import document_format
from remat_cli.errors import UsageError
from remat_cli.files import require_stdout, require_writable

_PLACE = "{budget}"


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
    from remat_cli.errors import InputError
    from remat_cli.graph.document import kind_of, read_document
    from remat_cli.units import format_bytes

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


def plan_pattern(output: str | None, stem: str) -> str:
    """Where the plans for several budgets go: a path with ``{budget}`` in it.

    Args:
        output: A folder (an existing one, or a name without a suffix), a pattern, or None for the current folder.
        stem: First part of the file names where ``output`` does not give them.

    Raises:
        UsageError: If ``output`` is neither.
    """
    named = f"{stem}.{_PLACE}.plan.json"
    if output is None:
        return named
    if output == "-":
        raise UsageError("several plans cannot go to standard output", hint=f"name a folder, or files: -o '{named}'")
    if _PLACE in output:
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
