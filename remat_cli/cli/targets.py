"""Names of output files, and checks that refuse them before the search."""

from __future__ import annotations

import re
from pathlib import Path

from remat_cli.errors import UsageError
from remat_cli.files import require_stdout, require_writable

_PLACE = "{budget}"


def stem_of(source: str, name: str) -> str:
    """The first part of a plan's file name: from the graph's file, or its name if it came through a pipe."""
    if source == "-":
        return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "graph"
    return re.sub(r"\.(json|ya?ml|graphml)$", "", Path(source).name, flags=re.IGNORECASE) or "graph"


def refuse_target(graph: str, target: str, option: str) -> None:
    """Refuse, before the search, a file that cannot be written or that would overwrite the graph."""
    if target == "-":
        require_stdout()
    require_writable(target, option=option)
    if graph != "-" and target != "-" and Path(target).exists() and Path(target).samefile(graph):
        raise UsageError(f"{target} is the graph itself", hint=f"choose another file with {option}")


def plan_pattern(output: str | None, stem: str) -> str:
    """Where the plans for several budgets go: a path with ``{budget}`` in it.

    Args:
        output: A folder, a pattern, or None for the current folder.
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
    if output.endswith("/") or Path(output).is_dir():
        return str(Path(output) / named)
    raise UsageError(
        f"{output} is not a folder, but there are several plans", hint=f"name a folder, or files: -o '{named}'"
    )


def plan_path(pattern: str, budget: str) -> str:
    """The file for one budget. ``50%`` becomes ``50pct``, which is safe in every shell and file system."""
    return pattern.replace(_PLACE, re.sub(r"\s+", "", budget).replace("%", "pct"))
