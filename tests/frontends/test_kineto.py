import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from remat_cli.cli.main import run
from remat_cli.errors import InputError
from remat_cli.frontends.kineto import measured_costs
from remat_cli.graph.io import load_graph
from remat_cli.graph.model import Graph, Node


def _graph(unit="us") -> Graph:
    nodes = [Node("a", 10.0, (), (8,), op="mm"), Node("b", 20.0, (0,), (8,), op="mm"), Node("c", 40.0, (1,), (8,))]
    return Graph("g", tuple(nodes), (2,), cost_unit=unit)


def _event(name, ts, dur, external=None, cat="cpu_op", tid=1):
    arguments = {} if external is None else {"External id": external}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": arguments}


def _trace(*events):
    return json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]})


def _costs(measured):
    return [node.cost for node in measured.graph.nodes]


def test_events_are_found_by_id_before_operation_and_averaged():
    trace = _trace(
        _event("a", 0, 3),
        _event("a", 100, 5),
        _event("aten::mm", 1, 1),
        _event("aten::mm", 101, 2),
        _event("mmm", 0, 9),
    )
    found = measured_costs(_graph(), trace, "t.json")
    assert _costs(found) == [4.0, 1.5, 40.0]
    assert (found.by_id, found.by_operation, found.kept, found.scale) == (1, 1, ("c",), None)
    assert (found.on_device, found.unlinked, found.graph.cost_unit) == (False, 0, "us")
    assert found.graph.metadata == {"costs": {"model": "measured", "by": "trace"}}


def test_units_do_not_mix_unless_scaled():
    trace = _trace(_event("a", 0, 3), _event("b", 5, 3))
    with pytest.raises(InputError, match="costs in flops would stand beside microseconds") as refused:
        measured_costs(_graph("flops"), trace, "t.json")
    assert "scale_unmatched" in refused.value.message
    found = measured_costs(_graph("flops"), trace, "t.json", scale=True)
    assert found.scale == pytest.approx(0.2)  # 6 us for 30 flops
    assert _costs(found) == [3.0, 3.0, pytest.approx(8.0)]
    assert found.graph.cost_unit == "us"
    complete = measured_costs(_graph("flops"), _trace(*(_event(n, 0, 2, tid=n) for n in "abc")), "t.json")
    assert _costs(complete) == [2.0, 2.0, 2.0]
    with pytest.raises(InputError, match="cost nothing"):
        measured_costs(_graph("flops"), _trace(_event("a", 0, 0)), "t.json", scale=True)


def test_device_time_goes_to_all_events_around_the_launch_and_to_no_other():
    trace = _trace(
        _event("a", 0, 100, 1, "user_annotation"),
        _event("aten::matmul", 10, 80, 2),
        _event("aten::mm", 20, 60, 3),
        _event("b", 100, 50, 4, "user_annotation"),  # starts where a ends
        _event("c", 30, 10, 5, "user_annotation", tid=2),  # another thread at the same time
        _event("gemm", 500, 7, 3, "kernel", tid=7),
        _event("memset", 510, 2, 2, "gpu_memset", tid=7),
        _event("add", 520, 11, 4, "kernel", tid=7),
        _event("a", 500, 999, 1, "gpu_user_annotation", tid=7),
        _event("lost", 600, 5, 77, "kernel", tid=7),
        _event("cudaLaunchKernel", 25, 5, 3, "cuda_runtime"),
    )
    found = measured_costs(_graph("flops"), trace, "t.json")
    assert _costs(found) == [9.0, 11.0, 0.0]
    assert (found.on_device, found.unlinked) == (True, 1)


def test_hostile_entries_are_no_defects():
    odd = {"ph": "X", "cat": ["kernel"], "name": {"a": 1}, "ts": 10**30, "dur": 1, "args": []}
    with pytest.raises(InputError, match="expected a number of microseconds"):
        measured_costs(_graph(), _trace(odd), "t.json")
    found = measured_costs(_graph(), _trace(odd | {"ts": 1}, _event("a", 0, 4), _event("b", 0, 1, [1])), "t.json")
    assert _costs(found) == [4.0, 1.0, 40.0]
    tiny = Graph("g", (Node("a", 5e-324, (), (8,)), Node("z", 0.0, (), (8,))), (1,), cost_unit="flops")
    with pytest.raises(InputError, match="all costs together"):
        measured_costs(tiny, _trace(_event("a", 0, 1e18)), "t.json", scale=True)


def test_an_event_inside_one_of_the_same_name_is_part_of_it():
    found = measured_costs(_graph(), _trace(_event("a", 0, 10), _event("a", 2, 3), _event("a", 10, 20)), "t.json")
    assert _costs(found)[0] == 15.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no list of traceEvents"),
        ("7", "no list of traceEvents"),
        ("[1, null, {}]", "no complete events of the host"),
        (_trace(_event("k", 0, 1, 1, "kernel")), "no complete events of the host"),
        (_trace(_event("x", 0, 1)), 'events here: "x"'),
        (_trace(_event("a", 0, -1)), "/traceEvents/1/dur: is -1, expected"),
        (_trace(_event("a", "0", 1)), '/traceEvents/1/ts: is "0", expected'),
        (_trace(_event("a", None, 1)), "/traceEvents/1/ts: is null, expected"),
        (_trace(_event("a", 0, 1e301)), "expected a number of microseconds"),
        ('[{"ph": "X", "name": "a", "ts": NaN}]', "t.json:1"),
        ('{"traceEvents": [', "t.json:1"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_reason(text, words):
    with pytest.raises(InputError) as refused:
        measured_costs(_graph(), text, "t.json")
    assert words in refused.value.message


def test_a_trace_of_the_profiler_gives_the_times_it_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = torch.ones(8, 8)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        for _ in range(3):
            with record_function("a"):
                y = torch.mm(x, x)
            with record_function("c"):
                y = torch.relu(torch.mm(y, x))
    profiler.export_chrome_trace("trace.json")
    nodes = [
        {"id": n.id, "cost": n.cost, "memory": 8, "inputs": []} | ({"op": n.op} if n.op else {}) for n in _graph().nodes
    ]
    with Path("g.json").open("w", encoding="utf-8") as file:
        json.dump({"schema": "remat-graph/1", "cost_unit": "flops", "nodes": nodes}, file)
    assert run(["convert", "g.json", "--costs", "trace.json", "-o", "measured.json"]) == 0
    assert "host time in us, from trace.json: 2 nodes by id, 1 by operation" in capsys.readouterr().err
    truth = {event.key: event.cpu_time_total / event.count for event in profiler.key_averages()}
    costs = [node.cost for node in load_graph("measured.json").nodes]
    assert costs == pytest.approx([truth["a"], truth["aten::mm"], truth["c"]], rel=1e-3, abs=0.01)


def test_the_command_says_what_was_not_in_the_trace(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Path("t.json").open("w", encoding="utf-8") as file:
        file.write(_trace(_event("a", 0, 3)))
    with Path("g.json").open("w", encoding="utf-8") as file:
        nodes = [{"id": name, "cost": 6, "memory": 8, "inputs": []} for name in "abc"]
        json.dump({"schema": "remat-graph/1", "cost_unit": "flops", "nodes": nodes}, file)
    assert run(["convert", "g.json", "--costs", "t.json"]) == 2
    assert "2 of 3 nodes have no event" in capsys.readouterr().err
    assert run(["convert", "g.json", "--costs", "t.json", "--scale-unmatched"]) == 0
    assert "costs not in the trace, multiplied by 0.5 us/flops: b, c (2 nodes)" in capsys.readouterr().err
    for wrong in (["g.json", "--scale-unmatched"], ["-", "--costs", "-"]):
        assert run(["convert", *wrong]) == 2
        assert "hint" in capsys.readouterr().err
