"""The budget of a module that graph breaks divide: what other parts hold counts for each part.

The forward passes of the parts run one after another, then the backward passes in the reverse order. So while part 2
runs forward and backward, part 1 stands between its two halves, and holds what its backward pass needs. In the graph of
part 1 this is the node of the tangents: all later parts run there. Their memory is its workspace. What the parts before
hold, and the gradients that later parts have made, are fixed memory.

Code between the parts that PyTorch runs as it is keeps memory from its forward to its backward pass, too. Parts behind
it run while that is there.

A part that is called several times has one plan, which has to fit at each of its calls. At the last one, the other
calls hold what they need, too.

The parts are planned from the last to the first. The last one has to leave room for what the others must hold at that
time, of which only the size without recomputation is known; a share of it is assumed, and the share is tried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from remat_cli.errors import Infeasible, LimitReached
from remat_cli.frontends.torch.training.course import Call, Course, Crossing, Part, crossing, tangents_of
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Plan, Statement
from remat_cli.plan.replay import replay
from remat_cli.units import format_bytes

_STEPS = (0.0, 0.25, -0.25, 0.5, -0.5, 0.75, -0.75, -1.0)
"""How far to go from the share with which the last part needs no plan: up to everything, or down to the least that the
earlier parts can hold, which is what parts in the middle may need. Untuned."""
_AGAIN = 3
"""Attempts with one share: plans of earlier parts may hold more than the later ones counted on. Untuned."""


@dataclass(frozen=True, slots=True)
class Held:
    """What other parts hold while one part runs.

    Attributes:
        beside_bytes: All the time: what earlier parts hold, and the gradients of later ones.
        between_bytes: Between its forward and its backward pass, in addition: what later parts need.
    """

    beside_bytes: int = 0
    between_bytes: int = 0

    def scaled(self, factor: float) -> Held:
        """The same for another size of the batch."""
        return Held(round(self.beside_bytes * factor), round(self.between_bytes * factor))

    def leaving(self, graph: Graph, budget_bytes: int, crossing_bytes: int) -> Held:
        """The same, but so much that no plan of ``graph`` within the budget holds more between its two passes.

        The plans of other parts count on it.
        """
        at = tangents_of(graph)
        # Results that end there are still there when the tangents come, and are not what a plan holds.
        there = {*graph.values_of(at), *(set(graph.nodes[at].inputs) - set(graph.outputs))}
        room = budget_bytes - graph.fixed_memory - self.beside_bytes - crossing_bytes
        room -= sum(graph.size[v] for v in there)
        return Held(self.beside_bytes, max(self.between_bytes, room))

    def added(self, graph: Graph) -> Graph:
        """``graph`` with this memory counted."""
        at = tangents_of(graph)
        nodes = list(graph.nodes)
        nodes[at] = replace(nodes[at], workspace=nodes[at].workspace + self.between_bytes)
        return replace(graph, nodes=tuple(nodes), fixed_memory=graph.fixed_memory + self.beside_bytes)


@dataclass(frozen=True, slots=True)
class _Range:
    """What a part holds between its two passes: at least, if all that can be is computed again, and without a plan."""

    least: Crossing
    most: Crossing

    @classmethod
    def of(cls, part: Part, kept: Sequence[Statement]) -> _Range:
        """Of a part whose statements without recomputation are ``kept``."""
        graph, at = part.graph, tangents_of(part.graph)
        again = [k for k in range(at) if graph.nodes[k].recompute]
        dropped = derive(graph, [*range(at + 1), *again, *range(at + 1, len(graph.nodes))])
        return cls(crossing(part, dropped), crossing(part, kept))

    def at(self, share: float) -> _Holds:
        """At a share of the way from the least to the most."""
        return _Holds(self.least, self.most, share)


@dataclass(frozen=True, slots=True)
class _Holds:
    """What a part is assumed to hold, or holds by its plan, between its two passes."""

    least: Crossing
    most: Crossing
    share: float = 1.0

    @classmethod
    def by(cls, part: Part, statements: Sequence[Statement]) -> _Holds:
        """By a plan."""
        found = crossing(part, statements)
        return cls(found, found)

    @property
    def bytes(self) -> int:
        """Bytes of its values."""
        return self._between(sum(self.least.values.values()), sum(self.most.values.values()))

    def inside_bytes(self, call: Call) -> int:
        """Bytes that only the call knows."""
        return self._between(self.least.inside_bytes(call), self.most.inside_bytes(call))

    def _between(self, least: int, most: int) -> int:
        return round(least + self.share * (max(least, most) - least))

    def shared(self, call: Call) -> dict[int, int]:
        """Storages that others may hold, too."""
        return self.most.shared(call)


@dataclass(slots=True)
class _Walk:
    """What is in use around each call, if each part holds what is assumed of it, or what its plan says.

    Attributes:
        course: The course of the step.
        holds: What each part holds between its two passes.
        later: Bytes that what is behind the present call needs beyond what the calls up to it hold.
    """

    course: Course
    holds: list[_Holds]
    later: int = 0

    def __post_init__(self) -> None:
        self._enter(len(self.course.calls), 0)

    def held(self, at: int) -> Held:
        """What others hold beside a call; all behind it have been left, see ``leave``."""
        call, part = self._call(at)
        if not call.trains:
            return Held(self.beside(at))
        # All of this is counted in the graph of the part while others run, or is gone by then.
        inside = self.course.beside(at) + part.tangents_bytes + part.ending_bytes(self.holds[call.part].most)
        inside += _bytes_without(call.given, self._shared(at + 1, at))
        return Held(self.beside(at), max(0, self.later - inside))

    def beside(self, at: int) -> int:
        """Bytes that others hold all the time beside a call; its own inputs are counted in its graph."""
        calls = [call for call in self.course.calls[:at] if call.trains]
        inside = sum(self.holds[call.part].inside_bytes(call) for call in calls)
        outer = _bytes_without(self._shared(at, at), self.course.calls[at].given)
        return inside + outer + self.passing(at) + self._gradients(at)

    def _gradients(self, at: int) -> int:
        """Bytes of the gradients that others have made when the backward pass of a call begins, if there is one."""
        return self.course.beside(at) if self.course.calls[at].trains else 0

    def passing(self, at: int) -> int:
        """Bytes that are there beside a call for backward passes that never come."""
        calls = [call for call in self.course.calls[:at] if call.until is not None and call.until >= at]
        there: dict[int, int] = {}
        for call in calls:
            there |= self.holds[call.part].shared(call)
        for code in self.course.outside[: at + 1]:
            there |= {key: size for key, (size, until) in code.passing.items() if until >= at}
        inside = sum(self.holds[call.part].inside_bytes(call) for call in calls)
        return inside + _bytes_without(there, {**self._shared(at, at), **self.course.calls[at].given})

    def leave(self, at: int, held: Held, statements: Sequence[Statement]) -> None:
        """Go on to what is before a call that runs by these statements."""
        call, part = self._call(at)
        own = _bytes_without(call.given, self._shared(at, at))
        graph = Held(self._gradients(at), held.between_bytes).added(part.graph)
        need = replay(graph, statements).peak_bytes - part.graph.fixed_memory + own
        self._enter(at, need if call.trains else max(need + self.passing(at), self.later))

    def _enter(self, at: int, need: int) -> None:
        """Pass the code without a plan before call ``at``, from which on ``need`` bytes are needed."""
        code = self.course.outside[at]
        known = self._shared(at, at - 1)
        peak = self.course.beside(at - 0.5) + code.peak_bytes(known) if code.moments else 0
        self.later = max(need + _bytes_without(code.kept, known), peak)

    def _call(self, at: int) -> tuple[Call, Part]:
        call = self.course.calls[at]
        return call, self.course.parts[call.part]

    def _shared(self, calls: int, code: int) -> dict[int, int]:
        """Storages that the first calls hold, and the code before call ``code`` and all earlier code."""
        found: dict[int, int] = {}
        for call in self.course.calls[:calls]:
            if call.trains:
                found |= self.holds[call.part].shared(call)
        for one in self.course.outside[: code + 1]:
            found |= one.kept
        return found


def _bytes_without(sizes: Mapping[int, int], known: Mapping[int, int]) -> int:
    """Bytes of the storages that are not known."""
    return sum(size for key, size in sizes.items() if key not in known)


def without_plan(course: Course) -> list[Graph]:
    """The graph of each call, if no part recomputes anything: the largest peak is that of the whole step."""
    kept = [derive(part.graph, range(len(part.graph.nodes))) for part in course.parts]
    pairs = zip(course.calls, _held(course, kept), strict=True)
    return [held.added(course.parts[call.part].graph) for call, held in pairs]


def planned(course: Course, budget_bytes: int | None, plan: Callable[[Graph], Plan]) -> tuple[list[Plan], list[Held]]:
    """A plan for each part, so that the whole step stays within the budget, and what others hold beside it.

    Args:
        course: The parts and their calls.
        budget_bytes: For the whole step; None if only ``plan`` knows.
        plan: Makes a plan within the budget.

    Raises:
        Infeasible, LimitReached: If no plans were found.
        RematError: From ``plan``.
    """
    parts = course.parts
    kept = [derive(part.graph, range(len(part.graph.nodes))) for part in parts]
    if len(course.calls) == 1:  # what is beside it does not depend on its plan
        alone = _held(course, kept)
        return [plan(alone[0].added(parts[0].graph))], alone
    ranges = [_Range.of(part, one) for part, one in zip(parts, kept, strict=True)]
    if budget_bytes is None:
        made = _inside_out(course, ranges, plan, 1.0, None, 0)
        return made, _of_parts(course, _held(course, [one.statements for one in made]))
    least = _first_share(course, ranges, kept, budget_bytes)
    stopped = False
    for share in dict.fromkeys(least + step * (least if step < 0 else 1 - least) for step in _STEPS):
        margin = 0
        for _ in range(_AGAIN):
            try:
                plans = _inside_out(course, ranges, plan, share, budget_bytes, margin)
            except (Infeasible, LimitReached) as error:
                stopped = stopped or isinstance(error, LimitReached)
                break
            statements = [one.statements for one in plans]
            held = _held(course, statements)
            over = _peak(course, held, statements) - budget_bytes
            if over <= 0:
                return plans, _of_parts(course, held)
            margin += over
    # What one part says that it needs is not what all of them need: their sum is.
    enough = _peak(course, _held(course, kept), kept)
    raise (LimitReached if stopped else Infeasible)(
        f"no plans were found with which the {len(parts)} parts of the module fit {format_bytes(budget_bytes)}",
        hint=f"{format_bytes(enough)} ({enough} bytes) works without recomputation",
    )


def _first_share(
    course: Course, ranges: Sequence[_Range], kept: Sequence[Sequence[Statement]], budget_bytes: int
) -> float:
    """The share of what they may hold that the others can hold if the last call needs no plan."""
    last = len(course.calls) - 1
    part = course.calls[last].part
    peaks = []
    for share in (0.0, 1.0):
        held = _Walk(course, [one.at(share) for one in ranges]).held(last)
        peaks.append(replay(held.added(course.parts[part].graph), kept[part]).peak_bytes)
    return min(1.0, max(0.0, (budget_bytes - peaks[0]) / max(1, peaks[1] - peaks[0])))


def _inside_out(
    course: Course,
    ranges: Sequence[_Range],
    plan: Callable[[Graph], Plan],
    share: float,
    budget_bytes: int | None,
    margin: int,
) -> list[Plan]:
    """Plans from the last call to the first, if parts without one go ``share`` of the way to what they hold at most.

    Each plan leaves ``margin`` bytes of the budget for what those that follow hold beyond that.
    """
    plans: dict[int, Plan] = {}
    walk = _Walk(course, [one.at(share) for one in ranges])
    for at in reversed(range(len(course.calls))):
        number = course.calls[at].part
        part, held = course.parts[number], walk.held(at)
        if number not in plans:
            same = [k for k, call in enumerate(course.calls) if call.part == number]
            beside = Held(max(map(walk.beside, same)) + margin, held.between_bytes)
            if len(same) > 1 and budget_bytes is not None:  # the calls before count on it
                beside = beside.leaving(part.graph, budget_bytes, walk.holds[number].bytes)
            plans[number] = plan(beside.added(part.graph))
            walk.holds[number] = _Holds.by(part, plans[number].statements)
        walk.leave(at, held, plans[number].statements)
    return [plans[number] for number in range(len(course.parts))]


def _held(course: Course, statements: Sequence[Sequence[Statement]]) -> list[Held]:
    """What others hold beside each call, by the plans of the parts."""
    walk = _Walk(course, [_Holds.by(part, one) for part, one in zip(course.parts, statements, strict=True)])
    found: list[Held] = []
    for at in reversed(range(len(course.calls))):
        found.insert(0, walk.held(at))
        walk.leave(at, found[0], statements[course.calls[at].part])
    return found


def _peak(course: Course, held: Sequence[Held], statements: Sequence[Sequence[Statement]]) -> int:
    """The peak of the whole step."""
    pairs = zip(course.calls, held, strict=True)
    return max(replay(one.added(course.parts[c.part].graph), statements[c.part]).peak_bytes for c, one in pairs)


def _of_parts(course: Course, held: Sequence[Held]) -> list[Held]:
    """For each part the most that others hold beside its calls, and what they need at its last call."""
    found: dict[int, Held] = {}
    for call, one in zip(course.calls, held, strict=True):
        before = found.get(call.part, Held())
        found[call.part] = Held(max(before.beside_bytes, one.beside_bytes), one.between_bytes)
    return [found[number] for number in range(len(course.parts))]


def crossing_bytes(graph: Graph, statements: Sequence[Statement]) -> int:
    """Bytes of values that are there between the two passes, tangents left out."""
    return sum(crossing(Part(graph), statements).values.values())
