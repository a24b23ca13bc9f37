"""Whether a training step fits into a memory: without recomputation, with every block recomputed, by the best plan.

The step's graph gets all that is in memory besides: the state of the optimizer, and parameters that the step does not
read. The memory of a choice is the larger of two peaks, as a caching allocator takes it from the device: that of the
forward and backward pass by its plan; and that of the optimizer's step, when gradients and temporary tensors are in
memory and results of layers are not. What is taken outside of the framework (the context of the device) comes on top.

If the step does not fit without recomputation, there are two best plans: that of whole operations, and that in which
regions may run in parts, where the step has such regions.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from remat_cli.control import Progress
from remat_cli.errors import Infeasible, LimitReached, StrategyMismatch
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.memory_parts import Part, parts_of_values
from remat_cli.graph.model import Graph
from remat_cli.graph.splitting import least_in_parts
from remat_cli.plan.model import Compute, Plan, Scope, Statement
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solved import Solved
from remat_cli.planning.solving import solve
from remat_cli.planning.splitting import cheapest_split
from remat_cli.reports.fits import Largest
from remat_cli.units import format_bytes

Reserved = Callable[[Graph, Sequence[Statement], int], int]
"""The bytes that the framework's allocator takes from the device for a loop of training steps by a plan, with so many
temporary bytes of the optimizer after each."""
TIME_LIMIT_S = 60.0
"""Seconds for both searches together that callers give if nothing is asked for."""
_BEST_SHARE, _IN_PARTS_SHARE = 0.6, 0.4
"""Share of the time for the best plan within the memory, and the share of that for regions in parts, if there are any;
the rest is for the least memory. Untuned."""
_TIGHTENINGS = 8
"""Most searches for the best plan, each within what the last one left after the gaps of the allocator. One suffices for
large models; gaps of small ones, in segments of 20 MiB, change with every plan."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a training step needs.

    Attributes:
        graph: The graph of its forward and backward pass.
        fixed: Bytes in memory all the time, by what they are; those of the graph's fixed memory among them.
        context_bytes: Bytes that are taken outside of the framework.
        update_bytes: Temporary bytes of the optimizer's step.
        reserved: What the allocator takes; None where it takes what values need.
        eager: The graph of the step without a plan, as the framework runs it operator by operator; None if it is not
            known, and taken to be ``graph`` with every node computed once.
        with_regions: Adds the regions that may run in parts to the graph; None if they are there, or none are known.
    """

    graph: Graph
    fixed: Mapping[str, int]
    context_bytes: int = 0
    update_bytes: int = 0
    reserved: Reserved | None = None
    eager: Graph | None = None
    with_regions: Callable[[Graph], Graph] | None = None

    def __post_init__(self) -> None:
        """Give the graphs everything that is in memory all the time."""
        whole = sum(self.fixed.values())
        for name, graph in (("graph", self.graph), ("eager", self.eager)):
            if graph is not None and whole != graph.fixed_memory:
                object.__setattr__(self, name, replace(graph, fixed_memory=whole))

    def offering(self, room: int) -> Graph | None:
        """The graph with regions that may run in parts; None if it has none, or needs ``room`` before anything runs."""
        if self.graph.fixed_memory >= room:
            return None
        graph = self.graph if self.with_regions is None else self.with_regions(self.graph)
        return graph if graph.splits else None


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to train.

    Attributes:
        name: What is recomputed.
        solved: Its plan, replayed.
        parts: Bytes at the peak by what they are, without the context.
        total_bytes: What it takes from the device, the context included.
        in_update: Whether the optimizer's step takes the most.
    """

    name: str
    solved: Solved
    parts: Mapping[str, int]
    total_bytes: int
    in_update: bool

    @property
    def plan(self) -> Plan:
        """Its plan."""
        return self.solved.plan

    @property
    def overhead(self) -> float:
        """Its cost over that of computing every node once, as a share."""
        base = self.plan.graph.whole.no_remat_cost
        return self.solved.report.replay.time / base - 1 if base > 0 else 0.0


GAPS = "gaps and libraries"
"""What the allocator takes from the device beyond tensors: gaps between them, and the workspace of cuBLAS."""
UPDATE = "temporary tensors of the optimizer"
WITHIN = "within regions in parts"
"""What is in memory for one part of the region that runs at the peak, and sums over the parts."""
WITHOUT, BLOCKS, BEST, LEAST = "no recomputation", "every block", "best plan", "least memory"
AGAIN = "parameters gathered again"
"""In the backward pass, as FSDP does with ``reshard_after_forward``; nothing else is recomputed."""
_USUAL = ((WITHOUT, "keep-all"), (BLOCKS, "every-n-layers{n=1}"))
_USUAL_GATHERING = (
    (WITHOUT, "fsdp{reshard=false}"),
    (AGAIN, "fsdp"),
    (BLOCKS, "fsdp{checkpoint=true}"),
)
"""What is done where nodes gather parameters."""
IN_PARTS = "best plan in parts"


@dataclass(frozen=True, slots=True)
class Fits:
    """Whether a training step fits, and how.

    Attributes:
        memory_bytes: The memory.
        need: What the step needs.
        choices: Ways to train, those that were found.
        missing: Why there is no choice of a name, by name.
        least_bytes: No plan in ``scope``, of whole operations, takes less from the device.
        scope: The plans for which that is proven.
        least_in_parts_bytes: No plan takes less, with any region in any number of parts; None if no regions are known.
        largest: The largest batch and the longest sequences, by what grows, if asked for.
        wall_s: Seconds of the search.
    """

    memory_bytes: int
    need: Need
    choices: tuple[Choice, ...]
    missing: Mapping[str, str]
    least_bytes: int
    scope: Scope
    least_in_parts_bytes: int | None = None
    largest: Mapping[str, Largest] = field(default_factory=dict)
    wall_s: float = field(default=0.0, compare=False)

    def choice(self, name: str) -> Choice | None:
        """The way to train of that name, if it was found."""
        return next((choice for choice in self.choices if choice.name == name), None)

    @property
    def chosen(self) -> Choice | None:
        """The cheapest way to train that fits; None if none was found."""
        fitting = [choice for choice in self.choices if choice.total_bytes <= self.memory_bytes]
        return min(fitting, key=lambda choice: choice.overhead, default=None)

    @property
    def impossible(self) -> bool:
        """Whether it is proven that no plan in ``scope`` fits, nor one with regions in parts."""
        return min(self.least_bytes, self.least_in_parts_bytes or self.least_bytes) > self.memory_bytes


def fits(
    need: Need,
    memory_bytes: int,
    options: SolveOptions,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> Fits:
    """Whether a step fits into a memory without recomputation, with that of every block, or with a plan.

    Args:
        need: What the step needs.
        memory_bytes: The memory of the device.
        options: How to solve; the time limit is for all searches together.
        listener: Receives the progress, from any thread.

    Raises:
        Interrupted: If the search is interrupted before there is any answer.
        SolverUnavailable, SolverFailed: From the solver.
    """
    began_s = time.monotonic()
    room = memory_bytes - need.context_bytes
    whole = replace(options, split=False)
    choices, missing = [], {}
    gathering = any(map(need.graph.moves_freely, range(len(need.graph.nodes))))
    for name, strategy in _USUAL_GATHERING if gathering else _USUAL:
        try:
            choices.append(usual(need, name, strategy, whole))
        except StrategyMismatch as error:
            missing[name] = error.message
    offering = None
    if update_bytes(need) > room:
        short = format_bytes(update_bytes(need) - room)
        missing[BEST] = f"no plan fits, since the optimizer's step alone takes {short} too much"
    elif choices[0].total_bytes > memory_bytes:
        offering = need.offering(room)
        found, refused = _best_plans(need, offering, choices, memory_bytes, options, listener)
        choices += found
        missing |= refused
    smallest = solve_smallest(need.graph, _within(whole, 1 - _BEST_SHARE), listener=listener)
    least = choice_of(LEAST, need, smallest)
    if least.total_bytes < min(choice.total_bytes for choice in choices):  # gaps may turn the order around
        choices.append(least)
    claim = smallest.plan.claim.peak
    assert claim is not None  # every search for the least peak has one
    floors = [claim.lower_bound_bytes] + ([] if offering is None else [peak_bound(least_in_parts(offering)).bytes])
    # Eager mode runs no plan.
    floors = [min(max(floor, update_bytes(need)) + need.context_bytes, choices[0].total_bytes) for floor in floors]
    least_bytes, *in_parts = floors
    return Fits(
        memory_bytes,
        need,
        tuple(choices),
        missing,
        least_bytes,
        claim.scope,
        next(iter(in_parts), None),
        wall_s=time.monotonic() - began_s,
    )


def _best_plans(
    need: Need,
    offering: Graph | None,
    usual: Sequence[Choice],
    memory_bytes: int,
    options: SolveOptions,
    listener: Callable[[Progress], None] | None,
) -> tuple[list[Choice], dict[str, str]]:
    """The best plan of whole operations, and the best one in parts if ``offering`` has regions; and why one is missing.

    ``usual`` are the ways to train that need no search.
    """
    room, choices, missing = memory_bytes - need.context_bytes, list[Choice](), dict[str, str]()
    share = _BEST_SHARE * (1 if offering is None else 1 - _IN_PARTS_SHARE)
    best: Solved | Infeasible | LimitReached
    try:
        fitting = [choice for choice in usual if choice.total_bytes <= memory_bytes]
        start = min(fitting or usual[-1:], key=lambda choice: choice.overhead).plan  # the best costs no more
        whole = replace(_within(options, share), start=start, split=False)
        choices.append(best_within(need, room, whole, listener))
        best = choices[-1].solved
    except (Infeasible, LimitReached) as error:
        missing[BEST], best = error.message, error
    if offering is not None:
        try:
            found = _in_parts(need, offering, room, _within(options, _BEST_SHARE - share), best, listener)
        except (Infeasible, LimitReached) as error:
            missing[IN_PARTS] = error.message
        else:
            choices += [found] if found is not None else []
    return choices, missing


def _in_parts(
    need: Need,
    offering: Graph,
    room: int,
    options: SolveOptions,
    best: Solved | Infeasible | LimitReached,
    listener: Callable[[Progress], None] | None,
) -> Choice | None:
    """The cheapest plan with regions in parts within ``room``; None if that of whole operations, ``best``, is cheaper.

    Raises:
        Infeasible, LimitReached: If none was found.
    """

    def solve_one(graph: Graph, how: SolveOptions) -> Solved:
        if graph is not offering:
            return solve(graph, room, how, listener=listener)
        if isinstance(best, Solved):
            return best
        raise best

    solved = cheapest_split(offering, replace(options, start=None), solve_one)
    if solved.plan.graph.origin is None:
        return None
    choice = choice_of(IN_PARTS, need, solved)
    if choice.total_bytes - need.context_bytes <= room:
        return choice
    # With the gaps of the allocator it is too much: less for the same parts.
    chosen, left = replace(need, graph=solved.plan.graph), replace(options, start=solved.plan)
    return best_within(chosen, room, left, listener, IN_PARTS)


def _within(options: SolveOptions, share: float) -> SolveOptions:
    if options.time_limit_s is None:
        return options
    return replace(options, time_limit_s=options.time_limit_s * share, started_s=None)


def usual(need: Need, name: str, strategy: str, options: SolveOptions) -> Choice:
    """A way to train by a strategy that does not search. Without recomputation it is eager mode, if that is known.

    Raises:
        StrategyMismatch: If the strategy is not for the step.
    """
    asked = replace(options, strategy=strategy, start=None)
    choice = choice_of(name, need, solve(need.graph, None, asked))
    if name != WITHOUT or need.eager is None:
        return choice
    return replace(choice_of(name, need, solve(need.eager, None, asked)), solved=choice.solved)


def best_within(
    need: Need,
    room: int,
    options: SolveOptions,
    listener: Callable[[Progress], None] | None,
    name: str = BEST,
) -> Choice:
    """The cheapest plan whose memory, with the gaps of the allocator, is within ``room``.

    Raises:
        Infeasible, LimitReached: If none was found.
    """
    budget = room
    began_s = time.monotonic()
    for _ in range(_TIGHTENINGS):
        left = options
        if options.time_limit_s is not None:
            left = replace(options, time_limit_s=max(1.0, options.time_limit_s - (time.monotonic() - began_s)))
        choice = choice_of(name, need, solve(need.graph, budget, left, listener=listener))
        over = choice.total_bytes - need.context_bytes - room
        if over <= 0:
            return choice
        budget -= over
        if budget <= 0:
            break
    raise LimitReached("the plans that were found fit, but not with the gaps that the allocator leaves between tensors")


def choice_of(name: str, need: Need, solved: Solved) -> Choice:
    """A way to train by a plan, with what it takes from the device."""
    replay = solved.report.replay
    graph = solved.plan.graph
    parts = dict(need.fixed)
    for part in Part:
        parts.setdefault(part.value, 0)
    parts_by_value = parts_of_values(graph)
    for value, size in replay.residents:
        parts[parts_by_value[value].value] += size
    parts[_working(solved)] = replay.workspace_bytes
    update = update_bytes(need)
    in_update = update > replay.peak_bytes
    if in_update:
        parts = dict(need.fixed) | {UPDATE: need.update_bytes}
        gradients = update - graph.fixed_memory - need.update_bytes
        parts[Part.GRADIENTS.value] = parts.get(Part.GRADIENTS.value, 0) + gradients
    taken = tensors = max(update, replay.peak_bytes)
    if need.reserved is not None:
        taken = max(tensors, need.reserved(graph, solved.plan.statements, need.update_bytes))
    parts[GAPS] = taken - tensors
    shown = {name: size for name, size in parts.items() if size}
    return Choice(name, solved, shown, taken + need.context_bytes, in_update)


def _working(solved: Solved) -> str:
    """What the workspace at the peak is for: a region in parts, or a kernel."""
    plan, at = solved.plan, solved.report.replay.peak_statement
    now = None if at is None else plan.statements[at]
    in_parts = {one.id for region in plan.graph.whole.splits for one in region.operations}
    inside = isinstance(now, Compute) and plan.graph.nodes[now.node].id in in_parts
    return WITHIN if inside else Part.WORKSPACE.value


def update_bytes(need: Need) -> int:
    """What is in memory during the optimizer's step: all that stays, the outputs of the step, temporary tensors."""
    return need.graph.fixed_memory + sum(need.graph.size[v] for v in need.graph.outputs) + need.update_bytes
