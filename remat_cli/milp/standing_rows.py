"""In-stage rows that hold for every schedule in document order, with any order and number of computes in a stage.

A value that stage t+1 receives or node t reads, and that is not recomputed in stage t, *stands* through the stage: its
instance is resident from the first compute of the stage to the last. So while a node k is recomputed in stage t, its
inputs, outputs and workspace and all standing values are resident. The in-stage rows of
:mod:`remat_cli.milp.retention` also count the values recomputed before k, which needs an order inside the stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from remat_cli.milp.retention import RetentionModel
from remat_cli.mip import Block, Row, linear


@dataclass(frozen=True, slots=True)
class Standing:
    """A continuous variable that is 1 if a value stands through a stage: at least ``kept`` - ``again``.

    Attributes:
        variable: Its number.
        kept: S[t+1,v]; None if node t reads the value, which is then resident in any case.
        again: R[t,i] of the node i that makes the value.
    """

    variable: int
    kept: int | None
    again: int

    def row(self) -> Row:
        """``variable >= kept - again``."""
        terms = [(1.0, self.variable), (1.0, self.again)]
        if self.kept is None:
            return linear(1.0, terms, math.inf)
        return linear(0.0, [*terms, (-1.0, self.kept)], math.inf)


@dataclass(slots=True)
class StandingRows:
    """The rows stated so far.

    Attributes:
        stated: The model of the rows; over the full support without nodes that no cheaper schedule recomputes.
        steps: (stage, node) of the rows so far.
        levels: Every variable so far.
        known: Results of :meth:`_standing`, by (stage, value).
    """

    stated: RetentionModel
    steps: set[tuple[int, int]] = field(default_factory=set)
    levels: list[Standing] = field(default_factory=list)
    known: dict[tuple[int, int], int | bool | None] = field(default_factory=dict)

    def block(self, steps: Iterable[tuple[int, int]]) -> Block | None:
        """Rows for the memory in use while node k is recomputed in stage t, for each new (t, k) of ``steps``.

        Returns:
            The block to append to the model; None if every row is stated already.
        """
        new = sorted(step for step in set(steps) if step not in self.steps and step in self.stated.R)
        if not new:
            return None
        self.steps.update(new)
        first = len(self.levels)
        rows = [self._row(t, k, first) for t, k in new]
        levels = self.levels[first:]
        return self.stated.block(len(levels), [*rows, *(level.row() for level in levels)])

    def _row(self, t: int, k: int, first: int) -> Row:
        graph, memory = self.stated.graph, self.stated.memory
        node = graph.nodes[k]
        own = sum(node.outputs) + node.workspace + sum(graph.size[v] for v in node.inputs)
        terms = [(memory.down(own), self.stated.R[t, k])]
        room = self.stated.room
        for v in range(graph.first_value[t]):
            if graph.size[v] == 0 or graph.producer[v] == k or v in node.inputs:
                continue
            level = self._standing(t, v, first)
            if level is True:
                room -= memory.down(graph.size[v])
            elif level is not None:
                terms.append((memory.down(graph.size[v]), level))
        return linear(-math.inf, terms, room)

    def _standing(self, t: int, v: int, first: int) -> int | bool | None:
        """Whether v stands through stage t: a variable, True, or None if it cannot.

        A new variable follows those of ``levels`` from ``first`` on, which are of the same block.
        """
        if (t, v) in self.known:
            return self.known[t, v]
        graph = self.stated.graph
        read = v in graph.nodes[t].inputs
        kept = None if read else self.stated.kept(t + 1, v)
        again = self.stated.computed(t, graph.producer[v])
        level: int | bool | None
        if kept is None and not read:
            level = None
        elif again is None:
            level = True if kept is None else kept
        else:
            level = self.stated.columns + len(self.levels) - first
            self.levels.append(Standing(level, kept, again))
        self.known[t, v] = level
        return level
