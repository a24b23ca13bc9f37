"""The results file of a comparison: one JSON object per line, for each row that is finished.

A run that is killed may leave half a line, and the next run starts a line of its own after it. So every line stands for
itself: one that is no row is left out and reported, wherever it is, and its cell is solved again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from remat_cli.errors import InputError, Problem, UsageError
from remat_cli.files import read_bytes
from remat_cli.plan.comparison import Ended, Row

_BEGINNING = b'{"key": "'
"""How every line begins."""
_NAMED = 3
"""Lines left out that are reported one by one; the others are counted. Untuned."""


@dataclass(frozen=True, slots=True)
class ResultsFile:
    """The results file.

    Attributes:
        path: The file; None for none.
        key: Which rows in it are of this comparison.
        note: Gets a line of text for every line of the file that is left out.
    """

    path: Path | None
    key: str
    note: Callable[[str], None] | None = None

    def read(self) -> dict[tuple[str, int], Row]:
        """The reusable rows, by strategy and budget: complete ones that neither failed nor were interrupted.

        Raises:
            InputError: If the file cannot be read, or is no results file.
        """
        if self.path is None or not self.path.exists():
            return {}
        data, name = read_bytes(str(self.path))
        rows: dict[tuple[str, int], Row] = {}
        left_out: list[tuple[int, str]] = []
        lines = data.split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                key, row = _entry(line)
            except (ValueError, RecursionError) as error:
                left_out.append((number, _reason(error)))
                continue
            if key == self.key and row.ended not in {Ended.FAILED, Ended.INTERRUPTED}:
                rows[row.strategy, row.budget_bytes] = row
        if len(left_out) == sum(map(bool, lines)) and not _BEGINNING.startswith(data[: len(_BEGINNING)]):
            problem = Problem("is not a row of a comparison", line=1, hint="give another file with --results")
            raise InputError(name, [problem])
        self._report(name, left_out)
        return rows

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
        line = json.dumps({"key": self.key, "row": row.document()}, sort_keys=True).encode() + b"\n"
        try:
            with self.path.open("ab+") as stream:
                end = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, end - 1))
                torn = stream.read(1) not in {b"", b"\n"}
                stream.write(b"\n" + line if torn else line)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written: {error.strerror}", hint="choose another file with --results"
            ) from None


def _entry(line: bytes) -> tuple[str, Row]:
    """The key and the row of a line.

    Raises:
        ValueError, RecursionError: If it is no line of a results file.
    """
    entry = json.loads(line.decode("utf-8"))
    if not isinstance(entry, dict) or entry.keys() != {"key", "row"} or not isinstance(entry["key"], str):
        raise ValueError("it has not the fields key and row")
    return entry["key"], Row.of_document(entry["row"])


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, json.JSONDecodeError | RecursionError):
        return "it is not JSON"
    return str(error)
