"""Rotor: optimal memory-persistent schedules of chains whose stages differ in cost and size.

Segment (s, t) with m bytes: a_s is resident and not counted; the gradients that wait before stage t are resident, or
will be, and are counted. The task is to run the rest of the stages t .. s. There are two ways. Either the blocks s ..
j - 1 run and leave only a_j, (j, t) is served beside it, and (s, j - 1) starts anew from a_s. Or block s runs and
leaves its tape, (s + 1, t) is served beside that, and the rest of s follows (Beaumont et al., Optimal checkpointing for
heterogeneous chains, INRIA RR-9302, theorem 1). Three details differ from the paper, and all only admit more schedules:
peaks are those of running a block's nodes one by one; a stage whose rest reads no value of its block does not rerun the
block; and while blocks run, only the gradient that waits at the end of the segment counts.

Memory-persistent: a value kept for a segment stays until the segment is served. Cheaper schedules may exist that drop a
checkpoint and recompute it, or that keep a value of the sweep for the rest of its own stage; see ``optimal``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.mip import Bools, Floats, Ints
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context, Found, Needs, NotFound, Strategy, Task
from remat_cli.strategies.chains.extract import Chain, require_blocks
from remat_cli.strategies.chains.segments import prefix_sums
from remat_cli.strategies.incumbent import Incumbent

_WORK = 5e8
"""Steps of the innermost loop to spend in any case: about a second. Untuned."""
_STATES = 1e7
"""Numbers of the table to spend in any case: 80 MB. Untuned: on Checkmate's U-Net at 40, 60 and 80%,
three times as many changed nothing."""
_MOST_STATES = 2.5e8
"""Most numbers of the table: 2 GB. This gives 500 units for chains of up to 700 blocks, and fewer beyond."""
_BLOCKS = 400
"""With 500 units this takes 600 MB and seven to eight seconds."""
_EXACT = 2.0**50
_BEYOND = 8
"""If units round bytes up, plans for budgets up to an eighth higher are tried too, because they may fit. Untuned."""
_LOOKS = 24
"""Number of these budgets. Untuned."""


@dataclass(frozen=True, slots=True)
class Rotor(Strategy):
    """The dynamic programme of Rotor over the stages of a chain.

    Time grows with the third power of the number of blocks and memory with the second, so neighbouring blocks of a
    longer chain are grouped, and a group is kept or dropped as a whole. The plan is then optimal for the chain of
    groups only, and nothing is proven.

    Attributes:
        slots: Least number of units of memory if the sizes have no common divisor that allows exact counting; more if
            that is quick.
        blocks: Most blocks; a longer chain is grouped into at most as many.
    """

    slots: int = field(
        default=500, metadata={"help": "least number of units to count memory in, if exact counting takes more"}
    )

    blocks: int = field(
        default=_BLOCKS,
        metadata={"help": "longer chains are grouped into this many blocks; then nothing is proven"},
    )

    name: ClassVar[str] = "rotor"
    summary: ClassVar[str] = "optimal memory-persistent schedules of chains, by Rotor's dynamic programme"
    reference: ClassVar[str] = "Beaumont et al., Optimal checkpointing for heterogeneous chains, INRIA RR-9302, 2019"
    needs: ClassVar[Needs] = Needs.CHAIN
    early: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if not 1 <= self.slots <= 1_000_000:
            raise UsageError(
                f"{self.name}{{slots={self.slots}}}: out of range",
                hint="choose slots between 1 and 1000000, such as 500",
            )
        require_blocks(self.name, self.blocks)

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Run the programme; if nothing fits, run it with more memory to find the least that has a schedule."""
        chain = Chain.of(task.graph, self.name, self.blocks)
        incumbent = Incumbent.empty(task, context)
        budget = no_remat_peak(task.graph) if task.budget_bytes is None else task.budget_bytes
        incumbent.report(self.name)
        room = budget - task.graph.fixed_memory - chain.always
        # If units round bytes up, a plan for a slightly higher budget may fit.
        exact = chain.simple and _unit(chain, room, self.slots) == _divisor(chain)
        program = Program.of(chain, room if exact else room + room // _BEYOND, self.slots, early=self.early)
        if program is not None:
            bound = program.bound(room)
            if bound is not None and self.early:
                incumbent.raise_bound(Bound(bound, Scope.CHAIN_PERSISTENT))
            for limit in _limits(room, exact=exact):
                runs = program.runs(limit)
                if runs is not None:
                    incumbent.offer(chain.computes(runs))
        if incumbent.computes is None:
            self._least(chain, incumbent)
        return incumbent.answer(self.name)

    def _least(self, chain: Chain, incumbent: Incumbent) -> None:
        """Offer the schedule with the least memory, for the message: it exceeds the budget, except by rounding."""
        most = sum(stage.tape for stage in chain.stages) + max(
            stage.waiting + max(stage.rest_peak, stage.plain_peak, stage.taped_peak) for stage in chain.stages
        )
        program = Program.of(chain, 2 * most, self.slots, early=self.early)
        if program is not None and not incumbent.context.control.stopping():
            runs = program.least_runs()
            if runs is not None:
                incumbent.offer(chain.computes(runs))
            elif frozen := next((stage for stage in chain.stages if stage.frozen), None):
                nodes = (chain.graph.nodes[i] for i in frozen.block)
                once = next(node.id for node in nodes if not node.recompute)
                raise StrategyMismatch(
                    f"{self.name} has no plan of this graph at any budget, since {once} may be computed only once",
                    hint="take the strategy rotor, or auto",
                )


@dataclass(frozen=True, slots=True)
class RevolveBytes(Rotor):
    """Revolve for stages that differ in cost and in bytes: Rotor's programme without tapes that wait.

    Only the outputs of blocks are kept, and every block runs once more right before its backward stage. So its plans
    cost one more forward pass at least, and large budgets bring nothing. ``revolve-hetero`` records the last block at
    once, as Griewank and Walther do, and may therefore be a little cheaper where bytes do not matter. This is the
    baseline ``revolve`` of Rotor's section 5.3. Its plans are the best of their kind; no plan is proven optimal.
    """

    name: ClassVar[str] = "revolve-bytes"
    summary: ClassVar[str] = "checkpointing of a chain: optimal for unequal costs and sizes if tapes never wait"
    reference: ClassVar[str] = (
        "Gruslys et al., Memory-efficient backpropagation through time, NeurIPS 2016, appendix C; "
        "Beaumont et al., INRIA RR-9302, section 5.3"
    )
    early: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The arguments of ``kernels.segments.fill_persistent``, which describes them, and its result."""

    chain: Chain
    unit: int
    prefix: Floats
    back: Floats
    top: Ints
    taped: Bools
    output: Ints
    tape: Ints
    sweep: Ints
    record: Ints
    rest: Ints
    waiting: Ints
    again: Ints
    value: Floats
    early: bool

    @classmethod
    def of(cls, chain: Chain, room: int, slots: int, *, early: bool = True) -> Program | None:
        """The table for up to ``room`` bytes; None if that is negative.

        Sizes are divided by their greatest common divisor. Only if that gives more units than ``slots`` and than the
        limits on time and memory allow, sizes are rounded up to larger units.
        """
        if room < 0:
            return None
        stages, n = chain.stages, chain.length
        unit = _unit(chain, room, slots)

        def units(counts: list[int]) -> Ints:
            return np.array([-(-count // unit) for count in counts], dtype=np.int64)

        served = [*(s for s, stage in enumerate(stages) if stage.rest), n]
        output = units([0, *(stage.output for stage in stages[:n])])
        top = np.full(n + 1, -1, dtype=np.int64)
        top[served] = served
        parts = {
            "prefix": prefix_sums([stage.cost for stage in stages[:n]]),
            "back": np.array([stage.rest_cost for stage in stages], dtype=np.float64),
            "top": np.maximum.accumulate(top),
            "taped": np.array([stage.taped for stage in stages], dtype=np.bool_),
            "output": output,
            "tape": units([stage.tape for stage in stages[:n]]),
            "sweep": _sweeps(units([stage.plain_peak for stage in stages]), output),
            "record": units([stage.taped_peak for stage in stages]),
            "rest": units([stage.rest_peak for stage in stages]),
            "waiting": units([stage.waiting for stage in stages]),
            "again": _again(chain),
        }
        from remat_cli.kernels.segments import fill_persistent  # numba, which takes half a second

        value = np.full((n + 1, n + 1, room // unit + 1), np.inf)
        fill_persistent(**parts, nothing=np.zeros(room // unit + 1), value=value, early=early)
        return cls(chain=chain, unit=unit, value=value, early=early, **parts)

    def bound(self, room: int) -> float | None:
        """A lower bound on memory-persistent schedules; None if sizes were rounded or blocks grouped."""
        chain = self.chain
        exact = chain.simple and self.unit == _divisor(chain)
        whole = all(float(node.cost).is_integer() for node in chain.graph.nodes) and chain.graph.total_cost < _EXACT
        return float(self.value[0, chain.length, room // self.unit]) if exact and whole else None

    def runs(self, room: int) -> list[int] | None:
        """The best schedule within ``room`` bytes, in the form that ``Chain.computes`` takes; None if nothing fits."""
        return self._runs(room // self.unit)

    def least_runs(self) -> list[int] | None:
        """The same with the least memory that has a schedule; None if the table has none."""
        fits = np.flatnonzero(np.isfinite(self.value[0, self.chain.length]))
        return self._runs(int(fits[0])) if len(fits) else None

    def _runs(self, units: int) -> list[int] | None:
        n = self.chain.length
        if math.isinf(self.value[0, n, units]):
            return None
        runs: list[int] = []
        todo: list[tuple[int, int, int] | int] = [(0, n, units)]
        while todo:
            item = todo.pop()
            if isinstance(item, int):
                runs.append(item)
                continue
            s, t, m = item
            if t < s:
                continue
            if s == t:
                runs.extend([s] * bool(self.taped[s]))
                runs.append(~s)
                continue
            costs = self._costs(s, t, m)
            j = s + 1 + int(np.argmin(costs))
            if self._taping(s, t, m) <= costs[j - s - 1]:
                runs.append(s)
                todo.extend([~s, (s + 1, t, m - int(self.tape[s]))])
            else:
                runs.extend(range(s, j))
                todo.extend([(s, int(self.top[j - 1]), m), (j, t, m - int(self.output[j]))])
        return runs

    def _taping(self, s: int, t: int, m: int) -> float:
        """Cost of (s, t) with m units if block s leaves its tape."""
        need = max(int(self.tape[s]), int(self.waiting[t] + self.record[s]), int(self.rest[s]))
        if not self.early or not self.taped[s] or m < need:
            return math.inf
        return float(self.prefix[s + 1] - self.prefix[s] + self.back[s] + self.value[s + 1, t, m - self.tape[s]])

    def _costs(self, s: int, t: int, m: int) -> Floats:
        """Cost of (s, t) with m units if a_j is kept, for every j in s + 1 .. t."""
        j = np.arange(s + 1, t + 1)
        before = self.top[j - 1]
        allowed = (m >= self.output[j]) & (m >= self.waiting[t] + self.sweep[s, j])
        allowed &= (before < s) | (s >= self.again[before])
        left = np.where(before >= s, self.value[s, before, m], 0.0)
        right = self.value[j, t, np.where(allowed, m - self.output[j], 0)]
        costs: Floats = np.where(allowed, self.prefix[j] - self.prefix[s] + left + right, np.inf)
        return costs


def _limits(room: int, *, exact: bool) -> list[int]:
    """Budgets in bytes whose best plans are tried."""
    return [room] if exact else [room + room * look // (_LOOKS * _BEYOND) for look in range(_LOOKS + 1)]


def _divisor(chain: Chain) -> int:
    """The greatest common divisor of all byte counts of the chain."""
    stages = chain.stages
    counts = (
        (s.output, s.tape, s.plain_peak if s.block else 0, s.taped_peak if s.block else 0, s.rest_peak, s.waiting)
        for s in stages
    )
    return math.gcd(*(count for row in counts for count in row)) or 1


def _unit(chain: Chain, room: int, slots: int) -> int:
    """Bytes of a unit: the divisor, or a multiple of it if that gives too many units."""
    n, divisor = chain.length, _divisor(chain)
    table = (n + 1) ** 2
    affordable = max(slots, min(int(_WORK / (n**3 / 6 + 1)), int(_STATES / table)))
    affordable = max(1, min(affordable, int(_MOST_STATES / table)))
    return divisor * max(1, math.ceil(room / divisor / affordable))


def _sweeps(plain: Ints, output: Ints) -> Ints:
    """int64[L + 1, L + 1]: units besides what waits and a_s while the blocks s .. j - 1 run and leave their outputs."""
    n = len(plain) - 1
    sweep = np.zeros((n + 1, n + 1), dtype=np.int64)
    with_input = plain[:n] + output[:n]
    for s in range(n):
        sweep[s, s + 1 :] = np.maximum.accumulate(np.concatenate([plain[s : s + 1], with_input[s + 1 :]]))
    return sweep


def _again(chain: Chain) -> Ints:
    """int64[L + 1]: the first stage from which stage t can be served once more, given the nodes that run only once."""
    first, after = [], 0
    for s, stage in enumerate(chain.stages):
        # Serving s once more reruns the blocks before it, and its own block if the rest needs that.
        first.append(s + 1 if stage.frozen and stage.taped else after)
        if stage.frozen:
            after = s + 1
    return np.array(first, dtype=np.int64)
