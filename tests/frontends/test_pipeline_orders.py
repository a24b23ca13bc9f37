"""Orders of pipelines, against the schedules of torch.distributed.pipelining, which run on stages that only record."""

from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from remat_cli.plan.pipelines import Pass, schedule_of

SIZES = [(2, 2), (2, 5), (3, 3), (4, 4), (4, 8), (4, 11), (5, 10)]


class RecordingStage:
    """A stage that takes microbatches and computes nothing."""

    def __init__(self, rank: int, index: int, devices: int, stages: int):
        self.group_rank, self.group_size = rank, devices
        self.stage_index, self.num_stages = index, stages
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.has_backward = False
        self.submod, self.device = None, "cpu"
        self.order: list[tuple[str, int, int]] = []

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.order.append((Pass.FORWARD.value, self.stage_index, microbatch))

    def backward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.order.append((Pass.BACKWARD.value, self.stage_index, microbatch))

    def __getattr__(self, name: str) -> Any:
        """Communication and preparation: nothing."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: []


def single(kind: type, devices: int, microbatches: int) -> list[list[tuple[str, int, int]]]:
    orders = []
    for rank in range(devices):
        stage: Any = RecordingStage(rank, rank, devices, devices)
        schedule = kind(stage, microbatches)
        schedule._step_microbatches([()] * microbatches, [{}] * microbatches)
        orders.append(stage.order)
    return orders


def several(kind: type, devices: int, microbatches: int, stages: int) -> list[list[tuple[str, int, int]]]:
    v = kind is schedules.ScheduleZBVZeroBubble
    mine = [0, stages - 1] if v else list(range(0, stages, devices))
    local: Any = [RecordingStage(0, index, devices, stages) for index in mine]
    orders = kind(local, microbatches).pipeline_order
    names = {"F": "F", "B": "B", "I": "B", "W": "W"}
    return [
        [(names[a.computation_type.value], a.stage_index, a.microbatch_index) for a in orders[rank] if a is not None]
        for rank in range(devices)
    ]


def ours(name: str, stages: int, microbatches: int) -> list[list[tuple[str, int, int]]]:
    return [[(a.kind.value, *a[1:]) for a in order] for order in schedule_of(name, stages, microbatches).orders]


@pytest.mark.parametrize(("devices", "microbatches"), SIZES)
def test_one_stage_on_each_device(devices, microbatches):
    assert ours("gpipe", devices, microbatches) == single(schedules.ScheduleGPipe, devices, microbatches)
    assert ours("1f1b", devices, microbatches) == single(schedules.Schedule1F1B, devices, microbatches)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("devices", "microbatches"), [(2, 2), (2, 6), (4, 4), (4, 8), (4, 10), (4, 3), (3, 9)])
def test_interleaved(devices, microbatches, chunks):
    theirs = several(schedules.ScheduleInterleaved1F1B, devices, microbatches, devices * chunks)
    assert ours(f"interleaved{{chunks={chunks}}}", devices * chunks, microbatches) == theirs


@pytest.mark.parametrize(("devices", "microbatches"), [*SIZES, (4, 2)])
def test_zero_bubble_v(devices, microbatches):
    theirs = several(schedules.ScheduleZBVZeroBubble, devices, microbatches, 2 * devices)
    assert ours("zb-v", 2 * devices, microbatches) == theirs
