"""In-stage rows that every schedule in document order meets, whatever order and number of computes its stages have.

A value that stage t+1 gets or node t reads, and that is not computed again in stage t, stands through the whole stage:
its instance is there from the first compute of the stage to the last. So while a node k is computed again in stage t,
what it reads and writes, its workspace and all that stands is resident. The in-stage rows of
:mod:`remat_cli.milp.retention` also count what is computed again before k, which needs the order of the stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from remat_cli.milp import _pyomo as pyo
from remat_cli.milp.retention import RetentionModel
from remat_cli.milp.rows import linear


@dataclass(frozen=True, slots=True)
class Standing:
    """A continuous variable that is 1 where a value stands through a stage: at least ``kept`` less ``again``.

    Attributes:
        variable: The variable.
        kept: S[t+1,v]; None if node t reads the value, which then has to be there in any case.
        again: R[t,i] of the node i that makes the value.
    """

    variable: Any
    kept: Any | None
    again: Any


@dataclass(slots=True)
class StandingRows:
    """The rows stated so far.

    Attributes:
        stated: The model that they belong to; over the full support, but for nodes that are never worth recomputing.
        steps: (stage, node) whose row is there.
        levels: Every variable so far.
        known: What :meth:`_standing` found, by (stage, value).
        blocks: Every block so far: a variable is worth nothing without the one it belongs to.
    """

    stated: RetentionModel
    steps: set[tuple[int, int]] = field(default_factory=set)
    levels: list[Standing] = field(default_factory=list)
    known: dict[tuple[int, int], Any] = field(default_factory=dict)
    blocks: list[Any] = field(default_factory=list)

    def block(self, steps: Iterable[tuple[int, int]]) -> Any | None:
        """Rows for the memory in use while node k is computed again in stage t, for each new (t, k) of ``steps``.

        Returns:
            A ``ConcreteModel`` to compile and append; None if every row is there already.
        """
        new = sorted(step for step in set(steps) if step not in self.steps and step in self.stated.R)
        if not new:
            return None
        self.steps.update(new)
        block = pyo.ConcreteModel()
        self.blocks.append(block)
        block.standing = pyo.VarList(bounds=(0, 1))
        first = len(self.levels)
        bodies = [self._row(block, t, k) for t, k in new]
        for level in self.levels[first:]:
            if level.kept is None:
                bodies.append(linear(1.0, [(1.0, level.variable), (1.0, level.again)], None))
            else:
                bodies.append(linear(0.0, [(1.0, level.variable), (1.0, level.again), (-1.0, level.kept)], None))
        block.rows = pyo.Constraint(range(len(bodies)), rule=lambda _, index: bodies[index])
        some = self.stated.R[new[0]]
        block.objective = pyo.Objective(expr=pyo.LinearExpression(linear_coefs=[0.0], linear_vars=[some]))
        return block

    def _row(self, block: Any, t: int, k: int) -> Any:
        graph, unit = self.stated.graph, self.stated.unit_bytes
        node = graph.nodes[k]
        own = sum(node.outputs) + node.workspace + sum(graph.size[v] for v in node.inputs)
        terms = [(own / unit, self.stated.R[t, k])]
        room = self.stated.room
        for v in range(graph.first_value[t]):
            if graph.size[v] == 0 or graph.producer[v] == k or v in node.inputs:
                continue
            level = self._standing(block, t, v)
            if level is True:
                room -= graph.size[v] / unit
            elif level is not None:
                terms.append((graph.size[v] / unit, level))
        return linear(None, terms, room)

    def _standing(self, block: Any, t: int, v: int) -> Any:
        """Whether v stands through stage t: a variable, True, or None where it cannot."""
        if (t, v) in self.known:
            return self.known[t, v]
        graph = self.stated.graph
        kept = None if v in graph.nodes[t].inputs else self.stated.kept(t + 1, v)
        again = self.stated.computed(t, graph.producer[v])
        level: Any
        if kept is None and v not in graph.nodes[t].inputs:
            level = None
        elif again is None:
            level = True if kept is None else kept
        else:
            level = block.standing.add()
            self.levels.append(Standing(level, kept, again))
        self.known[t, v] = level
        return level
