"""Periodic segments: what PyTorch's ``checkpoint_sequential`` does."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.strategies.base import Context, Found, Needs, NotFound, Strategy, Task
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.published._offers import Offers

_MOST_SEGMENTS = 256
"""More segments are tried only where each block is one."""


@dataclass(frozen=True, slots=True)
class Sequential(Strategy):
    """Segments of equally many blocks; only their inputs are kept, but for the last segment, which takes the remainder.

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
        """Refuse a number of segments that means nothing."""
        if self.segments < 0:
            raise UsageError(f"sequential{{segments={self.segments}}}: the number must be 0 or more")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try the number of segments asked for, or all."""
        chain = Chain.of(task.graph, self.name)
        offers = Offers(task, context, self.name)
        most = min(chain.length, _MOST_SEGMENTS)
        for k in (self.segments,) if self.segments else (*range(1, most), chain.length):
            if offers.over():
                break
            offers.offer(chain.computes(periodic(chain.length, k)), f"sequential{{segments={k}}}")
        return offers.answer()


def periodic(length: int, segments: int) -> list[int]:
    """The runs (see ``Chain.computes``) of ``segments`` segments; as many as there are blocks if that is fewer."""
    size = max(1, length // segments)
    starts = [size * k for k in range(min(segments, length))]
    runs = list(range(length))
    runs.extend(~s for s in range(length, starts[-1] - 1, -1))
    for start, end in reversed(list(itertools.pairwise(starts))):
        runs.extend(range(start, end))
        runs.extend(~s for s in range(end - 1, start - 1, -1))
    return runs
