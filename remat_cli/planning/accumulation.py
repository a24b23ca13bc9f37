"""A batch in parts, whose gradients are added up: more parts without recomputation, or fewer with it.

From the second part on, the sum of gradients so far waits in memory beside the gradients of the part, which a plan
holds to its end. The step of the optimizer comes once, after the last part, when one set of gradients is left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from remat_cli.control import Progress
from remat_cli.errors import Infeasible, LimitReached
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.memory_parts import Part, parts_of_values
from remat_cli.planning.buckets import Steps, ways_of
from remat_cli.planning.fits import BLOCKS, WITHOUT, Choice, Need, best_within, choice_of, update_bytes
from remat_cli.planning.options import SolveOptions

WAITING = "gradients that wait"


@dataclass(frozen=True, slots=True)
class Parted:
    """A batch in equal parts.

    Attributes:
        batch: Sequences or images of a part.
        parts: How many parts.
        length: Tokens of a sequence; 0 for images.
        choice: The cheapest way found that fits; None if none was found.
        impossible: Whether it is proven that no plan fits.
        choices: Ways to train a part, whether they fit or not.
    """

    batch: int
    parts: int
    length: int
    choice: Choice | None
    impossible: bool
    choices: tuple[Choice, ...]

    @property
    def cost(self) -> float | None:
        """What all parts cost, without the step of the optimizer; None if none fits."""
        return None if self.choice is None else self.parts * self.choice.solved.report.replay.time


def waiting(need: Need) -> Need:
    """What a part needs while gradients wait; without the optimizer's step, which is no part's."""
    graph = need.graph
    parts = parts_of_values(graph)
    size = sum(graph.size[v] for v in graph.outputs if parts[v] is Part.GRADIENTS)
    return replace(need, fixed={**need.fixed, WAITING: size}, update_bytes=0)


def in_parts(
    steps: Steps,
    batch: int,
    length: int,
    memory_bytes: int,
    options: SolveOptions,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> tuple[Parted, ...]:
    """A batch in parts of every size that divides it, the largest first.

    Where a part fits without recomputation, that is its way; elsewhere it is the cheapest plan that a search finds. The
    time limit is for all searches together.

    Raises:
        CaptureFailed: If the model has no graph of a size.
        Interrupted, SolverUnavailable, SolverFailed: From the searches.
    """
    sizes = [size for size in range(batch, 0, -1) if batch % size == 0]
    searches = max(1, sum(_doubtful(steps, size, length, memory_bytes) for size in sizes))
    share = options.time_limit_s and options.time_limit_s / searches
    each = replace(options, time_limit_s=share, started_s=None)
    return tuple(_parted(steps, size, batch // size, length, memory_bytes, each, listener) for size in sizes)


def _doubtful(steps: Steps, size: int, length: int, memory_bytes: int) -> bool:
    """Whether a search is needed: not all is kept, and plans may fit."""
    graph = steps.rough(size, length)
    return no_remat_peak(graph) > memory_bytes >= peak_bound(graph).bytes


def _parted(
    steps: Steps,
    size: int,
    parts: int,
    length: int,
    memory_bytes: int,
    options: SolveOptions,
    listener: Callable[[Progress], None] | None,
) -> Parted:
    if peak_bound(steps.rough(size, length)).bytes > memory_bytes:
        return Parted(size, parts, length, None, True, ())
    alone = steps.need(size, length)
    need = alone if parts == 1 else waiting(alone)
    room = memory_bytes - need.context_bytes
    if max(peak_bound(need.graph).bytes, update_bytes(alone)) > room:
        return Parted(size, parts, length, None, True, ())
    choices = [choice for name in (WITHOUT, BLOCKS) if (choice := ways_of(need, name, options)) is not None]
    if choices[0].total_bytes > memory_bytes:
        with suppress(Infeasible, LimitReached):
            start = choices[-1].plan
            choices.append(best_within(need, room, replace(options, start=start), listener))
    choices = [_with_update(choice, alone) for choice in choices]
    fitting = [choice for choice in choices if choice.total_bytes <= memory_bytes]
    cheapest = min(fitting, key=lambda choice: choice.overhead, default=None)
    return Parted(size, parts, length, cheapest, False, tuple(choices))


def _with_update(choice: Choice, alone: Need) -> Choice:
    """A way to train, or the optimizer's step after it if that takes more."""
    last = choice_of(choice.name, replace(alone, reserved=None), choice.solved)
    return last if last.in_update and last.total_bytes > choice.total_bytes else choice
