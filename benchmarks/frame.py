"""Defines benchmarks, and runs them.

A benchmark is a module ``benchmarks/NAME.py`` with a docstring (its first line is the title, the rest goes onto the
page), ``TABLES``, perhaps ``TARGETS``, and ``run(session)``, which returns rows. The module itself imports nothing
heavy: all measurements run in fresh processes (:mod:`benchmarks.measure`), so a row's start-up and memory are its own.
A new benchmark is a file and its name in ``NAMES``.

A module may also have ``PICTURES`` and ``draw(rows, folder)``, which draws them from its rows, ``conclude(rows)``,
which returns the rows with those that sum the others up made anew, ``LIMIT_S``, the seconds that a cell gets unless
``--limit`` gives another number, and ``ON``, the devices or frameworks that it is run on, one at a time. If all tables
state the columns that name their rows, single rows can be measured again (``--only``, :func:`merged`).

Benchmarks in ``APART`` need hours, or an environment of their own. They are modules ``benchmarks/FOLDER/NAME.py``, run
when they are named, and have a page beside their results in ``benchmarks/FOLDER/results``.

A row is a mapping from column keys to plain values; ``table`` says which table it belongs to. A time is the mapping
that :func:`benchmarks.measure.spread` returns. A cell that failed holds None, and another column says why.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from benchmarks.machine import Load, machine, versions

_ALL = """
startup documents replay handoff solvers speedup anytime integral networks curves tight repeated captured order
all_orders peers spreading targets scaling scale packages
"""
NAMES = tuple(_ALL.split())
"""The benchmarks of ``make bench``, in the order in which they run and appear on the page."""
APART = (
    "torch.peers",
    "torch.times",
    "jax.peaks",
    "tensorflow.plans",
    "overheads.steps",
    "offloading.plans",
    "sharded.plans",
    "splitting.chunks",
    "sharded.units",
)
"""Benchmarks with pages of their own."""

Row = dict[str, Any]
Kind = Literal["text", "seconds", "bytes", "count", "ratio", "number"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its key in the rows, its heading, and the format of its values."""

    key: str
    heading: str
    kind: Kind = "text"


def columns(kind: Kind, /, **headings: str) -> tuple[Column, ...]:
    """Columns of one kind: their headings by key."""
    return tuple(Column(key, heading, kind) for key, heading in headings.items())


@dataclass(frozen=True, slots=True)
class Table:
    """One table on the page: the rows whose ``table`` is ``key``, with a title and a note below it.

    No two of its rows agree in all the columns that ``named_by`` lists, if it lists any.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    note: str = ""
    named_by: tuple[str, ...] = ()

    def row(self, case: Row, values: Row) -> Row:
        """The row of a case: its columns from ``case`` or else from ``values``; those in neither are None."""
        return {"table": self.key} | {c.key: case.get(c.key, values.get(c.key)) for c in self.columns}


@dataclass(frozen=True, slots=True)
class Target:
    """A target: in the one row of ``table`` that has all of ``where``, ``column`` is below ``below``."""

    text: str
    table: str
    where: Mapping[str, Any]
    column: str
    below: float

    def measured(self, rows: Sequence[Row]) -> Any:
        """The value in its row; None if there is no such row.

        Raises:
            ValueError: If there are several.
        """
        found = [r for r in rows if r["table"] == self.table and all(r[k] == v for k, v in self.where.items())]
        if len(found) > 1:
            raise ValueError(f'{len(found)} rows answer to the target "{self.text}"')
        return found[0][self.column] if found else None


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture on the page, in ``results/BENCHMARK-KEY.svg``, with a description for readers who cannot see it."""

    key: str
    shows: str


@dataclass(frozen=True, slots=True)
class Session:
    """One run of one benchmark.

    Attributes:
        quick: Whether to do only enough to show that the benchmark works.
        folder: A temporary folder for its files.
        say: Reports the current work, in a few words.
        keep: Receives the rows so far, so that an interrupted run keeps them.
        graphs: Further graph documents to measure, for benchmarks that support it.
        only: Measure the cells whose label contains one of these texts, for benchmarks that support it; empty for all.
        limit_s: Seconds for a cell, if the user gave them.
        on: The device or framework, for benchmarks that have several.
        done: Labels of cells that an interrupted run has measured already.
        measured: Labels of the cells that this run has measured so far.
    """

    quick: bool
    folder: Path
    say: Callable[[str], None]
    keep: Callable[[Sequence[Row]], None] = lambda rows: None
    graphs: tuple[Path, ...] = ()
    only: tuple[str, ...] = ()
    limit_s: float | None = None
    on: str = ""
    done: frozenset[str] = frozenset()
    measured: list[str] = field(default_factory=list)

    def limited(self, full_s: float, quick_s: float) -> float:
        """Seconds for a cell: from the user, else ``full_s``, or ``quick_s`` if quick."""
        if self.limit_s is not None:
            return self.limit_s
        return quick_s if self.quick else full_s

    def wants(self, label: str) -> bool:
        """Whether the cell of this label is to be measured."""
        return label not in self.done and (not self.only or any(text in label for text in self.only))

    def files(self, folder: str) -> dict[str, Path]:
        """The given graphs in a folder of this name, by their stems."""
        return {path.stem: path.resolve() for path in self.graphs if path.resolve().parent.name == folder}

    def times(self, full: int) -> int:
        """Number of repeats: ``full``, or one if quick."""
        return 1 if self.quick else full


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark, as its module defines it."""

    name: str
    title: str
    about: str
    tables: tuple[Table, ...]
    run: Callable[[Session], list[Row]]
    targets: tuple[Target, ...] = field(default=())
    pictures: tuple[Picture, ...] = field(default=())
    draw: Callable[[list[Row], Path], None] | None = None
    limit_s: float | None = None
    conclude: Callable[[list[Row]], list[Row]] | None = None
    on: tuple[str, ...] = ()

    @property
    def rows_have_names(self) -> bool:
        """Whether single rows can be measured again."""
        return all(table.named_by for table in self.tables)


def load(name: str, on: str = "") -> Benchmark:
    """The benchmark in ``benchmarks/NAME.py``, or, with a dot in its name, in ``benchmarks/FOLDER/NAME.py``.

    ``on`` is one of its devices or frameworks, which then ends its name and its title.
    """
    module = import_module(f"benchmarks.{name}")
    title, about = described(module.__doc__)
    stem = name.rpartition(".")[2]
    return Benchmark(
        name=f"{stem}-{on}" if on else stem,
        title=f"{title} ({on})" if on else title,
        about=about,
        tables=module.TABLES,
        run=module.run,
        targets=getattr(module, "TARGETS", ()),
        pictures=getattr(module, "PICTURES", ()),
        draw=getattr(module, "draw", None),
        limit_s=getattr(module, "LIMIT_S", None),
        conclude=getattr(module, "conclude", None),
        on=getattr(module, "ON", ()),
    )


def described(text: str | None) -> tuple[str, str]:
    """Title and description in the docstring of a benchmark."""
    title, _, about = (text or "").strip().partition("\n")
    return title.rstrip("."), about.strip()


def perform(benchmark: Benchmark, *, partial: Path | None = None, resume: bool = False, **asked: Any) -> dict[str, Any]:
    """Run ``benchmark``; returns its rows, with the time, machine and versions of the measurement.

    Args:
        benchmark: The benchmark.
        partial: File that receives the rows so far while it runs; it is deleted afterwards.
        resume: Take the rows and labels in ``partial``, if it is there, and measure only the other cells.
        **asked: What :class:`Session` takes: ``quick``, ``graphs``, ``only``, ``limit_s``, ``on``.

    Raises:
        ValueError: If a row does not fit the tables.
    """
    quick, limit_s = asked["quick"], asked.get("limit_s")
    before, done = _interrupted(partial, quick=quick) if resume else ([], frozenset[str]())

    def said(text: str) -> None:
        print(f"{benchmark.name}: {text}", file=sys.stderr, flush=True)

    def kept(rows: Sequence[Row]) -> None:
        if partial is not None:
            partial.parent.mkdir(parents=True, exist_ok=True)
            labels = sorted({*done, *session.measured})
            told = {"benchmark": benchmark.name, "done": labels, "quick": quick, "rows": [*before, *rows]}
            partial.write_text(dump(told), encoding="utf-8")

    started_s = time.monotonic()
    load = Load.now()
    with tempfile.TemporaryDirectory(prefix="remat-bench-") as folder:
        session = Session(folder=Path(folder), say=said, keep=kept, done=done, **asked)
        rows = [*before, *benchmark.run(session)]
    check_rows(benchmark, rows)
    if partial is not None:
        partial.unlink(missing_ok=True)
    return ({} if limit_s is None else {"limit_s": limit_s}) | {
        "benchmark": benchmark.name,
        "date": datetime.now(UTC).date().isoformat(),
        "load": load.until_now(),
        "machine": machine(),
        "quick": quick,
        "rows": rows,
        "versions": versions(),
        "wall_s": round(time.monotonic() - started_s, 1),
    }


def _interrupted(partial: Path | None, *, quick: bool) -> tuple[list[Row], frozenset[str]]:
    """Rows and labels of the cells that an interrupted run has measured; none if there was none of this kind."""
    if partial is None or not partial.is_file():
        return [], frozenset()
    told = json.loads(partial.read_text(encoding="utf-8"))
    labels = frozenset(told.get("done", ()))
    return (told["rows"], labels) if labels and told["quick"] == quick else ([], frozenset())


def check_rows(benchmark: Benchmark, rows: Sequence[Row]) -> None:
    """Every row belongs to a table and has exactly its columns.

    Raises:
        ValueError: If one does not.
    """
    columns = {table.key: {column.key for column in table.columns} for table in benchmark.tables}
    for row in rows:
        wanted = columns.get(row.get("table", ""))
        if wanted is None:
            raise ValueError(f"{benchmark.name}: no table for the row {row}")
        if set(row) != wanted | {"table"}:
            raise ValueError(f"{benchmark.name}: table {row['table']} has {sorted(wanted)}, the row {sorted(row)}")


def merged(benchmark: Benchmark, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``old`` with the rows of ``new`` in place of those of the same name.

    A row that ``old`` does not have is inserted after the last one with the same first column. The circumstances of
    ``old`` stay; ``again`` lists those of the new rows, and of earlier ones that are still there.
    """
    measured = {_name(benchmark, row): row for row in new["rows"]}
    rows = [measured.get(_name(benchmark, row), row) for row in old["rows"]]
    present = {_name(benchmark, row) for row in rows}
    for name, row in measured.items():
        if name not in present:
            alike = [k for k, other in enumerate(rows) if _name(benchmark, other)[:2] == name[:2]]
            rows.insert(alike[-1] + 1 if alike else len(rows), row)
    texts = [" ".join(name[1:]) for name in measured]
    again = []
    for record in old.get("again", ()):
        kept = [text for text in record["rows"] if text not in texts]
        again += [{**record, "rows": kept}] if kept else []
    again.append({**{key: value for key, value in new.items() if key != "benchmark"}, "rows": texts})
    return {**old, "again": again, "rows": rows}


def _name(benchmark: Benchmark, row: Row) -> tuple[str, ...]:
    """The name of a row: its table, and its values in the columns that name it."""
    table = next(table for table in benchmark.tables if table.key == row["table"])
    return (table.key, *(str(row[key]) for key in table.named_by))


def dump(result: Mapping[str, Any]) -> str:
    """A result as text: sorted keys, a line per row."""
    lines = []
    for key in sorted(result):
        value = result[key]
        if key == "rows":
            text = "[\n" + ",\n".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in value) + "\n]"
        else:
            text = json.dumps(value, sort_keys=True, ensure_ascii=False)
        lines.append(f'"{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in ``folder`` by name, in the order of ``NAMES``."""
    paths = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}
