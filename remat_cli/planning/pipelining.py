"""Plans for all stages of a pipeline, and the time of a step with a lower bound; see docs/pipelines.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from remat_cli.control import MORE_TIME, Control, Outcome, Progress
from remat_cli.errors import Infeasible, Interrupted, LimitReached, SolverFailed, UsageError
from remat_cli.graph.model import Graph
from remat_cli.graph.passes import StageGraph
from remat_cli.milp.pipeline_times import makespan_model
from remat_cli.plan.check import Report, check
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope
from remat_cli.plan.pipeline_memory import Moment, StageRun, always_bytes, device_bytes, fullest, moments, run_of
from remat_cli.plan.pipelines import Pass, Schedule, Timeline, Times, schedule_of, timeline
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.stage_choice import Candidate, Chosen, DeviceSearch, StageSearch, keep_all, recompute_all
from remat_cli.reports.pipelines import ChoiceFacts, DeviceFacts, PipelineFacts, StageFacts
from remat_cli.running import interruptible
from remat_cli.short_repr import ShortRepr
from remat_cli.solvers.base import Request
from remat_cli.solvers.registry import usable_solver
from remat_cli.tolerances import BOUND_MARGIN, SAME_COST
from remat_cli.units import format_bytes, format_cost
from remat_cli.version import __version__

_UNTIMED_S = 60.0
"""Seconds for each different device if there is no time limit. Untuned."""
_SINGLE_SEARCH = ("write_model", "solver_log", "reorder", "start", "host")
"""Options of a single search, which a pipeline has none of."""
_NONE, _FULL, _ALIKE = "nothing", "the whole forward pass of every stage", "everywhere what the fullest device needs"


@dataclass(frozen=True, slots=True, repr=False)
class Pipeline(ShortRepr):
    """A pipeline with a plan for every stage.

    Attributes:
        schedule: The schedule.
        plans: The plan of one microbatch on each stage.
        reports: Their replays.
        timeline: When every pass runs.
        facts: The result, for reports.
    """

    schedule: Schedule
    plans: tuple[Plan, ...]
    reports: tuple[Report, ...]
    timeline: Timeline
    facts: PipelineFacts = field(repr=False)

    @property
    def makespan(self) -> float:
        """The time of a step, in the cost unit of the graphs."""
        return self.timeline.makespan

    @property
    def lower_bound(self) -> float:
        """No choice of plans within the memory takes less time with this schedule."""
        return self.facts.lower_bound

    def _facts(self) -> dict[str, str]:
        unit = self.facts.cost_unit
        return {
            "schedule": self.schedule.name,
            "stages": f"{len(self.plans):,}",
            "microbatches": f"{self.schedule.microbatches:,}",
            "step": format_cost(self.makespan, unit),
            "at least": format_cost(self.lower_bound, unit),
            "search": self.facts.outcome,
        }


def pipeline(
    graphs: Sequence[Graph],
    memory_bytes: Sequence[int],
    *,
    schedule: str,
    microbatches: int,
    transfer: float = 0.0,
    options: SolveOptions | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> Pipeline:
    """Plans for the stages of a pipeline; see :func:`remat_cli.pipeline`."""
    asked = schedule_of(schedule, len(graphs), microbatches)
    options = options or SolveOptions()
    default = SolveOptions()
    for option in fields(options):
        if option.name in _SINGLE_SEARCH and getattr(options, option.name) != getattr(default, option.name):
            raise UsageError(f"{option.name} is an option of one search, and not of a pipeline", hint="leave it out")
    units = {graph.cost_unit for graph in graphs}
    if len(units) > 1:
        raise UsageError(
            f"the stages count costs in different units: {', '.join(sorted(units))}", hint="export all in one way"
        )
    if not (math.isfinite(transfer) and transfer >= 0):
        raise UsageError(f"a transfer time of {transfer:g} is impossible", hint="give a number from 0 on")
    if len(memory_bytes) not in (1, asked.devices):
        raise UsageError(
            f"{len(memory_bytes)} memories for {asked.devices} devices", hint="give one for all, or one for each"
        )
    memory = tuple(memory_bytes) * (asked.devices if len(memory_bytes) == 1 else 1)
    different: list[Graph] = []  # stages with equal graphs share what is found
    for graph in graphs:
        if graph not in different:
            different.append(graph)
    made = [StageGraph.of(graph, split=asked.split) for graph in different]
    stages = tuple(made[different.index(graph)] for graph in graphs)
    limit_s = options.time_limit_s
    work = _Work(asked, stages, memory, transfer, options)
    if limit_s is None:
        limit_s = _UNTIMED_S * len({work.key(d, work.moments[d]) for d in range(asked.devices)})
    control = replace(Control.within(limit_s, started_s=options.started_s), listener=listener)
    with interruptible(control):
        return work.run(control)


def _told(clock: Control, place: str) -> Control:
    """A clock whose listener hears where the search is; costs and bounds are of parts, and say nothing of the whole."""
    listener = clock.listener
    if listener is None:
        return clock
    return replace(clock, listener=lambda news: listener(Progress(f"{place}: {news.activity}", nodes=news.nodes)))


@dataclass(slots=True)
class _Work:
    """The search for a pipeline under way.

    Attributes:
        schedule: The schedule.
        stages: The stages.
        memory: The memory of each device.
        transfer: Time between passes on different devices.
        options: How to solve.
        searches: The search of each different graph.
        moments: Of each device, when it may need most memory.
        found: What was found for devices, by what tells them apart.
    """

    schedule: Schedule
    stages: tuple[StageGraph, ...]
    memory: tuple[int, ...]
    transfer: float
    options: SolveOptions
    searches: dict[int, StageSearch] = field(default_factory=dict)
    moments: list[tuple[Moment, ...]] = field(init=False)
    found: dict[object, tuple[tuple[Candidate, ...] | None, Chosen]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moments = [moments(self.schedule, device) for device in range(self.schedule.devices)]
        for stage in self.stages:
            if id(stage) not in self.searches:
                self.searches[id(stage)] = StageSearch(stage, self.options)

    def key(self, device: int, found: Sequence[Moment]) -> object:
        """What two devices have in common that have the same answer: graphs, memory and moments."""
        number = {stage: k for k, stage in enumerate(self.schedule.stages_of(device))}
        there = frozenset(
            (m.kind, number[m.stage], tuple(((number[s], kind), n) for (s, kind), n in m.waiting)) for m in found
        )
        return tuple(id(self.stages[s]) for s in number), self.memory[device], there

    def device(self, device: int, found: Sequence[Moment]) -> DeviceSearch:
        """The search for a device at these moments."""
        mine = self.schedule.stages_of(device)
        return DeviceSearch(
            stages={s: self.stages[s] for s in mine},
            searches={s: self.searches[id(self.stages[s])] for s in mine},
            moments=found,
            microbatches=self.schedule.microbatches,
            memory_bytes=self.memory[device],
            gap=self.options.gap,
        )

    def chosen(self, device: int, found: Sequence[Moment], clock: Control) -> Chosen:
        """The plans of a device, from an equal one if there is one."""
        key, mine = self.key(device, found), self.schedule.stages_of(device)
        if key not in self.found:
            result = self.device(device, found).run(_told(clock, f"device {device}"))
            plans = None if result.plans is None else tuple(result.plans[s] for s in mine)
            self.found[key] = plans, result
        plans, result = self.found[key]
        return replace(result, plans=None if plans is None else dict(zip(mine, plans, strict=True)))

    def run(self, control: Control) -> Pipeline:
        """Choose for every device, then put together what was found."""
        devices = range(self.schedule.devices)
        alike = self._alike()
        asked = dict.fromkeys(
            [*(self.key(d, self.moments[d]) for d in devices), *(self.key(d, alike[d]) for d in devices)]
        )
        results = []
        for device in devices:
            left = sum(key not in self.found for key in asked) or 1
            result = self.chosen(device, self.moments[device], control.part(1 / left))
            if result.plans is None:
                raise self._refusal(device, result, control)
            results.append(result)
        plans = {stage: plan for result in results for stage, plan in (result.plans or {}).items()}
        bound = self._bound(results, control)
        everywhere = []
        for device in devices:
            left = sum(key not in self.found for key in asked) or 1
            everywhere.append(self.chosen(device, alike[device], control.part(1 / left)).plans)
        return self._put_together(plans, results, bound, everywhere, control)

    def _alike(self) -> list[tuple[Moment, ...]]:
        """For every device the moments of all devices, as if its stages stood in each of their places."""
        alike = []
        for device in range(self.schedule.devices):
            mine, every = self.schedule.stages_of(device), []
            for other, found in enumerate(self.moments):
                stage = dict(zip(self.schedule.stages_of(other), mine, strict=True))
                every += [
                    Moment(m.kind, stage[m.stage], tuple(((stage[s], kind), n) for (s, kind), n in m.waiting))
                    for m in found
                ]
            alike.append(fullest(every))
        return alike

    def _refusal(self, device: int, result: Chosen, control: Control) -> Exception:
        """Why a device has no plans."""
        search = self.device(device, self.moments[device])
        names = ", ".join(str(s) for s in search.stages)
        where = f"device {device} (stage {names})" if len(search.stages) == 1 else f"device {device} (stages {names})"
        memory = format_bytes(self.memory[device])
        without = format_bytes(search.needs({s: keep_all(stage) for s, stage in search.stages.items()}))
        hint = f"{without} is enough without recomputation; fewer microbatches in flight, or smaller ones, need less"
        if math.isinf(result.bound):
            fixed = always_bytes(search.stages, self.schedule.microbatches)
            return Infeasible(
                f"no plans of {where} fit into {memory} with {self._flying(search)}; fixed memory is "
                f"{format_bytes(fixed)}",
                hint=hint,
            )
        if control.cancelled.is_set():
            return Interrupted(f"interrupted before plans of {where} were found")
        return LimitReached(f"no plans of {where} were found that fit into {memory}", hint=MORE_TIME)

    def _flying(self, search: DeviceSearch) -> str:
        most = self.schedule.in_flight()
        flying = ", ".join(str(most[s]) for s in search.stages)
        return f"{flying} microbatches in flight" if flying != "1" else "1 microbatch in flight"

    def _least(self) -> list[Times]:
        """The times of all passes without recomputation."""
        return [self.searches[id(stage)].candidates[0].run.times for stage in self.stages]

    def _bound(self, results: Sequence[Chosen], control: Control) -> float:
        """A lower bound on the makespan, whatever plans are chosen."""
        least, work = self._least(), [result.bound for result in results]
        plain = timeline(self.schedule, least, self.transfer).makespan
        unit = max([plain, *work, self.transfer]) or 1.0
        m = self.schedule.microbatches
        bound = max([plain, *(m * one for one in work)])
        model = makespan_model(self.schedule, least, work, self.transfer, unit)
        try:
            outcome = usable_solver(self.options.solver).solve(
                Request(model, control.part(most_s=_UNTIMED_S), threads=self.options.threads)
            )
        except SolverFailed:
            return bound
        return bound if outcome.bound is None else max(bound, outcome.bound * unit * (1 - BOUND_MARGIN))

    def _put_together(
        self,
        chosen: Mapping[int, Candidate],
        results: Sequence[Chosen],
        bound: float,
        everywhere: Sequence[Mapping[int, Candidate] | None],
        control: Control,
    ) -> Pipeline:
        """The result: plans as documents, replayed, and the report."""
        plans = tuple(self._plan(s, chosen[s]) for s in range(len(self.stages)))
        runs = [run_of(stage, plan.statements) for stage, plan in zip(self.stages, plans, strict=True)]
        reports = tuple(check(plan) for plan in plans)
        needed = self._needed(chosen)
        if not all(report.ok for report in reports) or any(n > m for n, m in zip(needed, self.memory, strict=True)):
            raise AssertionError("a chosen plan does not replay within its budget")
        done = timeline(self.schedule, [run.times for run in runs], self.transfer)
        alike: dict[int, Candidate] | None = {}
        for one in everywhere:
            alike = None if alike is None or one is None else {**alike, **one}
        facts = PipelineFacts(
            schedule=self.schedule.name,
            microbatches=self.schedule.microbatches,
            transfer=self.transfer,
            cost_unit=self.stages[0].graph.cost_unit,
            stages=tuple(
                self._stage_facts(s, plan, run) for s, (plan, run) in enumerate(zip(plans, runs, strict=True))
            ),
            devices=tuple(
                DeviceFacts(
                    memory_bytes=self.memory[d],
                    needed_bytes=needed[d],
                    cost=math.fsum(runs[s].cost for s in self.schedule.stages_of(d)),
                    lower_bound=result.bound,
                    busy=done.busy[d] / done.makespan if done.makespan > 0 else 0.0,
                )
                for d, result in enumerate(results)
            ),
            makespan=done.makespan,
            lower_bound=min(bound, done.makespan),
            bubble=done.bubble,
            others=(
                self._other(_NONE, {s: keep_all(stage) for s, stage in enumerate(self.stages)}),
                self._other(_FULL, {s: recompute_all(stage) for s, stage in enumerate(self.stages)}),
                self._other(_ALIKE, alike),
            ),
            assumptions=self._assumptions(),
            outcome=self._outcome(results, control),
        )
        return Pipeline(self.schedule, plans, reports, done, facts)

    def _stage_facts(self, number: int, plan: Plan, run: StageRun) -> StageFacts:
        stage = self.stages[number]
        return StageFacts(
            stage=number,
            name=stage.graph.name,
            device=self.schedule.device_of[number],
            in_flight=self.schedule.in_flight()[number],
            held_bytes=run.held[0] + stage.input_bytes,
            weights_held_bytes=run.held[1] + stage.input_bytes if self.schedule.split else None,
            peak_bytes=max(run.peaks) + stage.graph.fixed_memory,
            costs=run.costs,
            base_cost=stage.graph.total_cost,
            strategy=plan.strategy,
        )

    def _outcome(self, results: Sequence[Chosen], control: Control) -> str:
        if all(result.exhausted for result in results):
            return Outcome.FINISHED.value
        return control.stopped_by().value if control.stopping() else "a limit of the search for a device"

    def _plan(self, stage: int, candidate: Candidate) -> Plan:
        """The plan of a stage as a document; its claim is what holds without the other microbatches."""
        graph = self.stages[stage].graph
        cost = candidate.run.cost
        optimal = cost <= graph.total_cost * (1 + SAME_COST)
        return Plan(
            graph=graph,
            statements=derive(graph, candidate.computes),
            budget_bytes=max(candidate.run.peaks) + graph.fixed_memory,
            claim=Claim(
                ClaimStatus.OPTIMAL if optimal else ClaimStatus.FEASIBLE,
                cost,
                min(cost, graph.total_cost),
                Scope.ANY_ORDER,
            ),
            strategy=candidate.maker,
            provenance={
                "remat": __version__,
                "pipeline": {
                    "schedule": self.schedule.name,
                    "microbatches": self.schedule.microbatches,
                    "stage": stage,
                    "memory": self.memory[self.schedule.device_of[stage]],
                },
            },
        )

    def _needed(self, plans: Mapping[int, Candidate]) -> tuple[int, ...]:
        """The memory of every device with these plans."""
        return tuple(
            device_bytes(
                self.moments[d],
                {s: self.stages[s] for s in self.schedule.stages_of(d)},
                {s: plans[s].run for s in self.schedule.stages_of(d)},
                self.schedule.microbatches,
            )
            for d in range(self.schedule.devices)
        )

    def _other(self, name: str, plans: Mapping[int, Candidate] | None) -> ChoiceFacts:
        if plans is None:
            return ChoiceFacts(name, None, False, None)
        needed = self._needed(plans)
        done = timeline(self.schedule, [plans[s].run.times for s in range(len(self.stages))], self.transfer)
        return ChoiceFacts(name, needed, all(n <= m for n, m in zip(needed, self.memory, strict=True)), done.makespan)

    def _assumptions(self) -> tuple[str, ...]:
        """What the graphs do not say."""
        assumed = []
        if self.schedule.microbatches > 1 and not all(stage.says_inputs for stage in self.stages):
            assumed.append("fixed memory has no inputs that differ from microbatch to microbatch: it counts once")
        if not any(stage.gradient_bytes for stage in self.stages):
            assumed.append("sums of gradients of parameters are part of the fixed memory")
        assumed.append("devices compute while they send and receive, and buffers for that take no memory")
        if any(stage.offers_parts for stage in self.stages):
            assumed.append("regions that may run in parts run whole")
        if self.schedule.split and Pass.WEIGHTS in self.schedule.kinds:
            assumed.append("gradients of parameters are computed after all other nodes of the backward pass")
        return tuple(assumed)
