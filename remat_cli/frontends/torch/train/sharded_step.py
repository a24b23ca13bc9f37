"""From the captured units of ``fully_shard`` to their step: what each of them holds, reads, gathers and reduces."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.torch.capture.capture import Captured, Model
from remat_cli.frontends.torch.compat.fully_sharded import ShardedParameter, parameters_of, reshards
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes
from remat_cli.frontends.torch.train.loop_assumptions import LossDemand
from remat_cli.frontends.torch.train.part_schedule import Part, PartSchedule, Resident, tangents_of
from remat_cli.frontends.torch.types import Module, Tensor
from remat_cli.plan.sharded_units import Between, ShardedStep, Storage, UnitBytes, UnitCall, UnitGraph


@dataclass(frozen=True, slots=True)
class Links:
    """The links between ranks.

    Attributes:
        interconnect: Their bandwidths and latencies.
        launch_us: Microseconds of a launch, for links whose latency is not known.
    """

    interconnect: Interconnect
    launch_us: float


@dataclass(frozen=True, slots=True)
class Loop:
    """What a loop does with what a module returns.

    Attributes:
        results: Memory of all of that, and bytes.
        staying: What of it the loop holds to the end of the step.
        demand: What it asks of it; None if that is not known.
    """

    results: Mapping[Storage, int]
    staying: Mapping[Storage, int]
    demand: LossDemand | None

    @classmethod
    def of(cls, output: Any, held: Sequence[Tensor] | None, demand: LossDemand | None) -> Loop:
        """From what the module returned, and what of it the loop holds; None for all of it."""
        results = {storage(tensor): storage_bytes(tensor) for _, tensor in leaves(output)}
        staying = results.keys() if held is None else {storage(tensor) for tensor in held}
        return cls(results, {key: size for key, size in results.items() if key in staying}, demand)


def sharded_step(
    schedule: PartSchedule,
    captured: Sequence[Captured],
    units: Sequence[tuple[str, Module]],
    around: Sequence[Module],
    fake: Model,
    loop: Loop,
    fixed_bytes: int,
    links: Links | None = None,
) -> ShardedStep:
    """The step of units in the order of their calls.

    Args:
        schedule: The calls of their graphs.
        captured: What each graph was made from.
        units: Their names, and they.
        around: The module around them, and others that gather parameters and have no plan.
        fake: The copy that was captured.
        loop: What the loop does with what the module returns.
        fixed_bytes: What is there all the time.
        links: The links between ranks; None if nothing is known of them.
    """
    own = {id(p) for name, _ in units for p in fake.module.get_submodule(name).parameters()}
    leaves_of_units = {("leaf", storage(p)) for p in fake.module.parameters() if id(p) in own}
    schedule = replace(schedule, residents=tuple(r for r in schedule.residents if r.of not in leaves_of_units))
    graphs = tuple(_unit_graph(part, one) for part, one in zip(schedule.parts, captured, strict=True))
    made = {key for call in schedule.calls for key in call.results.values()}
    # The loop's call of backward() has the gradient of a loss that the module returns, up to the end.
    trained = [] if loop.demand is None or loop.demand.number_bytes else loop.demand.trained.tensors
    numbers = sum(storage_bytes(tensor) for tensor in trained if tensor.numel() == 1)
    if numbers:
        behind = Resident("gradient of the loss", numbers, math.inf, -math.inf)
        schedule = replace(schedule, residents=(*schedule.residents, behind))
    calls = _calls(schedule, captured, units, links)
    demand = loop.demand
    if demand is not None and demand.loss_bytes:
        del schedule.unplanned[-1].operations[-1]  # it is the loss, which runs before the root gathers ahead
    code = [_between(schedule, at) for at in range(len(calls) + 1)]
    outside = [one for module in around for one in parameters_of(module)]
    root = [one for one in outside if one.sharded.requires_grad]
    return ShardedStep(
        graphs=graphs,
        calls=calls,
        between=tuple(code),
        root=_unit_bytes(outside),
        root_gradients=sum(one.gathered.itemsize * math.prod(one.shape) for one in root),
        fixed_bytes=fixed_bytes + sum(_collective_bytes(_unit_bytes(parameters_of(one))) for one in around[1:]),
        results=loop.results,
        staying={key: size for key, size in loop.staying.items() if key in made},
        loss_forward=0 if demand is None else demand.forward_bytes,
        loss_backward=0 if demand is None else demand.loss_bytes,
    )


def _calls(
    schedule: PartSchedule, captured: Sequence[Captured], units: Sequence[tuple[str, Module]], links: Links | None
) -> tuple[UnitCall, ...]:
    """The calls of the units.

    Raises:
        UsageError: If no input of a later unit than the first one takes a gradient.
    """
    calls = tuple(
        UnitCall(
            name=name,
            kind=call.part,
            memory=_unit_bytes(parameters_of(unit)),
            inputs=call.inputs,
            positions=call.storages,
            results=call.results,
            beside=schedule.resident_bytes(at),
            reshards=reshards(unit),
            deferred=not any(map(_is_differentiable, captured[call.part].tensors)),
            gather_cost=_collective_us("all-gather", parameters_of(unit), links),
            reduce_cost=_collective_us("reduce-scatter", parameters_of(unit), links),
        )
        for at, ((name, unit), call) in enumerate(zip(units, schedule.calls, strict=True))
    )
    later = [call.name for call in calls[1:] if call.deferred]
    if later:
        raise UsageError(
            f"no input of unit {later[0]} takes a gradient, and it is not the first unit: its gradients would wait for "
            "the end of the step",
            hint="call the units in another order, or leave this one to the module around it",
        )
    return calls


def _collective_us(kind: str, found: Sequence[ShardedParameter], links: Links | None) -> float:
    """Microseconds of a collective of a unit with these parameters; 0 if nothing is known of the links."""
    taken = _unit_bytes(found)
    size = taken.gathering if kind == "all-gather" else taken.reducing
    if links is None or not size:
        return 0.0
    return links.interconnect.us(kind, size, found[0].ranks, found[0].dimension, links.launch_us)


def _is_differentiable(tensor: Any) -> bool:
    import torch

    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, torch.nn.Parameter):
        return False
    return bool(tensor.requires_grad)


def _between(schedule: PartSchedule, at: int) -> Between:
    """The code before call ``at``, or behind the last one, the loss left out."""
    code, resident = schedule.unplanned[at], schedule.resident_bytes(at - 0.5)

    def backward(counted: Collection[Storage]) -> int:
        return resident + code.peak_bytes(counted)

    return Between(code.kept, backward)


def _unit_graph(part: Part, captured: Captured) -> UnitGraph:
    import torch

    parameters = {k for k, tensor in enumerate(captured.tensors) if isinstance(tensor, torch.nn.Parameter)}
    return UnitGraph(
        graph=part.graph,
        cut=tangents_of(part.graph),
        reads=part.reads,
        parameter_gradients=sum(size for k, size in part.gradients.items() if k in parameters),
        other_gradients=sum(size for k, size in part.gradients.items() if k not in parameters),
    )


def _collective_bytes(unit: UnitBytes) -> int:
    """The most that the collectives of a unit take beside its gathered parameters and their whole gradients.

    Its parameters are freed before the gradients are reduced.
    """
    gather = unit.gathering + unit.converted + unit.gather_staging
    reduction = unit.reducing + unit.reduced + unit.kept + unit.converting + unit.reduce_staging - unit.gathered
    return max(gather, reduction)


def _unit_bytes(found: Sequence[ShardedParameter]) -> UnitBytes:
    """What the collectives of parameters take. On a CPU, PyTorch communicates with gloo, which takes as much again."""
    trained = [one for one in found if one.sharded.requires_grad]
    gathered = sum(one.gathered_bytes for one in found)
    reducing = sum(one.reduced_elements * one.reduced.itemsize for one in trained)
    ranks = found[0].ranks if found else 1
    kept = sum(one.reduced_elements // ranks * one.sharded.dtype.itemsize for one in trained)
    staged = bool(found) and found[0].sharded.device.type == "cpu"
    converted = sum(one.part * one.gathered.itemsize for one in found if one.gathered != one.sharded.dtype)
    converts = any(one.reduced != one.sharded.dtype for one in trained)
    return UnitBytes(
        gathered=gathered,
        gathering=gathered,
        converted=converted,
        gather_staging=gathered if staged else 0,
        reducing=reducing,
        reduced=reducing // ranks,
        kept=kept,
        converting=kept if converts else 0,
        reduce_staging=reducing if staged else 0,
    )
