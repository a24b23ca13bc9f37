"""The report on a pipeline: the plan of every stage, the time of a step with its bound, and what other choices give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from remat_cli.reports.style import Style, fields, render, title
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.words import cost_words, count, percent_change, percent_gap, percent_over, size_column
from remat_cli.units import format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class StageFacts:
    """A stage of a pipeline, with its plan.

    Attributes:
        stage: Its number, from 0.
        name: The name of its graph.
        device: Its device.
        in_flight: The most microbatches in flight on it.
        held_bytes: What one of them holds between its forward and its backward pass, without fixed memory.
        weights_held_bytes: The same between its backward pass and that for gradients of parameters; None without one.
        peak_bytes: The peak of the plan of one microbatch, fixed memory included.
        costs: The cost of each pass.
        base_cost: What a microbatch costs without recomputation.
        strategy: What made the plan.
        path: The file of the plan; empty if it was not written.
    """

    stage: int
    name: str
    device: int
    in_flight: int
    held_bytes: int
    weights_held_bytes: int | None
    peak_bytes: int
    costs: tuple[float, ...]
    base_cost: float
    strategy: str
    path: str = ""

    @property
    def overhead(self) -> float:
        """What recomputation costs, over the cost without."""
        return sum(self.costs) / self.base_cost - 1 if self.base_cost > 0 else 0.0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device of a pipeline.

    Attributes:
        memory_bytes: Its memory.
        needed_bytes: The most that it needs.
        cost: What one microbatch costs on it.
        lower_bound: No plans that fit cost less.
        busy: Share of the makespan in which it works.
    """

    memory_bytes: int
    needed_bytes: int
    cost: float
    lower_bound: float
    busy: float


@dataclass(frozen=True, slots=True)
class ChoiceFacts:
    """Another choice of plans with the same schedule.

    Attributes:
        name: What is recomputed.
        needed_bytes: The memory of each device; None if there are no such plans.
        fits: Whether every device has that much.
        makespan: The time of a step, whether it fits or not; None if there are no such plans.
    """

    name: str
    needed_bytes: tuple[int, ...] | None
    fits: bool
    makespan: float | None


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """A pipeline with a plan for every stage.

    Attributes:
        schedule: The schedule.
        microbatches: Microbatches of a step.
        transfer: Time between passes on different devices.
        cost_unit: Unit of all times.
        stages: The stages.
        devices: The devices.
        makespan: The time of a step, without the update of parameters.
        lower_bound: No choice of plans that fit gives less with this schedule.
        bubble: Share of the makespan in which devices wait.
        others: Other choices.
        assumptions: What was assumed, in sentences.
        outcome: How the search ended.
    """

    schedule: str
    microbatches: int
    transfer: float
    cost_unit: str
    stages: tuple[StageFacts, ...]
    devices: tuple[DeviceFacts, ...]
    makespan: float
    lower_bound: float
    bubble: float
    others: tuple[ChoiceFacts, ...]
    assumptions: tuple[str, ...]
    outcome: str

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan."""
        return max(0.0, (self.makespan - self.lower_bound) / self.makespan) if self.makespan > 0 else 0.0


def pipeline_text(facts: PipelineFacts, style: Style) -> str:
    """The report for people."""
    from rich.text import Text

    head = Text.assemble(
        (style.verdict(True) + " fits", "bold green"),
        f": a step of {_microbatches(facts.microbatches)} takes {cost_words(facts.makespan, facts.cost_unit)}",
    )
    rows = [
        ("schedule", f"{facts.schedule}: {count(len(facts.stages), 'stage')} on {count(len(facts.devices), 'device')}"),
        ("bound", _bound(facts)),
        ("bubble", f"{format_percent(facts.bubble)} of the time of all devices"),
        ("search", facts.outcome),
    ]
    parts: list[RenderableType] = [
        head,
        "",
        fields(rows, style),
        title("Stages", ""),
        _stages(facts, style).text(style),
        title("Devices", ""),
        _devices(facts).text(style),
        title("Choices", " of plans with this schedule"),
        _others(facts, style).text(style),
    ]
    if facts.assumptions:
        parts += ["", fields([("assumed", sentence) for sentence in facts.assumptions], style)]
    written = [(f"stage {stage.stage}", style.clean(stage.path)) for stage in facts.stages if stage.path]
    if written:
        parts += [title("Plans", ""), fields(written, style)]
    return render(style, *parts)


def _microbatches(number: int) -> str:
    return "1 microbatch" if number == 1 else f"{number:,} microbatches"


def _bound(facts: PipelineFacts) -> str:
    least = cost_words(facts.lower_bound, facts.cost_unit)
    return f"no choice of plans in the order of the graphs takes less than {least} (gap {percent_gap(facts.gap)})"


def _stages(facts: PipelineFacts, style: Style) -> Table[StageFacts]:
    columns: list[Column[StageFacts]] = [
        Column("stage", attrgetter("stage")),
        Column("graph", lambda stage: style.clean(stage.name), numeric=False),
        Column("device", attrgetter("device")),
        Column("in flight", attrgetter("in_flight")),
        Column("each holds", attrgetter("held_bytes"), size_column),
        Column("peak of one", attrgetter("peak_bytes"), size_column),
        Column("overhead", attrgetter("overhead"), each(percent_over)),
        Column("plan by", attrgetter("strategy"), numeric=False),
    ]
    return Table(columns, facts.stages)


def _devices(facts: PipelineFacts) -> Table[tuple[int, DeviceFacts]]:
    columns: list[Column[tuple[int, DeviceFacts]]] = [
        Column("device", lambda row: row[0]),
        Column("needs", lambda row: row[1].needed_bytes, size_column),
        Column("has", lambda row: row[1].memory_bytes, size_column),
        Column("busy", lambda row: row[1].busy, each(format_percent)),
        Column("gap", _device_gap, each(percent_gap)),
    ]
    return Table(columns, list(enumerate(facts.devices)))


def _device_gap(row: tuple[int, DeviceFacts]) -> float:
    device = row[1]
    return max(0.0, (device.cost - device.lower_bound) / device.cost) if device.cost > 0 else 0.0


def _others(facts: PipelineFacts, style: Style) -> Table[ChoiceFacts]:
    """This choice and the others: the memory of the fullest device, and the time."""
    here = ChoiceFacts("chosen for each stage", tuple(d.needed_bytes for d in facts.devices), True, facts.makespan)
    yes, no = style.glyph("✓", "yes"), style.glyph("✗", "no")
    columns: list[Column[ChoiceFacts]] = [
        Column("recomputed", attrgetter("name"), numeric=False),
        Column("most memory", lambda row: None if row.needed_bytes is None else max(row.needed_bytes), size_column),
        Column("fits", lambda row: yes if row.fits else no, numeric=False),
        Column("step", lambda row: None if row.makespan is None else row.makespan, each(_times(facts.cost_unit))),
        Column("against", lambda row: _against(row, facts.makespan), each(percent_change)),
    ]
    return Table(columns, [here, *facts.others])


def _times(unit: str) -> Any:
    return lambda value: cost_words(value, unit)


def _against(row: ChoiceFacts, makespan: float) -> float | None:
    return None if row.makespan is None or makespan <= 0 else row.makespan / makespan - 1


def pipeline_document(facts: PipelineFacts) -> dict[str, Any]:
    """As JSON values, ``remat-pipeline/1`` (schemas/pipeline-v1.json). Times are in the cost unit, memory in bytes."""
    return {
        "schema": "remat-pipeline/1",
        "schedule": facts.schedule,
        "microbatches": facts.microbatches,
        "transfer": facts.transfer,
        "cost_unit": facts.cost_unit,
        "makespan": facts.makespan,
        "lower_bound": facts.lower_bound,
        "gap": facts.gap,
        "scope": "document-order",
        "bubble": facts.bubble,
        "stages": [_stage_document(stage) for stage in facts.stages],
        "devices": [
            {
                "memory": device.memory_bytes,
                "needed": device.needed_bytes,
                "cost": device.cost,
                "lower_bound": device.lower_bound,
                "busy": device.busy,
            }
            for device in facts.devices
        ],
        "others": [
            {
                "name": other.name,
                "needed": None if other.needed_bytes is None else list(other.needed_bytes),
                "fits": other.fits,
                "makespan": other.makespan,
            }
            for other in facts.others
        ],
        "assumptions": list(facts.assumptions),
        "outcome": facts.outcome,
    }


def _stage_document(stage: StageFacts) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "graph": stage.name,
        "device": stage.device,
        "in_flight": stage.in_flight,
        "held": stage.held_bytes,
        "held_for_weights": stage.weights_held_bytes,
        "peak_memory": stage.peak_bytes,
        "costs": _passes(stage.costs),
        "no_remat_cost": stage.base_cost,
        "overhead": stage.overhead if stage.base_cost > 0 else None,
        "strategy": stage.strategy,
        "plan": stage.path or None,
    }


def _passes(costs: Sequence[float]) -> dict[str, float]:
    return dict(zip(("forward", "backward", "weights"), costs, strict=False))
