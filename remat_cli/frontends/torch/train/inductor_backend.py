"""Trains by plan inside Inductor: joint graphs are divided by plan, and Inductor compiles both parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from remat_cli.frontends.torch.capture.capture import Captured
from remat_cli.frontends.torch.capture.costs import CostModel
from remat_cli.frontends.torch.capture.lower import lower
from remat_cli.frontends.torch.capture.results import Number, Use, tangent_numbers
from remat_cli.frontends.torch.compat.dynamo import leave_out_logging
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes, without_data
from remat_cli.frontends.torch.compat.inductor import Around, inductor
from remat_cli.frontends.torch.export import described
from remat_cli.frontends.torch.inductor.division import UNUSED
from remat_cli.frontends.torch.inductor.library_calls import with_library_workspaces
from remat_cli.frontends.torch.inductor.partitioner import SETTINGS, FindPlan, Partitioner, held, whole_use
from remat_cli.frontends.torch.train.backend import Backend, Compiled, Find, Refuse, Results, devices
from remat_cli.frontends.torch.train.loop_assumptions import copied_bytes
from remat_cli.frontends.torch.train.watched_step import CompiledGraph, Interface, ReplannedGraph, WatchedStep
from remat_cli.frontends.torch.types import GraphModule, Tensor
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan


def inductor_backend(find: Find, refuse: Refuse, results: Results | None = None) -> Backend:
    """A backend for ``torch.compile`` as ``backend_of`` makes them, but Inductor compiles what is planned.

    If ``results`` is None, all results are assumed to take a gradient and to stay until the backward pass, as Inductor
    assumes.
    """

    def backend(graph_module: GraphModule, example_inputs: list[Tensor]) -> CompiledGraph:
        if results is not None:
            return ReplannedGraph(_InductorGraph(graph_module, find, refuse, results).compiled, example_inputs)
        partitioner = Partitioner(finder(find), refuse, "backend", without_data(example_inputs))
        compiled: CompiledGraph = inductor(graph_module, example_inputs, partitioner=partitioner, settings=SETTINGS)
        return compiled

    leave_out_logging()
    return backend


def finder(find: Find) -> FindPlan:
    """``find`` for a partitioner."""

    def find_plan(captured: Captured, graph: Graph, use: Use) -> Plan | None:
        return find(Compiled(captured, graph, devices(captured.tensors)[1], use))

    return find_plan


def costed(compiled: Compiled, costs: CostModel, reserve_bytes: int) -> Graph:
    """The graph of what Inductor compiles, with costs and, on a CPU, with the workspace of calls of libraries.

    Its fixed memory is that of its inputs and the reserve.
    """
    captured = compiled.captured
    graph = lower(captured, costs.cost, "compiled", held(captured))
    graph = described(graph, captured, costs, source="torch:compile", device=compiled.device)
    graph = with_library_workspaces(graph) if compiled.device == "cpu" else graph
    return replace(graph, fixed_memory=graph.fixed_memory + reserve_bytes)


def device_of(tensors: Sequence[Any]) -> str:
    """The device of a graph, for rates."""
    return devices(tensors)[0]


class _InductorGraph:
    """A graph that Inductor compiles, divided by the plans that are found for it.

    Args:
        graph_module: The graph.
        find: Finds plans.
        refuse: Receives the reasons why there is none.
        results: What is known of the results of graphs.
    """

    def __init__(self, graph_module: GraphModule, find: Find, refuse: Refuse, results: Results) -> None:
        self._graph_module, self._find, self._refuse, self._results = graph_module, find, refuse, results
        self._plan: Plan | None = None

    def compiled(self, inputs: Sequence[Tensor]) -> tuple[CompiledGraph, WatchedStep | None]:
        """The graph, compiled for ``inputs``; and its step, if it has a plan."""
        steps: list[WatchedStep] = []

        def divided(captured: Captured, use: Use) -> None:
            if tangent_numbers(captured):
                steps.append(self._step(captured, use))

        def around(part: Any) -> Around | None:
            """How the backward pass is called, which takes fewer tangents than autograd has."""
            if UNUSED not in part.meta or not steps:
                return None
            step = steps[-1]
            return Around(part.meta[UNUSED], lambda function: partial(step.backward, function))

        # What is kept of a compilation must not keep a batch.
        tensors = without_data(inputs)
        partitioner = Partitioner(self._plan_of, self._refuse, "backend", tensors, self._use_of, divided)
        graph: CompiledGraph = inductor(
            self._graph_module, list(inputs), partitioner=partitioner, settings=SETTINGS, around=around
        )
        if not steps:
            return graph, None
        step = steps[-1]

        def run(*args: Tensor) -> Sequence[Tensor]:
            step.begin(args)
            return graph(*args)

        return run, step

    def _plan_of(self, captured: Captured, graph: Graph, use: Use) -> Plan | None:
        copied = copied_bytes(captured, use) or 0
        plan = self._find(Compiled(captured, graph, devices(captured.tensors)[1], use, self._plan, copied))
        self._plan = plan or self._plan
        return plan

    def _use_of(self, captured: Captured) -> Use:
        if any(isinstance(number, str) for number in tangent_numbers(captured)):  # memory that results are views of
            return whole_use(captured)
        return self._results.use_of(captured)

    def _step(self, captured: Captured, use: Use) -> WatchedStep:
        """The step of a plan that assumes ``use``. A second run of it is by plain Inductor."""
        import torch

        interface = Interface.of(captured, use, devices(captured.tensors)[0])

        def rerun(
            inputs: Sequence[Tensor], takes: frozenset[Number], tangents: list[Tensor], rewind: Callable[[], None]
        ) -> list[Tensor | None]:
            with exact_sizes(), torch.enable_grad():
                own = [one.detach().requires_grad_(one.requires_grad) for one in inputs]
                whole = inductor(self._graph_module, own, partitioner=None)
                rewind()
                results = whole(*own)
            roots = [results[k] for k in interface.tangents if k in takes and isinstance(k, int)]
            wanted = [one for one in own if one.requires_grad]
            gradients = iter(torch.autograd.grad(roots, wanted, tangents, allow_unused=True))
            return [next(gradients) if one.requires_grad else None for one in own]

        return WatchedStep(interface, rerun, partial(self._results.learn, captured, use), self._results.name_of)
