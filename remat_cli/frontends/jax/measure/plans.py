"""Runs plans of a step with random arrays, and measures their results, live arrays and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.captured.running import MeasuredPlan, PlanBench, kept, median_s
from remat_cli.frontends.jax.document import Step
from remat_cli.frontends.jax.execute.functions import Loaded
from remat_cli.frontends.jax.execute.inputs import place_arrays
from remat_cli.frontends.jax.execute.program import program
from remat_cli.plan.model import Statement
from remat_cli.printable import printable


class Plans(PlanBench):
    """Arrays that a step is given, names of its results, and programs that run with them."""

    def __init__(self, loaded: Loaded, seed: int) -> None:
        step = loaded.step
        self._loaded, self._places = loaded, place_arrays(step.places, loaded.device, seed)
        self._names = result_names(step)
        kinds = [result.kind for result in step.results]
        self.leading = self._names[kinds.index("loss")] if "loss" in kinds else None

    def measure(self, statements: Sequence[Statement], steps: int) -> MeasuredPlan:
        """Run once for results and memory, then ``steps`` times for the time."""
        import jax
        import numpy as np

        runnable, live = program(self._loaded, statements), LiveArrays()
        arrays = runnable.run(self._places, live)
        results = [kept(name, np.array(array)) for name, array in zip(self._names, arrays, strict=True)]
        del arrays
        taken = median_s(lambda: jax.block_until_ready(runnable.run(self._places)), lambda: None, steps)
        return MeasuredPlan(results, self._loaded.step.graph.fixed_memory + live.peak_bytes, taken)


def result_names(step: Step) -> list[str]:
    """Names of the results: ``loss``, ``gradient of 0.w``."""
    of = {"loss": "loss", "auxiliary": "auxiliary result", "gradient": "gradient of"}
    return [printable(of[r.kind] if r.kind == "loss" else f"{of[r.kind]} {r.name}") for r in step.results]


@dataclass(slots=True)
class LiveArrays:
    """Counts the bytes of arrays of JAX that were made after this object was, by buffer, whoever holds them.

    Attributes:
        known: The buffers that were there before.
        peak_bytes: The most bytes seen.
    """

    known: frozenset[int] = field(default_factory=lambda: frozenset(buffers(_live())))
    peak_bytes: int = 0

    def __call__(self, made: Sequence[Any]) -> None:
        """Look at all arrays of the process; ``made`` are the newest."""
        sizes = {at: size for at, size in buffers(_live()).items() if at not in self.known}
        self.peak_bytes = max(self.peak_bytes, sum(sizes.values()))


def buffers(arrays: Iterable[Any]) -> dict[int, int]:
    """Bytes of the buffers of arrays, by their addresses; arrays may share one."""
    return {array.unsafe_buffer_pointer(): int(array.nbytes) for array in arrays if array.nbytes}


def _live() -> list[Any]:
    import jax

    return [array for array in jax.live_arrays() if not array.is_deleted()]
