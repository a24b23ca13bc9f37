"""The largest batch that fits a memory at each of several lengths, without recomputation and with a plan.

Bytes at any size come from functions (:mod:`remat_cli.graph.sized`), so a bisection costs little. What is answered was
looked at with the graph of that very size, and with the gaps that an allocator leaves: the batch found fits, and
without recomputation the next one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from remat_cli.control import Control, Ending, Outcome, Progress
from remat_cli.errors import Infeasible, LimitReached, StrategyMismatch
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.graph.sized import SizedGraph, Sizes
from remat_cli.plan.check import check
from remat_cli.plan.derive import peak
from remat_cli.plan.model import Compute, Plan
from remat_cli.planning.batch_graphs import OfSizes
from remat_cli.planning.fits import BEST, BLOCKS, GAPS, WITHOUT, Choice, Need, choice_of, usual
from remat_cli.planning.lengths import Covered, covered
from remat_cli.planning.max_batch import max_batch_of, one_forward
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solved import Solved
from remat_cli.planning.solving import solve
from remat_cli.planning.warm_start import carried, same_form
from remat_cli.tolerances import SAME_COST

_TRIES = 4
"""Most searches for a batch, each within what the last plan left after the gaps of the allocator. Untuned."""


class Steps(Protocol):
    """The training steps of a model at all sizes."""

    def need(self, batch: int, length: int) -> Need:
        """What the step of a batch and a length needs, with the graph of these sizes."""

    def rough(self, batch: int, length: int) -> Graph:
        """Its graph with the bytes of these sizes, and costs of others; quick."""

    def sized(self, batch: int) -> SizedGraph:
        """The graph for all lengths, and for all batches like ``batch``."""


@dataclass(frozen=True, slots=True)
class Way:
    """The largest size at which a way to train fits.

    Attributes:
        size: The batch, or the length; 0 if even 1 does not fit.
        choice: The way, at that size; None if none fits.
        too_much: No plan fits this size or a larger one, whatever it recomputes; without recomputation, the next size,
            which does not fit without. None if the model takes no more.
        cut_short: Whether the time limit ended the search, so that more time may find a larger size.
    """

    size: int
    choice: Choice | None
    too_much: int | None
    cut_short: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences up to a length.

    Attributes:
        length: The length.
        without: The largest batch without recomputation.
        best: The largest batch at one more forward pass at most.
        choices: Ways to train that batch, by name, whether they fit or not.
        covered: The batches and lengths for which the plan of ``best`` is proven to take no more.
    """

    length: int
    without: Way
    best: Way
    choices: tuple[Choice, ...]
    covered: Covered | None


@dataclass(frozen=True, slots=True)
class Along:
    """Sizes along one axis: all batches of a length, or all lengths of a batch.

    Attributes:
        steps: The steps.
        place: The batch and the length that a size stands for.
        memory_bytes: The memory of the card.
        most: The largest size that the model takes; None without such a limit.
    """

    steps: Steps
    place: Callable[[int], Sizes]
    memory_bytes: int
    most: int | None = None

    def need(self, size: int) -> Need:
        """What the step of a size needs."""
        return self.steps.need(*self.place(size))

    @property
    def graphs(self) -> OfSizes:
        """The graphs of all sizes."""
        return OfSizes(lambda size: self.need(size).graph, lambda size: self.steps.rough(*self.place(size)), self.most)


def buckets(
    steps: Steps,
    lengths: Sequence[int],
    memory_bytes: int,
    options: SolveOptions,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> tuple[Bucket, ...]:
    """The largest batches for sequences up to each of ``lengths``, by rising length; none is larger than one before.

    Raises:
        CaptureFailed: If the model has no graph of a size.
        Interrupted, SolverUnavailable, SolverFailed: From the searches.
    """
    share = options.time_limit_s and options.time_limit_s / len(lengths)
    found: list[Bucket] = []
    for length in sorted(lengths, reverse=True):  # plans of long sequences serve short ones, too
        along = Along(steps, partial(_batch_of, length), memory_bytes)
        without = largest_without(along, options)
        part = replace(options, time_limit_s=share, started_s=None)
        plans = [bucket.best.choice.plan for bucket in found if bucket.best.choice is not None]
        best = largest_with_plan(along, without, part, listener, plans)
        found.append(_bucket(along, length, without, best, options))
    return tuple(reversed(found))


def _batch_of(length: int, batch: int) -> Sizes:
    return batch, length


def _bucket(along: Along, length: int, without: Way, best: Way, options: SolveOptions) -> Bucket:
    """The bucket of a length, with all ways to train its batch."""
    if best.choice is None:
        return Bucket(length, without, best, (), None)
    need = along.need(best.size)
    choices = [ways_of(need, name, options) for name in (WITHOUT, BLOCKS)] + [replace(best.choice, name=BEST)]
    sized, statements = along.steps.sized(best.size), best.choice.plan.statements
    proof = covered(sized, statements, best.size, length)
    return Bucket(length, without, best, tuple(choice for choice in choices if choice is not None), proof)


def ways_of(need: Need, name: str, options: SolveOptions) -> Choice | None:
    """A way to train that needs no search: ``no recomputation`` or ``every block``; None if it is none for the step."""
    with suppress(StrategyMismatch):
        return usual(need, name, {WITHOUT: "keep-all", BLOCKS: "every-n-layers{n=1}"}[name], options)
    return None


def largest_without(along: Along, options: SolveOptions) -> Way:
    """The largest size that fits without recomputation: with the gaps of the allocator, the next one does not."""
    seen: dict[int, Choice] = {}

    def fits(size: int) -> bool:
        if size not in seen:
            choice = ways_of(along.need(size), WITHOUT, options)
            assert choice is not None  # every graph may keep everything
            seen[size] = choice
        return seen[size].total_bytes <= along.memory_bytes

    size = along.graphs.last(no_remat_peak, along.memory_bytes)
    while size and not fits(size):
        over = seen[size].total_bytes - along.memory_bytes
        each = no_remat_peak(along.graphs.rough(size)) - no_remat_peak(along.graphs.rough(max(1, size - 1)))
        size = max(0, size - max(1, over // max(1, each)))
    while size != along.most and fits(size + 1):
        size += 1
    return Way(size, seen.get(size), None if size == along.most else size + 1)


def largest_with_plan(
    along: Along,
    without: Way,
    options: SolveOptions,
    listener: Callable[[Progress], None] | None,
    plans: Sequence[Plan] = (),
) -> Way:
    """The largest size at one more forward pass at most.

    That of every block, and ``plans`` of other sizes, are tried first. Then half of the time is for a larger size, and
    half for a cheaper plan.
    """
    one = without.choice
    room = along.memory_bytes - along.need(max(1, without.size)).context_bytes
    top = along.graphs.last(lambda graph: peak_bound(graph).bytes, room)
    best = replace(without, too_much=None if top == along.most else top + 1)
    room -= 0 if one is None else one.parts.get(GAPS, 0)
    near = along.need(max(2, without.size))
    blocks = ways_of(near, BLOCKS, options)
    for plan in [*([] if blocks is None else [blocks.plan]), *plans]:
        best = _by_plan(along, plan, best, room)
    half = replace(options, time_limit_s=options.time_limit_s and options.time_limit_s / 2, started_s=None)
    best = _searched(along, best, room, half, listener)
    if best.size == along.most or best.size + 1 == best.too_much:
        best = replace(best, cut_short=False)
    return best if best.choice is None or best.size == without.size else _cheaper(along, best, half, listener)


def _searched(
    along: Along, best: Way, room: int, options: SolveOptions, listener: Callable[[Progress], None] | None
) -> Way:
    """A larger size than ``best``, if a search finds one; all tries together have the time of ``options``."""
    clock = Control.within(options.time_limit_s)
    for _ in range(_TRIES):
        if clock.stopping():
            return replace(best, cut_short=True)
        rest = replace(options, time_limit_s=clock.remaining_s())
        try:
            found = max_batch_of(along.graphs, room, limit=one_forward, options=rest, listener=listener)
        except Infeasible:
            return best
        except LimitReached:
            return replace(best, cut_short=True)
        if found.outcome is not Outcome.FINISHED:
            best = replace(best, cut_short=True)
        if found.solved is None or found.found <= best.size:
            return best
        choice = choice_of(BEST, along.need(found.found), found.solved)
        if choice.total_bytes <= along.memory_bytes:
            return replace(best, size=found.found, choice=choice)
        room -= choice.total_bytes - along.memory_bytes
    return best


def _cheaper(along: Along, best: Way, options: SolveOptions, listener: Callable[[Progress], None] | None) -> Way:
    """``best`` with the cheapest plan that a search finds for its size."""
    assert best.choice is not None
    need = along.need(best.size)
    budget = along.memory_bytes - need.context_bytes - best.choice.parts.get(GAPS, 0)
    start = best.choice.plan
    with suppress(Infeasible, LimitReached):
        choice = choice_of(BEST, need, solve(need.graph, budget, replace(options, start=start), listener=listener))
        if choice.total_bytes <= along.memory_bytes and choice.overhead <= best.choice.overhead:
            return replace(best, choice=choice)
    return best


def _by_plan(along: Along, plan: Plan, best: Way, room: int) -> Way:
    """The largest size at which a plan of another size fits, if it is larger than that of ``best`` and costs no more.

    ``room`` is what tensors may take.
    """
    computes = [statement.node for statement in plan.statements if isinstance(statement, Compute)]
    if not same_form(along.graphs.rough(2), plan.graph):
        return best
    for _ in range(_TRIES):
        size = along.graphs.last(lambda graph: peak(graph, computes), room)
        if size <= best.size:
            return best
        need = along.need(size)
        found = carried(need.graph, [plan], along.memory_bytes - need.context_bytes)
        if found is None or found.claim.cost > one_forward(need.graph) * (1 + SAME_COST):
            return best
        choice = choice_of(BEST, need, Solved(found, check(found), Ending(Outcome.FINISHED), 0.0))
        if choice.total_bytes <= along.memory_bytes:
            return replace(best, size=size, choice=choice)
        room -= choice.total_bytes - along.memory_bytes
    return best
