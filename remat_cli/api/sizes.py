"""Steps of a model by name at all sizes: the largest batch, the longest sequences, and batches for several lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from remat_cli.api.steps import Captured
from remat_cli.control import Outcome, Progress
from remat_cli.errors import CaptureFailed, Infeasible, LimitReached, UsageError
from remat_cli.graph.batched import Batched
from remat_cli.graph.model import Graph
from remat_cli.graph.sized import Bytes, SizedGraph
from remat_cli.planning.accumulation import Parted, in_parts
from remat_cli.planning.buckets import Along, Bucket, buckets, largest_with_plan, largest_without
from remat_cli.planning.fits import GAPS, Fits, Need
from remat_cli.planning.max_batch import max_batch_of, one_forward
from remat_cli.planning.options import SolveOptions
from remat_cli.reports.fits import Largest

Needs = Callable[[Captured], Need]
"""What a captured step needs, with the state of its optimizer."""
Listener = Callable[[Progress], None]


class AllSizes:
    """The steps of a model by name at all sizes (:class:`~remat_cli.planning.buckets.Steps`)."""

    def __init__(self, step: Captured, need: Needs, lengths: Sequence[int] = ()) -> None:
        """``step`` at the sizes asked for, and what ``need`` makes of it; ``lengths`` are asked for besides.

        Raises:
            UsageError: If its sizes are those of a function or a graph, or it takes no sequences of these lengths.
        """
        if step.resized is None or step.varied is None:
            raise UsageError(
                "only a model by name can be captured with other sizes",
                hint="leave largest, buckets and global_batch out",
            )
        self.step, self._need = step, need
        self.now = {name: size for name, size, _ in step.by}
        self._resized, self._varied = step.resized, step.varied
        self._sized = cache(self._captured)
        self._needs = cache(self._needed)
        if lengths:
            self._require(lengths)

    def _require(self, lengths: Sequence[int]) -> None:
        if "length" not in self.now:
            raise UsageError("buckets are for models that take sequences", hint="leave buckets out")
        most = self.most("length")
        too_long = [length for length in lengths if most is not None and length > most]
        if too_long:
            raise UsageError(
                f"{too_long[0]:,} tokens are more than the {most:,} positions of the model", hint=f"at most {most}"
            )

    def sized(self, batch: int) -> SizedGraph:
        """The graph for all lengths, and for all batches like ``batch``: 1, or more.

        Raises:
            CaptureFailed: If there is none, or if it is not the one that a capture with numbers gives.
        """
        return self._sized(batch == 1)

    def _captured(self, one: bool) -> SizedGraph:
        now = self.now
        sizes = now | {"batch": 1 if one else max(2, now["batch"])}
        sized = self._varied(sizes)
        static = self.step if sizes == now else self._resized(sizes)
        if not sized.same_bytes(static.graph, sizes["batch"], sizes.get("length", 0)):
            raise CaptureFailed("captured with sizes that vary, the step has other operations than with fixed ones")
        more = self._need(static).graph.fixed_memory - static.graph.fixed_memory

        def with_all(batches: Bytes, lengths: Bytes) -> Bytes:
            table = sized.bytes_of(batches, lengths)
            table[-1] += more
            return table

        return replace(sized, bytes_of=with_all)

    def need(self, batch: int, length: int) -> Need:
        """What the step of a batch and a length needs, with the graph of these sizes."""
        return self._needs(batch, length)

    def _needed(self, batch: int, length: int) -> Need:
        sized = self.sized(batch)
        sizes = {"batch": batch} | ({"length": length} if length else {})
        if not sized.holds_at(batch, length):  # another graph, which is captured by itself
            return self._need(self._resized(sizes))
        followed = self.step.followed
        eager = None if followed is None or self.step.eager is None else followed(sizes)
        need = self._need(replace(self.step, graph=sized.exact(batch, length), eager=eager))
        assert need.graph.fixed_memory == sized.at(batch, length).fixed_memory
        return need

    def captured(self, axis: str, size: int) -> Need:
        """What the step needs with another size, captured with that number."""
        return self._need(self._resized({axis: size}))

    def rough(self, batch: int, length: int) -> Graph:
        """Its graph with the bytes of these sizes, and costs of others; a batch of 1 as larger ones are."""
        return self.sized(2).at(batch, length)

    def most(self, axis: str) -> int | None:
        """The largest size that the model takes."""
        return next(most for name, _, most in self.step.by if name == axis)


def with_largest(answer: Fits, steps: AllSizes, options: SolveOptions, listener: Listener) -> Fits:
    """The answer with the largest batch and the longest sequences.

    They are exact where bytes are known as functions of sizes. Elsewhere they are those on a line through two captures,
    and the answer says why.
    """
    results: dict[str, Largest] = {}
    missing = dict(answer.missing)
    batch, length = steps.now["batch"], steps.now.get("length", 0)
    for name in steps.now:
        along = Along(
            steps,
            (lambda size: (size, length)) if name == "batch" else (lambda size: (batch, size)),
            answer.memory_bytes,
            steps.most(name),
        )
        try:
            try:
                without = largest_without(along, options)
                best = largest_with_plan(along, without, options, listener)
                sizes = best.size, without.size, along.most, best.too_much
                results[name] = Largest(*sizes, exact=True, cut_short=best.cut_short)
            except CaptureFailed as error:
                results[name] = _on_a_line(answer, steps, name, options, listener)
                missing[f"exact {name}"] = error.message
        except (CaptureFailed, Infeasible, LimitReached, UsageError) as error:
            missing[f"largest {name}"] = error.message
    return replace(answer, largest=results, missing=missing)


def _on_a_line(answer: Fits, steps: AllSizes, name: str, options: SolveOptions, listener: Listener) -> Largest:
    """About the largest size, by bytes on the line through two captures."""
    most, now = steps.most(name), steps.now[name]
    gaps = min(choice.parts.get(GAPS, 0) for choice in answer.choices)
    low = max(now, 2)  # where a size is 1, other operations may run
    high = 2 * low if most is None or 2 * low <= most else low // 2
    family = Batched.of((size, steps.captured(name, size).graph) for size in (low, high))
    room = answer.memory_bytes - answer.need.context_bytes - gaps
    found = max_batch_of(family, room, limit=one_forward, options=options, listener=listener)
    cap = found.found if most is None else min(found.found, most)
    cut_short = cap != most and found.outcome is not Outcome.FINISHED
    return Largest(cap, min(cap, found.without), most, cut_short=cut_short)


def parted(answer: Fits, steps: AllSizes, batch: int, options: SolveOptions, listener: Listener) -> tuple[Parted, ...]:
    """A batch in parts of every size that divides it.

    Raises:
        CaptureFailed: If bytes are not known as functions of sizes.
    """
    return in_parts(steps, batch, steps.now.get("length", 0), answer.memory_bytes, options, listener=listener)


def bucket_table(
    answer: Fits, steps: AllSizes, lengths: Sequence[int], options: SolveOptions, listener: Listener
) -> tuple[Bucket, ...]:
    """A batch for sequences up to each of ``lengths``.

    Raises:
        CaptureFailed: If its bytes are not known as functions of sizes.
    """
    return buckets(steps, lengths, answer.memory_bytes, options, listener=listener)
