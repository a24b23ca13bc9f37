"""When the stages of a pipeline run."""

from __future__ import annotations

import math

from remat_cli.graph.analysis import working_sets
from remat_cli.graph.model import Graph
from remat_cli.kernels import compiling
from remat_cli.plan.model import Copies
from remat_cli.strategies.chains.visits import chain_first
from remat_cli.strategies.engine import When

# Halving and doubling these and other constants that steer a search both make the gap larger (benchmark ``ablation``).
_MANY_PAIRS, _DENSE = 4_000, 12
"""With more near pairs than both, in all and per node, annealing and merging find more than windows do."""


SMALL, MEDIUM, LARGE, VAST = 120, 300, 3_000, 30_000
"""Numbers of nodes. Up to SMALL a proof may use in-stage rows (``targets``). Below MEDIUM a solver finishes before
prices pay off, from LARGE on a model takes seconds to state (``scaling``), and from VAST on quick methods take as long
as solving blocks (``repeated``)."""
HANDFUL, FEW, TINY = 10, 30, 60
"""Most nodes for which all states are looked at, since the limit on states comes first beyond; with which a solver
needs no better start; and for the MILP of the Checkmate paper with split stages."""
MANY, REPAIRABLE = 1_500, 4_000
"""Most nodes for which bottleneck stages are looked into again after other methods; and for which schedules are
repaired. At 90% repair finds 2.2 instead of 2.3% for a layered graph of 3,000 nodes, nothing for 5,000 (by hand)."""
_CHEAP = 0.02
"""Methods that recompute whole segments have not found plans as cheap as this on networks (``anytime``)."""
_FULL_PAIRS = 40_000
"""Most (stage, node) pairs of a full support to solve."""


def near_pairs(graph: Graph) -> int:
    """Pairs of a node and a reader of it, or a reader of a reader.

    An upper bound on the (stage, node) pairs of a support of depth 1, except for chains of nodes that cost almost
    nothing.
    """
    readers = [sum(len(graph.readers[v]) for v in graph.values_of(i)) for i in range(len(graph.nodes))]
    return sum(1 + readers[j] for of in graph.readers for j in of)


def is_dense(graph: Graph) -> bool:
    """Whether reading is so dense that a model over all near pairs is slow to build and windows of it find little."""
    return near_pairs(graph) > max(_MANY_PAIRS, _DENSE * len(graph.nodes))


def nodes(least: int = 0, most: float = math.inf) -> When:
    """The graph has from ``least`` to ``most`` nodes."""
    text = f"{least:,} to {most:,} nodes" if least and math.isfinite(most) else f"up to {most:,} nodes"
    return When(
        f"{least:,} nodes or more" if math.isinf(most) else text,
        lambda incumbent: least <= len(incumbent.graph.nodes) <= most,
    )


COPYING = When("there is a host to copy to", lambda incumbent: incumbent.objective.copies is Copies.ANY)
OVERLAPPING = When("there are collectives", lambda incumbent: incumbent.graph.overlaps)
ADDING = When("", lambda i: i.objective.copies is Copies.NONE and not i.graph.overlaps)
"""Not said of every single stage: those for copies and collectives say that they run in place of the others."""
FRESH = When("no schedule was known before", lambda incumbent: not incumbent.informed)
UNOPENED = When("the caller has not run them", lambda incumbent: not incumbent.opened)
NO_SCHEDULE = When("no schedule fits yet", lambda incumbent: incumbent.computes is None)
SCHEDULE = When("a schedule fits", lambda incumbent: incumbent.computes is not None)
DENSE = When("the graph is dense", lambda incumbent: is_dense(incumbent.graph))
"""On a dense graph windows find less than annealing, and even the model over the smallest support is slow to state."""
SPARSE = When("the graph is not dense", lambda incumbent: not is_dense(incumbent.graph))
LIMITED = When("there is a time limit", lambda incumbent: incumbent.context.control.deadline_s is not None)
COLD = When(
    "the inner loops that it needs are not compiled yet",
    lambda i: LIMITED.holds(i) and len(i.graph.nodes) > FEW and not compiling.ready("annealing"),
)
"""Graphs of up to FEW nodes need none. Without a time limit the search waits for them, so that the plan is the same on
every run."""
UNLIMITED = When("there is no time limit", lambda incumbent: incumbent.context.control.deadline_s is None)
CHAIN = When("the graph is a short chain or one of equal sizes", lambda incumbent: chain_first(incumbent.graph))
FULL = When("the full support is small", lambda incumbent: len(incumbent.graph.nodes) ** 2 / 2 <= _FULL_PAIRS)
_FEW_SETS = 3
"""A budget is tight that is at most this multiple of the largest working set: most methods find no plan, or a dear one
(``repeated``). Untuned."""


def is_tight(graph: Graph, budget_bytes: int) -> bool:
    """Whether the budget leaves room for a few of the largest working sets only."""
    return budget_bytes - graph.fixed_memory <= _FEW_SETS * max(working_sets(graph))


def _by_blocks(graph: Graph, budget_bytes: int) -> bool:
    nodes = len(graph.nodes)
    return nodes >= VAST or (nodes >= LARGE and is_tight(graph, budget_bytes))


TIGHT = When(f"the budget is at most {_FEW_SETS} working sets", lambda i: is_tight(i.graph, i.budget_bytes))
BLOCKS_FIRST = When(
    f"there are {VAST:,} nodes, or {LARGE:,} and a budget of at most {_FEW_SETS} working sets",
    lambda i: _by_blocks(i.graph, i.budget_bytes),
)
OTHERS_FIRST = When("blocks do not come first", lambda i: not _by_blocks(i.graph, i.budget_bytes))
EXPENSIVE = When(
    f"no schedule below {_CHEAP:.0%} over no-remat yet, or fewer than {MEDIUM} nodes",
    lambda i: i.cost > (1 + _CHEAP) * i.graph.total_cost or len(i.graph.nodes) < MEDIUM,
)
