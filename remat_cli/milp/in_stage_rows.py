"""States the in-stage rows of the retention MILP: the memory in use while a node is recomputed within a stage.

:func:`in_stage_rows` is exact for schedules of the frontier class. :class:`LiveThroughRows` counts fewer values, and
holds for every schedule in document order: the exact rows also count the values recomputed before, which needs an order
inside the stage.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from remat_cli.milp.retention import RetentionModel
from remat_cli.mip import Block, Row, linear


@dataclass(frozen=True, slots=True)
class InStageRows:
    """In-stage rows as a block to append.

    Attributes:
        block: Rows over variables of the main model and new variables w.
        levels: Every w with the variables whose maximum it is, in an order in which they can be evaluated.
    """

    block: Block
    levels: tuple[tuple[int, tuple[int, ...]], ...]


def in_stage_rows(stated: RetentionModel, steps: Iterable[tuple[int, int]]) -> InStageRows | None:
    """Rows for the memory in use while node k is recomputed in stage t, for each (t, k) of ``steps``.

    Of the values of nodes between k and t those kept into stage t are resident. A value of a node before k is resident
    if it is kept into stage t+1, or read in stage t by k or a later node. The continuous variable w states this: one
    for each of those readers, each at least the next. Steps with a row already are skipped; None if none remains.
    """
    new = sorted({step for step in steps if step not in stated.stated_steps})
    if not new:
        return None
    stated.stated_steps.update(new)
    builder = _InStage(stated, stated.size)
    rows = [builder.row(t, k) for t, k in new]
    levels = tuple(builder.levels.items())
    maxima = [linear(0.0, [(1.0, level), (-1.0, source)], math.inf) for level, sources in levels for source in sources]
    return InStageRows(stated.block(len(levels), [*maxima, *rows]), levels)


@dataclass(slots=True)
class _InStage:
    """Collects the w variables of in-stage rows.

    Attributes:
        stated: The model.
        size: Size of every value, as in the model.
        levels: Every w with the variables whose maximum it is.
        known: The w of (stage, value, reader).
    """

    stated: RetentionModel
    size: list[float]
    levels: dict[int, tuple[int, ...]] = field(default_factory=dict)
    known: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def row(self, t: int, k: int) -> Row:
        """The row for node k in stage t."""
        stated, graph, size = self.stated, self.stated.graph, self.size
        node = graph.nodes[k]
        terms = [(stated.memory.down(sum(node.outputs) + node.workspace), stated.R[t, k])]
        room = stated.room
        read_by_t = set(graph.nodes[t].inputs)
        for v in range(graph.first_value[k]):
            if v in read_by_t:
                room -= size[v]
            elif size[v] and (level := self._level(t, v, k)) is not None:
                terms.append((size[v], level))
        for v in range(graph.first_value[k + 1], graph.first_value[t]):
            kept = stated.kept(t, v)
            if kept is not None and size[v]:
                terms.append((size[v], kept))
        return linear(-math.inf, terms, room)

    def _level(self, t: int, v: int, k: int) -> int | None:
        """The variable for v being live while k runs in stage t; None if it never is."""
        readers = [j for j in self.stated.graph.readers[v] if k <= j < t and (t, j) in self.stated.R]
        level = self.stated.kept(t + 1, v)
        for j in reversed(readers):
            if (t, v, j) not in self.known:
                self.known[t, v, j] = number = self.stated.columns + len(self.levels)
                self.levels[number] = (self.stated.R[t, j],) if level is None else (self.stated.R[t, j], level)
            level = self.known[t, v, j]
        return level


@dataclass(frozen=True, slots=True)
class LiveThrough:
    """A continuous variable that is 1 if a value is live through a stage: at least ``kept`` - ``again``.

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
class LiveThroughRows:
    """In-stage rows that hold for every schedule in document order, with any order and number of computes in a stage.

    A value that stage t+1 receives or node t reads, and that is not recomputed in stage t, is *live through* the stage:
    its instance is resident from the first compute of the stage to the last. So while a node k is recomputed in stage
    t, its inputs, outputs and workspace and all values live through the stage are resident.

    Attributes:
        stated: The model of the rows; over the full support without nodes that no cheaper schedule recomputes.
        steps: (stage, node) of the rows so far.
        levels: Every variable so far.
        known: Results of :meth:`_live_through`, by (stage, value).
    """

    stated: RetentionModel
    steps: set[tuple[int, int]] = field(default_factory=set)
    levels: list[LiveThrough] = field(default_factory=list)
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
            level = self._live_through(t, v, first)
            if level is True:
                room -= memory.down(graph.size[v])
            elif level is not None:
                terms.append((memory.down(graph.size[v]), level))
        return linear(-math.inf, terms, room)

    def _live_through(self, t: int, v: int, first: int) -> int | bool | None:
        """Whether v is live through stage t: a variable, True, or None if it cannot.

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
            self.levels.append(LiveThrough(level, kept, again))
        self.known[t, v] = level
        return level
