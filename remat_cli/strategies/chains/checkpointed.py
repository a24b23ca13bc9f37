"""Checkpoints at equal distances: PyTorch's ``checkpoint_sequential``, and Chen's recursion."""

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


_MOST_TRIED = 256
"""Most numbers of checkpoints to try. Untuned."""


@dataclass(frozen=True, slots=True)
class ChenRecursive(Strategy):
    """Equal segments within equal segments, with the same number of checkpoints on every level.

    With k checkpoints on a level, n equal layers take g(n) = k + g(n / (k + 1)) values, so k log(n) to the base k + 1,
    and every level runs a share k / (k + 1) of the forward pass once more. Kumar et al. (NeurIPS 2019, section 6) cite
    it as the method for chains with O(log n) memory.

    Attributes:
        k: Checkpoints on every level; 0 tries numbers up to that of the blocks.
    """

    k: int = field(default=0, metadata={"help": "checkpoints on every level of the recursion; 0 tries many"})

    name: ClassVar[str] = "chen-recursive"
    summary: ClassVar[str] = "equal segments within equal segments of a chain, for O(log n) memory"
    reference: ClassVar[str] = "Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4.3"
    needs: ClassVar[Needs] = Needs.CHAIN
    ignores: ClassVar[frozenset[str]] = frozenset({"costs", "sizes"})

    def __post_init__(self) -> None:
        """Refuse a negative number of checkpoints."""
        if self.k < 0:
            raise UsageError(f"chen-recursive{{k={self.k}}}: the number must be 0 or more")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try the requested number of checkpoints, or many, the most first: they take the least time."""
        chain = Chain.of(task.graph, self.name)
        incumbent = Incumbent.empty(task, context)
        for k in (self.k,) if self.k else _tried(chain.length):
            if incumbent.over():
                break
            incumbent.offer(chain.computes(recursive(chain.length, k)), "" if self.k else f"chen-recursive{{k={k}}}")
        return incumbent.answer(self.name)


def _tried(length: int) -> list[int]:
    """Numbers of checkpoints from that of the blocks down to 1; on long chains those that differ by a few per cent."""
    if length <= _MOST_TRIED:
        return list(range(max(1, length - 1), 0, -1))
    ratio = length ** (1 / _MOST_TRIED)
    return sorted({max(1, round(ratio**power)) for power in range(_MOST_TRIED + 1)}, reverse=True)


def recursive(length: int, k: int) -> list[int]:
    """The runs (see ``Chain.computes``) with ``k`` checkpoints in every segment that is longer than a block."""
    runs: list[int] = []
    todo = [(0, length)]
    while todo:
        start, end = todo.pop()
        if end - start == 1:
            runs.append(start)
            if end == length:
                runs.append(~length)
            runs.append(~start)
            continue
        parts = min(k + 1, end - start)
        ends = [start + (end - start) * part // parts for part in range(parts + 1)]
        runs.extend(range(start, ends[-2]))
        todo.extend(itertools.pairwise(ends))  # the last segment is reversed first
    return runs
