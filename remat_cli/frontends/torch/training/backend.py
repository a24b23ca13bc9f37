"""Trains with a plan: ``torch.compile(step, backend=remat_backend("step.plan.json"))``.

The compiled step must be the exported one: the same model, the same shapes, and the loss inside or outside in both.
A graph without a plan is an error by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.torch.capturing.capture import Captured, Model
from remat_cli.frontends.torch.capturing.lower import lower
from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.executing.forward_backward import ForwardBackward, Saved, forward_backward
from remat_cli.frontends.torch.executing.same_graph import difference, foreign
from remat_cli.frontends.torch.installed import require_torch
from remat_cli.frontends.torch.private import (
    aot,
    as_given,
    default_split,
    leave_out_logging,
    real_tensors,
    takes_its_arguments,
)
from remat_cli.frontends.torch.reading import read_step, require_torch_graph
from remat_cli.frontends.torch.warning import warn
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.io import load_plan
from remat_cli.plan.model import Plan
from remat_cli.printable import printable

Unplanned = Literal["error", "warn"]
"""How to treat a graph that has no plan: refuse it, or run it without a plan and warn."""
_KEY = "remat"
_MOST_REASONS = 3
"""Number of plans for which a message says why they do not fit."""


def remat_backend(*plans: Plan | str, unknown: Unplanned = "error") -> Callable[[Any, list[Any]], Any]:
    """A backend for ``torch.compile`` that runs training steps by plan.

    Args:
        plans: Plans, or their files; one for each graph that is compiled.
        unknown: How to treat a graph without a plan: ``error``, or ``warn`` and run it without one.

    Raises:
        FrameworkUnavailable: If torch is missing.
        UsageError: If a plan is not valid, or its graph is not of this frontend, or ``unknown`` is neither.
        InputError: If a file holds no plan.
    """
    require_torch()
    if unknown not in get_args(Unplanned):
        raise UsageError(f'"{unknown}" is not a way to treat unknown graphs', hint="choose error or warn")
    loaded = [load_plan(plan)[0] if isinstance(plan, str) else plan for plan in plans]
    for plan in loaded:
        require_torch_graph(plan.graph)
        read_step(plan.graph)  # reports damage now: torch.compile would wrap the error
        if not check(plan).valid:
            raise UsageError(f"the plan of {printable(plan.graph.name)} is not valid", hint="remat check says why")

    def find(compiled: Compiled) -> Plan | None:
        found, reasons = chosen(compiled, loaded)
        if found is None:
            no_plan(unknown, reasons)
        return found

    return backend_of(find, lambda reasons: no_plan(unknown, reasons))


@dataclass(frozen=True, slots=True)
class Compiled:
    """A joint graph from torch.compile.

    Attributes:
        captured: The joint graph.
        graph: The same, lowered, with arbitrary costs.
        device: Device of its tensors: ``cpu``, ``cuda``, or several devices in words.
    """

    captured: Captured
    graph: Graph
    device: str


Find = Callable[[Compiled], "Plan | None"]
"""Returns the plan for a compiled graph; None to run it without one. Called outside of PyTorch's fake mode."""
Refuse = Callable[[Sequence[str]], None]
"""Receives the reasons why a graph has no plan. The graph runs without one, unless this raises."""


def backend_of(find: Find, refuse: Refuse) -> Callable[[Any, list[Any]], Any]:
    """A backend for ``torch.compile`` that calls ``find`` for the plan of each graph with a backward pass.

    It calls ``refuse`` for a graph that remat cannot lower.
    """

    def backend(graph_module: Any, example_inputs: list[Any]) -> Any:
        tensors = tuple(example_inputs)

        def partition(joint: Any, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
            found = _functions(joint, num_fwd_outputs, tensors, find, refuse)
            if found is not None:
                return _modules(joint, num_fwd_outputs, found)
            return default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

        return aot(graph_module, example_inputs, compiler=_compiler, partition=partition)

    leave_out_logging()  # as where graphs are captured; torch.compile takes no such setting for one backend alone
    return backend


def chosen(compiled: Compiled, plans: Sequence[Plan]) -> tuple[Plan | None, list[str]]:
    """The first of ``plans`` that is for this graph; else why each of them is not."""
    import torch

    reasons = []
    for plan in plans:
        reason = foreign(plan.graph, str(torch.__version__), compiled.device)
        reason = reason or difference(compiled.graph, plan.graph)
        if reason is None:
            return plan, []
        reasons.append(f"the plan of {printable(plan.graph.name)} is for another graph: {reason}")
    return None, reasons


def no_plan(unknown: Unplanned, reasons: Sequence[str]) -> None:
    """Report that there is no plan for a graph, and why: as an error or a warning.

    Raises:
        UsageError: If ``unknown`` is ``error``.
    """
    said = "; ".join(reasons[:_MOST_REASONS]) + ("; ..." if len(reasons) > _MOST_REASONS else "")
    why = f" ({said})" if said else ""
    if unknown == "error":
        raise UsageError(
            f"torch.compile came with a graph that no plan was made for{why}",
            hint="export what is compiled, with the same shapes and results; or remat_backend(..., unknown='warn')",
        )
    warn(f"remat: no plan for this graph; it runs without one{why}")


def _compiler(graph_module: Any, inputs: Any) -> Any:
    """The function that runs a graph: the plan's if it has one, else the graph itself."""
    function = graph_module.meta.get(_KEY)
    return as_given(graph_module, inputs) if function is None else takes_its_arguments(function)


def _functions(
    joint: Any, forward_outputs: int, tensors: Sequence[Any], find: Find, refuse: Refuse
) -> ForwardBackward | None:
    """The functions of the plan that ``find`` returns for this graph; None to run it without one."""
    import torch

    captured = Captured(joint, forward_outputs, tuple(tensors), Model(torch.nn.Module(), (), {}, None))
    devices = {t.device for t in tensors if isinstance(t, torch.Tensor)}
    # A step on CUDA may read numbers from tensors on the CPU, so those do not count.
    found = {device for device in devices if device.type != "cpu"} or {torch.device("cpu")}
    device = next(iter(found))
    where = device.type if len(found) == 1 else " and ".join(sorted(map(str, found)))  # no plan matches several
    with real_tensors():  # constants are real
        try:
            graph = lower(captured, lambda node: 1.0, "compiled")  # names do not matter here
        except CaptureFailed as error:
            refuse([error.message])
            return None
        plan = find(Compiled(captured, graph, where))
        # Operators without inputs make tensors on the model's own device, which need not be the current one.
        return None if plan is None else forward_backward(graph, plan.statements, str(device))


def _modules(joint: Any, forward_outputs: int, chosen: ForwardBackward) -> tuple[Any, Any]:
    """Two graph modules that only state inputs and outputs for AOTAutograd, and carry the functions that run."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    tangents = [node for node in placeholders if "tangent" in str(node.target)]
    primals = [node for node in placeholders if node not in tangents]
    [output] = joint.graph.find_nodes(op="output")
    results = list(output.args[0])
    descriptions = list(output.meta.get("desc", [None] * len(results)))
    mode = placeholders[0].meta["val"].fake_mode
    saved = [_fake(mode, one, placeholders[0].meta["val"].device) for one in chosen.saved]
    values = [result.meta["val"] for result in results[:forward_outputs]]
    with real_tensors():
        forward = _facade(
            joint,
            [(str(node.target), node.meta) for node in primals],
            [*values, *saved],
            [*descriptions[:forward_outputs], *([None] * len(saved))],
        )
        gradients = [None if result is None else result.meta["val"] for result in results[forward_outputs:]]
        given = [(f"saved_{k}", {"val": value}) for k, value in enumerate(saved)]
        given += [(str(node.target), node.meta) for node in tangents]
        backward = _facade(joint, given, gradients, descriptions[forward_outputs:])
    forward.meta[_KEY], backward.meta[_KEY] = chosen.forward, chosen.backward
    return forward, backward


def _fake(mode: Any, saved: Saved, device: Any) -> Any:
    """A fake tensor of the same form as a saved tensor."""
    import torch

    spec, where = saved.spec, "cpu" if saved.host else device
    with mode:
        return torch.empty_strided(spec.shape, spec.stride, dtype=dtype_named(spec.dtype), device=where)


def _facade(joint: Any, inputs: Sequence[tuple[str, Any]], outputs: Sequence[Any], descriptions: Sequence[Any]) -> Any:
    """A graph module with these inputs and outputs, and one opaque call between them."""
    import operator

    import torch

    graph = torch.fx.Graph()
    given = []
    for name, meta in inputs:
        node = graph.placeholder(name)
        node.meta.update(meta)
        given.append(node)
    call = graph.call_function(_opaque, tuple(given))
    call.meta["val"] = list(outputs)
    made: list[Any] = []
    for k, value in enumerate(outputs):
        if value is None:
            made.append(None)
            continue
        item = graph.call_function(operator.getitem, (call, k))
        item.meta["val"] = value
        made.append(item)
    node = graph.output(tuple(made))
    node.meta["desc"] = list(descriptions)
    return torch.fx.GraphModule(joint, graph)


def _opaque(*_inputs: Any) -> Any:
    """Placeholder for the plan's function, which is not called through the graph."""
    raise AssertionError("the graph of a plan is a facade, and is not run")
