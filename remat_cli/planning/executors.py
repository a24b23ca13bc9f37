"""Runs the cells of a comparison: in processes of this machine, or on a Dask cluster."""

import time
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import get_context
from typing import Any, Protocol

from remat_cli.control import Control
from remat_cli.errors import (
    Infeasible,
    Interrupted,
    LimitReached,
    RematError,
    SolverUnavailable,
    StrategyMismatch,
    UsageError,
)
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Cell, Ended, Row
from remat_cli.planning.dask_cluster import connected, held
from remat_cli.planning.options import Limits
from remat_cli.planning.solving import solve
from remat_cli.running import usable_cores
from remat_cli.solvers.registry import usable_solver
from remat_cli.units import Budget

_LATE_S = 30.0
"""Seconds over its time limit after which the process of a cell is killed. Untuned."""
_POLL_S = 0.1
_RETRIES = 2
_GATHER_S = 5
"""Seconds to wait for the row of a finished cell. If it takes longer, its worker was lost. Untuned."""


def run_cell(cell: Cell, graph: Graph, limits: Limits) -> Row:
    """Solve a cell. A failure becomes a row that names it; only ``KeyboardInterrupt`` and the like are raised."""
    started_s = time.monotonic()

    def without(ended: Ended, message: str) -> Row:
        return Row.without_plan(cell, ended, message, time.monotonic() - started_s)

    try:
        asked = Budget(Fraction(cell.budget_bytes), False, cell.budget)
        solved = solve(graph, asked, limits.of(cell.strategy))
    except Infeasible as error:
        return without(Ended.NONE, error.message)
    except LimitReached as error:
        return without(Ended.LIMIT, error.message)
    except (StrategyMismatch, SolverUnavailable, UsageError) as error:
        return without(Ended.REFUSED, error.message)
    except Interrupted as error:
        return without(Ended.INTERRUPTED, error.message)
    except RematError as error:
        return without(Ended.FAILED, error.message)
    except MemoryError:
        return without(Ended.FAILED, "out of memory")
    except Exception as error:  # a defect of one strategy must not take the others' rows along
        return without(Ended.FAILED, f"defect: {type(error).__name__}: {error}")
    report, claim = solved.report, solved.plan.claim
    return Row(
        cell.strategy,
        cell.budget,
        cell.budget_bytes,
        Ended.PLAN,
        peak_bytes=report.replay.peak_bytes,
        cost=report.replay.time,
        overhead=report.overhead if graph.no_remat_cost > 0 else None,
        computes=len(graph.nodes) + sum(r.times - 1 for r in report.recomputed),
        lower_bound=claim.lower_bound,
        scope=claim.scope.value,
        optimal=claim.status == "optimal",
        wall_s=round(solved.wall_s, 3),
        message=str(solved.ending),
    )


class Executor(Protocol):
    """Runs cells and yields their rows as they finish, in any order. Closing the generator stops the cells that run."""

    def run(self, cells: Sequence[Cell], graph: Graph, limits: Limits, control: Control) -> Generator[Row, None, None]:
        """One row for every cell, failed ones included, until ``control`` stops."""
        ...


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Processes of this machine; one that dies takes only its own cell with it.

    Attributes:
        jobs: Cells at a time; 0 for the number of cores.
    """

    jobs: int = 0

    def run(self, cells: Sequence[Cell], graph: Graph, limits: Limits, control: Control) -> Generator[Row, None, None]:
        """See :class:`Executor`."""
        usable_solver(limits.solver)
        from pebble import ProcessPool

        timeout_s = None if limits.time_limit_s is None else limits.time_limit_s + _LATE_S
        jobs = min(self.jobs or usable_cores(), len(cells))
        pool = ProcessPool(max_workers=max(1, jobs), context=get_context("spawn"))
        try:
            left = {pool.schedule(run_cell, (cell, graph, limits), timeout=timeout_s): cell for cell in cells}
            while left and not control.stopping():
                for future in wait(left, _POLL_S, FIRST_COMPLETED).done:
                    yield _row_of(future, left.pop(future))
        finally:
            pool.stop()
            pool.join()


def _row_of(future: Any, cell: Cell) -> Row:
    """The row of a finished cell; if its process ended early, a row that says how.

    Raises:
        UsageError: If no process can start: each imports the main module, which cannot be imported, or starts more.
    """
    from pebble import ProcessExpired

    try:
        row: Row = future.result()
    except BrokenProcessPool:
        raise UsageError(
            "the processes for the cells cannot start",
            hint='in a script file, put the call under: if __name__ == "__main__":',
        ) from None
    except TimeoutError:
        return Row.without_plan(cell, Ended.LIMIT, f"stopped by force {_LATE_S:.0f} s after its time limit")
    except ProcessExpired as error:
        return Row.without_plan(cell, Ended.FAILED, f"its process ended with exit code {error.exitcode}")
    return row


@dataclass(frozen=True, slots=True)
class DaskExecutor:
    """A Dask cluster. A cell whose worker is lost runs again on another.

    Attributes:
        address: Address of the scheduler: ``tcp://host:8786``.
    """

    address: str

    def run(self, cells: Sequence[Cell], graph: Graph, limits: Limits, control: Control) -> Generator[Row, None, None]:
        """See :class:`Executor`.

        Raises:
            SolverUnavailable: If ``distributed`` is not installed.
            UsageError: If no scheduler answers at the address.
        """
        client = connected(self.address)
        futures: dict[Any, Cell] = {}
        try:
            sent = held(client, graph)
            for cell in cells:
                futures[client.submit(run_cell, cell, sent, limits, retries=_RETRIES, pure=False)] = cell
            left = set(futures)
            while left and not control.stopping():
                done = {future for future in left if future.done()}
                for future in done:
                    row = _row_from_cluster(future, futures[future])
                    if row is not None:
                        left.remove(future)
                        yield row
                if not done:
                    time.sleep(_POLL_S)
        finally:
            client.cancel(list(futures), asynchronous=False)
            client.close()


def _row_from_cluster(future: Any, cell: Cell) -> Row | None:
    """The row of a finished cell, or a row that says how it failed; None if its worker was lost and it runs again."""
    try:
        row: Row = future.result(timeout=_GATHER_S)
    except Exception as error:  # a cluster may raise anything: cancelled futures, lost workers
        if isinstance(error, TimeoutError) and future.status != "error":
            return None
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Row.without_plan(cell, Ended.FAILED, f"on the cluster: {said}")
    return row
