"""How large a batch may be, as data."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.control import Outcome
from remat_cli.plan.model import Scope


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What ``remat max-batch`` found.

    Attributes:
        memory_bytes: The memory, fixed memory included.
        most_cost: What a plan may cost, at the graph's batch.
        without: The largest batch without recomputation.
        found: The largest batch with a replayed plan; 0 for none.
        impossible: This batch and all larger ones are proven not to fit.
        scope: For which plans that is proven.
        graph_batch: The batch that the graph was made for.
        peak_bytes: Peak of the plan at the batch found; None without one.
        cost: Cost of the plan at the graph's batch; None without one.
        strategy: The strategy that made it; None without one.
        tried: Batches that a run was made for.
        outcome: How the search ended.
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
