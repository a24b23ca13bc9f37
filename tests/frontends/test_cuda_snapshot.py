"""Recordings of CUDA memory: against a simulated allocator, beside plans, and pickles that are not to be read."""

import os
import pickle
import random
from pathlib import Path

import pytest

import remat_cli as remat
from remat_cli.errors import InputError
from remat_cli.frontends.cuda_snapshot import snapshot_of
from remat_cli.graph.metadata import place_sizes
from remat_cli.plan.snapshot import peak_of

MB = 1 << 20
STEP = """
import torch

def build():
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 48))
    return net, (torch.randn(32, 64),)
"""


def frames(line: int) -> list[dict]:
    """A stack as PyTorch records it, the innermost frame first, on a machine with another Python."""
    return [
        {"filename": "??", "line": 0, "name": "at::empty_cuda"},
        {
            "filename": "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py",
            "line": 125,
            "name": "forward",
        },
        {"filename": "/usr/lib/python3.12/contextlib.py", "line": 85, "name": "inner"},
        {"filename": "/home/me/train.py", "line": line, "name": "forward"},
        {"filename": "/home/me/train.py", "line": 99, "name": "main"},
    ]


class Recorder:
    """An allocator that rounds nothing, records as PyTorch does, and says what really was in memory at each event."""

    def __init__(self, before: dict[int, int]):
        self.before, self.live = dict(before), dict(before)
        self.trace: list[dict] = []
        self.totals, self.reserved = [sum(before.values())], [sum(before.values())]
        self.lines: dict[int, int] = {}

    def note(self, action: str, addr: int, size: int, line: int = 0) -> None:
        stack = frames(line) if line else []
        entry = {"action": action, "addr": addr, "size": size, "stream": 0, "frames": stack}
        self.trace.append(entry | {"time_us": 1000 * len(self.trace)})
        self.totals.append(sum(self.live.values()))
        grown = size if action == "segment_alloc" else -size if action == "segment_free" else 0
        self.reserved.append(self.reserved[-1] + grown)

    def alloc(self, addr: int, size: int, line: int) -> None:
        self.note("segment_alloc", addr, size)
        self.live[addr], self.lines[addr] = size, line
        self.note("alloc", addr, size, line)

    def free(self, addr: int) -> None:
        size = self.live.pop(addr)
        self.lines.pop(addr, None)
        self.note("free_requested", addr, size)
        self.note("free_completed", addr, size)
        self.note("segment_free", addr, size)

    def document(self) -> dict:
        segments = [
            {
                "device": 0,
                "address": addr,
                "total_size": size,
                "blocks": [
                    {"size": size, "requested_size": size, "address": addr, "state": "active_allocated", "frames": []}
                ],
            }
            for addr, size in self.live.items()
        ]
        return {"segments": segments, "device_traces": [self.trace]}


@pytest.mark.parametrize("seed", range(20))
def test_every_event_has_the_bytes_that_were_in_memory(seed):
    rng = random.Random(seed)
    recorder = Recorder({addr: rng.randint(1, 9) * MB for addr in range(rng.randint(0, 4))})
    for addr in range(100, 140):
        recorder.alloc(addr, rng.randint(1, 50) * MB, rng.randint(1, 5))
        while recorder.live and rng.random() < 0.45:
            recorder.free(rng.choice(list(recorder.live)))
    snapshot = snapshot_of(pickle.dumps(recorder.document()), "made")
    assert snapshot.allocated() == recorder.totals
    assert list(snapshot.reserved) == recorder.reserved
    peak = peak_of(snapshot)
    assert peak.bytes == max(recorder.totals) == sum(block.size for block in peak.blocks)
    assert peak.event == recorder.totals.index(peak.bytes)
    assert {block.line for block in snapshot.blocks if block.first} <= {f"train.py:{k} in forward" for k in range(1, 6)}
    assert snapshot.seconds == pytest.approx((len(recorder.trace) - 1) / 1000)


def test_without_events_the_end_is_all_that_is_known():
    recorder = Recorder({1: 3 * MB, 2: MB})
    document = recorder.document() | {"device_traces": []}
    snapshot = snapshot_of(pickle.dumps(document), "made")
    assert (snapshot.events, snapshot.allocated()) == (1, [4 * MB])


def test_of_several_devices_the_one_with_the_highest_peak_is_shown(tmp_path):
    one, other = Recorder({}), Recorder({})
    one.alloc(1, MB, 3)
    other.alloc(1, 5 * MB, 4)
    document = {"segments": [], "device_traces": [one.trace, other.trace]}
    (tmp_path / "two.pickle").write_bytes(pickle.dumps(document))
    text = " ".join(remat.describe(remat.load_snapshot(tmp_path / "two.pickle")).split())
    assert "device 1, the one of 2 with the highest peak" in text
    assert "train.py:4 in forward" in text


def test_requests_that_failed_are_named(tmp_path):
    recorder = Recorder({})
    recorder.alloc(1, MB, 3)
    recorder.trace.append({"action": "oom", "size": 8 * 10**9, "device_free": 10**9, "frames": frames(9), "stream": 0})
    (tmp_path / "oom.pickle").write_bytes(pickle.dumps(recorder.document()))
    shown = remat.load_snapshot(tmp_path / "oom.pickle")
    assert "at event 3: 8 GB asked for, 1 GB free on the device" in " ".join(remat.describe(shown).split())
    assert "out of memory" in remat.page(shown)


class Harmful:
    """Makes a file when it is unpickled by the usual means."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_pickle_runs(tmp_path):
    made = tmp_path / "made"
    data = pickle.dumps({"segments": [], "device_traces": [Harmful(made)]})
    with pytest.raises(InputError, match="mkdir, which is not read: it could run any code"):
        snapshot_of(data, "harmful")
    assert not made.exists()
    pickle.loads(data)
    assert made.exists()  # it would have


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps({"segments": [1] * 50, "device_traces": []})[:-20], "not a complete pickle"),
        (b"\x80\x04r\xff\xff\xff\xff.", "not a complete pickle"),
        (pickle.dumps([1, 2]), "not a snapshot of CUDA memory"),
        (pickle.dumps({"segments": [{"device": 0}]}), "not a snapshot of CUDA memory"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc"}]]}), "not a snapshot of CUDA memory"),
        (pickle.dumps({"segments": [], "device_traces": []}), "no memory of a CUDA device"),
        (b"\x80\x04Pid\n.", "asks for an object outside it, which is not read"),
    ],
)
def test_what_is_no_recording_is_refused(data, said):
    with pytest.raises(InputError, match=said):
        snapshot_of(data, "file")


def test_beside_a_plan_tensors_are_matched_by_size(tmp_path):
    """A recording that was made from the plan itself has its peak, and no difference but for what was added to it."""

    (tmp_path / "step.py").write_text(STEP)
    plan = remat.solve(remat.export_torch(f"{tmp_path / 'step.py'}:build", cost="flops"), None).plan
    report = remat.check(plan)
    recorder = Recorder({k: size for k, (_, size) in enumerate(place_sizes(plan.graph))})
    for k, (_, size) in enumerate(report.replay.residents):
        recorder.alloc(1000 + k, size, 7)
    if report.replay.workspace_bytes:
        recorder.alloc(2000, report.replay.workspace_bytes, 7)
    recorder.alloc(3000, 12345, 8)
    path = tmp_path / "step.pickle"
    path.write_bytes(pickle.dumps(recorder.document()))
    shown = remat.load_snapshot(path, plan)
    assert shown.beside.undivided == 0
    assert shown.beside.predicted == report.replay.peak_bytes == shown.peak.bytes - 12345
    odd = [one for one in shown.beside.sizes if one.difference]
    assert [(one.bytes, one.planned, one.recorded, one.lines) for one in odd] == [
        (12345, 0, 1, ("train.py:8 in forward",))
    ]
    assert "parameter 0.weight" in {name for one in shown.beside.sizes for name in one.names}
    assert "Beside the plan" in remat.describe(shown)


def test_a_step_that_pytorch_recorded_has_the_peak_that_it_counted(tmp_path):
    """The file is what ``record_snapshot.py`` wrote with PyTorch 2.13.0 for CUDA, whose counters it printed."""
    counted, reserved = 119_487_488, 136_314_880
    here = Path(__file__).parent
    plan = remat.solve(remat.export_torch(f"{here / 'record_snapshot.py'}:build", cost="flops"), None).plan
    shown = remat.load_snapshot(here / "recorded_step.pickle", plan)
    assert shown.peak.bytes <= counted <= 1.01 * shown.peak.bytes  # the counter has what the allocator rounds up
    assert shown.peak.reserved <= max(shown.snapshot.reserved) == reserved
    odd = {(one.bytes, one.planned, one.recorded) for one in shown.beside.sizes if one.difference}
    # Two workspaces of cuBLAS are not in the plan, two scalars are the loss; logits are gone when nobody holds them.
    assert odd == {(33_554_432, 0, 2), (16_384_000, 2, 1), (4, 0, 2)}
    differences = sum(one.difference for one in shown.beside.sizes)
    assert shown.beside.predicted + differences == shown.beside.recorded == shown.peak.bytes
