"""Measures costs: runs every operation of a graph on the device, and puts its time and memory into the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.captured.profiling import Timed, facts, groups, host, require_counts, timed, told
from remat_cli.frontends.jax.document import Place, Step
from remat_cli.frontends.jax.executing.functions import Loaded, load, wide_numbers
from remat_cli.frontends.jax.executing.inputs import random_array
from remat_cli.frontends.jax.executing.same_graph import require_home
from remat_cli.frontends.jax.installed import refuse_libraries, require_present
from remat_cli.frontends.jax.reading import read_step
from remat_cli.graph.model import Graph
from remat_cli.printable import printable
from remat_cli.running import usable_cores


@dataclass(frozen=True, slots=True)
class Measured:
    """One function on a device.

    Attributes:
        timed: How long a call takes.
        workspace_bytes: Bytes that the compiled function takes while it runs, without what it reads and makes.
    """

    timed: Timed
    workspace_bytes: int


def profile(
    graph: Graph,
    *,
    device: str = "cpu",
    repeats: int = 10,
    warmup: int = 2,
    seed: int = 0,
    force: bool = False,
    libraries: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """``graph`` with measured costs in microseconds, and with the workspaces that XLA states.

    Equal operations are measured once.

    Args:
        graph: A graph that this frontend made.
        device: ``cpu`` or ``cuda``.
        repeats: Samples per operation; the cost is their median.
        warmup: Calls before that.
        seed: Seed of the arrays that operations read.
        force: Whether to run operations that were exported for another JAX.
        libraries: None: the functions of JAX's graphs hold all that they need.
        progress: Called with the number of operations measured so far, and the number of all.

    Raises:
        UsageError: If the graph is not of this frontend, or damaged, or was exported for another JAX or device, or a
            number is out of range.
        FrameworkUnavailable: If there is no such device.
        ExecutionFailed: If an operation fails, with the node.
    """
    step = read_step(graph)
    require_counts(repeats, warmup)
    refuse_libraries(libraries)
    require_present(device)
    if not force:
        require_home(graph, device)
    with wide_numbers():
        loaded = load(step, device)
        found = _all_measured(loaded, repeats, warmup, seed, progress)
    nodes = [
        replace(
            node,
            cost=found[operation.function].timed.median_us,
            outputs=tuple(spec.bytes for spec in operation.values),
            workspace=found[operation.function].workspace_bytes,
        )
        for node, operation in zip(graph.nodes, step.operations, strict=True)
    ]
    said = _facts(device, repeats, warmup, len(found)) | {
        "spread": {
            node.id: round(found[operation.function].timed.spread, 4)
            for node, operation in zip(graph.nodes, step.operations, strict=True)
        }
    }
    metadata = graph.metadata | {"costs": {"model": "measured"}, "profile": said}
    return replace(graph, nodes=tuple(nodes), cost_unit="us", metadata=metadata)


def _all_measured(
    loaded: Loaded, repeats: int, warmup: int, seed: int, progress: Callable[[int, int], None] | None
) -> dict[int, Measured]:
    """Every function that a node uses, measured with the first node that does."""
    operations = loaded.step.operations
    found: dict[int, Measured] = {}
    for index, *_ in told(groups((op.function, k) for k, op in enumerate(operations)), progress):
        try:
            found[operations[index].function] = _measured(loaded, index, repeats, warmup, seed)
        except Exception as error:  # operations may raise anything
            node = loaded.step.graph.nodes[index]
            words = printable(" ".join(str(error).split()))[:300]
            raise ExecutionFailed(
                f"node {node.id} failed on {loaded.device}: {words}",
                hint="was the graph exported for another device or version of JAX?",
            ) from error
    return found


def _measured(loaded: Loaded, index: int, repeats: int, warmup: int, seed: int) -> Measured:
    import numpy as np

    step = loaded.step
    generator = np.random.default_rng(seed)
    arrays = [
        random_array(spec, loaded.device, generator, _limit(step, index, k))
        for k, spec in enumerate(step.read_specs(index))
    ]
    call = loaded.functions[step.operations[index].function]
    analysed = call.compiled().memory_analysis()
    workspace = 0 if analysed is None else int(analysed.temp_size_in_bytes)

    def once() -> None:
        for array in call(*arrays):
            array.block_until_ready()

    once()
    return Measured(timed(once, lambda: None, repeats, warmup), workspace)


def _limit(step: Step, index: int, position: int) -> int | None:
    """The limit of the whole numbers that an operation reads, if they are given to the step."""
    read = step.operations[index].reads[position]
    return step.places[read.number].below if isinstance(read, Place) else None


def _facts(device: str, repeats: int, warmup: int, kinds: int) -> dict[str, Any]:
    """The machine and the settings of the measurement."""
    import jax

    found = facts(device, "jax", str(jax.__version__), repeats, warmup, kinds)
    if device == "cuda":
        return found | {"machine": str(jax.local_devices(backend="gpu")[0].device_kind)}
    return found | host(usable_cores())
