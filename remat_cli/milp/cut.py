"""What to keep across one stage, and what to compute again once after it: a small model for one peak of memory.

Where one stage needs far more memory than any other, as the loss of a training step often does, a schedule is mostly
decided by which values are kept across it. What is not kept and read later is computed again from what is, once. The
memory of what is computed again is left out: after the peak there is room. PyTorch's ``checkpoint_policy`` for a
budget and the knapsack over the forward pass of AOTAutograd are of this form.

Variables: K[v] = value v, made before stage t, is kept across it; R[i] = node i < t is computed again after it.
Minimise sum c_i R_i, subject to
    K[v] + R[i] >= 1          for values v of node i that nodes after t read, or that are graph outputs;
    R[j] <= K[v] + R[i]       for values v of node i that node j reads;
    sum of sizes of K <= room beside what node t reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from remat_cli.control import Control
from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph
from remat_cli.milp import _pyomo as pyo
from remat_cli.milp.rows import LinearRow, add_rows, linear


@dataclass(frozen=True, slots=True)
class CutModel:
    """The Pyomo model with what is needed to read its answers.

    Attributes:
        model: The ``ConcreteModel``; minimises the cost of what is computed again, as a share of C0.
        graph: The graph.
        stage: t.
        kept: K, by value.
        again: R, by node; nodes that may be computed only once have none.
    """

    model: Any
    graph: Graph
    stage: int
    kept: dict[int, Any]
    again: dict[int, Any]

    def computes(self, value_of: Callable[[Any], float]) -> tuple[int, ...]:
        """The schedule that an answer stands for; ``value_of`` gives the value of a variable.

        What is computed again is so right before what reads it first, and stays until what reads it last.
        """
        graph, t = self.graph, self.stage
        there = {v for v, var in self.kept.items() if value_of(var) > 0.5}
        there.update(v for v in range(graph.first_value[t]) if graph.producer[v] not in self.again)
        there.update(graph.values_of(t))
        computes = list(range(t + 1))
        for j in range(t + 1, len(graph.nodes) + 1):
            todo = list(graph.nodes[j].inputs if j < len(graph.nodes) else graph.outputs)
            chosen: set[int] = set()
            while todo:
                v = todo.pop()
                if v not in there and graph.producer[v] not in chosen:
                    chosen.add(graph.producer[v])
                    todo.extend(graph.nodes[graph.producer[v]].inputs)
            computes += sorted(chosen)
            there.update(v for i in chosen for v in graph.values_of(i))
            if j < len(graph.nodes):
                computes.append(j)
                there.update(graph.values_of(j))
        return tuple(computes)


def build(graph: Graph, stage: int, room_bytes: int, control: Control) -> CutModel:
    """State the model.

    Args:
        graph: The graph.
        stage: t.
        room_bytes: What stage t may use, fixed memory not included.
        control: Looked at while building.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    model = pyo.ConcreteModel(name=f"cut {graph.name}")
    before = range(graph.first_value[stage])
    model.K = pyo.Var(before, domain=pyo.Binary)
    model.R = pyo.Var([i for i in range(stage) if graph.nodes[i].recompute], domain=pyo.Binary)
    stated = CutModel(model, graph, stage, dict(model.K.items()), dict(model.R.items()))
    add_rows(model, "needs", _needs(stated), control)
    own = set(graph.nodes[stage].inputs)
    room = room_bytes - working_set(graph, stage)
    unit = max(1, room_bytes)
    beside = [(graph.size[v] / unit, stated.kept[v]) for v in before if v not in own and graph.size[v]]
    add_rows(model, "room", [linear(None, beside, room / unit)] if beside else [], control)
    scale = graph.total_cost or 1.0
    terms = [(graph.nodes[i].cost / scale, var) for i, var in stated.again.items()]
    model.objective = pyo.Objective(expr=linear(None, terms, None)[1])
    return stated


def _needs(stated: CutModel) -> Iterator[LinearRow]:
    """What is read after the stage, and what is read by what is computed again, is kept or computed again."""
    graph, outputs = stated.graph, set(stated.graph.outputs)
    for v, kept in stated.kept.items():
        again = stated.again.get(graph.producer[v])
        sources = [(1.0, kept)] if again is None else [(1.0, kept), (1.0, again)]
        if v in outputs or any(j > stated.stage for j in graph.readers[v]):
            yield linear(1.0, sources, None)
        for j in graph.readers[v]:
            if j in stated.again:
                yield linear(0.0, [*sources, (-1.0, stated.again[j])], None)
