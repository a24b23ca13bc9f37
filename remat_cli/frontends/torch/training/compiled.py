"""Trains by plan inside Inductor: joint graphs are divided by plan, and Inductor compiles both parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from remat_cli.frontends.torch.capturing.capture import Captured
from remat_cli.frontends.torch.capturing.costs import CostModel
from remat_cli.frontends.torch.capturing.export import described
from remat_cli.frontends.torch.capturing.lower import lower
from remat_cli.frontends.torch.capturing.pruning import tangent_numbers
from remat_cli.frontends.torch.capturing.results import Use
from remat_cli.frontends.torch.inductor.partitioner import SETTINGS, FindPlan, Partitioner, held
from remat_cli.frontends.torch.private import inductor, leave_out_logging, without_data
from remat_cli.frontends.torch.training.backend import Compiled, Find, Refuse, devices
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan


def inductor_backend(find: Find, refuse: Refuse) -> Callable[[Any, list[Any]], Any]:
    """A backend for ``torch.compile`` as ``backend_of`` makes them, but Inductor compiles what is planned.

    All results are assumed to take a gradient and to stay until the backward pass, as Inductor assumes.
    """

    def backend(graph_module: Any, example_inputs: list[Any]) -> Any:
        partitioner = Partitioner(finder(find), refuse, "backend", without_data(example_inputs))
        return inductor(graph_module, example_inputs, partitioner=partitioner, settings=SETTINGS)

    leave_out_logging()
    return backend


def finder(find: Find) -> FindPlan:
    """``find`` for a partitioner."""

    def found(captured: Captured, graph: Graph) -> Plan | None:
        return find(Compiled(captured, graph, devices(captured.tensors)[1], whole_use(captured)))

    return found


def whole_use(captured: Captured) -> Use:
    """What is assumed of the results of a graph that Inductor compiles."""
    return Use(frozenset(tangent_numbers(captured)), frozenset(held(captured)))


def costed(compiled: Compiled, costs: CostModel, reserve_bytes: int) -> Graph:
    """The graph of what Inductor compiles, with costs; its fixed memory is that of its inputs and the reserve."""
    captured = compiled.captured
    graph = lower(captured, costs.cost, "compiled", held(captured))
    graph = described(graph, captured, costs, source="torch:compile", device=compiled.device)
    return replace(graph, fixed_memory=graph.fixed_memory + reserve_bytes)


def device_of(tensors: Sequence[Any]) -> str:
    """The device of a graph, for rates."""
    return devices(tensors)[0]
