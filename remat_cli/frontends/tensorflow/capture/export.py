"""Exports a user's function, or a model of the zoo, as a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.source import frames_of, load_function, place_in
from remat_cli.frontends.tensorflow.capture.aliases import find_aliases
from remat_cli.frontends.tensorflow.capture.capture import Captured, Model, as_model, capture
from remat_cli.frontends.tensorflow.capture.costs import CostModel, cost_model
from remat_cli.frontends.tensorflow.capture.graph_reader import read_graph
from remat_cli.frontends.tensorflow.capture.lower import lower
from remat_cli.frontends.tensorflow.capture.program import Program
from remat_cli.frontends.tensorflow.document import FRONTEND
from remat_cli.frontends.tensorflow.installed import require_device
from remat_cli.graph.model import Graph


def export_tensorflow(text: str, *, device: str = "cpu", cost: str = "flops") -> Graph:
    """The graph of the training step that ``FILE.py:NAME`` builds.

    Args:
        text: The function: it returns (model, batch), (model, batch, loss) or (step, inputs).
        device: ``cpu`` or ``gpu``: the device that the step is for.
        cost: ``flops`` or ``roofline:NAME``.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    cost_model(cost)
    require_device(device)
    return export_model(
        load_function(text, FRONTEND.name), text.rpartition(":")[2], f"tf:{text}", device=device, cost=cost
    )


def export_model(
    build: Callable[[], Any], name: str, source: str, *, device: str = "cpu", cost: str = "flops"
) -> Graph:
    """The graph of the training step of what ``build()`` returns.

    Args:
        build: Returns a model and a batch, with a loss or compiled; or a step and its inputs.
        name: Name of the graph.
        source: Its origin, for the metadata.
        device: ``cpu`` or ``gpu``.
        cost: ``flops`` or ``roofline:NAME``.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    costs = cost_model(cost)
    require_device(device)
    import tensorflow as tf

    with tf.device(f"/device:{device.upper()}:0"):
        try:
            returned = build()
        except Exception as error:  # the user's code may do anything
            place = place_in(frames_of(error), "tensorflow")
            at = f" at {place}" if place else ""
            raise CaptureFailed(f"{name}() failed{at}: {type(error).__name__}: {error}") from error
        return graph_of_step(as_model(returned, name), name, source, device, costs)[0]


def graph_of_step(
    model: Model, name: str, source: str, device: str, costs: CostModel
) -> tuple[Graph, Program, Captured]:
    """The graph of a step, its program, which knows what places are in this process, and what was captured.

    Raises:
        CaptureFailed: If it cannot be captured as a graph.
    """
    import tensorflow as tf

    captured = capture(model)
    program = read_graph(captured)
    find_aliases(program)
    for op in program.ops:
        op.cost = costs.cost(program, op, captured.graph)
    graph = lower(program, name, costs.unit)
    assert graph is not None  # the nodes were chosen for it
    metadata = FRONTEND.metadata(source, str(tf.__version__), device, costs.description)
    return replace(graph, metadata=metadata | {"parameters": captured.parameters} | graph.metadata), program, captured
