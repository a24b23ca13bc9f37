"""Families of random graphs of any size. The same family, size and seed give the same graph on every machine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph

_MEGABYTE = 10**6


def layered(n: int, seed: int) -> Graph:
    """Layers of about n^(1/3) nodes that read a third of the layer before, and occasionally a much earlier one.

    Like the random layered graphs of the Moccasin paper (Bartan et al., ICML 2023): costs and sizes are independent,
    and some edges are long.
    """
    rng = random.Random(f"layered {n} {seed}")
    width = max(3, round(n ** (1 / 3)))
    reads: list[list[int]] = [[]]
    before, layer = [0], []
    for i in range(1, n - 1):
        near = [j for j in before if rng.random() < 1 / 3] or [rng.choice(before)]
        far = [rng.randrange(i) for _ in range(2) if rng.random() < 0.3]
        reads.append(sorted({*near, *far}))
        layer.append(i)
        if len(layer) == width:
            before, layer = layer, []
    unread = set(range(n - 1)) - {j for of in reads for j in of}
    reads.append(sorted(unread))
    costs = [float(rng.randint(1, 1000)) for _ in range(n)]
    sizes = [10 * rng.randint(1, 600) for _ in range(n)]
    return _graph(f"layered-{n}-{seed}", reads, costs, sizes)


def residual(n: int, seed: int) -> Graph:
    """A training step: blocks of parallel branches in series, each added to its input, then the gradients backwards.

    The forward pass is series-parallel, like residual and inception networks. One operation in three is expensive, the
    others are nearly free. Sizes shrink along the way. Gradients read the values that the Checkmate paper's rule names.
    """
    rng = random.Random(f"residual {n} {seed}")
    half = (n - 1) // 2
    reads: list[list[int]] = [[]]
    while len(reads) < half:
        entry, ends = len(reads) - 1, [len(reads) - 1]
        for _ in range(rng.randint(1, 3)):
            end = entry
            for _ in range(rng.randint(1, 4)):
                if len(reads) < half - 1:
                    reads.append([end])
                    end = len(reads) - 1
            ends.append(end)
        reads.append(sorted(set(ends)))
    costs = [float(rng.randint(50, 200) * 10**4 if rng.random() < 1 / 3 else rng.randint(5, 20) * 10**2) for _ in reads]
    sizes = [_MEGABYTE * (1 + rng.randint(4, 16) * (4 * half - 3 * i) // (4 * half)) for i in range(half)]
    users: list[list[int]] = [[] for _ in reads]
    for j, of in enumerate(reads):
        for i in of:
            users[i].append(j)
    reads.append([half - 1])  # the loss
    gradient: dict[int, int] = {}
    for i in range(half - 1, -1, -1):
        later = [value for j in users[i] for value in (j, gradient[j])] or [half]
        gradient[i] = len(reads)
        reads.append(sorted({i, *later}))
    backward = range(half - 1, -1, -1)
    return _graph(
        f"residual-{n}-{seed}",
        reads,
        [*costs, 1.0, *(2 * costs[i] for i in backward)],
        [*sizes, 4, *(sizes[i] for i in backward)],
    )


def wild(n: int, seed: int) -> Graph:
    """A random DAG whose costs and lengths of edges have heavy tails: a few operations have most of the cost."""
    rng = random.Random(f"wild {n} {seed}")
    reads: list[list[int]] = [[]]
    for i in range(1, n):
        reach = [max(0, i - 1 - int(rng.paretovariate(0.5))) for _ in range(rng.randint(1, 4))]
        reads.append(sorted(set(reach)))
    costs = [float(math.ceil(100 * min(1e6, rng.paretovariate(1.1)))) for _ in range(n)]
    sizes = [math.ceil(1000 * min(6.0, rng.lognormvariate(0.0, 1.0))) for _ in range(n)]
    return _graph(f"wild-{n}-{seed}", reads, costs, sizes)


def chain(n: int) -> Graph:
    """A training chain of at most ``n`` nodes, whose layers differ a little in cost and size."""
    from remat_cli.zoo.registry import build_graph

    layers = (n - 1) // 2
    costs = ":".join(str(10 + 7 * k % 11) for k in range(layers))
    sizes = ":".join(str(1000 + 500 * (k % 3)) for k in range(layers))
    return build_graph(f"linear{{n={layers},costs={costs},sizes={sizes}}}")


FAMILIES: dict[str, Callable[[int, int], Graph]] = {"layered": layered, "residual": residual, "wild": wild}
"""All families by name; each takes a number of nodes and a seed."""


def _graph(name: str, reads: list[list[int]], costs: list[float], sizes: list[int]) -> Graph:
    from remat_cli.graph.model import Graph, Node

    nodes = tuple(
        Node(f"n{i}", cost, tuple(of), (size,))
        for i, (of, cost, size) in enumerate(zip(reads, costs, sizes, strict=True))
    )
    return Graph(name, nodes, (len(nodes) - 1,))
