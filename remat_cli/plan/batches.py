"""The answer of ``remat max-batch`` as data."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.control import Outcome
from remat_cli.plan.model import Scope


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The result of ``remat max-batch``.

    Attributes:
        memory_bytes: The memory, fixed memory included.
        most_cost: The limit on the cost of a plan, at ``graph_batch``.
        without: The largest batch without recomputation.
        found: The largest batch with a replayed plan; 0 for none.
        impossible: This batch and all larger ones are proven not to fit.
        scope: The plans for which that, and ``refuted``, is proven.
        graph_batch: The batch for which the graph was made; with several graphs, the batch found.
        peak_bytes: Peak of the plan at the batch found; None without one.
        cost: Cost of the plan at ``graph_batch``; None without one.
        strategy: The strategy that made it; None without one.
        tried: Batches for which a plan was searched.
        outcome: How the search ended.
        given: Batches of which a graph was given; empty if a function made the graph of every batch.
        refuted: Single batches below ``impossible`` that are proven not to fit; larger ones may.
    """

    memory_bytes: int
    most_cost: float
    without: int
    found: int
    impossible: int
    scope: Scope
    graph_batch: int
    peak_bytes: int | None
    cost: float | None
    strategy: str | None
    tried: tuple[int, ...]
    outcome: Outcome
    given: tuple[int, ...] = ()
    refuted: tuple[int, ...] = ()
