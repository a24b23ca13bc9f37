"""From a sequence of computes to statements: allocations and frees.

Memory follows from the sequence (see ``liveness``), so no strategy has to think about frees.
"""

from collections.abc import Sequence

from remat_cli.graph.model import Graph
from remat_cli.plan.copying import Copying, derive_copying
from remat_cli.plan.late_frees import late_frees
from remat_cli.plan.liveness import heights, priced, reads_at_end, walk_back
from remat_cli.plan.model import Allocate, Compute, Deallocate, Statement


def derive(
    graph: Graph,
    computes: Sequence[int],
    held: frozenset[int] = frozenset(),
    copying: Copying | None = None,
    *,
    within_bytes: int | None = None,
) -> tuple[Statement, ...]:
    """Statements of the schedule ``computes``, in time linear in its reads.

    Args:
        graph: The graph.
        computes: Nodes by index, in the order in which they run.
        held: Values whose last instance is freed only after the last compute; with copies nothing can be held.
        copying: The copies to a host and back; None for none.
        within_bytes: Memory, fixed memory included, within which what a collective uses is freed late, because freeing
            waits for its end; None for as much as the schedule needs anyway. Other values are freed as early as can be.

    Returns:
        Allocations right before each compute, frees right after it, or before a later one.

    Raises:
        ValueError: If a node is computed before one of its inputs was computed for the first time.
    """
    if copying is not None:
        if held:
            raise ValueError("a schedule with copies holds nothing")
        return derive_copying(graph, computes, copying)
    dying: list[list[int]] = [[] for _ in computes]
    highest = 0
    for step, height, values in walk_back(graph, computes, reads_at_end(graph, computes, held)):
        dying[step] = sorted(values)
        highest = max(highest, height)
    before: list[list[int]] = [[] for _ in range(len(computes) + 1)]
    if graph.overlaps:
        frees = late_frees(graph, computes, dying, max(highest, within_bytes or 0))
        before, dying = frees.before, frees.after
    computed = set(computes)
    leftover = sorted(v for v in held.difference(graph.outputs) if graph.producer[v] in computed)
    statements: list[Statement] = []
    register: dict[int, str] = {}
    registers = 0
    for position, node in enumerate(computes):
        statements.extend(Deallocate(register[value]) for value in before[position])
        names = []
        for value in graph.values_of(node):
            register[value] = name = f"%{registers}"
            registers += 1
            names.append(name)
            statements.append(Allocate(name, value))
        statements.append(Compute(node, tuple(names)))
        statements.extend(Deallocate(register[value]) for value in dying[position])
    statements.extend(Deallocate(register[value]) for value in (*before[-1], *leftover))
    return tuple(statements)


def peak(graph: Graph, computes: Sequence[int]) -> int:
    """Peak bytes of the schedule ``computes``, fixed memory included; quick, for use inside a search.

    Raises:
        ValueError: If a node is computed before one of its inputs ever was.
    """
    return max(heights(graph, computes), default=graph.fixed_memory)


def prune(graph: Graph, computes: Sequence[int]) -> tuple[int, ...]:
    """``computes`` without the recomputations that serve no read and leave no graph output.

    Dropping one never raises the peak: its outputs go, and its inputs die no later.

    Raises:
        ValueError: If a node is computed before one of its inputs ever was.
    """
    return priced(graph, computes).computes
