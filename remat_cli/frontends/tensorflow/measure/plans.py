"""Runs plans of a step with random weights and inputs, and measures their results, live buffers and time.

Random tensors are valid ones, of the right type and shape. Whole numbers are below the limit that the graph states.
Variables without dimensions hold what the user's held. Other variables that are not trained are positive: second
moments of gradients, variances and steps have to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from remat_cli.frontends.captured.running import MeasuredPlan, PlanBench, compared_tensor, median_s
from remat_cli.frontends.tensorflow.document import ITEM_BYTES, Placeholder, Step, TensorSpec
from remat_cli.frontends.tensorflow.execute.program import program
from remat_cli.frontends.tensorflow.measure.live_buffers import LiveBuffers
from remat_cli.frontends.tensorflow.reading import read_workspaces
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Statement
from remat_cli.printable import printable


class Plans(PlanBench):
    """Weights and inputs of a step, and programs that run with them."""

    def __init__(self, step: Step, device: str, seed: int) -> None:
        self.step, self.device, self.seed = step, device, seed
        self.given = Given(step.places, device, seed)

    def value_workspaces(self, graph: Graph) -> Sequence[int]:
        """See :meth:`PlanBench.value_workspaces`."""
        return read_workspaces(graph)

    def measure(self, statements: Sequence[Statement], steps: int) -> MeasuredPlan:
        """Run twice for results and memory, then ``steps`` times for the time."""
        import tensorflow as tf

        runnable = program(self.step, statements, self.device, unseeded=self.seed)
        fixed = self.step.graph.fixed_memory
        self.given.restore()
        before = allocated(self.device)
        results = runnable.run(self.given.places)
        above = allocated(self.device)
        compared = [compared_tensor(f"result {k}", tensor.numpy().copy()) for k, tensor in enumerate(results)]
        del results
        for number, variable in self.given.variables.items():
            name = printable(f"update of {self.step.places[number].name} ({number})")
            compared.append(compared_tensor(name, variable.numpy().copy()))
        allocator = None if before is None or above is None else fixed + above[1] - before[0]
        highest = allocator
        if self.device == "cpu":
            self.given.restore()
            live = LiveBuffers(runnable.execute, self.given.places, runnable.constants)
            runnable.run(self.given.places, live)
            highest = fixed + live.peak_bytes
        self.given.restore()
        taken = median_s(lambda: runnable.run(self.given.places), tf.test.experimental.sync_devices, steps)
        assert highest is not None  # a GPU's allocator always counts
        return MeasuredPlan(compared, highest, taken, allocator)


def allocated(device: str) -> tuple[int, int] | None:
    """Bytes that TensorFlow's allocator has handed out now, and at most since this was asked last; None if unknown."""
    import tensorflow as tf

    name = f"{device.upper()}:0"
    try:
        info = tf.config.experimental.get_memory_info(name)
        tf.config.experimental.reset_memory_stats(name)
    except (ValueError, tf.errors.OpError):  # without TF_CPU_ALLOCATOR_USE_BFC nothing is counted on a CPU
        return None
    return int(info["current"]), int(info["peak"])


_FALLBACK_LIMIT = 2
"""Without a limit, whole numbers are 0 or 1: these are valid for most operations."""
_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")


def place_array(place: Placeholder, generator: Any) -> Any:
    """A valid array for a place, from a generator of numpy."""
    import numpy
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(place.spec.dtype).as_numpy_dtype
    if place.number is not None:
        return numpy.array(float.fromhex(place.number)).astype(dtype)
    if place.kind != "variable":
        return random_array(place.spec, generator, below=place.below)
    shape = place.spec.shape
    weight = place.trainable and len(shape) > 1
    array = random_array(place.spec, generator, scale=1 / math.sqrt(math.prod(shape[:-1])) if weight else 1.0)
    return array if weight or place.spec.dtype not in _FLOATS else numpy.clip(numpy.abs(array), 0.1, 2).astype(dtype)


def random_array(spec: TensorSpec, generator: Any, *, below: int | None = None, scale: float = 1.0) -> Any:
    """A random array.

    Args:
        spec: Its type and shape.
        generator: Source of random numbers.
        below: Upper limit of whole numbers; None for no limit.
        scale: Standard deviation of other numbers.
    """
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype
    if spec.dtype in _FLOATS:
        return (generator.standard_normal(spec.shape, "float32") * scale).astype(dtype)
    if spec.dtype.startswith("complex"):
        real, imaginary = (generator.standard_normal(spec.shape, "float32") for _ in range(2))
        return (real + 1j * imaginary).astype(dtype)
    limit = 2 if spec.dtype == "bool" else below or _FALLBACK_LIMIT
    limit = min(limit, 128) if ITEM_BYTES[spec.dtype] == 1 else limit
    return generator.integers(0, limit, spec.shape).astype(dtype)


class Given:
    """Random tensors and variables for the places of a step.

    Attributes:
        places: What a program takes: a tensor or the handle of a variable for each place.
        variables: The variables, by place.
    """

    def __init__(self, places: Sequence[Placeholder], device: str, seed: int) -> None:
        import tensorflow as tf

        self._described = places
        self._seed = seed
        self.places: list[Any] = []
        self.variables: dict[int, Any] = {}
        with tf.device(f"/device:{device.upper()}:0"):
            for number, (place, array) in enumerate(zip(places, self._arrays(), strict=True)):
                if place.kind == "variable":
                    self.variables[number] = tf.Variable(array, dtype=tf.dtypes.as_dtype(place.spec.dtype))
                    self.places.append(self.variables[number].handle)
                else:
                    self.places.append(tf.constant(array, tf.dtypes.as_dtype(place.spec.dtype)))

    def _arrays(self) -> Any:
        import numpy

        generator = numpy.random.default_rng(self._seed)
        return (place_array(place, generator) for place in self._described)

    def restore(self) -> None:
        """Give all variables, and TensorFlow's own random numbers, the state that they had at the beginning."""
        import tensorflow as tf

        for number, array in enumerate(self._arrays()):
            if number in self.variables:
                self.variables[number].assign(array)
        tf.random.set_seed(self._seed)
