"""Save the values of a minimum cut between forward and backward pass, and recompute the others at most once.

This is the method of torch.compile's partitioner (AOTAutograd, ``min_cut_rematerialization_partition``). It saves the
values with the fewest bytes that separate the operations that must not be recomputed from the backward pass. It bans
operations by kind (convolutions, matrix products). Here operations are banned that cost more than a limit, and the
limit is a parameter. Its weights for fusion and for the distance to the backward pass belong to its code generator and
are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.errors import UsageError
from remat_cli.graph.phases import Training
from remat_cli.strategies.base import Context, Found, Needs, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent

_TRIED = 64
"""Cost limits to try, spread over the costs of the forward nodes. Untuned."""


@dataclass(frozen=True, slots=True)
class MinCut(Strategy):
    """The smallest cut in bytes between the nodes that must not be recomputed and the backward pass.

    Attributes:
        most_cost: Forward nodes that cost more are not recomputed, in the graph's cost unit. None tries many limits and
            takes the cheapest plan within the budget.
    """

    most_cost: float | None = field(
        default=None, metadata={"help": "costlier nodes are not recomputed; none: what fits the budget best"}
    )

    name: ClassVar[str] = "min-cut"
    summary: ClassVar[str] = "recompute at most once what a minimum cut does not save, as torch.compile does"
    reference: ClassVar[str] = "PyTorch AOTAutograd, min_cut_rematerialization_partition"
    needs: ClassVar[Needs] = Needs.PHASES
    overlaps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a negative or infinite limit."""
        if self.most_cost is not None and not 0 <= self.most_cost < math.inf:
            raise UsageError(f"min-cut{{most_cost={self.most_cost:g}}}: a cost is 0 or more")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try limits, the lowest first."""
        training = Training.of(task.graph, self.name)
        incumbent = Incumbent.empty(task, context)
        tried: set[frozenset[int]] = set()
        for limit in (self.most_cost,) if self.most_cost is not None else cost_limits(training):
            saved = cheapest_cut(training, limit)
            if saved not in tried:
                tried.add(saved)
                maker = "" if self.most_cost is not None else f"{self.name}{{most_cost={limit!r}}}"
                incumbent.offer(recomputed_once(training, saved), maker)
            if incumbent.over():
                break
        return incumbent.answer(self.name)


def cost_limits(training: Training) -> list[float]:
    """Costs of forward nodes, from the lowest to the highest; ``_TRIED`` of them if there are more."""
    costs = sorted({0.0, *(training.graph.nodes[i].cost for i in training.forward)})
    if len(costs) <= _TRIED:
        return costs
    return [costs[round(k * (len(costs) - 1) / (_TRIED - 1))] for k in range(_TRIED)]


def cheapest_cut(training: Training, most_cost: float) -> frozenset[int]:
    """The forward values to save: fewest bytes on the way from banned operations to the backward pass.

    Args:
        training: The graph.
        most_cost: Forward nodes that cost more are banned, and so are those that may be computed only once.
    """
    from remat_cli.kernels.flow import sink_side  # numba, which most strategies do without

    graph = training.graph
    source, sink, count = 0, 1, 2
    anything = 1 + sum(graph.size)
    place = {}
    for i in training.forward:  # a vertex for every node, and for every value one where it is made and one where it is
        place[i] = count
        count += 1 + 2 * len(graph.values_of(i))
    arcs: list[tuple[int, int, int]] = []
    values: list[tuple[int, int]] = []
    for i in training.forward:
        node, own = graph.nodes[i], place[i]
        if node.cost > most_cost or not node.recompute:
            arcs.append((source, own, anything))
        for made, v in zip(range(own + 1, count, 2), graph.values_of(i), strict=False):
            values.append((v, made))
            arcs.append((own, made, anything))
            arcs.append((made, made + 1, graph.size[v]))
            for j in graph.readers[v]:
                if j >= training.sweep:
                    arcs.append((made + 1, sink, anything))
                elif j in place:
                    arcs.append((made + 1, place[j], anything))
    tails, heads, capacities = np.array(arcs, dtype=np.int64).reshape(-1, 3).T
    after = sink_side(tails, heads, capacities, count, source, sink)
    return frozenset(v for v, made in values if after[made + 1] and not after[made])


def recomputed_once(training: Training, saved: frozenset[int]) -> tuple[int, ...]:
    """The schedule that keeps ``saved`` and recomputes other values when the backward pass first needs them.

    A recomputed value stays until its last reader. Graph outputs and values of nodes that may run only once are kept
    too.
    """
    graph = training.graph
    computes = list(range(training.sweep))
    forward = frozenset(training.forward)
    outputs = frozenset(graph.outputs)
    there: set[int] = set()
    for i in computes:
        keep = i not in forward or not graph.nodes[i].recompute
        there.update(v for v in graph.values_of(i) if keep or v in saved or v in outputs)
    for t in range(training.sweep, len(graph.nodes)):
        todo, chosen = [t], set()
        while todo:
            node = todo.pop()
            if node not in chosen:
                chosen.add(node)
                todo.extend(graph.producer[v] for v in graph.nodes[node].inputs if v not in there)
        computes.extend(sorted(chosen))
        there.update(v for node in chosen for v in graph.values_of(node))
    return tuple(computes)
