"""Periodic segments: what PyTorch's ``checkpoint_sequential`` does."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.strategies.base import Context, Found, Needs, NotFound, Strategy, Task
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.incumbent import Incumbent

_MOST_SEGMENTS = 256
"""Most segments to try, besides one per block. On longer chains, numbers that cannot beat the incumbent are skipped."""


@dataclass(frozen=True, slots=True)
class Sequential(Strategy):
    """Segments with equal numbers of blocks; only their inputs are kept. The last segment, with the remainder, is kept.

    Attributes:
        segments: Number of segments; 0 tries up to 256, and one per block.
    """

    segments: int = field(default=0, metadata={"help": "number of segments; 0 tries up to 256"})

    name: ClassVar[str] = "sequential"
    summary: ClassVar[str] = "periodic segments of a chain, as in PyTorch's checkpoint_sequential"
    reference: ClassVar[str] = "torch.utils.checkpoint.checkpoint_sequential"
    needs: ClassVar[Needs] = Needs.CHAIN
    ignores: ClassVar[frozenset[str]] = frozenset({"costs", "sizes"})

    def __post_init__(self) -> None:
        """Refuse a negative number of segments."""
        if self.segments < 0:
            raise UsageError(f"sequential{{segments={self.segments}}}: the number must be 0 or more")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try the requested number of segments, or all."""
        chain = Chain.of(task.graph, self.name)
        incumbent = Incumbent.empty(task, context)
        most = min(chain.length, _MOST_SEGMENTS)
        costs = _costs(chain) if chain.length > _MOST_SEGMENTS else None
        for k in (self.segments,) if self.segments else (*range(1, most), chain.length):
            if incumbent.over():
                break
            if costs is not None and costs[_starts(chain.length, k)[-1]] >= incumbent.cost:
                continue
            incumbent.offer(chain.computes(periodic(chain.length, k)), f"sequential{{segments={k}}}")
        return incumbent.answer(self.name)


def _costs(chain: Chain) -> list[float]:
    """The cost of a plan whose last segment starts at each block: C0, and once more the blocks before."""
    again = [math.fsum(n.cost for i in s.block if (n := chain.graph.nodes[i]).recompute) for s in chain.stages]
    return list(itertools.accumulate(again, initial=chain.graph.total_cost))


def _starts(length: int, segments: int) -> range:
    """The first block of each segment."""
    size = max(1, length // segments)
    return range(0, size * min(segments, length), size)


def periodic(length: int, segments: int) -> list[int]:
    """The runs (see ``Chain.computes``) of ``segments`` segments, or of one per block if there are fewer blocks."""
    starts = _starts(length, segments)
    runs = list(range(length))
    runs.extend(~s for s in range(length, starts[-1] - 1, -1))
    for start, end in reversed(list(itertools.pairwise(starts))):
        runs.extend(range(start, end))
        runs.extend(~s for s in range(end - 1, start - 1, -1))
    return runs
