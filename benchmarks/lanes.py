"""Measuring the cells of a benchmark, one after the other or a few at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from benchmarks.frame import Row, Session
from benchmarks.machine import cores
from benchmarks.measure import BenchmarkError


@dataclass(frozen=True, slots=True)
class Cell:
    """The measurement of a row, or of a few that belong together.

    Attributes:
        label: Short description, for the user and for ``--only``.
        measure: Measures it, in a process of its own; a failure is a row as well.
    """

    label: str
    measure: Callable[[], Row | list[Row]]


def lanes_here() -> int:
    """Rows to measure at a time, if each runs on one thread: one on each core that this process may use, at most two.

    So a run confined to one core (``taskset``) leaves the others to other work.
    """
    return min(2, cores())


def chosen(session: Session, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that the user chose.

    Raises:
        BenchmarkError: If there are none.
    """
    found = [cell for cell in cells if session.wants(cell.label)]
    if session.only and not found:
        labels = "\n  ".join(cell.label for cell in cells)
        raise BenchmarkError(f"no cell is named {' or '.join(session.only)}; there are:\n  {labels}")
    return found


def rows_of(session: Session, cells: Sequence[Cell], *, lanes: int = 1) -> list[Row]:
    """The rows of the cells that the user chose, in their order.

    ``lanes`` cells are measured at a time: more than one only if exact times do not matter.

    Raises:
        BenchmarkError: If the user chose no cell.
    """
    wanted = chosen(session, cells)
    rows: dict[int, list[Row]] = {}

    def started(cell: Cell) -> list[Row]:
        session.say(cell.label)
        measured = cell.measure()
        return measured if isinstance(measured, list) else [measured]

    def whole() -> list[Row]:
        return [row for k in sorted(rows) for row in rows[k]]

    with ThreadPoolExecutor(lanes) as pool:
        runs = {pool.submit(started, cell): k for k, cell in enumerate(wanted)}
        try:
            for done in as_completed(runs):
                rows[runs[done]] = done.result()
                session.measured.append(wanted[runs[done]].label)
                session.keep(whole())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return whole()
