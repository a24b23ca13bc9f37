"""From a set of checkpoints to a schedule, as Chen et al. and Checkmate's generalisations of them do it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence

from remat_cli.graph.phases import Training
from remat_cli.plan.matrices import least_recomputation_between


def every_root(candidates: Sequence[int]) -> frozenset[int]:
    """Every k-th of N candidates, k the integral root of N (Chen et al., section 4.1)."""
    step = math.isqrt(len(candidates))
    return frozenset(candidates[step - 1 :: step]) if step else frozenset()


def greedy(training: Training, candidates: Collection[int], segment_bytes: int) -> frozenset[int]:
    """The first candidate after more than ``segment_bytes`` of forward values, again and again (Chen et al., 4.4)."""
    chosen, since = [], 0
    for i in training.forward:
        since += sum(training.graph.nodes[i].outputs)
        if i in candidates and since > segment_bytes:
            chosen.append(i)
            since = 0
    return frozenset(chosen)


def checkpointed(training: Training, checkpoints: Collection[int]) -> tuple[int, ...]:
    """The schedule that keeps the checkpoints and recomputes what lies between, segment by segment.

    The forward sweep frees values after their last forward reader, but for the checkpoints and for the segment after
    the last one, with which the backward pass begins. When the backward pass first reads something of another segment,
    all of it that is still to be read is computed, and each value stays up to its last reader there. What is computed
    beyond that is the least (R minimal for this S). Graph outputs and what may be computed only once are kept as well,
    without ending a segment.

    Args:
        training: The graph.
        checkpoints: Forward nodes. The last forward node is none, for the segment that it ends is at hand anyway.
    """
    graph, n = training.graph, len(training.graph.nodes)
    ends = sorted(i for i in checkpoints if i != training.forward[-1])
    outputs = set(graph.outputs)
    kept: list[list[tuple[int, int]]] = [[] for _ in graph.size]
    segments: list[list[tuple[int, int, list[int]]]] = [[] for _ in range(len(ends) + 1)]
    inside = set(training.forward).difference(ends)
    for v, i in enumerate(graph.producer):
        if i not in inside or not graph.nodes[i].recompute or v in outputs:
            kept[v].append((i, n))  # freed after its last reader, and here for whatever is recomputed from it
            continue
        early = max((j for j in graph.readers[v] if j < training.sweep), default=i)
        late = [j for j in graph.readers[v] if j >= training.sweep]
        if early > i:
            kept[v].append((i, early))
        segments[bisect_left(ends, i)].append((v, max(early, i), late))
    for number, segment in enumerate(segments):
        begin = min((late[0] for _, _, late in segment if late), default=n)
        for v, early, late in segment:
            start = early if number == len(ends) else max(begin, early)
            if late and late[-1] > start:
                kept[v].append((start, late[-1]))
    return least_recomputation_between(graph, kept)
