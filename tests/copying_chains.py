"""A dynamic programme for chains that recompute and copy, in the manner of POFO. It shares no code with strategies.

Beaumont, Eyraud-Dubois and Shilova (Efficient Combination of Rematerialization and Offloading for Training DNNs,
NeurIPS 2021) decide layer by layer whether an activation stays, leaves and comes back, or is dropped and made again
from the one saved before it. Here, too, each activation has one of these fates, a run of dropped ones is made again
once, in one sweep, and copies run in the order of the layers. The state is a layer, the bytes that stay, and what the
two queues have still to do. The backward pass is read from its end, where it looks like the forward pass: what comes
back is to a reversed clock what leaves is to the other one. So both passes are decided together, from the first layer
to the last. Between them the programme waits for both queues, which costs some time and keeps every answer a plan.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from remat_cli.graph.model import Graph, Node
from remat_cli.plan.host import Host

Queue = tuple[tuple[int, float], ...]
"""What copies have still to do, in their order: bytes of each value, and its time left."""


@dataclass(frozen=True)
class Side:
    """One pass: its clock, the bytes that stay for the whole of it, and its queue."""

    clock: float
    stay: int
    queue: Queue

    def run(self, cost: float, needs: int, room: int) -> Side | None:
        """After a computation that needs ``needs`` bytes beside these; it waits for copies until there is room."""
        clock, queue = self.clock, self.queue
        while self.stay + needs + sum(size for size, _ in queue) > room:
            if not queue:
                return None
            clock, queue = clock + queue[0][1], queue[1:]
        passed, left = cost, []
        for size, takes in queue:
            done = min(passed, takes)
            passed -= done
            if takes > done:
                left.append((size, takes - done))
        return Side(clock + cost, self.stay, tuple(left))

    def keeping(self, size: int) -> Side:
        """With ``size`` more bytes that stay."""
        return Side(self.clock, self.stay + size, self.queue)

    def copying(self, size: int, takes: float) -> Side:
        """With one more copy."""
        return Side(self.clock, self.stay, (*self.queue, (size, takes)))


@dataclass(frozen=True)
class Chain:
    """L layers: f_i makes a_i from a_(i-1); b_i makes g_i from a_i and g_(i+1). Costs are seconds."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    a: tuple[int, ...]
    g: tuple[int, ...]

    def graph(self) -> Graph:
        """The chain as a graph of 2 L nodes."""
        depth = len(self.a)
        nodes = [Node(f"f{i}", self.forward[i], (i - 1,) if i else (), (self.a[i],)) for i in range(depth)]
        for i in reversed(range(depth)):
            reads = (i,) if i == depth - 1 else (i, 2 * depth - 2 - i)
            nodes.append(Node(f"b{i}", self.backward[i], reads, (self.g[i],)))
        return Graph("chain", tuple(nodes), (2 * depth - 1,), cost_unit="s")


def random_chain(rng: random.Random) -> Chain:
    """Four to six layers with small whole numbers."""
    depth = rng.randint(4, 6)

    def numbers(least: int, most: int) -> tuple[int, ...]:
        return tuple(rng.randint(least, most) for _ in range(depth))

    forward, backward = (tuple(float(x) for x in numbers(1, 5)) for _ in range(2))
    return Chain(forward, backward, numbers(1, 6), numbers(1, 3))


State = tuple[int, bool, Side, Side]
"""The last saved layer (-1 for none), whether it was copied, and both passes."""


def least_time(chain: Chain, room: int, host: Host) -> float | None:
    """The least time in the class; None if nothing in it fits."""
    depth = len(chain.a)
    start = Side(0.0, 0, ())
    best: list[dict[object, State]] = [{} for _ in range(depth + 1)]
    ends: list[float] = []
    _offer(best[0], (-1, False, start, start))
    for after in range(depth):
        for state in best[after].values():
            for top in range(after, depth + 1):  # layers after .. top - 1 are dropped
                swept = _sweep(chain, room, host, state, top)
                if swept is None:
                    continue
                if top == depth:
                    ends += _turned(*swept, room)
                    continue
                for copied in (False, True):
                    _offer(best[top + 1], _save(chain, room, host, state, swept, top, copied=copied))
    for last, copied, forward, back in best[depth].values():
        done = _come_back(chain, host, (last, copied, forward, back), back)
        ends += _turned(forward, done, room)
    return min(ends, default=None)


def _offer(states: dict[object, State], state: State | None) -> None:
    if state is None:
        return
    last, copied, forward, back = state
    key = (last, copied, forward.stay, forward.queue, back.queue)
    known = states.get(key)
    if known is None or forward.clock + back.clock < known[2].clock + known[3].clock:
        states[key] = state


def _sweep(chain: Chain, room: int, host: Host, state: State, top: int) -> tuple[Side, Side] | None:
    """Both passes after the layers up to ``top``, which are dropped and made again in one sweep."""
    last, copied, forward, back = state
    own = chain.a[last] if copied else 0
    ahead: Side | None = forward
    behind: Side | None = back
    for j in range(last + 1, top):
        ahead = ahead and ahead.run(chain.forward[j], _input(chain, ahead, state, j) + chain.a[j], room)
    held = 0
    for j in range(last + 1, top):
        held += chain.a[j]
        behind = behind and behind.run(chain.backward[j], own + held + _gradients(chain, j), room)
    waiting = chain.g[top] if top < len(chain.a) else 0
    for j in reversed(range(last + 1, top)):
        behind = behind and behind.run(chain.forward[j], own + held + waiting, room)
        held -= chain.a[j]
    if ahead is None or behind is None:
        return None
    return ahead, _come_back(chain, host, state, behind)


def _input(chain: Chain, ahead: Side, state: State, j: int) -> int:
    """The bytes of what layer j reads, if nothing else counts them."""
    last, copied = state[:2]
    if j == 0 or (j - 1 == last and not copied):
        return 0
    if j - 1 == last and ahead.queue:  # the last copy issued is that of this value
        return 0
    return chain.a[j - 1]


def _gradients(chain: Chain, j: int) -> int:
    return chain.g[j] + (chain.g[j + 1] if j + 1 < len(chain.g) else 0)


def _come_back(chain: Chain, host: Host, state: State, back: Side) -> Side:
    """The last saved value comes back before what has just been read from the end of the plan."""
    last, copied = state[:2]
    if not copied:
        return back
    size = chain.a[last]
    return back.copying(size, host.latency_s + size / host.in_bytes_per_s)


def _save(
    chain: Chain, room: int, host: Host, state: State, swept: tuple[Side, Side], layer: int, *, copied: bool
) -> State | None:
    """Layer ``layer`` is computed, and what it makes stays or leaves."""
    size = chain.a[layer]
    forward, back = swept
    before = (state[0] if state[0] == layer - 1 else -2, state[1], forward, back)
    ahead = forward.run(chain.forward[layer], _input(chain, forward, before, layer) + size, room)
    behind = back.run(chain.backward[layer], size + _gradients(chain, layer), room)
    if ahead is None or behind is None:
        return None
    if copied:
        return layer, True, ahead.copying(size, host.latency_s + size / host.out_bytes_per_s), behind
    return layer, False, ahead.keeping(size), behind.keeping(size)


def _turned(forward: Side, back: Side, room: int) -> list[float]:
    """The time of a whole plan, which waits between its passes until all has left, and what is needed is back."""
    if back.stay + sum(size for size, _ in back.queue) > room:
        return []
    waits = sum(takes for _, takes in (*forward.queue, *back.queue))
    return [forward.clock + back.clock + waits]
