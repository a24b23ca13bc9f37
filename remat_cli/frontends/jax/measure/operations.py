"""Runs the operations of a graph one by one, and measures their time and the workspace that XLA states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.captured.profiling import MeasuredOperation, OperationBench, host_facts, timed
from remat_cli.frontends.jax.document import Place, Step
from remat_cli.frontends.jax.execute.functions import Loaded
from remat_cli.frontends.jax.execute.inputs import random_array
from remat_cli.graph.model import Node
from remat_cli.printable import printable
from remat_cli.running import usable_cores


class Operations(OperationBench):
    """The functions of a step, with random arrays."""

    def __init__(self, loaded: Loaded, seed: int) -> None:
        self.graph, self.device = loaded.step.graph, loaded.device
        self._loaded, self._seed = loaded, seed

    def kind(self, index: int) -> int:
        """The function that computes a node: its text has the types of all that it reads and makes."""
        return self._loaded.step.operations[index].function

    def measure(self, indices: Sequence[int], repeats: int, warmup: int) -> Iterator[MeasuredOperation]:
        """See :meth:`OperationBench.measure`."""
        for index in indices:
            try:
                measured = self._measured(index, repeats, warmup)
            except Exception as error:  # operations may raise anything
                words = printable(" ".join(str(error).split()))[:300]
                raise ExecutionFailed(
                    f"node {self.graph.nodes[index].id} failed on {self.device}: {words}",
                    hint="was the graph exported for another device or version of JAX?",
                ) from error
            yield measured

    def _measured(self, index: int, repeats: int, warmup: int) -> MeasuredOperation:
        step = self._loaded.step
        generator = np.random.default_rng(self._seed)
        arrays = [
            random_array(spec, self.device, generator, _limit(step, index, k))
            for k, spec in enumerate(step.read_specs(index))
        ]
        call = self._loaded.functions[step.operations[index].function]
        analysed = call.compiled().memory_analysis()
        workspace = 0 if analysed is None else int(analysed.temp_size_in_bytes)

        def once() -> None:
            for array in call(*arrays):
                array.block_until_ready()

        once()
        return MeasuredOperation(timed(once, lambda: None, repeats, warmup), workspace)

    def node(self, index: int, measured: MeasuredOperation | None, cheapest_us: float) -> Node:
        """See :meth:`OperationBench.node`."""
        assert measured is not None and measured.workspace_bytes is not None  # noqa: PT018 - every node runs
        return replace(
            self.graph.nodes[index],
            cost=measured.timed.median_us,
            outputs=tuple(spec.bytes for spec in self._loaded.step.operations[index].values),
            workspace=measured.workspace_bytes,
        )

    def machine(self) -> dict[str, Any]:
        """See :meth:`OperationBench.machine`."""
        import jax

        version = {"jax": str(jax.__version__)}
        if self.device == "cuda":
            return version | {"machine": str(jax.local_devices(backend="gpu")[0].device_kind)}
        return version | host_facts(usable_cores())


def _limit(step: Step, index: int, position: int) -> int | None:
    """The limit of the whole numbers that an operation reads, if they are given to the step."""
    read = step.operations[index].reads[position]
    return step.places[read.number].below if isinstance(read, Place) else None
