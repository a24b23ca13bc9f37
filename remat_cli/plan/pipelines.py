"""Schedules of pipelines: the order of passes on each device, microbatches in flight, and the time of a step.

A pipeline has stages, each on a device, and a step has microbatches. Stage s runs the forward pass of a microbatch
after stage s - 1 did, and its backward pass after stage s + 1 did. A schedule is the order of passes on each device. A
microbatch is in flight on a stage from its forward pass to its last pass there.

Sources: GPipe (Huang et al., 2019), 1F1B (Narayanan et al., PipeDream, 2019), interleaved 1F1B (Narayanan et al.,
Megatron-LM, 2021), ZB-H1, ZB-H2 and ZB-V (Qi et al., Zero Bubble Pipeline Parallelism, 2024).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from remat_cli.errors import UsageError, wrong_type
from remat_cli.registry import suggestion
from remat_cli.spec import build, format_spec, split_spec


class Pass(StrEnum):
    """A pass of one microbatch through one stage."""

    FORWARD = "F"
    BACKWARD = "B"
    """The whole backward pass; only gradients of results, where the schedule has passes for weights."""
    WEIGHTS = "W"
    """Gradients of parameters, which no other stage waits for."""


class Action(NamedTuple):
    """The pass of a microbatch through a stage, both counted from 0."""

    kind: Pass
    stage: int
    microbatch: int


class Arc(NamedTuple):
    """``after`` begins when ``before`` has ended; if ``moves``, something is sent from device to device in between."""

    before: Action
    after: Action
    moves: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of passes on each device.

    Attributes:
        name: As asked for: ``1f1b``, ``interleaved{chunks=2}``.
        microbatches: Microbatches of a step, m.
        device_of: The device of each stage; int[stages].
        orders: The actions of each device, in order.
        split: Whether gradients of parameters have passes of their own.
    """

    name: str
    microbatches: int
    device_of: tuple[int, ...]
    orders: tuple[tuple[Action, ...], ...]
    split: bool

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return len(self.orders)

    @property
    def kinds(self) -> tuple[Pass, ...]:
        """The passes of a microbatch through a stage, in order."""
        return tuple(Pass) if self.split else (Pass.FORWARD, Pass.BACKWARD)

    def stages_of(self, device: int) -> tuple[int, ...]:
        """The stages on a device."""
        return tuple(stage for stage, at in enumerate(self.device_of) if at == device)

    def arcs(self) -> Iterator[Arc]:
        """What each action waits for: the one before it on its device, and what its microbatch did before."""
        for order in self.orders:
            for before, after in pairwise(order):
                yield Arc(before, after, moves=False)
            for action in order:
                if (needed := self._needed(action)) is not None:
                    yield Arc(needed, action, self.device_of[needed.stage] != self.device_of[action.stage])

    def _needed(self, action: Action) -> Action | None:
        """What the microbatch of an action does right before it."""
        kind, stage, microbatch = action
        if kind is Pass.FORWARD:
            return Action(kind, stage - 1, microbatch) if stage else None
        if kind is Pass.WEIGHTS:
            return Action(Pass.BACKWARD, stage, microbatch)
        last = stage == len(self.device_of) - 1
        return Action(Pass.FORWARD, stage, microbatch) if last else Action(kind, stage + 1, microbatch)

    def moments(self, device: int) -> Iterator[tuple[Action, Counter[tuple[int, Pass]]]]:
        """Every action of a device, with the other microbatches in flight: how many have ended which pass of a stage.

        The counter is the same object each time.
        """
        last = self.kinds[-1]
        waiting: Counter[tuple[int, Pass]] = Counter()
        for action in self.orders[device]:
            kind, stage, _ = action
            if kind is not Pass.FORWARD:
                waiting[stage, self.kinds[self.kinds.index(kind) - 1]] -= 1
            yield action, waiting
            if kind is not last:
                waiting[stage, kind] += 1

    def in_flight(self) -> tuple[int, ...]:
        """The most microbatches in flight on each stage; int[stages]."""
        most = [0] * len(self.device_of)
        for device in range(self.devices):
            for action, waiting in self.moments(device):
                there = 1 + sum(count for (stage, _), count in waiting.items() if stage == action.stage)
                most[action.stage] = max(most[action.stage], there)
        return tuple(most)


@dataclass(frozen=True, slots=True)
class Times:
    """How long the passes of one microbatch through one stage take.

    Attributes:
        forward: The forward pass.
        backward: The backward pass, without what ``weights`` has.
        weights: The gradients of parameters, if they have a pass of their own.
    """

    forward: float
    backward: float
    weights: float = 0.0

    def of(self, kind: Pass) -> float:
        """The time of a pass."""
        return {Pass.FORWARD: self.forward, Pass.BACKWARD: self.backward, Pass.WEIGHTS: self.weights}[kind]

    @property
    def total(self) -> float:
        """The time of all passes."""
        return math.fsum((self.forward, self.backward, self.weights))


@dataclass(frozen=True, slots=True)
class Timeline:
    """When everything runs.

    Attributes:
        ends: When each action ends.
        makespan: When the last one ends; the first begins at 0.
        spans: Of each device, the time from the beginning of its first action to the end of its last; float[devices].
        busy: Of each device, the time of all its actions; float[devices].
    """

    ends: dict[Action, float]
    makespan: float
    spans: tuple[float, ...]
    busy: tuple[float, ...]

    @property
    def bubble(self) -> float:
        """Share of the makespan in which devices wait, over all devices."""
        whole = self.makespan * len(self.busy)
        return max(0.0, 1 - math.fsum(self.busy) / whole) if whole > 0 else 0.0


def timeline(schedule: Schedule, times: Sequence[Times], transfer: float = 0.0) -> Timeline:
    """When everything runs if each action begins as soon as it can: the longest paths of :meth:`Schedule.arcs`.

    Args:
        schedule: The schedule.
        times: The times of each stage.
        transfer: Time between the end of a pass and the beginning of the next one on another device. Devices do not
            wait for what they send.

    Raises:
        ValueError: If the orders of the devices contradict each other.
    """
    needs: dict[Action, list[Arc]] = {}
    for arc in schedule.arcs():
        needs.setdefault(arc.after, []).append(arc)
    ends: dict[Action, float] = {}
    starts: dict[Action, float] = {}
    place = [0] * schedule.devices
    moved = True
    while moved:
        moved = False
        for device, order in enumerate(schedule.orders):
            while place[device] < len(order):
                action = order[place[device]]
                waits = needs.get(action, [])
                if not all(arc.before in ends for arc in waits):
                    break
                starts[action] = max((ends[a.before] + (transfer if a.moves else 0.0) for a in waits), default=0.0)
                ends[action] = starts[action] + times[action.stage].of(action.kind)
                place[device] += 1
                moved = True
    if any(at < len(order) for at, order in zip(place, schedule.orders, strict=True)):
        raise ValueError(f"the devices of {schedule.name} wait for each other")
    return Timeline(
        ends=ends,
        makespan=max(ends.values(), default=0.0),
        spans=tuple(ends[order[-1]] - starts[order[0]] for order in schedule.orders),
        busy=tuple(math.fsum(times[a.stage].of(a.kind) for a in order) for order in schedule.orders),
    )


NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
"""The schedules that there are."""
_MOST_PASSES = 50_000
"""Microbatches times stages at most: 16,384 take 4 s of a processor for the bound on the makespan. Untuned."""


def schedule_of(text: str, stages: int, microbatches: int) -> Schedule:
    """The schedule with this name for a number of stages.

    ``interleaved{chunks=v}`` has v stages on each device (2 by default): stage s on device s mod p. ``zb-v`` has two:
    stage s on device s, and for s >= p on device 2p - 1 - s. The others have one.

    Raises:
        UsageError: If there is no such schedule, or not for so many stages or microbatches.
    """
    if not isinstance(text, str):
        raise wrong_type("schedule", text, 'text such as "1f1b"')
    name, options = split_spec(text)
    if name not in NAMES:
        raise UsageError(
            f'there is no schedule "{name}"', hint=suggestion(name, list(NAMES)) or f"choose one of {', '.join(NAMES)}"
        )
    form = build(_Interleaved if name == "interleaved" else _Plain, name, options)
    chunks = 2 if name == "zb-v" else form.chunks if isinstance(form, _Interleaved) else 1
    for number, what in ((stages, "stage"), (microbatches, "microbatch")):
        if number < 1:
            raise UsageError(f"a pipeline has at least one {what}", hint="give 1 or more")
    if stages * microbatches > _MOST_PASSES:
        raise UsageError(
            f"{microbatches:,} microbatches through {stages} stages are more than {_MOST_PASSES:,} together",
            hint="each microbatch more adds the same time: take fewer",
        )
    if stages % chunks:
        raise UsageError(
            f"{name} has {chunks} stages on each device, and {stages} are not a multiple of that",
            hint="give a graph for each stage, in order",
        )
    p = stages // chunks
    orders = {
        "gpipe": lambda: _gpipe(p, microbatches),
        "1f1b": lambda: _one_forward_one_backward(p, microbatches),
        "interleaved": lambda: _interleaved(p, microbatches, chunks),
        "zb-h1": lambda: _zero_bubble(p, microbatches, 1),
        "zb-h2": lambda: _zero_bubble(p, microbatches, 2),
        "zb-v": lambda: _zero_bubble_v(p, microbatches),
    }[name]()
    back = name == "zb-v"
    device_of = tuple(2 * p - 1 - s if back and s >= p else s % p for s in range(stages))
    return Schedule(format_spec(name, form), microbatches, device_of, tuple(orders), name.startswith("zb-"))


@dataclass(frozen=True, slots=True)
class _Plain:
    """A schedule without options."""


@dataclass(frozen=True, slots=True)
class _Interleaved:
    """Options of the interleaved schedule: the stages on each device, v."""

    chunks: int = 2

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise UsageError(f"{self.chunks} chunks are too few", hint="give 1 or more")


_Orders = Iterator[tuple[Action, ...]]


def _gpipe(devices: int, m: int) -> _Orders:
    """All forward passes, then all backward passes."""
    for stage in range(devices):
        yield tuple(Action(kind, stage, j) for kind in _WHOLE for j in range(m))


def _one_forward_one_backward(devices: int, m: int) -> _Orders:
    """Stage i runs p - i forward passes, then backward and forward passes by turns."""
    for stage in range(devices):
        yield tuple(_turns(stage, min(devices - stage, m), m))


def _turns(stage: int, warm: int, m: int) -> Iterator[Action]:
    """``warm`` forward passes, backward and forward passes by turns, and the backward passes that are left."""
    yield from (Action(Pass.FORWARD, stage, j) for j in range(warm))
    for j in range(m):
        yield Action(Pass.BACKWARD, stage, j)
        if j + warm < m:
            yield Action(Pass.FORWARD, stage, j + warm)


def _interleaved(devices: int, m: int, chunks: int) -> _Orders:
    """1F1B over several stages on each device; a round of microbatches goes through one chunk after another."""
    rounds = max(1, m // devices)
    if m % rounds:
        raise UsageError(
            f"interleaved 1F1B runs equal rounds of at least {devices} microbatches, and {m} cannot be divided so",
            hint=f"take a multiple of the number of devices, such as {rounds * devices}",
        )
    size, total = m // rounds, m * chunks
    for device in range(devices):

        def passes(kind: Pass, device: int = device) -> Iterator[Action]:
            order = range(chunks) if kind is Pass.FORWARD else range(chunks - 1, -1, -1)
            for first, chunk in ((first, chunk) for first in range(0, m, size) for chunk in order):
                yield from (Action(kind, chunk * devices + device, first + j) for j in range(size))

        warm = min((chunks - 1) * size + 2 * (devices - 1 - device), total)
        forward, backward = map(passes, _WHOLE)
        actions = [next(forward) for _ in range(warm)]
        for _ in range(total - warm):
            actions += [next(forward), next(backward)]
        yield (*actions, *backward)


def _zero_bubble(devices: int, m: int, delay: int) -> _Orders:
    """1F1B with split backward passes: on stage i, weights follow i times ``delay`` microbatches behind.

    ZB-H1 (``delay`` 1) begins as 1F1B does. ZB-H2 (2) begins with twice as many forward passes, which fill the bubble.
    """
    for stage in range(devices):
        late = delay * stage
        order: list[Action] = []
        for action in _turns(stage, min(delay * (devices - 1 - stage) + 1, m), m):
            order.append(action)
            if action.kind is Pass.BACKWARD and action.microbatch >= late:
                order.append(Action(Pass.WEIGHTS, stage, action.microbatch - late))
        yield (*order, *(Action(Pass.WEIGHTS, stage, j) for j in range(max(0, m - late), m)))


def _zero_bubble_v(devices: int, m: int) -> _Orders:
    """A stage of the way there and one of the way back on each device, in an order made for F = B = W."""
    for device in range(devices):
        # The order needs 2p - 1 microbatches; of a smaller number, the others are left out.
        yield tuple(a for a in _v_shape(device, devices, max(m, 2 * devices - 1)) if a.microbatch < m)


def _v_shape(device: int, devices: int, m: int) -> Iterator[Action]:
    """The actions of a device in ZB-V with at least 2p - 1 microbatches."""
    stages = {"there": device, "back": 2 * devices - 1 - device}
    done: Counter[tuple[Pass, str]] = Counter()

    def run(kinds: str, way: str) -> Iterator[Action]:
        for kind in map(Pass, kinds):
            yield Action(kind, stages[way], done[kind, way])
            done[kind, way] += 1

    for _ in range(2 * (devices - device) - 1):
        yield from run("F", "there")
    for _ in range(device):
        yield from run("F", "back")
        yield from run("F", "there")
    for _ in range(devices - device):
        yield from run("FBW", "back")
    while done[Pass.FORWARD, "back"] < m:
        yield from run("FBW" if done[Pass.FORWARD, "there"] < m else "BW", "there")
        yield from run("FBW", "back")
    for _ in range(device):
        yield from run("B", "there")
        yield from run("B", "back")
    for _ in range(devices - device):
        yield from run("BW", "there")
    for way in ("back", "there"):
        while done[Pass.WEIGHTS, way] < m:
            yield from run("W", way)


_WHOLE = (Pass.FORWARD, Pass.BACKWARD)
