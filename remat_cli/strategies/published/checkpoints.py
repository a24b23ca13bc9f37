"""From a set of checkpoints to a schedule, as in Chen et al. and in Checkmate's generalisations of them."""

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
    """Every first candidate after more than ``segment_bytes`` of forward values since the last (Chen et al., 4.4)."""
    chosen, since = [], 0
    for i in training.forward:
        since += sum(training.graph.nodes[i].outputs)
        if i in candidates and since > segment_bytes:
            chosen.append(i)
            since = 0
    return frozenset(chosen)


def checkpointed(training: Training, checkpoints: Collection[int]) -> tuple[int, ...]:
    """The schedule that keeps the checkpoints and recomputes the values between them, segment by segment.

    The forward sweep frees values after their last forward reader, except the checkpoints and the segment after the
    last one, with which the backward pass begins. When the backward pass first reads a value of another segment, all
    values of that segment that are still to be read are recomputed, and each stays until its last reader. Further
    recomputation is minimal (R minimal for this S). Graph outputs and values of nodes that may run only once are kept
    too, without ending a segment.

    Args:
        training: The graph.
        checkpoints: Forward nodes. The last forward node is ignored, because the segment that it ends is kept anyway.
    """
    graph, n = training.graph, len(training.graph.nodes)
    ends = sorted(i for i in checkpoints if i != training.forward[-1])
    outputs = set(graph.outputs)
    kept: list[list[tuple[int, int]]] = [[] for _ in graph.size]
    segments: list[list[tuple[int, int, list[int]]]] = [[] for _ in range(len(ends) + 1)]
    inside = set(training.forward).difference(ends)
    for v, i in enumerate(graph.producer):
        if i not in inside or not graph.nodes[i].recompute or v in outputs:
            kept[v].append((i, n))  # freed after its last reader, recomputed ones included
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
