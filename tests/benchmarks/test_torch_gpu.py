"""All that a GPU will be asked, on a CPU whose memory is made up: the first run there should not be the first run."""

import fcntl
import json

import pytest
import torch

from benchmarks.frame import Session
from benchmarks.torch import gpu, parts
from benchmarks.torch.batches import largest, stretched
from benchmarks.torch.devices import Cpu, Cuda, Turns
from remat_cli.frontends.torch.framework import Torch


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu")
    assert (
        gpu.main(["--device", "cpu", "--quick", "--parts", "fit,peaks,overhead,batch,copies", "--out", str(out)]) == 0
    )
    torch.compiler.reset()
    assert sorted(path.name for path in out.iterdir()) == ["gpu.json", "gpu.md"]
    return json.loads((out / "gpu.json").read_text(encoding="utf-8")), (out / "gpu.md").read_text(encoding="utf-8")


def rows(result, table):
    return [row for row in result[0]["rows"] if row["table"] == table]


def test_what_does_not_fit_is_trained_by_plan_with_the_same_losses(result):
    plain, without, planned = rows(result, "fit")
    assert (plain["ran"], without["ran"], planned["ran"]) == ("yes", "no: out of memory", "yes")
    assert planned["losses"] == "bit for bit"
    assert planned["allocated_bytes"] <= planned["allowed_bytes"] < plain["allocated_bytes"]
    assert planned["predicted_bytes"] <= gpu.plan_budget(planned["allowed_bytes"], "cpu")
    assert planned["plan"] not in {"", "no-remat"}  # whichever strategy was best in the seconds there were


def test_larger_batches_fit_by_plan(result):
    without, planned = rows(result, "batch")
    assert not without["problem"] + planned["problem"]
    assert 0 < without["measured"] < planned["measured"]
    assert 0 < without["predicted"] < planned["predicted"]


def test_peaks_are_as_predicted_and_results_the_same(result):
    found = rows(result, "peaks")
    assert [row["budget"] for row in found] == ["none", "80%", "60%"]
    ran = [row for row in found if not row["problem"]]
    assert len(ran) >= 2
    assert {(row["off"], row["results"]) for row in ran} == {(0, "bit for bit")}
    assert ran[1]["recomputations"] > ran[0]["recomputations"] == 0
    assert rows(result, "overhead")[0]["step_s"] > 0


def test_copies_stand_beside_what_pytorch_has(result):
    found = rows(result, "copies")
    assert all("no plan" in row["problem"] for row in found if row["problem"])
    assert [row["method"] for row in found[:3]] == ["eager", "save_on_cpu", "checkpoint, each block"]
    assert [row["losses"] for row in found[:3]] == ["these", "bit for bit", "bit for bit"]
    planned = [row for row in found[3:] if not row["problem"]]
    assert planned
    for row in planned:
        assert row["losses"] == "bit for bit"
        assert row["predicted_bytes"] <= row["budget_bytes"]
        assert row["bound_s"] <= row["predicted_s"]


def test_the_loss_in_parts_stands_beside_the_one_by_hand():
    eager, by_hand, whole, like, least = parts.rows_of(Cpu(), lambda: 1.0, print, quick=True)
    assert (eager["gradients"], whole["gradients"], whole["regions"]) == ("nothing", "nothing", "")
    assert by_hand["allocated_bytes"] < eager["allocated_bytes"]
    assert least["allocated_bytes"] <= least["budget_bytes"] < whole["allocated_bytes"]
    assert like["predicted_bytes"] <= by_hand["allocated_bytes"]
    for row in (like, least):
        assert not row["problem"]
        assert row["regions"].startswith("loss: ")
        assert float(row["gradients"]) < 1e-5


def test_lanes_are_processes_whose_rows_come_together(tmp_path):
    told = ["--device", "cpu", "--quick", "--lanes", "--parts", "overhead", "--out", str(tmp_path)]
    assert gpu.main(told) == 0
    [row] = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["rows"]
    assert (row["table"], row["problem"]) == ("overhead", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]


def test_one_process_has_the_device_at_a_time(tmp_path):
    turns, others = Turns(tmp_path / "turns"), (tmp_path / "turns").open("ab")

    def others_can():
        try:
            fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(others, fcntl.LOCK_UN)
        return True

    with others:
        with turns.turn(), turns.turn():
            assert not others_can()
        assert others_can()
        with Turns().turn():  # a process that has the device to itself
            assert others_can()


def test_the_page_shows_every_table(result):
    for table in gpu.TABLES[:5]:
        assert table.title in result[1]


def test_a_part_that_fails_is_said_and_the_others_go_on(tmp_path, monkeypatch):
    def fails(run):
        raise ValueError("why not")

    monkeypatch.setitem(gpu.PARTS, "fit", fails)
    monkeypatch.setitem(gpu.PARTS, "peaks", lambda run: run.add("peaks", model="x", problem=""))
    kept = []
    session = Session(True, tmp_path, lambda text: None, lambda rows: kept.append(len(rows)))
    run = gpu.Run(Cpu(), True, float("inf"), session)
    assert [row["table"] for row in gpu.everything(run, ["fit", "peaks"])] == ["fit", "peaks"]
    assert run.rows[0]["ran"] == "ValueError: why not"
    assert kept == [1, 2]
    assert gpu.everything(gpu.Run(Cpu(), True, 0.0, session), ["peaks"]) == []  # no time left


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("start", [1, 7, 64])
@pytest.mark.parametrize("limit", [0, 1, 6, 7, 8, 63, 100])
def test_the_largest_that_fits_is_found_in_few_steps(limit, start, near):
    tried = []

    def fits(number):
        assert number >= 1
        tried.append(number)
        return number <= limit

    assert largest(fits, start=start, near=near) == limit
    assert len(tried) == len(set(tried)) <= 16


def test_graphs_of_other_batches_are_as_captured():
    spec = "torch/unet{{batch={},resolution=32,width=2,depth=1,cost=flops}}"
    two, four, seven = (Torch().export_architecture(spec.format(batch)) for batch in (2, 4, 7))
    made = stretched(two, four, 2.5, 0)
    assert made.fixed_memory == seven.fixed_memory
    assert [node.outputs for node in made.nodes] == [node.outputs for node in seven.nodes]
    assert [node.cost for node in made.nodes] == pytest.approx([node.cost for node in seven.nodes])


def test_limits_on_cuda_are_a_share_of_its_memory_and_taken_back(monkeypatch):
    """With an allocator that is made up: no GPU is needed."""
    calls = []
    monkeypatch.setattr(Cuda, "memory_bytes", lambda self: 1000)
    for name in ("empty_cache", "synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: calls.append(share))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 300)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 400)
    with pytest.raises(ValueError, match="x"), Cuda().limited(600):
        raise ValueError("x")
    assert [call for call in calls if not isinstance(call, str)] == [0.6, 1.0]
    calls.clear()
    usage = Cuda().usage(lambda: calls.append("step"), 7)
    assert (usage.allocated, usage.reserved) == (300, 400)
    assert calls.index("reset_peak_memory_stats") < calls.index("step") < len(calls) - 1


def test_bad_requests_and_missing_devices(monkeypatch, capsys):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert gpu.main([]) == 2
    assert "without CUDA" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        gpu.main(["--parts", "nonsense"])
