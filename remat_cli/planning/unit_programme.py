"""The cheapest choices for the units of a sharded step from given plans: a dynamic programme.

What the units hold between their passes adds up (``plan/sharded_units``). All else that a unit needs depends on what
the units before it hold in sum, on its own choice, and on whether the unit before it is resharded. So the programme
keeps, for each sum, the cheapest choices of the first units: it is exact for the plans that it chooses from, as long as
there are not too many sums.

Costs come first, the time included that units wait for gathers (``ShardedStep.cost``). Of equal costs, those choices
are taken that gather fewest bytes again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from remat_cli.plan.sharded_units import Choice, Held, ShardedStep, Storage, UnitRun

_MOST_SUMS = 2000
"""Sums of which the cheapest choices are kept, for each unit; of more, the cheapest in each of so many ranges. Untuned.
"""

_State = tuple[frozenset[Storage], bool]
"""What of the shared memory that later units may hold is counted already, and whether the last unit is resharded."""


@dataclass(frozen=True, slots=True)
class _Sums:
    """For some sums that the first units may hold, ascending, the cheapest choices that hold so much.

    Attributes:
        held: The sums.
        cost: What the choices cost.
        again: Bytes that they gather a second time.
        ends: Where the choices of the last unit may come from: the state before it, and its choice.
        end: For each sum, the number of that.
        before: And the position of the sum of the units before it.
    """

    held: NDArray[np.int64]
    cost: NDArray[np.float64]
    again: NDArray[np.int64]
    ends: tuple[tuple[_State, Choice], ...]
    end: NDArray[np.int64]
    before: NDArray[np.int64]

    def at(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> _Sums:
        """Some of them."""
        held, cost, again = self.held[which], self.cost[which], self.again[which]
        return _Sums(held, cost, again, self.ends, self.end[which], self.before[which])


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a unit takes by a choice, beside what the units before it hold.

    Attributes:
        need: The most that it needs.
        added: Bytes that it adds to what is held.
        state: The state behind it.
        cost: What it costs, the time included for which it has the unit before it wait.
    """

    need: int
    added: int
    state: _State
    cost: float


Known = dict[tuple[int, _State, tuple[int, ...], bool], _Taken]
"""What units take, by the number of the unit, the state before it, its plan, and whether it is resharded."""


def cheapest(
    step: ShardedStep, runs: Sequence[Sequence[UnitRun]], budget_bytes: int, known: Known | None = None
) -> list[Choice] | None:
    """The cheapest choices from plans of each graph.

    Args:
        step: The step.
        runs: For each graph, the plans.
        budget_bytes: The budget.
        known: What earlier calls for this step have found out; it is added to.

    Returns:
        The choices; None if none of them fit together.
    """
    room = budget_bytes - step.fixed_bytes
    known = {} if known is None else known
    sizes, last = _shared_memory(step)
    none = np.zeros(1, dtype=np.int64)
    first = _Sums(none + step.root.gathered, np.zeros(1), none, (), none, none)
    units: list[dict[_State, _Sums]] = [{(frozenset(), False): first}]
    runs = [_undominated_runs(step, kind, several) for kind, several in enumerate(runs)]
    for at, call in enumerate(step.calls):
        choices = [Choice(run, reshard) for run in runs[call.kind] for reshard in (False, True)]
        found: dict[_State, list[_Sums]] = {}
        for state, before in units[-1].items():
            for choice in choices:
                key = at, state, choice.run.computes, choice.reshard
                if key not in known:
                    known[key] = _taken(step, at, state, choice, sizes, last)
                taken = known[key]
                count = int(np.searchsorted(before.held, room - taken.need, "right"))
                if not count:
                    continue
                again = call.memory.gathering if choice.reshard else 0
                found.setdefault(taken.state, []).append(
                    _Sums(
                        before.held[:count] + taken.added,
                        before.cost[:count] + taken.cost,
                        before.again[:count] + again,
                        ((state, choice),),
                        np.zeros(count, dtype=np.int64),
                        np.arange(count),
                    )
                )
        units.append({state: _undominated(_joined(several), room) for state, several in found.items()})
    return _best(step, units, sizes, room)


def _taken(
    step: ShardedStep,
    at: int,
    before: _State,
    choice: Choice,
    sizes: Mapping[Storage, int],
    last: Mapping[Storage, int],
) -> _Taken:
    """What a unit takes by a choice."""
    shared, reshards_before = before
    least = Held(step.root.gathered, {key: sizes[key] for key in shared})
    needs = step.unit_needs(at, least, choice, reshards_before=reshards_before)
    after = step.behind(at, least, choice)
    return _Taken(
        need=max(need for _, need in needs) - least.bytes,
        added=after.bytes - least.bytes,
        state=(frozenset(key for key in after.shared if last[key] > at), choice.reshard),
        cost=choice.run.cost + step.wait(at, choice, reshards_before=reshards_before),
    )


def _best(
    step: ShardedStep, units: Sequence[dict[_State, _Sums]], sizes: dict[Storage, int], room: int
) -> list[Choice] | None:
    """The cheapest choices of all units that leave room for the end of the step."""
    ended: list[tuple[float, int, int, _State, int]] = []
    for (shared, resharded), sums in units[-1].items():
        end = max(n for _, n in step.end_needs(Held(0, {key: sizes[key] for key in shared}), resharded=resharded))
        waiting = step.last_wait(resharded=resharded)
        fitting = np.flatnonzero(sums.held + end <= room)
        if len(fitting):
            of = int(fitting[np.lexsort((sums.held[fitting], sums.again[fitting], sums.cost[fitting]))[0]])
            key = float(sums.cost[of]) + waiting, int(sums.again[of]), int(sums.held[of])
            ended.append((*key, (shared, resharded), of))
    if not ended:
        return None
    *_, state, of = min(ended, key=lambda one: one[:3])
    choices: list[Choice] = []
    for unit in reversed(units[1:]):
        sums = unit[state]
        state, choice = sums.ends[sums.end[of]]
        of = int(sums.before[of])
        choices.append(choice)
    return choices[::-1]


def _undominated_runs(step: ShardedStep, kind: int, runs: Sequence[UnitRun]) -> list[UnitRun]:
    """The plans of a graph but those in whose place another one does as well in any unit.

    Such a one costs no more, even if its backward pass hides less of a gather, and holds and needs no more.
    """
    calls = [call for call in step.calls if call.kind == kind]
    results = {value for call in calls for value in call.results}
    has_price = any(call.gather_cost for call in step.calls)
    known = []
    for run in sorted(runs, key=lambda one: (one.cost, one.arrived, one.backward, one.forward)):
        own = sum(size for value, size in run.values.items() if value not in results)
        needs = run.forward, run.backward, run.arrived, own
        known.append((run, needs, results.intersection(run.values)))
    kept: list[tuple[UnitRun, tuple[int, ...], set[int]]] = []
    for run, needs, shared in known:
        for other, others_need, others_shared in kept:
            hidden = max(0.0, run.backward_cost - other.backward_cost) if has_price else 0.0
            if (
                other.cost + hidden <= run.cost
                and all(theirs <= mine for theirs, mine in zip(others_need, needs, strict=True))
                and others_shared <= shared
                and other.inputs <= run.inputs
            ):
                break
        else:
            kept.append((run, needs, shared))
    return [run for run, _, _ in kept]


def _joined(several: Sequence[_Sums]) -> _Sums:
    """All sums together, in no order."""
    numbered = [replace(one, end=one.end + k) for k, one in enumerate(several)]  # each has one end
    arrays = ("held", "cost", "again", "end", "before")
    held, cost, again, end, before = (np.concatenate([getattr(one, name) for one in numbered]) for name in arrays)
    return _Sums(held, cost, again, tuple(end for one in several for end in one.ends), end, before)


def _undominated(sums: _Sums, room: int) -> _Sums:
    """The sums for which no smaller one costs less; of many, the cheapest of each range."""
    by_cost = np.lexsort((sums.again, sums.cost))
    steps = (np.diff(sums.cost[by_cost]) != 0) | (np.diff(sums.again[by_cost]) != 0)
    rank = np.empty(len(by_cost), dtype=np.int64)
    rank[by_cost] = np.concatenate(([0], np.cumsum(steps)))
    order = np.lexsort((rank, sums.held))
    least = np.minimum.accumulate(rank[order])
    cheaper = np.concatenate(([True], least[1:] < least[:-1]))
    kept = sums.at(order[cheaper])
    if len(kept.held) <= _MOST_SUMS:
        return kept
    ranges = kept.held * _MOST_SUMS // max(1, room)
    last = np.concatenate((ranges[1:] != ranges[:-1], [True]))  # of a range the last one is the cheapest
    last[0] = True  # it holds least, and may be the only one that fits
    return kept.at(last)


def _shared_memory(step: ShardedStep) -> tuple[dict[Storage, int], dict[Storage, int]]:
    """Bytes of the memory that several units may hold, and the number of the last unit that may.

    That of the code behind the units and of the loop is the number of units.
    """
    sizes: dict[Storage, int] = {}
    last: dict[Storage, int] = {}
    for at, code in enumerate(step.between):
        sizes |= code.kept
        last |= dict.fromkeys(code.kept, at)
        if at < len(step.calls):
            call, graph = step.calls[at], step.graphs[step.calls[at].kind].graph
            own = dict(call.inputs) | {key: graph.size[value] for value, key in call.results.items()}
            sizes |= own
            last |= dict.fromkeys(own, at)
    return sizes, last | dict.fromkeys(step.results, len(step.calls))
