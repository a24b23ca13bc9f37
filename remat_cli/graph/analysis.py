"""Facts of a graph that follow without solving anything: peaks, working sets, bounds that hold for every plan.

All byte counts include the graph's fixed memory, except those of working sets.
"""

from dataclasses import dataclass

from remat_cli.graph.model import Graph


def working_set(graph: Graph, node: int) -> int:
    """Bytes of the inputs, outputs and workspace of ``node``; fixed memory not counted."""
    item = graph.nodes[node]
    return sum(graph.size[v] for v in item.inputs) + sum(item.outputs) + item.workspace


def working_sets(graph: Graph) -> list[int]:
    """Bytes of the working set of every node; int[n]."""
    return [working_set(graph, i) for i in range(len(graph.nodes))]


def last_readers(graph: Graph) -> tuple[int, ...]:
    """Node after which each value is dead when nothing is recomputed: int[V].

    The last reader; the producer itself for a value that nobody reads; n for a graph output.
    """
    return graph.derived(_last_readers)


def _last_readers(graph: Graph) -> tuple[int, ...]:
    last = [readers[-1] if readers else graph.producer[v] for v, readers in enumerate(graph.readers)]
    for v in graph.outputs:
        last[v] = len(graph.nodes)
    return tuple(last)


def no_remat_profile(graph: Graph) -> tuple[int, ...]:
    """Memory in use while each node runs, when every node is computed once and values die early; int[n], bytes."""
    return graph.derived(_no_remat_profile)


def _no_remat_profile(graph: Graph) -> tuple[int, ...]:
    dying: list[list[int]] = [[] for _ in range(len(graph.nodes) + 1)]
    for v, last in enumerate(last_readers(graph)):
        dying[last].append(v)
    live = graph.fixed_memory
    profile = []
    for i, node in enumerate(graph.nodes):
        live += sum(node.outputs)
        profile.append(live + node.workspace)
        live -= sum(graph.size[v] for v in dying[i])
    return tuple(profile)


def no_remat_peak(graph: Graph) -> int:
    """P0: peak memory in bytes of computing every node once, fixed memory included."""
    return max(no_remat_profile(graph), default=graph.fixed_memory)


@dataclass(frozen=True, slots=True)
class PeakBound:
    """A lower bound on the peak of every plan, and the reason.

    Attributes:
        bytes: Fixed memory included.
        node: The node whose working set it is; None if it is the graph outputs, which must be resident at the end.
    """

    bytes: int
    node: int | None


def peak_bound(graph: Graph) -> PeakBound:
    """The larger of the largest working set and the outputs at the end: a bound for every plan in any order.

    The two are not added, because they need not be in memory together: only the last node runs beside all outputs.
    """
    sets = working_sets(graph)
    at_end = sum(graph.size[v] for v in graph.outputs)
    node = max(range(len(sets)), key=lambda i: (sets[i], -i), default=None)
    if node is None or at_end > sets[node]:
        return PeakBound(graph.fixed_memory + at_end, None)
    return PeakBound(graph.fixed_memory + sets[node], node)
