"""Compiles a module, for a given batch, so that it trains by plan.

The module is captured with fake copies of its tensors, so nothing is computed and no random number is drawn. If another
graph comes later (evaluation after training, a new shape, autocast), it gets a plan at that time.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from remat_cli.errors import CaptureFailed, RematError, UsageError
from remat_cli.frontends.torch.capturing.capture import Model, capture_parts, fake_mode, no_graph
from remat_cli.frontends.torch.capturing.costs import CostModel, cost_model
from remat_cli.frontends.torch.capturing.export import described
from remat_cli.frontends.torch.capturing.lower import lower
from remat_cli.frontends.torch.capturing.source import as_model
from remat_cli.frontends.torch.installed import require_device
from remat_cli.frontends.torch.tensors import storage, storage_bytes
from remat_cli.frontends.torch.training.backend import Compiled, Unplanned, backend_of, chosen, no_plan
from remat_cli.frontends.torch.training.in_place import PlannedCall, install, require_uncompiled
from remat_cli.frontends.torch.warning import warn
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan

Planner = Callable[[Graph], Plan]
"""Returns a valid plan of a graph, within the budget, or raises a RematError."""
Unknown = Literal["plan", Unplanned]
"""How to treat a graph that comes later: plan it too, or as ``Unplanned`` treats a graph without a plan."""
MEASURED = "measured"
"""The costs that ``remat profile`` measures on the device."""


def fit_module(
    module: Any,
    batch: Any,
    planner: Planner,
    *,
    cost: str = "flops",
    reserve_bytes: int = 0,
    unknown: Unknown = "plan",
) -> Any:
    """``module`` itself, compiled in place to train by the plans that ``planner`` makes for it.

    Args:
        module: The module, on its device and in the mode in which it trains. Only its call changes. A module that is
            fitted already gets new plans.
        batch: Its inputs: a tensor, a tuple, or a mapping of keyword arguments. Only their form matters.
        planner: Makes plans.
        cost: ``device``, ``flops``, ``roofline:NAME``, or ``measured``: every operation is run on the module's device.
        reserve_bytes: Fixed memory for things outside the graph, such as the optimizer's state.
        unknown: How to treat other graphs that come later: ``plan`` them too, ``warn``, or ``error``.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
        RematError: From the planner.
    """
    if unknown not in get_args(Unknown):
        raise UsageError(f'"{unknown}" is not a way to treat unknown graphs', hint="choose plan, warn or error")
    require_device("cpu")
    _require_module(module, batch)
    require_uncompiled(module)
    model = as_model((module, batch), "fit")
    where = _device(module)
    costs = cost_model("flops" if cost == MEASURED else cost, where)
    found = _Plans(where, costs, cost == MEASURED, planner, reserve_bytes, unknown, _bytes(module))
    fake, mode = _fake(model)
    # The module alone, without a loss, since the user's loop computes the loss and calls ``backward()``.
    parts, more = capture_parts(fake, mode)
    if not parts and not more:
        raise no_graph(fake, mode)
    for number, captured in enumerate(parts):
        graph = lower(captured, found.costs.cost, type(module).__name__ + (f".{number}" if number else ""))
        found.add(described(graph, captured, found.costs, source=f"torch:{graph.name}", device=found.where.type))
    if len(parts) > 1 or more:
        reason = f": {more}" if more else ""
        warn(
            f"remat: the model is not a single graph{reason}; every part gets a plan with the whole budget, and what "
            "other parts hold meanwhile is not counted: set reserve for that"
        )
    backend = backend_of(found.find, found.refuse)
    return install(module, PlannedCall(module, backend, len(parts), strict=unknown == "error", plans=found.plans))


@dataclass(slots=True)
class _Plans:
    """The plans made so far, and how to make more.

    Attributes:
        where: Device of the module.
        costs: The cost model for lowering.
        measured: Whether to measure costs before planning.
        planner: Makes plans.
        reserve_bytes: Added to the fixed memory of every graph.
        unknown: How to treat graphs that come later.
        module_bytes: Bytes of all parameters and buffers of the module.
        plans: The plans made so far.
    """

    where: Any
    costs: CostModel
    measured: bool
    planner: Planner
    reserve_bytes: int
    unknown: Unknown
    module_bytes: int
    plans: list[Plan] = field(default_factory=list)

    def add(self, graph: Graph) -> Plan:
        """Plan ``graph``; measure its costs first if the user chose so."""
        if self.measured:
            graph = _measured(graph, self.where)
        plan = self.planner(replace(graph, fixed_memory=graph.fixed_memory + self.reserve_bytes))
        self.plans.append(plan)
        return plan

    def find(self, compiled: Compiled) -> Plan | None:
        """A plan for the compiled graph: an existing one if one fits, else a new one."""
        plan, reasons = chosen(compiled, self.plans)
        if plan is not None:
            return plan
        if self.unknown == "plan":
            try:
                return self.add(self._graph(compiled))
            except RematError as error:
                reasons = [error.message]  # training has begun: by default, go on without a plan and warn
        self.refuse(reasons)
        return None

    def refuse(self, reasons: Sequence[str]) -> None:
        """Warn that a graph runs without a plan, or raise if ``unknown`` is ``error``."""
        no_plan("error" if self.unknown == "error" else "warn", reasons)

    def _graph(self, compiled: Compiled) -> Graph:
        """The compiled graph with costs. Its fixed memory includes the whole module.

        Buffers cannot be distinguished from inputs here, so they count twice: too much is safe, too little is not.
        """
        import torch

        if compiled.device != self.where.type:
            raise UsageError(f"it has tensors on {compiled.device}, and the module is on {self.where}")
        captured = compiled.captured
        graph = lower(captured, self.costs.cost, f"graph {len(self.plans) + 1}")
        known = {storage(t): storage_bytes(t) for t in captured.tensors if isinstance(t, torch.nn.Parameter)}
        fixed = graph.fixed_memory + max(0, self.module_bytes - sum(known.values()))
        graph = described(graph, captured, self.costs, source="torch:compile", device=compiled.device)
        return replace(graph, fixed_memory=fixed)


def _measured(graph: Graph, where: Any) -> Graph:
    """``graph`` with measured times, sizes and workspaces. The state of the user's random generators is preserved."""
    import torch

    from remat_cli.frontends.torch.measuring.profile import profile

    here = torch.cuda.device(where) if where.type == "cuda" else contextlib.nullcontext()
    with torch.random.fork_rng(), here:
        return profile(graph, device=where.type, repeats=3, warmup=1, captured=True)


def _require_module(module: Any, batch: Any) -> None:
    """Check that the arguments are a module and a batch.

    Raises:
        UsageError: If one of them is not.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"fit takes a torch.nn.Module, but this is {type(module).__name__}",
            hint="put a function into the forward method of a module",
        )
    if not isinstance(batch, torch.Tensor | Mapping | tuple | list):
        raise UsageError(
            f"a batch is a tensor, a tuple, or a mapping of keyword arguments, but this is {type(batch).__name__}",
            hint="one batch of a loader will do: next(iter(loader))",
        )


def _device(module: Any) -> Any:
    """The device of the module: the CPU, or one CUDA device.

    Raises:
        UsageError: If its tensors are elsewhere, or on several devices.
    """
    import torch

    found = {tensor.device for tensor in [*module.parameters(), *module.buffers()]} or {torch.device("cpu")}
    if len(found) > 1 or not {device.type for device in found} <= {"cpu", "cuda"}:
        raise UsageError(
            f"the module is on {' and '.join(sorted(map(str, found)))}",
            hint="move all of it to the cpu or to one CUDA device before it is fitted",
        )
    return found.pop()


def _bytes(module: Any) -> int:
    """Bytes of a module's tensors, each storage once."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum({storage(tensor): storage_bytes(tensor) for tensor in tensors}.values())


def _fake(model: Model) -> tuple[Model, Any]:
    """``model`` with fake tensors, and their mode. Everything else in it is copied."""
    mode = fake_mode()
    given = [*model.module.parameters(), *model.module.buffers()]
    copies = {id(tensor): mode.from_tensor(tensor) for tensor in given}
    copies |= {id(tensor): mode.from_tensor(tensor.detach()) for tensor in _computed(model.module)}
    try:
        module = copy.deepcopy(model.module, copies)
    except Exception as error:  # the user's module may hold anything
        raise CaptureFailed(
            f"the module cannot be copied: {type(error).__name__}: {error}",
            hint="fit captures a copy without data; remat export torch:FILE.py:NAME needs none",
        ) from error
    inputs = tuple(_fake_leaves(item, mode) for item in model.inputs)
    keywords = {key: _fake_leaves(item, mode) for key, item in model.keywords.items()}
    return Model(module, inputs, keywords, None), mode


def _computed(module: Any) -> list[Any]:
    """Tensors in a module that a computation made, as the old ``weight_norm`` does; ``deepcopy`` refuses them."""
    import torch

    held = [item for part in module.modules() for item in vars(part).values()]
    return [item for item in held if isinstance(item, torch.Tensor) and not item.is_leaf]


def _fake_leaves(tree: Any, mode: Any) -> Any:
    """Nested tuples, lists and mappings with a fake tensor in place of every tensor."""
    import torch

    if isinstance(tree, torch.Tensor):
        return mode.from_tensor(tree)
    if isinstance(tree, Mapping):
        return {key: _fake_leaves(item, mode) for key, item in tree.items()}
    if type(tree) in {list, tuple}:
        return type(tree)(_fake_leaves(item, mode) for item in tree)
    return tree
