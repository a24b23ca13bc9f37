"""Chooses the plans of the stages on one device of a pipeline: the least time within its memory, with a lower bound.

Memory couples what a microbatch holds between its passes with the most that a pass takes (``plan/pipeline_memory``).
For given limits on both, a plan of a stage is a plan of an ordinary graph: its own, with a node between two passes that
needs so much workspace that more than the limit cannot be held there. So all strategies and bounds apply.

A branch and bound divides what is held. A box says that between ``low`` and ``high`` bytes are held at each division.
Its relaxation allows each stage to hold ``high``, and its passes what is left if all others hold only ``low``: no plan
of the box costs less than a bound for that. If the plans that are found for it fit, they are an answer; else the box is
divided where it undercounts most. docs/pipelines.md has the proof.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from remat_cli.control import Control
from remat_cli.errors import SolverFailed
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.passes import StageGraph
from remat_cli.plan.derive import derive, prune
from remat_cli.plan.model import Compute, Scope
from remat_cli.plan.pipeline_memory import Moment, StageRun, always_bytes, device_bytes, run_of
from remat_cli.plan.pipelines import Pass
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.warm_start import WarmStart
from remat_cli.strategies.base import Found, Schedule
from remat_cli.tolerances import SAME_COST

_WIDE = (Scope.ANY_ORDER, Scope.DOCUMENT_ORDER)
"""The scopes of bounds that hold for every plan of a stage."""
_MOST_BOXES = 300
"""Boxes after which the search for a device ends. Untuned."""
_SHARE, _LEAST_S = 0.25, 1.0
"""The share of a device's time left that one solve gets, and the least. Untuned."""
_MOST_COMBINATIONS = 400
"""Combinations of known plans that are tried for every box. Untuned."""
_STARTS = 4
"""Known plans from which a solve starts. Untuned."""
_KINDS = tuple(Pass)

Place = tuple[int, int]
"""A division: the stage, and which of its divisions."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan of a stage.

    Attributes:
        computes: Its nodes in the order in which they run.
        run: What it takes.
        maker: The strategy that made it.
    """

    computes: tuple[int, ...]
    run: StageRun
    maker: str

    @classmethod
    def of(cls, stage: StageGraph, computes: Sequence[int], maker: str) -> Candidate:
        """The plan that computes these nodes."""
        pruned = prune(stage.graph, computes)
        return cls(pruned, run_of(stage, derive(stage.graph, pruned)), maker)


def keep_all(stage: StageGraph) -> Candidate:
    """The plan that recomputes nothing."""
    return Candidate.of(stage, range(len(stage.graph.nodes)), "keep-all")


def recompute_all(stage: StageGraph) -> Candidate:
    """The plan that runs the whole forward pass again before the backward pass."""
    graph, cut = stage.graph, stage.cuts[0]
    again = [k for k in range(cut) if graph.nodes[k].recompute]
    return Candidate.of(stage, [*range(cut), *again, *range(cut, len(graph.nodes))], "recompute-all")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan of a stage may take, without fixed memory: in any pass, and at each division."""

    peak: int
    held: tuple[int, ...]

    def within(self, other: Limits) -> bool:
        """Whether whatever keeps these limits keeps the others, too."""
        return self.peak <= other.peak and all(a <= b for a, b in zip(self.held, other.held, strict=True))

    def allow(self, run: StageRun) -> bool:
        """Whether a plan keeps them."""
        return max(run.peaks) <= self.peak and all(a <= b for a, b in zip(run.held, self.held, strict=True))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The best plan found within limits, if any, and a bound for all plans within them: infinity if there is none."""

    best: Candidate | None
    bound: float


@dataclass(slots=True)
class StageSearch:
    """Plans of one graph, and what is proven of it, for all devices that it is on.

    Attributes:
        stage: The graph.
        options: How to solve.
        candidates: The plans so far.
        proven: Limits, and what no plan within them can cost less than.
        fruitless: Limits for which a search found no plan, so that plans for narrower ones need not be searched for.
    """

    stage: StageGraph
    options: SolveOptions
    candidates: list[Candidate] = field(default_factory=list)
    proven: list[tuple[Limits, float]] = field(default_factory=list)
    fruitless: list[Limits] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.candidates += [keep_all(self.stage), recompute_all(self.stage)]

    def known(self, limits: Limits) -> _Answer:
        """What is known without a search."""
        fitting = [one for one in self.candidates if limits.allow(one.run)]
        best = min(fitting, key=lambda one: one.run.cost, default=None)
        bounds = [cost for wider, cost in self.proven if limits.within(wider)]
        return _Answer(best, max([self.stage.graph.total_cost, *bounds]))

    def solve(self, limits: Limits, clock: Control, gap: float) -> _Answer:
        """The cheapest plan within limits, by a search if what is known does not tell."""
        answer = self.known(limits)
        if math.isinf(answer.bound) or (answer.best is not None and _closed(answer.best.run.cost, answer.bound, gap)):
            return answer
        graph, added = self._limited(limits)
        if peak_bound(graph).bytes > limits.peak + graph.fixed_memory:
            self.proven.append((limits, math.inf))
        elif not clock.stopping():
            self._search(graph, added, limits, clock)
        return self.known(limits)

    def _search(self, graph: Graph, added: Mapping[int, int], limits: Limits, clock: Control) -> None:
        remaining = clock.remaining_s()
        seconds = None if remaining is None else max(_LEAST_S, _SHARE * remaining)
        starts = sorted(self.candidates, key=lambda one: (one.run.cost, one.computes))[:_STARTS]
        near = [self._start(graph, added, one) for one in starts]
        job = Job.of(graph, replace(self.options, time_limit_s=seconds, started_s=None), clock.listener, near)
        job.context.control.cancelled = clock.cancelled
        try:
            answer, _ = job.attempt(job.task(limits.peak + graph.fixed_memory))
        except SolverFailed:
            return  # what was known before stands
        if not isinstance(answer, Found):
            self.fruitless.append(limits)
        if isinstance(answer, Found):
            maker = answer.maker or self.options.strategy
            number = {node: k for k, node in enumerate(sorted(set(range(len(graph.nodes))).difference(added.values())))}
            computes = [number[node] for node in answer.schedule.computes if node in number]
            self.candidates.append(Candidate.of(self.stage, computes, maker))
        bounds = [bound.cost for bound in answer.bounds if bound.scope in _WIDE]
        if not isinstance(answer, Found) and answer.scope in _WIDE:
            bounds.append(math.inf)
        if bounds:
            self.proven.append((limits, max(bounds)))

    def _limited(self, limits: Limits) -> tuple[Graph, dict[int, int]]:
        """The graph with a node at each division that needs what may not be held there, and these nodes by division."""
        graph = self.stage.graph
        taken = {node.id for node in graph.nodes}
        nodes: list[Node] = []
        added: dict[int, int] = {}
        for at in range(len(graph.nodes) + 1):
            for k, (cut, most) in enumerate(zip(self.stage.cuts, limits.held, strict=True)):
                if cut == at and most < limits.peak:
                    name = f"(held {k})"
                    while name in taken:
                        name += "+"
                    added[k] = len(nodes)
                    nodes.append(Node(name, 0.0, (), (), limits.peak - most, recompute=False, phase=Phase.LOSS))
            nodes += graph.nodes[at : at + 1]
        return replace(graph, nodes=tuple(nodes), origin=None), added

    def _start(self, graph: Graph, added: Mapping[int, int], candidate: Candidate) -> WarmStart:
        """A plan as a start for a search on the graph with nodes at its divisions, which run where it is divided."""
        number = [k for k in range(len(graph.nodes)) if k not in added.values()]
        computes: list[int] = []
        for position, statement in enumerate(derive(self.stage.graph, candidate.computes)):
            if isinstance(statement, Compute):
                computes.append(number[statement.node])
            computes += [node for k, node in added.items() if candidate.run.divisions[k] == position]
        found = Found(Schedule(tuple(computes)), exhausted=False, maker="")
        return WarmStart(found, candidate.run.cost, max(candidate.run.peaks) + graph.fixed_memory)


def _closed(cost: float, bound: float, gap: float) -> bool:
    return cost - bound <= max(gap, SAME_COST) * cost


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plans of the stages on a device.

    Attributes:
        plans: The plan of each stage; None if none fit, or none were found.
        bound: No plans of these stages that fit together take less time for a microbatch; infinity if none fit.
        exhausted: Whether the search ended by itself.
    """

    plans: Mapping[int, Candidate] | None
    bound: float
    exhausted: bool


@dataclass(slots=True)
class DeviceSearch:
    """The search for the plans on a device.

    Attributes:
        stages: Its stages by number.
        searches: Their searches, which devices share.
        moments: When the device may need most memory.
        microbatches: Microbatches of a step.
        memory_bytes: The memory of the device.
        gap: The relative gap at which to stop.
    """

    stages: Mapping[int, StageGraph]
    searches: Mapping[int, StageSearch]
    moments: Sequence[Moment]
    microbatches: int
    memory_bytes: int
    gap: float

    def fits(self, plans: Mapping[int, Candidate]) -> bool:
        """Whether plans of all stages fit together."""
        return self.needs(plans) <= self.memory_bytes

    def needs(self, plans: Mapping[int, Candidate]) -> int:
        """The memory of the device with these plans."""
        runs = {stage: plan.run for stage, plan in plans.items()}
        return device_bytes(self.moments, self.stages, runs, self.microbatches)

    def run(self, clock: Control) -> Chosen:
        """Divide boxes until the best plans are proven within the gap, or time is over."""
        top = self.memory_bytes - always_bytes(self.stages, self.microbatches)
        if top < 0:
            return Chosen(None, math.inf, exhausted=True)
        places = [(stage, k) for stage, one in self.stages.items() for k in range(len(one.cuts))]
        heap: list[tuple[float, int, dict[Place, int], dict[Place, int]]] = []
        least = math.fsum(stage.graph.total_cost for stage in self.stages.values())
        heap.append((least, 0, dict.fromkeys(places, 0), dict.fromkeys(places, top)))
        best = self._better(None, None)  # what needs no search is there even if there is no time
        ended, made = math.inf, 1  # the least bound of boxes that cannot be divided
        while heap and made < _MOST_BOXES and not clock.stopping():
            inherited, _, low, high = heapq.heappop(heap)
            if best is not None and _closed(_cost(best), inherited, self.gap):
                heapq.heappush(heap, (inherited, made, low, high))
                break
            bound, plans = self._relaxed(low, high, clock)
            bound = max(bound, inherited)
            if math.isinf(bound) or (best is not None and _closed(_cost(best), bound, self.gap)):
                ended = min(ended, bound)
                continue
            best = self._better(best, plans)
            if plans is not None and self.fits(plans) and _closed(_cost(plans), bound, self.gap):
                ended = min(ended, bound)
                continue
            parts = self._divided(low, high, plans)
            best = self._better(best, self._safe(parts[0][1] if parts else high, clock))
            if not parts:
                ended = min(ended, bound)
            for box in parts:
                heapq.heappush(heap, (bound, made, *box))
                made += 1
        bound = min([ended, *(entry[0] for entry in heap)])
        exhausted = best is not None and _closed(_cost(best), bound, self.gap)
        return Chosen(best, min(bound, _cost(best)) if best is not None else bound, exhausted or math.isinf(bound))

    def _better(
        self, best: Mapping[int, Candidate] | None, plans: Mapping[int, Candidate] | None
    ) -> Mapping[int, Candidate] | None:
        """The best of the best so far, ``plans``, and all combinations of cheap plans of the stages that fit."""
        tried = [] if plans is None else [plans]
        each = max(1, int(_MOST_COMBINATIONS ** (1 / len(self.searches))))
        cheap = [sorted(one.candidates, key=lambda plan: plan.run.cost)[:each] for one in self.searches.values()]
        tried += [dict(zip(self.searches, several, strict=True)) for several in product(*cheap)]
        below = math.inf if best is None else _cost(best)
        fitting = [one for one in tried if _cost(one) < below and self.fits(one)]
        return min(fitting, key=_cost, default=best)

    def _rooms(self, held: Mapping[Place, int], stage: int) -> dict[Pass, int]:
        """What each pass of a stage may take, without fixed memory, if so much is held at the divisions."""
        rooms: dict[Pass, int] = {}
        free = self.memory_bytes - always_bytes(self.stages, self.microbatches) - self.stages[stage].input_bytes
        for moment in self.moments:
            if moment.stage == stage:
                waiting = sum(
                    count * (held[where, _KINDS.index(kind)] + self.stages[where].input_bytes)
                    for (where, kind), count in moment.waiting
                )
                rooms[moment.kind] = min(rooms.get(moment.kind, free), free - waiting)
        return rooms

    def _relaxed(
        self, low: Mapping[Place, int], high: Mapping[Place, int], clock: Control
    ) -> tuple[float, Mapping[int, Candidate] | None]:
        """A bound for a box, and plans of its relaxation, which need not fit."""
        answers = {}
        for stage, search in self.searches.items():
            peak = max(self._rooms(low, stage).values())
            answers[stage] = search.solve(self._limits(stage, peak, high), clock, self.gap)
            if math.isinf(answers[stage].bound):
                return math.inf, None
        plans = {stage: answer.best for stage, answer in answers.items() if answer.best is not None}
        return math.fsum(a.bound for a in answers.values()), plans if len(plans) == len(answers) else None

    def _safe(self, held: Mapping[Place, int], clock: Control) -> Mapping[int, Candidate] | None:
        """Plans that fit together because none holds more than ``held``; None if there are none."""
        plans = {}
        for stage, search in self.searches.items():
            bounds = [0, *self.stages[stage].cuts, len(self.stages[stage].graph.nodes)]
            rooms = self._rooms(held, stage).items()
            # What passes without nodes of their own take is seen when the plans are tried.
            peak = min(room for kind, room in rooms if len(set(bounds[_KINDS.index(kind) :][:2])) > 1)
            limits = self._limits(stage, peak, held)
            if peak < 0 or any(limits.within(wider) for wider in search.fruitless):
                return None
            answer = search.solve(limits, clock, self.gap)
            if answer.best is None:
                return None
            plans[stage] = answer.best
        return plans

    def _limits(self, stage: int, peak: int, held: Mapping[Place, int]) -> Limits:
        return Limits(peak, tuple(min(peak, held[stage, k]) for k in range(len(self.stages[stage].cuts))))

    def _divided(
        self, low: Mapping[Place, int], high: Mapping[Place, int], plans: Mapping[int, Candidate] | None
    ) -> list[tuple[dict[Place, int], dict[Place, int]]]:
        """The box as two, divided where its relaxation, of which these are plans, counts too little; or none."""
        counts: dict[Place, int] = {}
        for moment in self.moments:
            for (where, kind), count in moment.waiting:
                place = where, _KINDS.index(kind)
                counts[place] = max(count, counts.get(place, 0))

        def held(place: Place) -> int:
            """What the plans hold; without plans, half of the box."""
            if plans is None:
                return (low[place] + high[place] + 1) // 2
            return min(plans[place[0]].run.held[place[1]], high[place])

        missed = {place: count * (held(place) - low[place]) for place, count in counts.items()}
        if max(missed.values(), default=0) <= 0:
            return []
        place = max(missed, key=missed.__getitem__)
        over = 0 if plans is None else max(0, self.needs(plans) - self.memory_bytes)
        at = held(place) - max(1, over // (2 * counts[place]))
        at = max(low[place], min(at, high[place] - 1))
        return [(dict(low), {**high, place: at}), ({**low, place: at + 1}, dict(high))]


def _cost(plans: Mapping[int, Candidate]) -> float:
    return math.fsum(plan.run.cost for plan in plans.values())
