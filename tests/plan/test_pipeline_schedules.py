"""Schedules of pipelines: order, microbatches in flight and time, against formulas that their authors published."""

import random
import re

import pytest

from remat_cli.errors import UsageError
from remat_cli.plan.pipelines import NAMES, Action, Pass, Schedule, Times, schedule_of, timeline

SIZES = [(1, 1), (1, 4), (2, 2), (3, 6), (4, 8), (4, 16), (8, 24), (4, 3), (5, 2)]


def made(name: str, devices: int, microbatches: int) -> Schedule:
    chunks = 2 if name in ("zb-v", "interleaved") else 1
    return schedule_of(name, devices * chunks, microbatches)


def cost_of(schedule: Schedule, forward: float, backward: float, weights: float, transfer: float = 0.0) -> float:
    """The longest span of a device, which zero-bubble papers call the cost; times are of all chunks of a device."""
    chunks = len(schedule.device_of) // schedule.devices
    split = Times(forward / chunks, backward / chunks, weights / chunks)
    whole = Times(forward / chunks, (backward + weights) / chunks)
    return max(timeline(schedule, [split if schedule.split else whole] * len(schedule.device_of), transfer).spans)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
def test_every_pass_runs_once_on_its_device_and_nothing_waits_forever(name, devices, microbatches):
    schedule = made(name, devices, microbatches)
    for device, order in enumerate(schedule.orders):
        stages, kinds = schedule.stages_of(device), schedule.kinds
        expected = {Action(k, s, j) for k in kinds for s in stages for j in range(microbatches)}
        assert len(order) == len(expected)
        assert set(order) == expected
    done = timeline(schedule, [Times(1, 2, 1)] * len(schedule.device_of), 0.5)
    for arc in schedule.arcs():
        lag = 0.5 if arc.moves else 0.0
        long = {Pass.FORWARD: 1, Pass.BACKWARD: 2, Pass.WEIGHTS: 1}[arc.after.kind]
        assert done.ends[arc.after] - long >= done.ends[arc.before] + lag


@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
def test_microbatches_in_flight(devices, microbatches):
    p, m = devices, microbatches
    assert made("gpipe", p, m).in_flight() == (m,) * p
    assert made("1f1b", p, m).in_flight() == tuple(min(m, p - i) for i in range(p))
    if m >= 2 * p:
        assert made("zb-h1", p, m).in_flight() == (p,) * p
        assert made("zb-h2", p, m).in_flight() == (2 * p - 1,) * p


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (4, 8), (8, 32)])
def test_chunks_in_flight_on_a_device(devices, microbatches):
    def most(name):
        schedule = made(name, devices, microbatches)
        return [max(1 + sum(there.values()) for _, there in schedule.moments(d)) for d in range(devices)]

    # Two chunks are as large as the stage of a device in 1F1B, which holds p of them: 2 p chunks.
    assert most("zb-v") == [2 * devices] * devices  # "the same activation memory as 1F1B", on every device
    # 1 + (p - 1) / (p v) times the memory of 1F1B (Megatron-LM, 2021)
    assert most("interleaved")[0] == 2 * devices * (1 + (devices - 1) / (2 * devices))
    assert most("interleaved") == [devices + 2 * (devices - 1 - d) + 1 for d in range(devices)]


def in_flight_by_hand(order, stage):
    """The most microbatches of a stage between the first and the last of their passes."""
    first, last = {}, {}
    for at, action in enumerate(order):
        if action.stage == stage:
            first.setdefault(action.microbatch, at)
            last[action.microbatch] = at
    return max(sum(first[j] <= at <= last[j] for j in first) for at in range(len(order)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
def test_counts_are_those_of_the_intervals(name, devices, microbatches):
    schedule = made(name, devices, microbatches)
    counted = [in_flight_by_hand(schedule.orders[schedule.device_of[s]], s) for s in range(len(schedule.device_of))]
    assert list(schedule.in_flight()) == counted


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 24), (8, 64)])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (10, 10, 5), (10, 12, 8), (7, 9, 7)])
def test_bubbles_as_published(p, m, f, b, w):
    """The sizes of bubbles in Qi et al. (2024), table 1, and in Narayanan et al. (2021), section 2.2."""
    work = m * (f + b + w)
    for name, bubble in {
        "gpipe": (p - 1) * (f + b + w),
        "1f1b": (p - 1) * (f + b + w),
        "interleaved": (p - 1) * (f + b + w) / 2,
        "zb-h1": (p - 1) * (f + b - w),
        "zb-h2": (p - 1) * (f + b - 2 * w),
    }.items():
        assert cost_of(made(name, p, m), f, b, w) - work == pytest.approx(bubble), name
    if f == b == w:
        assert cost_of(made("zb-v", p, m), f, b, w) == pytest.approx(work)  # no bubble


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 24)])
def test_bubble_rates_of_the_authors_table(p, m):
    """The table beside the authors' demonstration, for F = B = W: (p - 1) / (m + p - 1), a third of it, 0 and 0."""

    def rate(name):
        cost = cost_of(made(name, p, m), 1, 1, 1)
        return 1 - 3 * m / cost

    assert rate("1f1b") == pytest.approx((p - 1) / (m + p - 1))
    assert rate("zb-h1") == pytest.approx((p - 1) / 3 / (m + (p - 1) / 3))  # exact; they write (p - 1) / 3 (m + p - 1)
    assert rate("zb-h2") == pytest.approx(0)
    assert rate("zb-v") == pytest.approx(0)


def longest_path(schedule, times, transfer):
    """The makespan by relaxing all arcs until nothing changes (Bellman and Ford)."""
    ends = {a: times[a.stage].of(a.kind) for order in schedule.orders for a in order}
    arcs = list(schedule.arcs())
    for _ in range(len(ends) + 1):
        changed = False
        for arc in arcs:
            end = ends[arc.before] + (transfer if arc.moves else 0) + times[arc.after.stage].of(arc.after.kind)
            if end > ends[arc.after]:
                ends[arc.after], changed = end, True
        if not changed:
            return max(ends.values())
    raise AssertionError("a cycle")


@pytest.mark.parametrize("name", NAMES)
def test_makespan_is_the_longest_path(name):
    random_ = random.Random(name)
    for _ in range(20):
        devices, microbatches = random_.randint(1, 4), random_.choice([1, 2, 3, 4, 8])
        if name == "interleaved":
            microbatches *= devices
        schedule = made(name, devices, microbatches)
        times = [Times(*(random_.randint(0, 9) for _ in range(3))) for _ in schedule.device_of]
        transfer = random_.randint(0, 3)
        done = timeline(schedule, times, transfer)
        assert done.makespan == longest_path(schedule, times, transfer)
        parts = 3 if schedule.split else 2
        work = sum(microbatches * sum((t.forward, t.backward, t.weights)[:parts]) for t in times)
        assert sum(done.busy) == pytest.approx(work)
        if done.makespan:
            assert done.bubble == pytest.approx(1 - work / devices / done.makespan)


def test_orders_that_contradict_each_other_are_refused():
    backwards = tuple(Action(kind, 0, 0) for kind in (Pass.BACKWARD, Pass.FORWARD))
    with pytest.raises(ValueError, match="wait for each other"):
        timeline(Schedule("own", 1, (0,), (backwards,), split=False), [Times(1, 1)])


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "message", "hint"),
    [
        ("1f1", 4, 8, 'no schedule "1f1"', 'did you mean "1f1b"'),
        ("dual", 4, 8, 'no schedule "dual"', "choose one of gpipe, 1f1b"),
        (7, 4, 8, 'schedule is int 7, expected text such as "1f1b"', ""),
        ("1f1b{chunks=2}", 4, 8, 'no option "chunks"', ""),
        ("interleaved{chunks=0}", 4, 8, "0 chunks are too few", "1 or more"),
        ("interleaved{chunks=3}", 4, 8, "4 are not a multiple", "each stage, in order"),
        ("zb-v", 3, 8, "3 are not a multiple", "each stage, in order"),
        ("interleaved", 8, 9, "9 cannot be divided so", "such as 8"),
        ("1f1b", 4, 0, "at least one microbatch", "1 or more"),
        ("1f1b", 4, 10**6, "1,000,000 microbatches through 4 stages", "take fewer"),
        ("1f1b", 0, 1, "at least one stage", "1 or more"),
    ],
)
def test_refusals(name, stages, microbatches, message, hint):
    with pytest.raises(UsageError, match=re.escape(message)) as refused:
        schedule_of(name, stages, microbatches)
    assert hint in str(refused.value.hint)


def test_measurements_that_a_user_of_zero_bubble_published():
    """Issue 21 of zero-bubble-pipeline-parallelism: 8 devices, a model of 6.2 billion parameters with 32 layers.

    1F1B 55 samples a second and 48 GB; interleaved 66 and 57; ZB-2P 67 and 79; ZB-V 64 and 53. The number of
    microbatches is not told; the authors' runs of that model have 32. The memory of 1F1B and of ZB-2P gives what is
    fixed and what activations take; that of the others follows.
    """
    p, m, layers = 8, 32, 32
    interleaved = f"interleaved{{chunks={layers // p}}}"
    schedules = {
        "1f1b": schedule_of("1f1b", p, m),
        "zb-h2": schedule_of("zb-h2", p, m),
        "zb-v": schedule_of("zb-v", 2 * p, m),
        interleaved: schedule_of(interleaved, layers, m),
    }
    cost = {name: cost_of(one, 1, 1, 1) for name, one in schedules.items()}
    speed = {name: 55 * cost["1f1b"] / one for name, one in cost.items()}
    assert speed["zb-h2"] == pytest.approx(67, abs=0.1)  # measured: 67
    assert speed["zb-v"] == pytest.approx(67, abs=0.1)  # measured: 64
    assert speed[interleaved] == pytest.approx(63.6, abs=0.1)  # measured: 66

    def stages_held(schedule):
        chunks = len(schedule.device_of) // schedule.devices
        return max(1 + sum(there.values()) for d in range(p) for _, there in schedule.moments(d)) / chunks

    held = {name: stages_held(one) for name, one in schedules.items()}
    each = (79 - 48) / (held["zb-h2"] - held["1f1b"])
    memory = {name: 48 + each * (one - held["1f1b"]) for name, one in held.items()}
    assert memory["zb-v"] == pytest.approx(48)  # measured: 53
    assert memory[interleaved] == pytest.approx(55.75, abs=0.1)  # measured: 57
