"""Checkmate's eq. 9 as a linear programme written out term by term, for graphs whose nodes have one output each.

It shares no code with :mod:`remat_cli.milp`: rows are those of the paper, with FREE[t, k, k] eliminated, and a last
stage without a node in which the outputs are kept.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from remat_cli.graph.model import Graph


class Rows:
    """Columns by name, and rows ``sum(terms) <= right`` or ``= right``."""

    def __init__(self) -> None:
        self.columns: dict[tuple[object, ...], int] = {}
        self.kept: dict[bool, list[tuple[list[tuple[int, float]], float]]] = {True: [], False: []}

    def __getitem__(self, name: tuple[object, ...]) -> int:
        return self.columns.setdefault(name, len(self.columns))

    def add(self, terms: dict[tuple[object, ...], float], right: float, *, equal: bool = False) -> None:
        self.kept[equal].append(([(self[name], factor) for name, factor in terms.items()], right))

    def arrays(self, equal: bool) -> tuple[coo_array, list[float]]:
        rows = self.kept[equal]
        data = [(r, column, factor) for r, (terms, _) in enumerate(rows) for column, factor in terms]
        at, columns, factors = zip(*data, strict=True)
        shape = (len(rows), len(self.columns))
        return coo_array((factors, (at, columns)), shape), [right for _, right in rows]


def relaxed(graph: Graph, budget_bytes: int) -> np.ndarray | None:
    """S* of the relaxation within a budget, fixed memory included: S[t, i] for stages t = 0..n; None if infeasible."""
    n = len(graph.nodes)
    assert [len(node.outputs) for node in graph.nodes] == [1] * n
    assert not any(node.workspace for node in graph.nodes)
    sizes = [node.outputs[0] for node in graph.nodes]
    unit = float(max(sizes))
    limit = (budget_bytes - graph.fixed_memory) / unit
    deps = [sorted({graph.producer[v] for v in node.inputs}) for node in graph.nodes]
    users = [sorted(set(graph.readers[i])) for i in range(n)]
    outputs = {graph.producer[v] for v in graph.outputs}
    lp = Rows()
    for t in range(n):
        for i in range(t + 1):
            memory = {("U", t, i): 1.0, ("R", t, i): -sizes[i] / unit}
            if i == 0:  # (2)
                memory |= {("S", t, v): -sizes[v] / unit for v in range(t)}
            else:  # (3), with FREE for what the node before reads
                memory[("U", t, i - 1)] = -1.0
                memory |= {("F", t, v, i - 1): sizes[v] / unit for v in deps[i - 1]}
            lp.add(memory, 0.0, equal=True)
            for d in deps[i]:  # (1b)
                lp.add({("R", t, i): 1.0, ("R", t, d): -1.0, **({("S", t, d): -1.0} if d < t else {})}, 0.0)
                # (7b), (7c): FREE = 1 if and only if nothing stands in its way
                later = [j for j in users[d] if i < j <= t]
                hazards = {("R", t, i): -1.0, ("S", t + 1, d): 1.0, **{("R", t, j): 1.0 for j in later}}
                most = 2.0 + len(later)
                lp.add({**{name: -factor for name, factor in hazards.items()}, ("F", t, d, i): -1.0}, 0.0)
                lp.add({**hazards, ("F", t, d, i): most}, most - 1.0)
        lp.add({("R", t, t): 1.0}, 1.0, equal=True)  # (8a)
        for i in range(t + 1):  # (1c)
            kept = {("S", t, i): -1.0} if i < t else {}
            lp.add({("S", t + 1, i): 1.0, ("R", t, i): -1.0, **kept}, 0.0)
    for i in outputs:
        lp.add({("S", n, i): 1.0}, 1.0, equal=True)
    bounds = [(0.0, limit if name[0] == "U" else 1.0) for name in lp.columns]
    cost = np.array([graph.nodes[name[2]].cost if name[0] == "R" else 0.0 for name in lp.columns])
    (below, b), (same, c) = lp.arrays(equal=False), lp.arrays(equal=True)
    found = linprog(cost / cost.max(), below, b, same, c, bounds, method="highs")
    if found.status != 0:
        return None
    values = np.zeros((n + 1, n))
    for name, column in lp.columns.items():
        if name[0] == "S":
            values[name[1], name[2]] = found.x[column]
    return values


def rounded(graph: Graph, values: np.ndarray, threshold: float) -> list[int]:
    """Algorithm 2: S is 1 above the threshold; R is the least that S needs. The computes, stage by stage."""
    n = len(graph.nodes)
    kept = values > threshold
    computes: list[int] = []
    for t in range(n):
        needed, todo = set(), [t, *(i for i in range(t + 1) if kept[t + 1, i] and not (i < t and kept[t, i]))]
        while todo:
            i = todo.pop()
            if i not in needed:
                needed.add(i)
                todo += [d for v in graph.nodes[i].inputs if not (d := graph.producer[v]) < t or not kept[t, d]]
        computes += sorted(needed)
    return computes
