"""Exports a user's function, or a model of the zoo, as a graph."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remat_cli.frontends.rates import CostModel
from remat_cli.frontends.source import called
from remat_cli.frontends.tensorflow.capture.capture import Captured, Model, as_model, capture
from remat_cli.frontends.tensorflow.capture.costs import Work, cost_model
from remat_cli.frontends.tensorflow.capture.graph_reader import read_graph
from remat_cli.frontends.tensorflow.capture.lower import lower
from remat_cli.frontends.tensorflow.capture.program import Program
from remat_cli.frontends.tensorflow.document import FRONTEND
from remat_cli.graph.model import Graph


def export_model(
    build: Callable[[], Any], name: str, source: str, *, device: str = "cpu", cost: str = "flops"
) -> Graph:
    """The graph of the training step of what ``build()`` returns.

    Args:
        build: Returns a model and a batch, with a loss or compiled; or a step and its inputs.
        name: Name of the graph.
        source: Its origin, for the metadata.
        device: ``cpu`` or ``gpu``; it is here.
        cost: ``flops`` or ``roofline:NAME``.

    Raises:
        UsageError: If there is no such cost model.
        CaptureFailed: If ``build`` fails or returns something else, or the step cannot be captured.
    """
    costs = cost_model(cost)
    import tensorflow as tf

    with tf.device(f"/device:{device.upper()}:0"):
        return graph_of_step(as_model(called(build, name, "tensorflow"), name), name, source, device, costs)[0]


def graph_of_step(
    model: Model, name: str, source: str, device: str, costs: CostModel[Work]
) -> tuple[Graph, Program, Captured]:
    """The graph of a step, its program, which knows what places are in this process, and what was captured.

    Raises:
        CaptureFailed: If it cannot be captured as a graph.
    """
    captured = capture(model)
    program = read_graph(captured)
    for op in program.ops:
        op.cost = costs.cost(Work(program, op, captured.graph))
    graph = lower(program, name, costs.unit)
    assert graph is not None  # the nodes were chosen for it
    metadata = FRONTEND.metadata(source, device, costs.description)
    return replace(graph, metadata=metadata | {"parameters": captured.parameters} | graph.metadata), program, captured
