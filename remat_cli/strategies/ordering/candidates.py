"""Candidate orders: those with a small peak without recomputation, and those with a small excess over the budget."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.control import Control, Progress
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.model import Graph
from remat_cli.kernels.compiling import wait
from remat_cli.plan.liveness import heights
from remat_cli.strategies.ordering.beam import Aim, Steps, Stretch, search

_WIDTHS = (1, 8, 64, 512)
_WINDOW = 18
_WINDOW_WIDTH = 400
_SWEEPS = 4
_MOVES = 60_000_000
"""Moves of one run of annealing times nodes: about a second. Untuned."""
_MOST_MOVES = 300_000


@dataclass(frozen=True, slots=True)
class Order:
    """A topological order.

    Attributes:
        nodes: All nodes by index.
        peak_bytes: Peak of computing every node once in it, fixed memory included.
        excess: Bytes over the budget, summed over its steps.
        method: How it was found; empty for the order of the document.
    """

    nodes: tuple[int, ...]
    peak_bytes: int
    excess: int
    method: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """The result of a search for orders.

    Attributes:
        given: The order of the document.
        lowest: The order of the smallest peak; that of the document if none has a smaller one.
        others: Orders other than that of the document, the one with the smallest excess first.
        exact: Whether no order has a smaller peak than ``lowest``.
    """

    given: Order
    lowest: Order
    others: tuple[Order, ...]
    exact: bool


def find_orders(graph: Graph, budget_bytes: int | None, control: Control, seed: int) -> Orders:
    """Search orders with a small peak, and ones with a small excess over the budget, until one fits or all is tried.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included; None to look for the smallest peak.
        control: Stops it early.
        seed: Random seed.
    """
    floor = peak_bound(graph).bytes - graph.fixed_memory
    room = floor if budget_bytes is None else max(floor, budget_bytes - graph.fixed_memory)
    desk = _Desk(graph, Steps.of(graph), room, floor, control, random.Random(seed))
    desk.offer(range(len(graph.nodes)), "")
    desk.beams()
    if not desk.done() and wait("ordering", control):
        desk.anneal()
    if not desk.done():
        desk.windows()
    given = next(order for order in desk.found.values() if not order.method)
    others = sorted((o for o in desk.found.values() if o is not given), key=lambda o: (o.excess, o.peak_bytes, o.nodes))
    return Orders(given, desk.lowest, tuple(others), desk.exact)


@dataclass(slots=True)
class _Desk:
    """Collects orders.

    Attributes:
        graph: The graph.
        steps: The effect of its nodes on memory.
        room: Bytes without fixed memory that an order should keep within.
        floor: No order has a peak below this; without fixed memory.
        control: Stops everything early.
        rng: Source of seeds.
        found: All orders so far.
        exact: Whether no order has a smaller peak than the lowest one found.
    """

    graph: Graph
    steps: Steps
    room: int
    floor: int
    control: Control
    rng: random.Random
    found: dict[tuple[int, ...], Order] = field(default_factory=dict)
    exact: bool = False

    @property
    def lowest(self) -> Order:
        """The order of the smallest peak; the first on a tie."""
        return min(self.found.values(), key=lambda order: order.peak_bytes)

    def done(self) -> bool:
        """Whether an order fits the room, or it is time to stop."""
        return self.lowest.peak_bytes - self.graph.fixed_memory <= self.room or self.control.stopping()

    def offer(self, nodes: Sequence[int], method: str) -> None:
        """Record an order."""
        key = tuple(nodes)
        if key in self.found:
            return
        in_use = heights(self.graph, key)
        excess = sum(max(0, height - self.graph.fixed_memory - self.room) for height in in_use)
        self.found[key] = Order(key, max(in_use, default=self.graph.fixed_memory), excess, method)

    def beams(self) -> None:
        """Beams of growing width from both ends, until one is exact or too much work."""
        everything = tuple(range(len(self.graph.nodes)))
        sides = {True, False}
        for width in _WIDTHS:
            for backward in sorted(sides, reverse=True):
                if self.done() or self.exact:
                    return
                self.control.report(Progress("searching orders"))
                limit = self.lowest.peak_bytes - self.graph.fixed_memory
                stretch = Stretch(everything, 0, self.steps.at_end if backward else 0)
                aim = Aim(self.floor, self.room, limit)
                beam = search(self.steps, stretch, aim, width, self.control, backward=backward)
                if beam.nodes is not None:
                    self.offer(beam.nodes, f"beam of {width}{' backwards' if backward else ''}")
                if beam.given_up:
                    sides.discard(backward)
                self.exact = self.exact or beam.exact

    def anneal(self) -> None:
        """Anneal for a smaller peak, then for a smaller excess; from the best order and from the document's."""
        from remat_cli.strategies.ordering.anneal import Problem, anneal  # numba takes 0.3 s to import

        problem, fixed = Problem.of(self.graph), self.graph.fixed_memory
        given = tuple(range(len(self.graph.nodes)))
        moves = max(1_000, min(_MOST_MOVES, _MOVES // max(1, len(given))))
        for start in dict.fromkeys((self.lowest.nodes, given)):
            if self.exact or self.done():
                break
            self.control.report(Progress("annealing orders"))
            target = max(self.room, self.lowest.peak_bytes - fixed - 1)
            nodes, _ = anneal(problem, start, target, moves, self.rng.getrandbits(31), floor=self.room)
            self.offer(nodes, "annealing the peak")
        for start in dict.fromkeys((self.lowest.nodes, given)):
            if self.done():
                break
            nodes, _ = anneal(problem, start, self.room, moves, self.rng.getrandbits(31))
            self.offer(nodes, "annealing the excess")

    def windows(self) -> None:
        """Reorder every run of a few nodes of the two best orders optimally, in several passes."""
        by_excess = min(self.found.values(), key=lambda order: (order.excess, order.peak_bytes))
        for order in dict.fromkeys((self.lowest, by_excess)):
            nodes = list(order.nodes)
            for sweep in range(_SWEEPS):
                if self.control.stopping() or not self._sweep(nodes, sweep % 2 * (_WINDOW // 2)):
                    break
            self.offer(nodes, f"{order.method or 'the document'} in exact windows")

    def _sweep(self, nodes: list[int], first: int) -> bool:
        """Reorder windows from ``first`` on optimally, in place; whether an order changed."""
        steps, changed = self.steps, False
        done = level = 0
        for k in nodes[:first]:
            _, level = steps.forward(done, level, k)
            done |= 1 << k
        for at in range(first, len(nodes), _WINDOW):
            window = tuple(nodes[at : at + _WINDOW])
            stretch = Stretch(window, done, level)
            peak, excess, level, done = _walk(steps, stretch, self.room)
            if excess:
                beam = search(steps, stretch, Aim(self.floor, self.room, peak), _WINDOW_WIDTH, self.control)
                if beam.nodes is not None and (beam.peak, beam.excess) < (max(peak, self.floor), excess):
                    nodes[at : at + _WINDOW] = beam.nodes
                    changed = True
        return changed


def _walk(steps: Steps, stretch: Stretch, room: int) -> tuple[int, int, int, int]:
    """Peak, bytes over ``room``, bytes after the last node, and all finished nodes, for a stretch in its own order."""
    peak = excess = 0
    done, level = stretch.done, stretch.level
    for k in stretch.nodes:
        high, level = steps.forward(done, level, k)
        done |= 1 << k
        peak = max(peak, high)
        excess += max(0, high - room)
    return peak, excess, level, done
