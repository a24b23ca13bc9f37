"""The retention-interval model of Moccasin in a formulation of its own, and its solution by CP-SAT.

Stage k runs some of the nodes 0 .. k-1 in document order and then node k for the first time, so the instance of node o
in stage k can only run at the event ``k(k+1)/2 + o``. The variables are the start of every instance of a node and, for
every value, the time at which that instance of it is dropped: O(C V) of them for C instances per node, and no matrix
of stages times nodes. One cumulative constraint is the whole memory model.

Imported only in the process of ``worker``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortools.sat.python import cp_model

from remat_cli.graph.model import Graph
from remat_cli.strategies.published.model_size import event, instance_counts, last_stages

_EXACT_COST = 2**40
"""Largest total cost, in units of the gcd, that the objective holds exactly."""
_COST_PARTS = 2**30
"""Parts of C0 in which costs are counted otherwise: rounded down, so that the objective never says too much."""


@dataclass(frozen=True, slots=True)
class CostScale:
    """Costs as the integers that CP-SAT needs.

    Attributes:
        unit: Cost of one.
        weights: Cost of every node in that unit; rounded down if not exact. int[n].
        exact: Whether nothing was rounded.
    """

    unit: float
    weights: tuple[int, ...]
    exact: bool

    @classmethod
    def of(cls, graph: Graph) -> CostScale:
        """Exact where costs are integral and not huge."""
        costs = [node.cost for node in graph.nodes]
        total = graph.total_cost
        if total == 0:
            return cls(1.0, (0,) * len(costs), exact=True)
        if all(float(cost).is_integer() for cost in costs):
            step = math.gcd(*(int(cost) for cost in costs))
            if total / step <= _EXACT_COST:
                return cls(float(step), tuple(int(cost) // step for cost in costs), exact=True)
        return cls(total / _COST_PARTS, tuple(int(cost / total * _COST_PARTS) for cost in costs), exact=False)


Literal = Any
Time = Any
"""An integer variable, or a constant."""


@dataclass(slots=True)
class IntervalModel:
    """The model, with all that is needed to give it a start and to decode its solutions.

    Attributes:
        graph: The graph.
        unit_bytes: Bytes of one unit of memory: the gcd of all sizes.
        room: Units that the budget leaves beside the fixed memory.
        scale: Costs as integers.
        model: The model, without an objective as it is built.
        top: Units of memory that the schedule may use: a variable of at least ``room``.
        start: [node][instance], when the instance runs.
        present: [node][instance], whether there is such an instance.
        end: {(value, instance): when it is dropped}; values without bytes have none.
        length: {(value, instance): length of its interval}, for instances that may start at several times.
        serves: {(value, instance, reader, its instance): whether the one reads the other}.
    """

    graph: Graph
    unit_bytes: int
    room: int
    scale: CostScale
    model: Any
    top: Any
    start: list[list[Time]] = field(default_factory=list)
    present: list[list[Literal]] = field(default_factory=list)
    end: dict[tuple[int, int], Any] = field(default_factory=dict)
    length: dict[tuple[int, int], Any] = field(default_factory=dict)
    serves: dict[tuple[int, int, int, int], Literal] = field(default_factory=dict)

    @classmethod
    def build(cls, graph: Graph, budget_bytes: int, peak_bytes: int, most: int) -> IntervalModel:
        """State everything but the objective.

        Args:
            graph: The graph.
            budget_bytes: Fixed memory included; at least the fixed memory.
            peak_bytes: Peak of a schedule that the model must admit, fixed memory included.
            most: Most instances of a node.
        """
        sizes = [*graph.size, *(node.workspace for node in graph.nodes)]
        unit = math.gcd(*sizes) or 1
        room = (budget_bytes - graph.fixed_memory) // unit
        model = cp_model.CpModel()
        top = model.new_int_var(room, max(room, (peak_bytes - graph.fixed_memory) // unit), "top")
        built = cls(graph, unit, room, CostScale.of(graph), model, top)
        built._add_instances(instance_counts(graph, most))
        built._add_memory()
        built._add_reads()
        return built

    @property
    def closing(self) -> int:
        """The event after everything, at which the graph outputs are read."""
        return event(len(self.graph.nodes), len(self.graph.nodes))

    def _add_instances(self, counts: list[int]) -> None:
        """Starts and presences: the first instance is where its stage ends, later ones follow in later stages."""
        model = self.model
        for o, last in enumerate(last_stages(self.graph)):
            starts: list[Time] = [event(o, o)]
            present: list[Literal] = [model.new_constant(1)]
            for i in range(1, counts[o]):
                times = cp_model.Domain.from_values([event(o, k) for k in range(o + i, last + 1)])
                starts.append(model.new_int_var_from_domain(times, f"start_{o}_{i}"))
                present.append(model.new_bool_var(f"present_{o}_{i}"))
                if i > 1:
                    model.add_implication(present[i], present[i - 1])
                    model.add(starts[i] > starts[i - 1]).only_enforce_if(present[i])
            self.start.append(starts)
            self.present.append(present)

    def _add_memory(self) -> None:
        """An interval for every instance of a value with bytes and for every workspace, all under one ceiling."""
        graph, model = self.graph, self.model
        intervals, demands = [], []
        for o, node in enumerate(graph.nodes):
            for i, (start, present) in enumerate(zip(self.start[o], self.present[o], strict=True)):
                for v in graph.values_of(o):
                    if graph.size[v]:
                        intervals.append(self._interval(v, i, start, present))
                        demands.append(graph.size[v] // self.unit_bytes)
                if node.workspace:
                    intervals.append(model.new_optional_fixed_size_interval_var(start, 1, present, f"work_{o}_{i}"))
                    demands.append(node.workspace // self.unit_bytes)
        model.add_cumulative(intervals, demands, self.top)

    def _interval(self, v: int, i: int, start: Time, present: Literal) -> Any:
        """The interval in which instance ``i`` of value ``v`` is resident; it ends before the next one starts."""
        model, name = self.model, f"{v}_{i}"
        earliest = event(self.graph.producer[v], self.graph.producer[v] + i)
        end = self.end[v, i] = model.new_int_var(earliest + 1, self.closing + 1, f"end_{name}")
        if i == 0:
            return model.new_interval_var(start, end - start, end, f"value_{name}")
        length = self.length[v, i] = model.new_int_var(1, self.closing + 1 - earliest, f"length_{name}")
        model.add(self.end[v, i - 1] <= start).only_enforce_if(present)
        return model.new_optional_interval_var(start, length, end, present, f"value_{name}")

    def _add_reads(self) -> None:
        """Every instance finds its inputs; the graph outputs are resident at the end."""
        graph, n = self.graph, len(self.graph.nodes)
        for j, node in enumerate(graph.nodes):
            for jj, (start, present) in enumerate(zip(self.start[j], self.present[j], strict=True)):
                for v in node.inputs:
                    self._add_read(v, (j, jj), start, present)
        for v in graph.outputs:
            self._add_read(v, (n, 0), self.closing, self.model.new_constant(1))

    def _add_read(self, v: int, reader: tuple[int, int], time: Time, present: Literal) -> None:
        """Some instance of ``v`` is resident while ``reader`` runs at ``time``, if it does.

        Values without bytes may stay for ever at no cost, and are made before anything reads them: no constraint.
        """
        if not self.graph.size[v]:
            return
        model, u = self.model, self.graph.producer[v]
        starts = self.start[u]
        if len(starts) == 1:
            model.add(self.end[v, 0] >= time + 1).only_enforce_if(present)
            return
        choices = []
        for i, start in enumerate(starts):
            serves = model.new_bool_var(f"serves_{v}_{i}_{reader[0]}_{reader[1]}")
            self.serves[(v, i, *reader)] = serves
            choices.append(serves)
            model.add(self.end[v, i] >= time + 1).only_enforce_if(serves)
            if i > 0:
                model.add_implication(serves, self.present[u][i])
                model.add(start + 1 <= time).only_enforce_if(serves)
        model.add_bool_or(choices).only_enforce_if(present)

    def lower_peak(self) -> None:
        """Make the peak the objective."""
        self.model.clear_objective()
        self.model.minimize(self.top)

    def lower_cost(self) -> None:
        """State the budget, and make the cost of recomputation the objective, in units of ``scale``."""
        self.model.clear_objective()
        self.model.add(self.top == self.room)
        extra = [
            weight * present
            for weight, instances in zip(self.scale.weights, self.present, strict=True)
            for present in instances[1:]
        ]
        self.model.minimize(sum(extra))

    def computes(self, value: Callable[[Any], int]) -> tuple[int, ...]:
        """The sequence of a solution; ``value`` gives the value of a variable."""
        found: list[tuple[int, int]] = []
        for o, (starts, present) in enumerate(zip(self.start, self.present, strict=True)):
            found.append((starts[0], o))
            found.extend((value(s), o) for s, p in zip(starts[1:], present[1:], strict=True) if value(p))
        return tuple(o for _, o in sorted(found))

    def holds(self, computes: Sequence[int]) -> bool:
        """Whether ``computes`` is a schedule of the model, apart from its peak."""
        return all(
            len(found) <= len(starts) and len(set(found)) == len(found)
            for found, starts in zip(self._stages(computes), self.start, strict=True)
        ) and _advances(computes)

    def forget_hint(self) -> None:
        """Remove the start."""
        self.model.clear_hints()

    def hint(self, computes: Sequence[int], peak_bytes: int) -> None:
        """Start from ``computes``, a schedule that the model holds; ``peak_bytes`` counts the fixed memory."""
        model = self.model
        model.add_hint(self.top, max(self.room, (peak_bytes - self.graph.fixed_memory) // self.unit_bytes))
        ends, served = self._lifetimes(computes)
        for o, (stages, starts) in enumerate(zip(self._stages(computes), self.start, strict=True)):
            for i, start in enumerate(starts):
                time = event(o, stages[i] if i < len(stages) else o + i)
                if i > 0:
                    model.add_hint(start, time)
                    model.add_hint(self.present[o][i], i < len(stages))
                for v in self.graph.values_of(o):
                    if (v, i) in self.end:
                        end = ends.get((v, i), time + 1)
                        model.add_hint(self.end[v, i], end)
                        if (v, i) in self.length:
                            model.add_hint(self.length[v, i], end - time)
        for key, literal in self.serves.items():
            model.add_hint(literal, key in served)

    def _stages(self, computes: Sequence[int]) -> list[list[int]]:
        """The stages in which each node is computed, ascending."""
        stages: list[list[int]] = [[] for _ in self.graph.nodes]
        stage = 0
        for o in computes:
            stages[o].append(stage)
            stage += o == stage
        return stages

    def _lifetimes(self, computes: Sequence[int]) -> tuple[dict[tuple[int, int], int], set[tuple[int, int, int, int]]]:
        """When each instance of a value is dropped, and which reads it serves (see ``serves``)."""
        graph, n = self.graph, len(self.graph.nodes)
        ends: dict[tuple[int, int], int] = {}
        served: set[tuple[int, int, int, int]] = set()
        count = [0] * n
        stage = 0
        for j in [*computes, n]:
            time = event(j, stage)
            instance = count[j] if j < n else 0
            for v in graph.nodes[j].inputs if j < n else graph.outputs:
                i = count[graph.producer[v]] - 1
                ends[v, i] = time + 1
                served.add((v, i, j, instance))
            if j < n:
                for v in graph.values_of(j):
                    ends[v, instance] = time + 1
                count[j] += 1
                stage += j == stage
        return ends, served


def _advances(computes: Sequence[int]) -> bool:
    """Whether first computations come in document order and the nodes of every stage too."""
    stage, previous = 0, -1
    for o in computes:
        if o > stage or o <= previous:
            return False
        previous = o
        if o == stage:
            stage, previous = stage + 1, -1
    return True


_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and parameters of a solve.

    Attributes:
        deadline_s: Point of ``time.time()`` at which to stop; None for no limit.
        threads: None for CP-SAT's own choice.
        seed: Random seed.
        gap: Absolute gap between objective and bound at which to stop.
    """

    deadline_s: float | None
    threads: int | None
    seed: int
    gap: float


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks of a solve.

    Attributes:
        on_solution: Gets every improving solution, as a function from variables to their values.
        on_bound: Gets every better lower bound on the objective.
        on_log: Gets the lines of the log; None for no log.
        enough: Whether to stop; called regularly from another thread.
    """

    on_solution: Callable[[Callable[[Any], int]], None]
    on_bound: Callable[[float], None]
    on_log: Callable[[str], None] | None
    enough: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class End:
    """The result of a solve.

    Attributes:
        infeasible: Proven: there is no solution.
        bound: Lower bound on the objective; minus infinity if nothing is known, infinity if there is no solution.
    """

    infeasible: bool
    bound: float


def minimise(model: Any, limits: Limits, listener: Listener) -> End:
    """Solve ``model`` until it is solved, the listener has enough, or the time is up.

    Raises:
        ValueError: If CP-SAT rejects the model.
    """
    solver = cp_model.CpSolver()
    _set_up(solver, limits)
    relay = _Relay(listener)
    solver.parameters.log_search_progress = listener.on_log is not None
    solver.log_callback = lambda line: relay.pass_on(lambda: listener.on_log and listener.on_log(line))
    solver.best_bound_callback = relay.bound
    ended = threading.Event()
    threading.Thread(target=_watch, args=(solver, relay, ended), name="remat-cpsat", daemon=True).start()
    try:
        status = solver.solve(model, relay)
    finally:
        ended.set()
    if relay.error is not None:
        raise relay.error
    if status == cp_model.MODEL_INVALID:
        raise ValueError(model.validate().strip() or "the model is invalid")
    if status == cp_model.INFEASIBLE:
        return End(infeasible=True, bound=math.inf)
    bound = solver.best_objective_bound if status == cp_model.OPTIMAL else relay.best_bound
    return End(infeasible=False, bound=bound)


def _set_up(solver: Any, limits: Limits) -> None:
    parameters = solver.parameters
    if limits.deadline_s is not None:
        parameters.max_time_in_seconds = max(0.0, limits.deadline_s - time.time())
    if limits.threads is not None:
        parameters.num_workers = limits.threads
    parameters.random_seed = limits.seed % 2**31
    parameters.absolute_gap_limit = limits.gap
    parameters.catch_sigint_signal = False  # the signal ends the process: all that was found has been told
    parameters.log_to_stdout = False


def _watch(solver: Any, relay: _Relay, ended: threading.Event) -> None:
    """Stop the solver once the listener wants no more, or a callback has failed."""
    while not ended.wait(_POLL_S):
        if relay.error is not None or relay.listener.enough():
            solver.stop_search()  # does nothing before the search has begun, so say it until it ends


class _Relay(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # mypy does not follow ortools
    """Calls the listener; an exception is kept for later, because none may pass through the solver's C++."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener
        self.error: BaseException | None = None
        self.best_bound = -math.inf

    def on_solution_callback(self) -> None:
        """Called by CP-SAT with every improving solution."""
        self.pass_on(lambda: self.listener.on_solution(self.value))

    def bound(self, bound: float) -> None:
        """Called by CP-SAT with every better bound."""
        self.best_bound = max(self.best_bound, bound)
        self.pass_on(lambda: self.listener.on_bound(bound))

    def pass_on(self, news: Callable[[], object]) -> None:
        """Call ``news``, and keep the exception that it raises."""
        try:
            news()
        except BaseException as error:  # raised again in the thread that called the solver
            self.error = error
