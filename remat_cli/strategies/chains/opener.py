"""A schedule and a bound from the structure of a chain; they meet if all sizes are equal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from remat_cli.graph.analysis import no_remat_profile
from remat_cli.graph.model import Graph, Phase
from remat_cli.plan.derive import peak
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Schedule
from remat_cli.strategies.chains.segments import LONGEST_S
from remat_cli.strategies.chains.visits import Levels, sweeps
from remat_cli.strategies.engine import Engine

_FEW_LEVELS, _FEW_NODES = 60, 500
"""Levels and nodes up to which the programme takes milliseconds; it takes 0.75 s for Inception v3 (31 levels, 627
nodes)."""
_SHARE = 0.5
"""Share of the stage's time for each of the two programmes."""


def chain_answer(
    graph: Graph, budget_bytes: int, *, seconds: float = LONGEST_S
) -> tuple[Schedule | None, tuple[Bound, ...]] | None:
    """A schedule and a lower bound from the structure of a chain, within seconds.

    Args:
        graph: Any graph.
        budget_bytes: Fixed memory included.
        seconds: Approximate time for each of the two programmes; with less time bytes are counted in larger units,
            which weakens the schedule and the bound.

    Returns:
        A schedule within the budget, or None, and bounds (an infinite one says that no schedule of its scope fits);
        None if the graph has no structure of a chain. On chains with equal sizes the cost meets the bound.
    """
    split = forward_end(graph)
    levels = Levels.of(graph, split)
    if levels is None:
        return None
    room = budget_bytes - graph.fixed_memory
    bound = Bound(levels.bound(room, seconds=seconds), _scope(graph))
    computes = None if math.isinf(bound.cost) else sweeps(graph, split, room, seconds=seconds)
    if computes is None or peak(graph, computes) > budget_bytes:
        return None, (bound,)
    return Schedule(computes), (bound,)


@dataclass(slots=True)
class ChainStructure(Engine):
    """Offers the schedule and the bound of a chain, once: they do not depend on the incumbent."""

    asked: bool = False

    def work(self) -> bool:
        """Offer the result of :func:`chain_answer`."""
        incumbent = self.incumbent
        if self.asked:
            return False
        self.asked = True
        answer = chain_answer(incumbent.graph, incumbent.budget_bytes, seconds=incumbent.seconds(LONGEST_S, _SHARE))
        if answer is not None:
            schedule, bounds = answer
            for bound in bounds:
                incumbent.raise_bound(bound)
            if schedule is not None:
                incumbent.offer(schedule.computes)
        return False


def chain_first(graph: Graph) -> bool:
    """Whether to solve the chain before everything else.

    So if sizes are equal, because the result is then optimal, and if it takes milliseconds; not if bytes must be
    counted in coarse units, which needs a compiled loop.
    """
    levels = Levels.of(graph, forward_end(graph))
    if levels is None:
        return False
    quick = len(levels.costs) <= _FEW_LEVELS and len(graph.nodes) <= _FEW_NODES
    return quick or len({*levels.smallest}) == 1


def chain_later(graph: Graph) -> bool:
    """Whether the graph has the structure of a chain that should be solved only later."""
    return Levels.of(graph, forward_end(graph)) is not None and not chain_first(graph)


def forward_end(graph: Graph) -> int:
    """Number of nodes in the forward part: those before the first of another phase, or before the no-remat peak."""
    if all(node.phase is not None for node in graph.nodes):
        return next((i for i, node in enumerate(graph.nodes) if node.phase is not Phase.FORWARD), len(graph.nodes))
    profile = no_remat_profile(graph)
    return profile.index(max(profile))


def _scope(graph: Graph) -> Scope:
    """Any order if there is only one; else document order."""
    path = all(any(graph.producer[v] == i - 1 for v in node.inputs) for i, node in enumerate(graph.nodes[1:], start=1))
    return Scope.ANY_ORDER if path else Scope.DOCUMENT_ORDER
