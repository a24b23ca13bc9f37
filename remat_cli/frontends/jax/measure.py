"""Runs the operations of a step one by one, and plans of it, with random arrays, and measures time and memory.

Random arrays are valid ones, of the right type and shape. Floating-point numbers are normal; those of weights are so
small that sums over them stay around 1, and those of vectors are positive, as scales and variances have to be. Whole
numbers are below the limit that the graph states for them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.captured.profiling import MeasuredOperation, OperationBench, host_facts, time_call
from remat_cli.frontends.captured.running import MeasuredPlan, PlanBench, compared_tensor, median_s
from remat_cli.frontends.jax.document import ArraySpec, Place, PlaceSpec
from remat_cli.frontends.jax.execute import Loaded, program
from remat_cli.frontends.jax.installed import device_named
from remat_cli.frontends.source import one_line
from remat_cli.graph.model import Node
from remat_cli.plan.model import Statement
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

    def measure_one(self, index: int, repeats: int, warmup: int) -> MeasuredOperation:
        """See :meth:`OperationBench.measure_one`."""
        step = self._loaded.step
        generator = np.random.default_rng(self._seed)
        call = self._loaded.functions[step.operations[index].function]
        try:
            arrays = []
            for spec, read in zip(step.read_specs(index), step.operations[index].reads, strict=True):
                below = step.places[read.number].below if isinstance(read, Place) else None
                arrays.append(random_array(spec, self.device, generator, below))
            analysed = call.compiled().memory_analysis()
            workspace = 0 if analysed is None else int(analysed.temp_size_in_bytes)

            def once() -> None:
                for array in call(*arrays):
                    array.block_until_ready()

            once()
            return MeasuredOperation(time_call(once, lambda: None, repeats, warmup), workspace)
        except Exception as error:  # operations may raise anything
            raise ExecutionFailed(
                f"node {self.graph.nodes[index].id} failed on {self.device}: {one_line(error)}",
                hint="was the graph exported for another device or version of JAX?",
            ) from error

    def node(self, index: int, measured: MeasuredOperation | None, cheapest_us: float) -> Node:
        """See :meth:`OperationBench.node`. Sizes are those of the arrays."""
        outputs = tuple(spec.bytes for spec in self._loaded.step.operations[index].values)
        return replace(super().node(index, measured, cheapest_us), outputs=outputs)

    def machine(self) -> dict[str, Any]:
        """See :meth:`OperationBench.machine`."""
        import jax

        version = {"jax": str(jax.__version__)}
        if self.device == "cuda":
            return version | {"machine": str(jax.local_devices(backend="gpu")[0].device_kind)}
        return version | host_facts(usable_cores())


class Plans(PlanBench):
    """Arrays that a step is given, names of its results, and programs that run with them."""

    def __init__(self, loaded: Loaded, seed: int) -> None:
        step = loaded.step
        self._loaded, self._places = loaded, place_arrays(step.places, loaded.device, seed)
        words = {"auxiliary": "auxiliary result ", "gradient": "gradient of "}
        self._names = [printable(words.get(result.kind, "") + result.name) for result in step.results]
        kinds = [result.kind for result in step.results]
        self.leading = self._names[kinds.index("loss")] if "loss" in kinds else None

    def measure(self, statements: Sequence[Statement], steps: int) -> MeasuredPlan:
        """Run once for results and memory, then ``steps`` times for the time."""
        import jax
        import numpy as np

        runnable, live = program(self._loaded, statements), LiveArrays()
        arrays = runnable.run(self._places, live)
        results = [compared_tensor(name, np.array(array)) for name, array in zip(self._names, arrays, strict=True)]
        del arrays
        taken = median_s(lambda: jax.block_until_ready(runnable.run(self._places)), lambda: None, steps)
        return MeasuredPlan(results, self._loaded.step.graph.fixed_memory + live.peak_bytes, taken)


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


_FALLBACK_LIMIT = 2
"""Without a limit, whole numbers are 0 or 1: these are valid for most operations."""


def place_arrays(places: Sequence[PlaceSpec], device: str, seed: int) -> list[Any]:
    """An array for each of ``places``; the same for the same seed."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return [random_array(place.spec, device, generator, place.below) for place in places]


def random_array(spec: ArraySpec, device: str, generator: Any, below: int | None = None) -> Any:
    """A random array on the device.

    Args:
        spec: Its type and shape.
        device: ``cpu`` or ``cuda``.
        generator: numpy's source of random numbers.
        below: Upper limit of whole numbers; None if none is known.
    """
    import jax
    import jax.numpy as jnp

    dtype = jnp.dtype(spec.dtype)
    if spec.key is not None:
        numbers = generator.integers(0, 1 << 32, spec.shape, dtype="uint32")
    elif spec.dtype == "bool":
        numbers = generator.integers(0, 2, spec.shape)
    elif jnp.issubdtype(dtype, jnp.integer):
        numbers = generator.integers(0, below or _FALLBACK_LIMIT, spec.shape)
    else:
        numbers = generator.standard_normal(spec.shape, dtype="float32")
        if len(spec.shape) == 1:
            numbers = abs(numbers) * 0.1 + 0.5
        elif spec.shape:
            numbers = numbers / math.sqrt(max(1, math.prod(spec.shape[:-1])))
    return jax.device_put(numbers.astype(dtype), device_named(device))
