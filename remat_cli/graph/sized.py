"""A graph whose batch and length are open: its bytes as functions of both, and where these functions hold.

Structure, order and outputs are those of one graph; sizes are not. :attr:`SizedGraph.bytes_of` is asked for many sizes
at a time: values and workspaces that take the same number of bytes at every size are one *class*, of which a large
model has some dozens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from remat_cli.graph.model import Graph

Bytes: TypeAlias = npt.NDArray[np.int64]
"""int64: bytes, or numbers of classes."""
Sizes: TypeAlias = tuple[int, int]
"""Batch and length; the length is 0 for a batch without one."""


@dataclass(frozen=True, slots=True)
class SizedGraph:
    """A graph at every batch and length.

    Attributes:
        graph: The graph at one of its sizes, of which structure, order and outputs hold at all.
        axes: What varies: ``batch`` alone, or ``batch`` and ``length``.
        of_value: int[V], the class of every value.
        of_workspace: int[n], the class of every node's workspace.
        bytes_of: From batches and lengths, int[K] each, to the bytes of every class, int64[C, K], the last of which is
            that of fixed memory.
        holds: From batches and lengths, int[K] each, to bool[K]: whether the graph is the same there.
        rising: For every class, whether it is proven that no larger batch and no larger length has fewer bytes.
        exact: The graph at a batch and a length, with costs; made from the operators, so that it checks the functions.
    """

    graph: Graph
    axes: tuple[str, ...]
    of_value: tuple[int, ...]
    of_workspace: tuple[int, ...]
    bytes_of: Callable[[Bytes, Bytes], Bytes]
    holds: Callable[[Bytes, Bytes], npt.NDArray[np.bool_]]
    rising: tuple[bool, ...]
    exact: Callable[[int, int], Graph]

    def at(self, batch: int, length: int) -> Graph:
        """The graph with the bytes of a batch and a length, and the costs of :attr:`graph`; quick."""
        table = self.bytes_of(np.array([batch]), np.array([length]))[:, 0].tolist()
        nodes = []
        for i, node in enumerate(self.graph.nodes):
            outputs = tuple(table[self.of_value[v]] for v in self.graph.values_of(i))
            nodes.append(replace(node, outputs=outputs, workspace=table[self.of_workspace[i]], payload=None))
        return replace(self.graph, nodes=tuple(nodes), fixed_memory=table[-1])

    def holds_at(self, batch: int, length: int) -> bool:
        """Whether the graph is the same at a batch and a length."""
        return bool(self.holds(np.array([batch]), np.array([length]))[0])

    def same_bytes(self, graph: Graph, batch: int, length: int) -> bool:
        """Whether ``graph``, made for a batch and a length, has the structure and the bytes of this one there."""
        own = self.at(batch, length)
        return (
            own.outputs == graph.outputs
            and own.fixed_memory == graph.fixed_memory
            and [_form(node) for node in own.nodes] == [_form(node) for node in graph.nodes]
        )


def _form(node: object) -> tuple[object, ...]:
    names = ("id", "op", "phase", "inputs", "outputs", "workspace", "recompute")
    return tuple(getattr(node, name) for name in names)


def grid(batches: Sequence[int], lengths: Sequence[int]) -> tuple[Bytes, Bytes]:
    """Every batch with every length: int64[K] each."""
    one, other = np.meshgrid(np.array(batches, np.int64), np.array(lengths, np.int64), indexing="ij")
    return one.ravel(), other.ravel()
