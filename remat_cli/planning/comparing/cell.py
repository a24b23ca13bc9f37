"""One cell of a comparison: one strategy, one graph, one budget. Every cell becomes a row, failures too."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

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
from remat_cli.plan.host import Host
from remat_cli.plan.io import host_to_document
from remat_cli.planning.options import OPTIMAL_GAP, SolveOptions


@dataclass(frozen=True, slots=True)
class Limits:
    """How every cell is solved.

    Attributes:
        solver: MIP solver with options.
        time_limit_s: Wall time for each cell.
        gap: Relative gap at which to stop.
        threads: Threads for each cell; None for the strategy's own choice.
        seed: Random seed.
        host: Host memory beside the device; None for plans without copies.
    """

    solver: str = "highs"
    time_limit_s: float | None = 60.0
    gap: float = OPTIMAL_GAP
    threads: int | None = None
    seed: int = 0
    host: Host | None = None

    def facts(self) -> dict[str, Any]:
        """The limits as data; a host only if there is one."""
        facts = asdict(replace(self, host=None))
        del facts["host"]
        return facts if self.host is None else facts | {"host": host_to_document(self.host)}

    def options(self, strategy: str) -> SolveOptions:
        """The options of a solve by ``strategy`` that starts now.

        Raises:
            UsageError: If one of them makes no sense.
        """
        return SolveOptions(
            strategy=strategy,
            solver=self.solver,
            time_limit_s=self.time_limit_s,
            gap=self.gap,
            threads=self.threads,
            seed=self.seed,
            host=self.host,
        )


def run_cell(cell: Cell, graph: Graph, limits: Limits) -> Row:
    """Solve a cell. A failure becomes a row that names it; only ``KeyboardInterrupt`` and the like are raised.

    Args:
        cell: What to solve.
        graph: The graph.
        limits: How to solve it.
    """
    from remat_cli.planning.solving import solve
    from remat_cli.units import Budget

    started_s = time.monotonic()

    def without(ended: Ended, message: str) -> Row:
        return Row.without_plan(cell, ended, message, time.monotonic() - started_s)

    try:
        asked = Budget(Fraction(cell.budget_bytes), False, cell.budget)
        solved = solve(graph, asked, limits.options(cell.strategy))
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
        overhead=report.overhead if graph.total_cost > 0 else None,
        computes=len(graph.nodes) + sum(r.times - 1 for r in report.recomputed),
        lower_bound=claim.lower_bound,
        scope=claim.scope.value,
        optimal=claim.status == "optimal",
        wall_s=round(solved.wall_s, 3),
        message=str(solved.ending),
    )
