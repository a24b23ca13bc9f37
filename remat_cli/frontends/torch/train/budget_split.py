"""Splits the budget of a module that graph breaks divide: what other parts hold counts for each part.

The forward passes of the parts run one after another, then the backward passes in the reverse order. So while part 2
runs forward and backward, part 1 stands between its two passes, and holds what its backward pass needs. In the graph of
part 1, all later parts run at the node of the tangents: their memory is its workspace. What the parts before hold, and
the gradients that later parts have made, are fixed memory.

Unplanned code between the parts keeps memory from its forward to its backward pass, too. Parts behind it run while that
is there.

A part that is called several times has one plan, which has to fit at each of its calls. At the last one, the other
calls hold what they need, too.

The parts are planned from the last to the first. The last one has to leave room for what the others must hold at that
time, of which only the size without recomputation is known. So a share of that size is assumed, and several shares are
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from remat_cli.errors import Infeasible, LimitReached
from remat_cli.frontends.torch.train.part_schedule import Call, Part, PartSchedule, Saved, saved_by, tangents_of
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Plan, Statement
from remat_cli.plan.replay import replay
from remat_cli.units import format_bytes

_SHARE_STEPS = (0.0, 0.25, -0.25, 0.5, -0.5, 0.75, -0.75, -1.0)
"""How far to go from the share with which the last part needs no plan: up to everything, or down to the least that the
earlier parts can hold, which is what parts in the middle may need. Untuned."""
_ATTEMPTS = 3
"""Attempts with one share: plans of earlier parts may hold more than the later ones counted on. Untuned."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Memory that is reserved for the other parts while one part runs.

    Attributes:
        always_bytes: All the time: what earlier parts hold, and the gradients that later ones have made.
        between_bytes: Between its forward and its backward pass, in addition: what later parts need.
    """

    always_bytes: int = 0
    between_bytes: int = 0

    def scaled(self, factor: float) -> Reservation:
        """The same for another size of the batch."""
        return Reservation(round(self.always_bytes * factor), round(self.between_bytes * factor))

    def limiting(self, graph: Graph, budget_bytes: int, saved_bytes: int) -> Reservation:
        """Raise the reservation until no plan of ``graph`` within the budget can save more than ``saved_bytes``.

        The plans of other parts count on it.
        """
        at = tangents_of(graph)
        # Results that end there are still there when the tangents come, and are not what a plan saves.
        present = {*graph.values_of(at), *(set(graph.nodes[at].inputs) - set(graph.outputs))}
        room = budget_bytes - graph.fixed_memory - self.always_bytes - saved_bytes
        room -= sum(graph.size[value] for value in present)
        return Reservation(self.always_bytes, max(self.between_bytes, room))

    def added(self, graph: Graph) -> Graph:
        """``graph`` with this memory counted."""
        at = tangents_of(graph)
        nodes = list(graph.nodes)
        nodes[at] = replace(nodes[at], workspace=nodes[at].workspace + self.between_bytes)
        return replace(graph, nodes=tuple(nodes), fixed_memory=graph.fixed_memory + self.always_bytes)


@dataclass(frozen=True, slots=True)
class _SavedEstimate:
    """What a part saves: a share of the way from the least, if all that can be is computed again, to the most."""

    least: Saved
    most: Saved
    share: float = 1.0

    @classmethod
    def of(cls, part: Part, keep_all: Sequence[Statement]) -> _SavedEstimate:
        """Of a part whose statements without recomputation are ``keep_all``."""
        graph, at = part.graph, tangents_of(part.graph)
        again = [k for k in range(at) if graph.nodes[k].recompute]
        dropped = derive(graph, [*range(at + 1), *again, *range(at + 1, len(graph.nodes))])
        return cls(saved_by(part, dropped), saved_by(part, keep_all))

    @classmethod
    def by(cls, part: Part, statements: Sequence[Statement]) -> _SavedEstimate:
        """By a plan."""
        saved = saved_by(part, statements)
        return cls(saved, saved)

    def at(self, share: float) -> _SavedEstimate:
        """At a share of the way from the least to the most."""
        return replace(self, share=share)

    @property
    def bytes(self) -> int:
        """Bytes of its values."""
        return self._between(self.least.value_bytes, self.most.value_bytes)

    def private_bytes(self, call: Call) -> int:
        """Bytes that only the call can hold."""
        return self._between(self.least.private_bytes(call), self.most.private_bytes(call))

    def _between(self, least: int, most: int) -> int:
        return round(least + self.share * (max(least, most) - least))

    def shared(self, call: Call) -> dict[int, int]:
        """Storages that others may hold, too."""
        return self.most.shared(call)


@dataclass(slots=True)
class _Occupancy:
    """What is in use around each call, if each part saves what is assumed of it, or what its plan says.

    Calls are passed from the last to the first.

    Attributes:
        schedule: The schedule of the step.
        saved: What each part saves.
        later_bytes: What is behind the present call needs beyond what the calls up to it hold.
    """

    schedule: PartSchedule
    saved: list[_SavedEstimate]
    later_bytes: int = 0

    def __post_init__(self) -> None:
        last = len(self.schedule.calls)
        self._pass_unplanned(last, 0)
        if self.schedule.loss_forward_bytes:
            kept = _bytes_without(self.schedule.unplanned[last].kept, self._shared(last, last - 1))
            forward = kept + self.schedule.loss_forward_bytes + self._ending_bytes()
            self.later_bytes = max(self.later_bytes, forward)

    def _ending_bytes(self) -> int:
        """Bytes of what the module returns that is gone when the backward pass begins."""
        ending: dict[int, int] = {}
        for call in self.schedule.calls:
            results = self.schedule.parts[call.part].ending(self.saved[call.part].most)
            ending |= {call.results[value]: size for value, size in results.items() if value in call.results}
        return sum(size for key, size in ending.items() if key in self.schedule.output)

    def reservation(self, at: int) -> Reservation:
        """What others hold beside a call, when all behind it have been passed."""
        call, part = self._call(at)
        if not call.trains:
            return Reservation(self.always_bytes(at))
        # All of this is counted in the graph of the part while others run, or is gone by then.
        counted = self.schedule.resident_bytes(at) + part.tangents_bytes
        counted += sum(part.ending(self.saved[call.part].most).values())
        counted += _bytes_without(call.inputs, self._shared(at + 1, at))
        return Reservation(self.always_bytes(at), max(0, self.later_bytes - counted))

    def always_bytes(self, at: int) -> int:
        """Bytes that others hold all the time beside a call; its own inputs are counted in its graph."""
        private = sum(self.saved[call.part].private_bytes(call) for call in self.schedule.calls[:at] if call.trains)
        shared = _bytes_without(self._shared(at, at), self.schedule.calls[at].inputs)
        return private + shared + self._forward_only_bytes(at) + self._gradient_bytes(at)

    def _gradient_bytes(self, at: int) -> int:
        """Bytes of the gradients that others have made when the backward pass of a call begins, if there is one."""
        return self.schedule.resident_bytes(at) if self.schedule.calls[at].trains else 0

    def _forward_only_bytes(self, at: int) -> int:
        """Bytes that are saved beside a call although no gradient reaches them."""
        calls = [call for call in self.schedule.calls[:at] if call.until is not None and call.until >= at]
        shared: dict[int, int] = {}
        for call in calls:
            shared |= self.saved[call.part].shared(call)
        for code in self.schedule.unplanned[: at + 1]:
            shared |= {key: size for key, (size, until) in code.forward_only.items() if until >= at}
        private = sum(self.saved[call.part].private_bytes(call) for call in calls)
        return private + _bytes_without(shared, {**self._shared(at, at), **self.schedule.calls[at].inputs})

    def pass_call(self, at: int, reservation: Reservation, statements: Sequence[Statement]) -> None:
        """Go on to what is before a call that runs by these statements."""
        call, part = self._call(at)
        own = _bytes_without(call.inputs, self._shared(at, at))
        graph = Reservation(self._gradient_bytes(at), reservation.between_bytes).added(part.graph)
        need = replay(graph, statements).peak_bytes - part.graph.fixed_memory + part.copied_bytes + own
        if not call.trains:
            need = max(need + self._forward_only_bytes(at), self.later_bytes)
        self._pass_unplanned(at, need)

    def _pass_unplanned(self, at: int, need: int) -> None:
        """Pass the unplanned code before call ``at``, from which on ``need`` bytes are needed."""
        code = self.schedule.unplanned[at]
        counted = self._shared(at, at - 1)
        peak = self.schedule.resident_bytes(at - 0.5) + code.peak_bytes(counted) if code.operations else 0
        self.later_bytes = max(need + _bytes_without(code.kept, counted), peak)

    def _call(self, at: int) -> tuple[Call, Part]:
        call = self.schedule.calls[at]
        return call, self.schedule.parts[call.part]

    def _shared(self, calls: int, code: int) -> dict[int, int]:
        """Storages that the first calls hold, and the unplanned code before call ``code`` and all earlier code."""
        shared: dict[int, int] = {}
        for call in self.schedule.calls[:calls]:
            if call.trains:
                shared |= self.saved[call.part].shared(call)
        for one in self.schedule.unplanned[: code + 1]:
            shared |= one.kept
        return shared


def _bytes_without(sizes: Mapping[int, int], counted: Mapping[int, int]) -> int:
    """Bytes of the storages that are not counted elsewhere."""
    return sum(size for key, size in sizes.items() if key not in counted)


def keep_all_graphs(schedule: PartSchedule) -> list[Graph]:
    """The graph of each call, if no part recomputes anything: the largest peak is that of the whole step."""
    keep_all = [derive(part.graph, range(len(part.graph.nodes))) for part in schedule.parts]
    pairs = zip(schedule.calls, _reservations(schedule, keep_all), strict=True)
    return [reservation.added(schedule.parts[call.part].graph) for call, reservation in pairs]


def plan_parts(
    schedule: PartSchedule, budget_bytes: int | None, plan: Callable[[Graph], Plan]
) -> tuple[list[Plan], list[Reservation]]:
    """A plan for each part, so that the whole step stays within the budget, and what others hold beside it.

    Args:
        schedule: The parts and their calls.
        budget_bytes: For the whole step; None if only ``plan`` knows.
        plan: Makes a plan within the budget.

    Raises:
        Infeasible, LimitReached: If no plans were found.
        RematError: From ``plan``.
    """
    parts = schedule.parts
    keep_all = [derive(part.graph, range(len(part.graph.nodes))) for part in parts]
    if len(schedule.calls) == 1:  # what is beside it does not depend on its plan
        alone = _reservations(schedule, keep_all)
        return [plan(alone[0].added(parts[0].graph))], alone
    ranges = [_SavedEstimate.of(part, one) for part, one in zip(parts, keep_all, strict=True)]
    if budget_bytes is None:
        plans = _last_to_first(schedule, ranges, plan, 1.0, None, 0)
        return plans, _of_parts(schedule, _reservations(schedule, [one.statements for one in plans]))
    first = _first_share(schedule, ranges, keep_all, budget_bytes)
    stopped = False
    for share in dict.fromkeys(first + step * (first if step < 0 else 1 - first) for step in _SHARE_STEPS):
        margin = 0
        for _ in range(_ATTEMPTS):
            try:
                plans = _last_to_first(schedule, ranges, plan, share, budget_bytes, margin)
            except (Infeasible, LimitReached) as error:
                stopped = stopped or isinstance(error, LimitReached)
                break
            statements = [one.statements for one in plans]
            reservations = _reservations(schedule, statements)
            excess = _peak(schedule, reservations, statements) - budget_bytes
            if excess <= 0:
                return plans, _of_parts(schedule, reservations)
            margin += excess
    # What one part says that it needs is not what all of them need: their sum is.
    enough = _peak(schedule, _reservations(schedule, keep_all), keep_all)
    raise (LimitReached if stopped else Infeasible)(
        f"no plans were found with which the {len(parts)} parts of the module fit {format_bytes(budget_bytes)}",
        hint=f"{format_bytes(enough)} ({enough} bytes) works without recomputation",
    )


def _first_share(
    schedule: PartSchedule, ranges: Sequence[_SavedEstimate], keep_all: Sequence[Sequence[Statement]], budget_bytes: int
) -> float:
    """The share of what they may hold that the others can hold if the last call needs no plan."""
    last = len(schedule.calls) - 1
    part = schedule.calls[last].part
    peaks = []
    for share in (0.0, 1.0):
        reservation = _Occupancy(schedule, [one.at(share) for one in ranges]).reservation(last)
        peaks.append(replay(reservation.added(schedule.parts[part].graph), keep_all[part]).peak_bytes)
    return min(1.0, max(0.0, (budget_bytes - peaks[0]) / max(1, peaks[1] - peaks[0])))


def _last_to_first(
    schedule: PartSchedule,
    ranges: Sequence[_SavedEstimate],
    plan: Callable[[Graph], Plan],
    share: float,
    budget_bytes: int | None,
    margin: int,
) -> list[Plan]:
    """Plans from the last call to the first, if parts without one go ``share`` of the way to what they save at most.

    Each plan leaves ``margin`` bytes of the budget for what those that follow hold beyond that.
    """
    plans: dict[int, Plan] = {}
    occupancy = _Occupancy(schedule, [one.at(share) for one in ranges])
    for at in reversed(range(len(schedule.calls))):
        number = schedule.calls[at].part
        part, present = schedule.parts[number], occupancy.reservation(at)
        if number not in plans:
            same = [k for k, call in enumerate(schedule.calls) if call.part == number]
            wanted = Reservation(max(map(occupancy.always_bytes, same)) + margin, present.between_bytes)
            if len(same) > 1 and budget_bytes is not None:  # the calls before count on it
                wanted = wanted.limiting(part.graph, budget_bytes, occupancy.saved[number].bytes)
            plans[number] = plan(wanted.added(part.graph))
            occupancy.saved[number] = _SavedEstimate.by(part, plans[number].statements)
        occupancy.pass_call(at, present, plans[number].statements)
    return [plans[number] for number in range(len(schedule.parts))]


def _reservations(schedule: PartSchedule, statements: Sequence[Sequence[Statement]]) -> list[Reservation]:
    """What others hold beside each call, by the plans of the parts."""
    saved = [_SavedEstimate.by(part, one) for part, one in zip(schedule.parts, statements, strict=True)]
    occupancy = _Occupancy(schedule, saved)
    reservations: list[Reservation] = []
    for at in reversed(range(len(schedule.calls))):
        reservations.insert(0, occupancy.reservation(at))
        occupancy.pass_call(at, reservations[0], statements[schedule.calls[at].part])
    return reservations


def _peak(
    schedule: PartSchedule, reservations: Sequence[Reservation], statements: Sequence[Sequence[Statement]]
) -> int:
    """The peak of the whole step."""
    pairs = zip(schedule.calls, reservations, strict=True)
    return max(replay(one.added(schedule.parts[c.part].graph), statements[c.part]).peak_bytes for c, one in pairs)


def _of_parts(schedule: PartSchedule, reservations: Sequence[Reservation]) -> list[Reservation]:
    """For each part the most that others hold beside its calls, and what they need at its last call."""
    of_parts: dict[int, Reservation] = {}
    for call, one in zip(schedule.calls, reservations, strict=True):
        before = of_parts.get(call.part, Reservation())
        of_parts[call.part] = Reservation(max(before.always_bytes, one.always_bytes), one.between_bytes)
    return [of_parts[number] for number in range(len(schedule.parts))]
