"""Checks of several plans: by name, folder and pattern. A file that cannot be read does not stop the others."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from remat_cli.errors import InputError, Problem
from remat_cli.files import STDIN_NAME
from remat_cli.graph.document import Document
from remat_cli.plan.check import Report
from remat_cli.plan.model import Plan

PLAN_SUFFIXES = (".plan.json", ".plan.yaml", ".plan.yml")
_NO_MATCH = Problem("no file matches this pattern", hint="patterns start in the current folder: plans/*.json")
_NO_PLAN = Problem("no plan in this folder", hint=f"the names of plans end in {', '.join(PLAN_SUFFIXES)}")


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for one file.

    Attributes:
        path: The file as named, or as found by a pattern; ``-`` for standard input.
        report: The report on its plan; None if it cannot be read.
        problems: Why it cannot be read; empty if it can.
        document: The file's text, for places in it; None if it cannot be read.
    """

    path: str
    report: Report | None = None
    problems: tuple[Problem, ...] = ()
    document: Document | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The file's name for people."""
        return STDIN_NAME if self.path == "-" else self.path

    @property
    def ok(self) -> bool:
        """Whether the file has a plan that is valid and within its budget."""
        return self.report is not None and self.report.ok

    def place_of(self, statement: int) -> tuple[int, int] | None:
        """Line and column, from 1, of the statement with an index; None where nobody knows."""
        return None if self.document is None else self.document.locate(f"/statements/{statement}")

    def line_of(self, statement: int) -> int | None:
        """Line, from 1, of the statement with an index; None where nobody knows."""
        place = self.place_of(statement)
        return None if place is None else place[0]


def is_pattern(name: str) -> bool:
    """Whether ``name`` is a pattern (``plans/*.json``, ``**/*.plan.json``) and not the name of an existing file."""
    return name != "-" and glob.has_magic(name) and not Path(name).exists()


def matches(name: str) -> list[str]:
    """The files of ``name``, sorted: itself; the matches of a pattern; all plans in a folder. Possibly none.

    Plans in a folder are the files at any depth whose names end as ``remat solve`` ends them. In a pattern ``**``
    stands for any folders; folders themselves and hidden files do not match.
    """
    if is_pattern(name):
        patterns = [name]
    elif name != "-" and Path(name).is_dir():
        patterns = [str(Path(glob.escape(name), "**", f"*{suffix}")) for suffix in PLAN_SUFFIXES]
    else:
        return [name]
    # Path.glob refuses patterns that start at the root
    found = {path for pattern in patterns for path in glob.glob(pattern, recursive=True)}  # noqa: PTH207 - see above
    return sorted(path for path in found if not Path(path).is_dir())


def check_files(
    names: Sequence[str], load: Callable[[str], tuple[Plan, Document]], judge: Callable[[Plan], Report]
) -> list[Checked]:
    """Check every file of ``names``, each once, in the order of the names.

    Args:
        names: Names of files and folders, and patterns.
        load: Reads a plan; raises InputError.
        judge: Makes its report.

    Returns:
        One entry for each file, and one for each pattern or folder without any.
    """
    done: dict[str, Checked] = {}
    for name in names:
        found = matches(name)
        if not found:
            problem = _NO_MATCH if is_pattern(name) else _NO_PLAN
            done.setdefault(name, Checked(name, problems=(problem,)))
        for path in found:
            if path not in done:
                done[path] = _check_file(path, load, judge)
    return list(done.values())


def _check_file(path: str, load: Callable[[str], tuple[Plan, Document]], judge: Callable[[Plan], Report]) -> Checked:
    try:
        plan, document = load(path)
    except InputError as error:
        return Checked(path, problems=error.problems)
    except RecursionError:
        return Checked(path, problems=(Problem("the input is nested too deeply"),))
    return Checked(path, judge(plan), document=document)
