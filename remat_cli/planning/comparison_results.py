"""The results file of a comparison: one JSON object per line, for each row that is finished.

A run that is killed may leave half a line, and the next run starts a line of its own after it. So every line stands for
itself: one that is no row is left out and reported, wherever it is, and its cell is solved again.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat_cli.errors import InputError, Problem, UsageError, Worded
from remat_cli.files import read_bytes
from remat_cli.graph.io import graph_sha256
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Ended, Row
from remat_cli.planning.options import Limits
from remat_cli.version import __version__

Entry = tuple[str, dict[str, Any], Row]
"""A line: the key of its row, what it was made with as far as the line says, and the row."""

_BEGINNING = b'{"key": "'
"""How every line begins."""
_NAMED = 3
"""Lines left out that are reported one by one; the others are counted. Untuned."""


@dataclass(frozen=True, slots=True)
class ResultsFile:
    """The results file.

    Attributes:
        path: The file; None for none.
        facts: What the rows of this comparison depend on, besides strategy and budget.
        note: Gets a line of text for every line of the file that is left out.
    """

    path: Path | None
    facts: dict[str, Any]
    note: Callable[[str], None] | None = None

    def read(self) -> dict[tuple[str, int], Row]:
        """The reusable rows, by strategy and budget: complete ones that neither failed nor were interrupted.

        Raises:
            InputError: If the file cannot be read, or is no results file.
        """
        mine = [row for key, _, row in self.entries() if key == _key(self.facts)]
        usable = [row for row in mine if row.ended not in {Ended.FAILED, Ended.INTERRUPTED}]
        return {(row.strategy, row.budget_bytes): row for row in usable}

    def entries(self) -> list[Entry]:
        """All rows.

        Raises:
            InputError: If the file cannot be read, or is no results file.
        """
        if self.path is None or not self.path.exists():
            return []
        data, name = read_bytes(str(self.path))
        entries: list[Entry] = []
        left_out: list[tuple[int, str]] = []
        lines = data.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                entries += [_entry(line)] if line else []
            except (ValueError, RecursionError) as error:
                left_out.append((number, _reason(error)))
        if len(left_out) == sum(map(bool, lines)) and not _BEGINNING.startswith(data[: len(_BEGINNING)]):
            problem = Problem(
                "is not a row of a comparison",
                line=1,
                hint=Worded("give another file as results", "give another file with --results"),
            )
            raise InputError(name, [problem])
        self._report(name, left_out)
        return entries

    def _report(self, name: str, left_out: list[tuple[int, str]]) -> None:
        if self.note is None:
            return
        for number, reason in left_out[:_NAMED]:
            self.note(f"{name}:{number}: this line is not a row of a comparison and is left out: {reason}")
        if len(left_out) > _NAMED:
            self.note(f"{name}: and {len(left_out) - _NAMED} more lines")

    def add(self, row: Row) -> None:
        """Append a row at once, so that it survives a crash.

        Raises:
            UsageError: If it cannot be written.
        """
        if self.path is None:
            return
        entry = {"key": _key(self.facts), "made": self.facts, "row": row.document()}
        line = json.dumps(entry, sort_keys=True).encode() + b"\n"
        try:
            with self.path.open("ab+") as stream:
                end = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, end - 1))
                torn = stream.read(1) not in {b"", b"\n"}
                stream.write(b"\n" + line if torn else line)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written: {error.strerror}",
                hint=Worded("choose another file as results", "choose another file with --results"),
            ) from None


def unused_rows(results: Path, graph: Graph, limits: Limits) -> tuple[int, list[str]]:
    """How many rows of a results file are of no use now, and what they were made with that is different now.

    The second is a list of ``graph``, ``remat`` (its version) and names of limits; empty if the file does not say.

    Raises:
        InputError: If the file is not a results file.
    """
    facts = facts_of(graph, limits)
    others = [recorded for key, recorded, _ in ResultsFile(results, facts).entries() if key != _key(facts)]
    return len(others), sorted(
        {name for recorded in others for name, value in recorded.items() if facts.get(name) != value}
    )


def facts_of(graph: Graph, limits: Limits) -> dict[str, Any]:
    """What a row depends on, besides its cell: the graph, the limits and the version of remat."""
    return limits.facts() | {"graph": graph_sha256(graph), "remat": __version__}


def _key(facts: dict[str, Any]) -> str:
    """A key for reusing rows of an earlier run."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _entry(line: bytes) -> Entry:
    """A line.

    Raises:
        ValueError, RecursionError: If it is no line of a results file.
    """
    entry = json.loads(line.decode("utf-8"))
    if not isinstance(entry, dict) or not {"key", "row"} <= entry.keys() or not isinstance(entry["key"], str):
        raise ValueError("it lacks the field key or row")
    recorded = entry.get("made", {})
    if not isinstance(recorded, dict):
        raise ValueError("its field made is not an object")
    return entry["key"], recorded, Row.of_document(entry["row"])


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, json.JSONDecodeError | RecursionError):
        return "it is not JSON"
    return str(error)
