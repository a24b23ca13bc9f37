"""Turns a solution into a sequence of computes, and one that exceeds the budget into rows that cut it off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np

from remat_cli.graph.model import CLOSING_ID, Graph
from remat_cli.mip import Floats, Ints, Row
from remat_cli.plan.liveness import DEAD, walk_back


class Stated(Protocol):
    """A model over R and S, in either formulation, with the columns of its variables."""

    @property
    def graph(self) -> Graph:
        """The graph, with its closing node if it needs one."""

    @property
    def budget_bytes(self) -> int:
        """Fixed memory included."""

    def computed(self, stage: int, node: int, /) -> int | None:
        """The column of R; None if it is a constant."""

    def kept(self, stage: int, value: int, /) -> int | None:
        """The column of S; None if there is none."""

    def choices(self) -> list[tuple[tuple[int, int], int | None]]:
        """Every (stage, node) that a solution may compute, and its column; None if it always does."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes the solutions of one model.

    Attributes:
        stated: The model as stated.
        pairs: (stage, node) of every choice, in the order in which they run.
        columns: int64[len(pairs)], the column of each; -1 if it is always made.
    """

    stated: Stated
    pairs: tuple[tuple[int, int], ...]
    columns: Ints

    @classmethod
    def of(cls, stated: Stated) -> Decoder:
        """The decoder of ``stated``."""
        choices = sorted(stated.choices(), key=lambda choice: choice[0])
        columns = [-1 if column is None else column for _, column in choices]
        return cls(stated, tuple(pair for pair, _ in choices), np.array(columns, dtype=np.int64))

    def chosen(self, values: Floats) -> list[tuple[int, int]]:
        """The (row, node) pairs that a solution computes, in the order in which they run."""
        level = np.append(values, 1.0)[self.columns]  # column -1
        return [self.pairs[i] for i in np.flatnonzero(level > 0.5)]

    def computes(self, chosen: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """The sequence of computes of ``chosen``, up to the closing node.

        Without the frontier the closing node may run in an early row, and computations without cost may follow it. They
        are cut off: when the closing node runs, all nodes have run and the outputs are resident, and what follows might
        drop an output.
        """
        nodes = self.stated.graph.nodes
        end = len(nodes) - (nodes[-1].id == CLOSING_ID)
        return tuple(takewhile(lambda k: k < end, (k for _, k in chosen)))

    def cover_cuts(self, chosen: Sequence[tuple[int, int]]) -> list[Row]:
        """Cover cuts: rows that all schedules within the budget meet and ``chosen`` violates; none if it fits.

        A solver may violate a row by its tolerance, 1e-6 of it: kilobytes of gigabytes. At a step that really exceeds
        the budget, some of its resident values, a *cover*, exceed it together; the decisions that make them resident
        cannot all be 1.
        """
        return [row for step in _overfull_steps(self.stated, chosen) if (row := self._cut(chosen, step)) is not None]

    def _cut(self, chosen: Sequence[tuple[int, int]], step: _Step) -> Row | None:
        stated, graph = self.stated, self.stated.graph
        t, k = chosen[step.position]
        node = graph.nodes[k]
        own = {*node.inputs, *graph.values_of(k)}
        total = graph.fixed_memory + node.workspace + sum(graph.size[v] for v in own)
        reasons = [stated.computed(t, k)]
        # The largest values first: the fewer decisions in a cover, the stronger its cut.
        for v in sorted(step.waiting, key=lambda v: -graph.size[v]):
            if total > stated.budget_bytes:
                break
            total += graph.size[v]
            row, reader = chosen[step.waiting[v]]
            if graph.producer[v] > k:
                reasons.append(stated.kept(t, v))
            elif row == t:
                reasons.append(stated.computed(t, reader))
            else:
                reasons.append(stated.kept(t + 1, v))
        columns = sorted({reason for reason in reasons if reason is not None})
        return Row(columns, [1.0] * len(columns), -math.inf, len(columns) - 1.0) if columns else None


@dataclass(frozen=True, slots=True)
class _Step:
    """A compute over the budget, and the position of the next reader of each value that waits through it."""

    position: int
    waiting: dict[int, int]


def _overfull_steps(stated: Stated, chosen: Sequence[tuple[int, int]]) -> list[_Step]:
    """Steps of ``chosen`` over the budget, the last one first."""
    graph, steps = stated.graph, []
    reads = [DEAD] * len(graph.size)  # the closing node reads the outputs, so nothing stays after it
    for position, height, _ in walk_back(graph, [k for _, k in chosen], reads):
        if height > stated.budget_bytes:
            waiting = {v: reader for v, reader in enumerate(reads) if reader > position}
            steps.append(_Step(position, waiting))
    return steps


def overfull(stated: Stated, chosen: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The (stage, node) steps of ``chosen`` over the budget."""
    return [chosen[step.position] for step in _overfull_steps(stated, chosen)]
