"""Chains in Rotor's terms: as graphs, and a search of all memory-persistent schedules that knows no graph."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from remat_cli.graph.model import Graph, Node, Phase


@dataclass(frozen=True)
class RotorChain:
    """L stages and the loss, which is stage L. Sizes: a_0 .. a_L, abar_0 .. abar_L (abar_0 unused), d_0 .. d_L."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    a: tuple[int, ...]
    abar: tuple[int, ...]
    d: tuple[int, ...]
    forward_work: tuple[int, ...]
    backward_work: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.forward)

    def graph(self) -> Graph:
        """Nodes x (the input, which cannot be made again), f0 .., loss, .. b0; what abar has beyond a is a value."""
        nodes = [Node("x", 0.0, (), (self.a[0],), recompute=False, phase=Phase.FORWARD)]
        states, tapes, made = [0], [[]], 1
        for i in range(self.length):
            extra = self.abar[i + 1] - self.a[i + 1]
            outputs = (self.a[i + 1], extra) if extra else (self.a[i + 1],)
            work = self.forward_work[i]
            node = Node(f"f{i}", float(self.forward[i]), (states[-1],), outputs, workspace=work, phase=Phase.FORWARD)
            nodes.append(node)
            states.append(made)
            tapes.append(list(range(made, made + len(outputs))))
            made += len(outputs)
        top = self.length
        work = self.backward_work[top]
        reads = (states[top],)
        nodes.append(Node("loss", float(self.backward[top]), reads, (self.d[top],), workspace=work, phase=Phase.LOSS))
        for i in reversed(range(top)):
            reads = tuple(sorted({made, states[i], *tapes[i + 1]}))
            work = self.backward_work[i]
            cost = float(self.backward[i])
            nodes.append(Node(f"b{i}", cost, reads, (self.d[i],), workspace=work, phase=Phase.BACKWARD))
            made += 1
        return Graph("rotor", tuple(nodes), (made,))


def random_rotor_chain(rng: random.Random, length: int, *, workspace: bool) -> RotorChain:
    """Costs and sizes of 0 to 6; the input has no size."""
    a = (0, *(rng.randint(0, 5) for _ in range(length)))

    def work(count: int) -> tuple[int, ...]:
        return tuple(rng.choice((0, rng.randint(0, 6))) if workspace else 0 for _ in range(count))

    return RotorChain(
        forward=tuple(rng.randint(0, 6) for _ in range(length)),
        backward=tuple(rng.randint(0, 6) for _ in range(length + 1)),
        a=a,
        abar=(0, *(size + rng.choice((0, rng.randint(0, 4))) for size in a[1:])),
        d=tuple(rng.randint(0, 3) for _ in range(length + 1)),
        forward_work=work(length),
        backward_work=work(length + 1),
    )


def figure_2(n: int) -> tuple[RotorChain, int]:
    """The paper's counterexample (costs of its figure 2, sizes of our own) and its budget.

    Memory-persistent schedules cost 3n + 1 at least, others 2n + 2.
    """
    length = n + 2
    sizes = (0, 1, 2, *(3,) * (length - 2))
    nothing = (0,) * (length + 1)
    chain = RotorChain((n - 1, 2, *(0,) * n), nothing, sizes, (0, *sizes[1:]), nothing, nothing[1:], (*nothing[1:], 4))
    return chain, 8


State = tuple[frozenset[tuple[str, int]], int, int]
"""What is stored (``a`` or ``t`` for abar, and its number), the state that is at hand besides, the next backward."""


def cheapest_persistent(chain: RotorChain, limit: int, *, early: bool = True) -> int | None:
    """Least cost of a memory-persistent schedule: what is stored goes only when its own backward has run.

    Without ``early`` a tape is made only for the backward stage that is due: revolve in bytes.
    """
    ties = itertools.count()
    start: State = (frozenset(), 0, chain.length)
    queue: list[tuple[int, int, State]] = [(0, next(ties), start)]
    done: set[State] = set()
    while queue:
        cost, _, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        if state[2] < 0:
            return cost
        for extra, need, following in _steps(chain, state, early=early):
            if need <= limit:
                heapq.heappush(queue, (cost + extra, next(ties), following))
    return None


def _steps(chain: RotorChain, state: State, *, early: bool) -> Iterator[tuple[int, int, State]]:
    """(cost, bytes while it runs, state afterwards) of whatever may run next."""
    stored, hand, due = state
    sizes = {"a": chain.a, "t": chain.abar}
    held = sum(sizes[kind][i] for kind, i in stored) + chain.a[hand]
    waiting = chain.d[due + 1] if due < chain.length else 0

    def there(i: int) -> bool:
        return i in {0, hand} or bool({("a", i), ("t", i)} & stored)

    for i in range(min(due, chain.length - 1) + 1):
        if not there(i) or hand not in {0, i}:
            continue
        need = held + waiting + chain.abar[i + 1] + chain.forward_work[i]  # the tape is made, if only to be dropped
        kept = stored | {("a", i)} if hand == i and i else stored
        yield chain.forward[i], need, (stored, i + 1, due)  # the input is dropped, unless it is stored
        yield chain.forward[i], need, (kept, i + 1, due)
        if early or i == due:
            yield chain.forward[i], need, (kept | {("t", i + 1)}, 0, due)
    if not there(due) or hand not in {0, due}:
        return
    need = held + waiting + chain.d[due] + chain.backward_work[due]
    if due == chain.length:
        yield chain.backward[due], need, (stored - {("a", due)}, 0, due - 1)
    elif ("t", due + 1) in stored:
        yield chain.backward[due], need, (stored - {("a", due), ("t", due + 1)}, 0, due - 1)
