"""Where the cells of a comparison run: on processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from remat_cli.api.comparing.cell import Limits, run_cell
from remat_cli.api.processes import in_processes
from remat_cli.control import Control
from remat_cli.errors import SolverUnavailable, UsageError
from remat_cli.plan.comparison import Cell, Ended, Row

_LATE_S = 30.0
"""Seconds over its time limit after which the process of a cell is killed."""
_POLL_S = 0.1
_RETRIES = 2
_CONNECT_S = 20


class Engine(Protocol):
    """Runs cells and gives their rows as they are done, in any order. Closing the generator stops what runs."""

    def run(
        self, cells: Sequence[Cell], graph_text: str, limits: Limits, control: Control
    ) -> Generator[Row, None, None]:
        """One row for every cell, whatever happens to it, until ``control`` says stop."""
        ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Processes of this machine; one that dies takes only its own cell with it.

    Attributes:
        jobs: Cells at a time; 0 for the number of cores.
    """

    jobs: int = 0

    def run(
        self, cells: Sequence[Cell], graph_text: str, limits: Limits, control: Control
    ) -> Generator[Row, None, None]:
        """See :class:`Engine`."""
        timeout_s = None if limits.time_limit_s is None else limits.time_limit_s + _LATE_S
        calls = [(cell, graph_text, limits) for cell in cells]
        with closing(in_processes(run_cell, calls, self.jobs or os.cpu_count() or 1, control, timeout_s)) as done:
            for index, future in done:
                yield _row_of(future, cells[index])


def _row_of(future: Any, cell: Cell) -> Row:
    """The row of a finished cell; that of its process if that ended before it."""
    from pebble import ProcessExpired

    try:
        row: Row = future.result()
    except TimeoutError:
        return Row.without_plan(cell, Ended.LIMIT, f"stopped by force {_LATE_S:.0f} s after its time limit")
    except ProcessExpired as error:
        return Row.without_plan(cell, Ended.FAILED, f"its process ended with exit code {error.exitcode}")
    return row


@dataclass(frozen=True, slots=True)
class DaskEngine:
    """A Dask cluster. A cell whose worker is lost runs again on another.

    Attributes:
        address: Address of the scheduler: ``tcp://host:8786``.
    """

    address: str

    def run(
        self, cells: Sequence[Cell], graph_text: str, limits: Limits, control: Control
    ) -> Generator[Row, None, None]:
        """See :class:`Engine`.

        Raises:
            SolverUnavailable: If ``distributed`` is not installed.
            UsageError: If no scheduler answers at the address.
        """
        try:
            from distributed import Client, wait
        except ImportError:
            raise SolverUnavailable(
                "Dask is not installed", hint="install it with: pip install 'remat[dask]'"
            ) from None
        try:
            client = Client(self.address, timeout=_CONNECT_S)
        except (OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise UsageError(
                f"no Dask scheduler answers at {self.address}: {reason}", hint="start one with: dask scheduler"
            ) from None
        futures: dict[Any, Cell] = {}
        try:
            text = client.scatter(graph_text, hash=False)
            for cell in cells:
                futures[client.submit(run_cell, cell, text, limits, retries=_RETRIES, pure=False)] = cell
            left = set(futures)
            while left and not control.stopping():
                try:
                    done, left = wait(left, _POLL_S, "FIRST_COMPLETED")
                except TimeoutError:
                    continue
                for future in done:
                    yield _row_from_cluster(future, futures[future])
        finally:
            client.cancel(list(futures), asynchronous=False)
            client.close()


def _row_from_cluster(future: Any, cell: Cell) -> Row:
    """The row of a finished cell; that of its worker if the cell was lost with it again and again."""
    if future.status == "finished":
        row: Row = future.result()
        return row
    lost = future.exception()
    words = f"{type(lost).__name__}: {lost}" if lost is not None else future.status
    return Row.without_plan(cell, Ended.FAILED, f"on the cluster: {words}")
