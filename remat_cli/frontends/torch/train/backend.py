"""``torch.compile(step, backend=remat_backend("step.plan.json"))``: finds the plan of each graph, and runs it.

It runs operation by operation, or inside Inductor, which divides joint graphs by plan and compiles both parts. The
compiled step must be the exported one: the same model, the same shapes, and the loss inside or outside in both. A graph
without a plan is an error by default.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from remat_cli.errors import CaptureFailed, UsageError, Worded
from remat_cli.frontends.messages import warn
from remat_cli.frontends.torch.capture.capture import Captured, no_model
from remat_cli.frontends.torch.capture.lower import lower
from remat_cli.frontends.torch.capture.results import Number, Use, tangent_numbers, whole_use, with_tangents
from remat_cli.frontends.torch.capture.sharded import kept_inputs, plain_joint
from remat_cli.frontends.torch.codec import empty_tensor
from remat_cli.frontends.torch.compat.aot_autograd import aot, as_given, default_split, takes_its_arguments
from remat_cli.frontends.torch.compat.dynamo import leave_out_logging
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes, real_tensors, without_data
from remat_cli.frontends.torch.compat.inductor import Around, inductor
from remat_cli.frontends.torch.compat.masks import eager_masks
from remat_cli.frontends.torch.document import FRONTEND, ROWS, difference, read_step
from remat_cli.frontends.torch.execute.forward_backward import ForwardBackward, forward_backward
from remat_cli.frontends.torch.inductor.joint import tracer_of
from remat_cli.frontends.torch.installed import require_torch
from remat_cli.frontends.torch.train.loop_assumptions import ResultUses, copied_bytes
from remat_cli.frontends.torch.train.meshes import with_meshes
from remat_cli.frontends.torch.train.padding import followed
from remat_cli.frontends.torch.train.watched_step import CompiledGraph, Interface, ReplannedGraph, Rerun, WatchedStep
from remat_cli.frontends.torch.types import FxNode, GraphModule, Tensor
from remat_cli.graph.model import Graph
from remat_cli.graph.splitting import parts_words, split
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive
from remat_cli.plan.io import load_plan
from remat_cli.plan.model import Plan
from remat_cli.printable import printable

Unplanned = Literal["error", "warn"]
"""How to treat a graph that has no plan: refuse it, or run it without a plan and warn."""
_KEY = "remat"
_MOST_REASONS = 3
"""Number of plans for which a message says why they do not fit."""


def finder_of(*plans: Plan | str, unknown: Unplanned = "error", compiler: str = "eager") -> tuple[Find, Refuse]:
    """Functions that find the plan for a graph among ``plans``, and that refuse a graph without one.

    Arguments and errors are those of :func:`remat_backend`.
    """
    require_torch()
    if unknown not in get_args(Unplanned):
        raise UsageError(f'"{unknown}" is not a way to treat unknown graphs', hint="choose error or warn")
    loaded = [load_plan(plan)[0] if isinstance(plan, str) else plan for plan in plans]
    for plan in loaded:
        FRONTEND.require(plan.graph)
        if compiler == "inductor" and plan.graph.origin is not None:
            raise UsageError(
                f"Inductor joins whole operations, and the plan of {plan.graph.name} has {parts_words(plan.graph)}",
                hint=Worded(
                    'compiler="eager" runs it; or solve with SolveOptions(split=False)',
                    'compiler="eager" runs it; or solve the graph with --no-split',
                ),
            )
        read_step(plan.graph)  # reports damage now: torch.compile would wrap the error
        if not check(plan).valid:
            raise UsageError(f"the plan of {plan.graph.name} is not valid", hint="remat check says why")

    def find(compiled: Compiled) -> Plan | None:
        plan, reasons = matching_plan(compiled, loaded)
        if plan is None:
            no_plan(unknown, reasons)
        return plan

    return find, lambda reasons: no_plan(unknown, reasons)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A joint graph from torch.compile.

    Attributes:
        captured: The joint graph, with the tangents of the results that take a gradient.
        graph: The same, lowered, with arbitrary costs.
        device: Device of its tensors: ``cpu``, ``cuda``, or several devices in words.
        use: What is assumed of its results; None if nothing is: all take a gradient, and all are there at the end.
        before: The plan that it had until a step has shown that its results are used in another way; None if it had
            none.
        copied_bytes: Bytes that a step keeps to be able to compute everything a second time.
    """

    captured: Captured
    graph: Graph
    device: str
    use: Use | None = None
    before: Plan | None = None
    copied_bytes: int = 0


Find = Callable[[Compiled], "Plan | None"]
"""Returns the plan for a compiled graph; None to run it without one. Called outside of PyTorch's fake mode."""
Backend = Callable[[GraphModule, list[Tensor]], CompiledGraph]
"""What ``torch.compile`` calls to compile a graph module for its inputs."""
Refuse = Callable[[Sequence[str]], None]
"""Receives the reasons why a graph has no plan. The graph runs without one, unless this raises."""


def remat_backend(*plans: Plan | str, unknown: Unplanned = "error", compiler: str = "eager") -> Backend:
    """A backend for ``torch.compile`` that runs training steps by plan.

    Args:
        plans: Plans, or their files; one for each graph that is compiled.
        unknown: How to treat a graph without a plan: ``error``, or ``warn`` and run it without one.
        compiler: What the plans are for: ``eager`` or ``inductor``.

    Raises:
        FrameworkUnavailable: If torch is missing, or too old for plans for Inductor.
        UsageError: If a plan is not valid, or its graph is not of this frontend, or an argument is none of its values.
        InputError: If a file holds no plan.
    """
    tracer_of(compiler)
    find, refuse = finder_of(*plans, unknown=unknown, compiler=compiler)
    return backend_with(compiler, find, refuse)


def backend_with(compiler: str, find: Find, refuse: Refuse, results: ResultUses | None = None) -> Backend:
    """A backend for ``torch.compile`` that calls ``find`` for the plan of each graph with a backward pass.

    It calls ``refuse`` for a graph that remat cannot lower. ``results`` says which results take a gradient; all do if
    it is None, and stay until the backward pass.

    Raises:
        UsageError: If there is no such compiler.
    """
    tracer_of(compiler)

    def backend(graph_module: GraphModule, example_inputs: list[Tensor]) -> CompiledGraph:
        kind = _InductorGraph if compiler == "inductor" else _EagerGraph
        graph = kind(graph_module, find, refuse, results)
        if results is None:
            return graph.compiled(example_inputs)[0]
        return ReplannedGraph(graph.compiled, example_inputs)

    # As where graphs are captured; torch.compile takes no such settings for one backend alone.
    leave_out_logging()
    eager_masks()
    return backend


def matching_plan(compiled: Compiled, plans: Sequence[Plan]) -> tuple[Plan | None, list[str]]:
    """The first of ``plans`` that is for this graph, or for that of a rank which pads no parts; else why none is."""
    import torch

    reasons = []
    for plan in plans:
        reason = FRONTEND.foreign(plan.graph, str(torch.__version__), compiled.device)
        if reason is None:
            here, there = read_step(compiled.graph), read_step(plan.graph.whole)
            reason = difference(here, there)
            if reason is None:
                return plan, []
            own, refused = followed(plan, here, there)
            if own is not None:
                return own, []
            reason = refused or reason
        reasons.append(f"the plan of {printable(plan.graph.name)} is for another graph: {reason}")
    return None, reasons


_EXPORT = "export what is compiled, with the same shapes and results; or remat_backend(..., unknown='warn')"


def no_plan(unknown: Unplanned, reasons: Sequence[str], hint: str = _EXPORT) -> None:
    """Report that there is no plan for a graph, and why: as an error or a warning.

    Raises:
        UsageError: If ``unknown`` is ``error``.
    """
    listed = "; ".join(reasons[:_MOST_REASONS]) + ("; ..." if len(reasons) > _MOST_REASONS else "")
    why = f" ({listed})" if listed else ""
    if unknown == "error":
        raise UsageError(
            f"torch.compile came with a graph that no plan was made for{why}",
            hint=hint,
        )
    warn(f"remat: no plan for this graph; it runs without one{why}")


def _compiler(graph_module: GraphModule, inputs: Sequence[Tensor]) -> Any:
    """The function that runs a graph: the plan's if it has one, else the graph itself."""
    function = graph_module.meta.get(_KEY)
    return as_given(graph_module, inputs) if function is None else takes_its_arguments(function)


class _PlannedGraph(ABC):
    """A graph that ``torch.compile`` compiles, and that runs by the plans that are found for it.

    Args:
        graph_module: The graph.
        find: Finds plans.
        refuse: Receives the reasons why there is none.
        results: What is known of the results of graphs; None to assume nothing.
    """

    def __init__(self, graph_module: GraphModule, find: Find, refuse: Refuse, results: ResultUses | None) -> None:
        self._graph_module, self._find, self._refuse, self._results = graph_module, find, refuse, results
        self._plan: Plan | None = None

    @abstractmethod
    def compiled(self, inputs: Sequence[Tensor]) -> tuple[CompiledGraph, WatchedStep | None]:
        """The graph, compiled for ``inputs``; and its step, if something is assumed of its results."""

    def _plan_of(self, captured: Captured, graph: Graph, use: Use | None, copied: int) -> Plan | None:
        plan = self._find(Compiled(captured, graph, devices(captured.tensors)[1], use, self._plan, copied))
        self._plan = plan or self._plan
        return plan

    def _watched(self, interface: Interface, captured: Captured, rerun: Rerun) -> WatchedStep:
        """The step of a joint graph with all tangents."""
        results = self._results
        assert results is not None
        return WatchedStep(interface, rerun, partial(results.learn, captured, interface.use), results.name_of)


class _EagerGraph(_PlannedGraph):
    """A graph that runs operation by operation."""

    def compiled(self, inputs: Sequence[Tensor]) -> tuple[CompiledGraph, WatchedStep | None]:
        """See :meth:`_PlannedGraph.compiled`."""
        tensors = without_data(inputs)  # what is kept of a compilation must not keep a batch
        steps: list[WatchedStep] = []

        def partition(joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
            plain, outputs = plain_joint(joint, num_fwd_outputs)
            functions = self._functions(Captured(plain, outputs, tensors, no_model()), steps)
            if functions is not None:
                return _modules(joint, num_fwd_outputs, with_meshes(joint, num_fwd_outputs, functions))
            return default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

        run = aot(self._graph_module, list(inputs), compiler=_compiler, partition=partition)
        return run, steps[-1] if steps else None

    def _functions(self, captured: Captured, steps: list[WatchedStep]) -> ForwardBackward | None:
        """The functions of the plan for a joint graph; None to run it without one. Their step is added to ``steps``."""
        with real_tensors():  # constants are real
            try:
                use = None if self._results is None else self._results.use_of(captured)
                planned = self._planned(captured, use)
            except CaptureFailed as error:
                self._refuse([error.message])
                return None
            if planned is None or use is None:
                return planned
            step = self._step(captured, use)
        steps.append(step)

        # Plain functions, since AOTAutograd makes deep copies of graph modules and of the objects of bound methods.
        def forward(args: list[Tensor]) -> list[Tensor]:
            step.begin(args)
            return _with_own_objects(planned.forward(args), len(planned.saved))

        def backward(args: list[Tensor]) -> list[Tensor | None]:
            return step.backward(planned.backward, args)

        return ForwardBackward(forward, backward, planned.saved, planned.text)

    def _planned(self, captured: Captured, use: Use | None) -> ForwardBackward | None:
        """The functions of a plan that assumes ``use``; None if there is no plan."""
        copied = 0 if use is None else copied_bytes(captured, use) or 0
        captured, graph = _lowered(captured, use)
        plan = self._plan_of(captured, graph, use, copied)
        # Operators without inputs make tensors on the model's own device, which need not be the current one.
        if plan is None:
            return None
        return forward_backward(in_parts_as(graph, plan.graph), plan.statements, devices(captured.tensors)[0])

    def _step(self, captured: Captured, use: Use) -> WatchedStep:
        """The step of a plan that assumes ``use``."""
        import torch

        device = devices(captured.tensors)[0]

        def with_gradients(takes: frozenset[Number]) -> ForwardBackward:
            """The functions of a plan that expects the gradients of these results."""
            with real_tensors():
                planned = self._planned(captured, Use(takes, use.holds))
                if planned is not None:
                    return planned
                # The step has to go on: without recomputation, after a warning.
                _, graph = _lowered(captured, Use(takes, use.holds))
                return forward_backward(graph, derive(graph, range(len(graph.nodes))), device)

        def rerun(
            inputs: Sequence[Tensor], takes: frozenset[Number], tangents: list[Tensor], rewind: Callable[[], None]
        ) -> list[Tensor | None]:
            functions = with_gradients(takes)
            with torch.no_grad():
                rewind()
                outputs = functions.forward(list(inputs))
                return functions.backward(outputs[len(outputs) - len(functions.saved) :] + tangents)

        return self._watched(Interface.of(captured, use, device), captured, rerun)


def _lowered(captured: Captured, use: Use | None) -> tuple[Captured, Graph]:
    """A joint graph with the tangents of the results that take a gradient, and the same, lowered."""
    captured = captured if use is None else with_tangents(captured, use.takes)
    # Names and costs do not matter here.
    return captured, lower(captured, lambda node: 1.0, "compiled", None if use is None else use.holds)


def in_parts_as(graph: Graph, planned: Graph) -> Graph:
    """``graph`` with the same regions in parts as ``planned``, a graph of the same operations."""
    origin = planned.origin
    if origin is None:
        return graph
    # What is compiled does not tell parameters, which are not divided, from inputs that have as many rows.
    pairs = zip(graph.metadata["places"], origin.graph.metadata["places"], strict=True)
    places = [own | {"kind": other["kind"]} for own, other in pairs]
    metadata = graph.metadata | {ROWS: origin.graph.metadata.get(ROWS), "places": places}
    return split(replace(graph, splits=origin.graph.splits, metadata=metadata), origin.parts)


class _InductorGraph(_PlannedGraph):
    """A graph that Inductor compiles, divided by the plans that are found for it."""

    _copied = 0

    def compiled(self, inputs: Sequence[Tensor]) -> tuple[CompiledGraph, WatchedStep | None]:
        """See :meth:`_PlannedGraph.compiled`."""
        # These import Inductor, which takes seconds.
        from remat_cli.frontends.torch.inductor.division import UNUSED
        from remat_cli.frontends.torch.inductor.partitioner import SETTINGS, Partitioner

        steps: list[WatchedStep] = []

        def divided(captured: Captured, use: Use) -> None:
            if self._results is not None and tangent_numbers(captured):
                steps.append(self._step(captured, use))

        def around(part: GraphModule) -> Around | None:
            """How the backward pass is called, which takes fewer tangents than autograd has."""
            if UNUSED not in part.meta or not steps:
                return None
            step = steps[-1]
            return Around(part.meta[UNUSED], lambda function: partial(step.backward, function))

        def find(captured: Captured, graph: Graph, use: Use) -> Plan | None:
            return self._plan_of(captured, graph, use, self._copied)

        # What is kept of a compilation must not keep a batch.
        tensors = without_data(inputs)
        partitioner = Partitioner(find, self._refuse, "backend", tensors, self._use_of, divided)
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

    def _use_of(self, captured: Captured) -> Use:
        memory = any(isinstance(number, str) for number in tangent_numbers(captured))  # that results are views of
        use = whole_use(captured) if memory or self._results is None else self._results.use_of(captured)
        self._copied = copied_bytes(captured, use) or 0
        return use

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

        return self._watched(interface, captured, rerun)


def _with_own_objects(outputs: list[Tensor], saved: int) -> list[Tensor]:
    """What a forward function returns, with an object of its own for each tensor that it saves.

    Whether the caller still has a result is told by the life of that result's object.
    """
    results = {id(tensor) for tensor in outputs[: len(outputs) - saved]}
    for k in range(len(outputs) - saved, len(outputs)):
        if id(outputs[k]) in results:
            outputs[k] = outputs[k].detach()
    return outputs


def devices(tensors: Sequence[Tensor]) -> tuple[str, str]:
    """The device to run on, and the kind of device for plans: ``cpu``, ``cuda``, or several devices in words."""
    import torch

    devices = {t.device for t in tensors if isinstance(t, torch.Tensor)}
    # A step on CUDA may read numbers from tensors on the CPU, so those do not count.
    accelerators = {device for device in devices if device.type != "cpu"} or {torch.device("cpu")}
    device = next(iter(accelerators))
    return str(device), device.type if len(accelerators) == 1 else " and ".join(sorted(map(str, accelerators)))


def _modules(joint: GraphModule, forward_outputs: int, functions: ForwardBackward) -> tuple[GraphModule, GraphModule]:
    """Two graph modules that only state inputs and outputs for AOTAutograd, and carry the functions that run."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    tangents = [node for node in placeholders if "tangent" in str(node.target)]
    primals = [node for node in placeholders if node not in tangents]
    [output] = joint.graph.find_nodes(op="output")
    results = list(output.args[0])
    descriptions = list(output.meta.get("desc", [None] * len(results)))
    first = placeholders[kept_inputs(joint)[0]].meta["val"]
    mode, device = first.fake_mode, first.device
    with mode:
        saved = [empty_tensor(one.spec, "cpu" if one.host else device) for one in functions.saved]
    values = [result.meta["val"] for result in results[:forward_outputs]]
    with real_tensors():
        forward = _facade(
            joint,
            [(str(node.target), node.meta) for node in primals],
            [*values, *saved],
            [*descriptions[:forward_outputs], *([None] * len(saved))],
        )
        gradients = [None if result is None else result.meta["val"] for result in results[forward_outputs:]]
        inputs = [(f"saved_{k}", {"val": value}) for k, value in enumerate(saved)]
        inputs += [(str(node.target), node.meta) for node in tangents]
        backward = _facade(joint, inputs, gradients, descriptions[forward_outputs:])
    forward.meta[_KEY], backward.meta[_KEY] = functions.forward, functions.backward
    return forward, backward


def _facade(
    joint: GraphModule,
    inputs: Sequence[tuple[str, dict[str, Any]]],
    outputs: Sequence[Tensor | None],
    descriptions: Sequence[Any],
) -> GraphModule:
    """A graph module with these inputs and outputs, and one opaque call between them."""
    import torch

    graph = torch.fx.Graph()
    placeholders = []
    for name, meta in inputs:
        node = graph.placeholder(name)
        node.meta.update(meta)
        placeholders.append(node)
    call = graph.call_function(_opaque, tuple(placeholders))
    call.meta["val"] = list(outputs)
    items: list[FxNode | None] = []
    for k, value in enumerate(outputs):
        if value is None:
            items.append(None)
            continue
        item = graph.call_function(operator.getitem, (call, k))
        item.meta["val"] = value
        items.append(item)
    node = graph.output(tuple(items))
    node.meta["desc"] = list(descriptions)
    return torch.fx.GraphModule(joint, graph)


def _opaque(*_inputs: Tensor) -> Tensor:
    """Placeholder for the plan's function, which is not called through the graph."""
    raise AssertionError("the graph of a plan is a facade, and is not run")
