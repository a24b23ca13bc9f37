"""Revolve: reversing a chain with a given number of stored states (Griewank, Walther), and its form for unequal costs.

A chain has L steps; x_e is the state after e of them, and x_0 is stored. Reversing step e needs the state x_(e-1): the
step runs once more, recorded, and its adjoint follows. Costs count plain advances, which are not recorded; L recorded
ones are added.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph
from remat_cli.strategies.base import Context, Found, Needs, NotFound, Strategy, Task
from remat_cli.strategies.chains.binomial import MOST_RUNS, Splits, advances, binomial
from remat_cli.strategies.chains.extract import Chain, require_blocks
from remat_cli.strategies.chains.segments import Segments, Table, prefix_sums
from remat_cli.strategies.incumbent import Incumbent

_STATES = 4e7
"""Most numbers in a table: 320 MB. Untuned."""
_BLOCKS = 340
"""Steps that, with as many slots, fill the table; that takes three seconds."""
_ALL_TRIED = 250_000
"""Slots times nodes up to which all numbers of slots are tried. Untuned."""
_NEAR = 4
"""Beyond, numbers of slots to try on either side of the largest that fits. Untuned."""
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class _Griewank(Strategy):
    """The parts that both strategies share.

    Attributes:
        slots: States to store, x_0 among them; 0 tries all numbers, on long chains those near the largest that fits.
    """

    slots: int = field(
        default=0, metadata={"help": "states to store, the first one among them; 0: what fits the budget best"}
    )

    needs: ClassVar[Needs] = Needs.CHAIN

    def __post_init__(self) -> None:
        """Refuse a negative number of slots."""
        if self.slots < 0:
            raise UsageError(f"{self.name}{{slots={self.slots}}}: the number must be 0 or more")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Make the schedules for several numbers of slots; the cheapest one within the budget wins."""
        chain = self.chain(task.graph)
        incumbent = Incumbent.empty(task, context)
        incumbent.report(self.name)
        most, splits_for = self.schedules(chain)

        def fits(slots: int) -> bool:
            """Offer the schedule with this number of slots; true if it fits, is too long, or the search is over."""
            splits = splits_for(slots)
            if splits is None or incumbent.over():
                return True
            return incumbent.offer(chain.computes(reversal(chain.length, splits)), self.options(slots))

        if self.slots:
            fits(min(self.slots, most))
            return incumbent.answer(self.name)
        few = most * len(task.graph.nodes) <= _ALL_TRIED
        for slots in range(most, 0, -1) if few else _around(most, fits):
            if incumbent.over():
                break
            fits(slots)
        return incumbent.answer(self.name)

    def chain(self, graph: Graph) -> Chain:
        """The chain of the schedules."""
        return Chain.of(graph, self.name)

    def options(self, slots: int) -> str:
        """Text form of this strategy with ``slots``."""
        return f"{self.name}{{slots={slots}}}"

    @abstractmethod
    def schedules(self, chain: Chain) -> tuple[int, Callable[[int], Splits | None]]:
        """The largest useful number of slots, and the schedule of each number, None if that is too long."""


def _around(most: int, fits: Callable[[int], bool]) -> list[int]:
    """Numbers near the largest that fits, in descending order: more slots mostly take more memory and less time."""
    low, high = (most, most + 1) if fits(most) else (0, most)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return list(range(min(most, low + _NEAR), max(0, low - _NEAR), -1))


@dataclass(frozen=True, slots=True)
class Revolve(_Griewank):
    """The binomial schedule, optimal for steps of equal cost and states of equal size."""

    name: ClassVar[str] = "revolve"
    summary: ClassVar[str] = "binomial checkpointing of a chain: optimal for equal costs and sizes"
    reference: ClassVar[str] = "Griewank and Walther, Algorithm 799: revolve, ACM TOMS 2000"
    ignores: ClassVar[frozenset[str]] = frozenset({"costs", "sizes"})

    def schedules(self, chain: Chain) -> tuple[int, Callable[[int], Splits | None]]:
        """The binomial schedules; None for a number of slots that takes too many runs."""
        length = chain.length
        return length, lambda s: binomial(length, s) if advances(length, s) <= MOST_RUNS else None


@dataclass(frozen=True, slots=True)
class RevolveHetero(_Griewank):
    """The dynamic programme for steps of unequal costs and states of equal size.

    Time grows at least with the third power of the number of steps, so the steps of longer chains are grouped.

    Attributes:
        blocks: Most steps; a longer chain is grouped into at most as many.
    """

    blocks: int = field(default=_BLOCKS, metadata={"help": "longer chains are grouped into this many steps"})

    name: ClassVar[str] = "revolve-hetero"
    summary: ClassVar[str] = "checkpointing of a chain: optimal for unequal costs and equal sizes"
    reference: ClassVar[str] = "Griewank and Walther, Evaluating Derivatives, 2nd ed., section 12.3, SIAM 2008"
    ignores: ClassVar[frozenset[str]] = frozenset({"sizes"})

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        _Griewank.__post_init__(self)
        require_blocks(self.name, self.blocks)

    def options(self, slots: int) -> str:
        """Text form of this strategy with ``slots``."""
        blocks = "" if self.blocks == _BLOCKS else f",blocks={self.blocks}"
        return f"{self.name}{{slots={slots}{blocks}}}"

    def chain(self, graph: Graph) -> Chain:
        """The chain, grouped if it is long."""
        return Chain.of(graph, self.name, self.blocks)

    def schedules(self, chain: Chain) -> tuple[int, Callable[[int], Splits | None]]:
        """The schedules for each number of slots in the table."""
        costs = [stage.cost for stage in chain.stages[:-1]]
        most = max(1, min(chain.length, int(_STATES / chain.length**2)))
        program = Hetero.of(costs, most if not self.slots else min(self.slots, most))
        return program.slots, program.splits


def reversal(length: int, splits: Splits) -> list[int]:
    """The runs (see ``Chain.computes``) of a schedule: the forward pass with the loss, then the steps backwards."""
    runs: list[int] = []
    following = length - 1  # the stage to be reversed next

    def reverse(down_to: int) -> None:
        nonlocal following
        while following >= down_to:
            runs.append(following)
            if following == length - 1:
                runs.append(~length)
            runs.append(~following)
            following -= 1

    for low, k, r in splits:
        reverse(r + 1)
        runs.extend(range(low, k))
    reverse(0)
    return runs


@dataclass(frozen=True, slots=True, eq=False)
class Hetero:
    """The least cost of reversing every part of a chain with every number of slots up to a maximum.

    f(i, j, s) = min over k of P_k - P_i + f(k, j, s - 1) + f(i, k, s); with one slot all advances start at x_i.

    Attributes:
        segments: The states x_1 .. x_(L-1) as levels to be visited from the last to the first.
        table: The least costs; m reserved units are m slots taken besides that of x_0.
        slots: The largest number of slots.
    """

    segments: Segments
    table: Table
    slots: int

    @classmethod
    def of(cls, costs: list[float], slots: int) -> Hetero:
        """The programme for steps of these costs."""
        n = len(costs) - 1  # the last step is never advanced over, only recorded
        levels = np.arange(n + 1, dtype=np.int64)
        segments = Segments(
            prefix=prefix_sums(costs[:-1]),
            tail=np.zeros(n + 1),
            top=levels,
            hold=np.ones((n + 1, n + 1), dtype=np.int64),
            sweep=np.full((n + 1, n + 1), _NO_LIMIT, dtype=np.int64),
            pending=np.zeros(n + 1, dtype=np.int64),
            visit=np.full(n + 1, _NO_LIMIT, dtype=np.int64),
            width=slots,
            starts=np.arange(slots, dtype=np.int64),
        )
        return cls(segments, segments.fill(), slots)

    def advances(self, slots: int) -> float:
        """Cost of the plain advances with ``slots`` slots."""
        n = len(self.segments.prefix) - 1
        if not n:
            return 0.0
        reserved = np.array([self.slots - slots])
        return float(self.table.look(np.array([0]), np.array([n]), reserved)[0])

    def splits(self, slots: int) -> Splits:
        """The schedule with ``slots`` slots."""
        order = self.segments.order(self.table, self.slots - slots)
        assert order is not None
        return order
