"""``remat show`` of a recording of CUDA memory."""

import pickle
from pathlib import Path


def recording(size: int) -> bytes:
    """One block, asked for by line 3 of a script."""
    frame = {"filename": "/home/me/train.py", "line": 3, "name": "forward"}
    entry = {"action": "alloc", "addr": 1, "size": size, "stream": 0, "frames": [frame], "time_us": 1}
    return pickle.dumps({"segments": [], "device_traces": [[entry]]})


def test_it_is_shown_alone_and_beside_a_plan(remat):
    Path("step.pickle").write_bytes(recording(5_000_000))
    remat("export", "zoo:unit-chain{n=5}", "-o", "chain.json", "-q")
    remat("solve", "chain.json", "--budget", "none", "-q", "-o", "chain.plan.json")
    assert "train.py:3 in forward" in remat("show", "step.pickle").out
    document = remat("show", "step.pickle", "--plan", "chain.plan.json", "--format", "json").json("snapshot")
    assert document["peak_memory"] == 5_000_000
    assert document["plan"]["peak_memory"] == 4
    assert document["peak_lines"] == [{"line": "train.py:3 in forward", "blocks": 1, "bytes": 5_000_000}]
    assert "</html>" in remat("show", "step.pickle", "--format", "html").out


def test_what_does_not_go_together_is_refused(remat):
    Path("step.pickle").write_bytes(recording(5))
    remat("export", "zoo:unit-chain{n=5}", "-o", "chain.json", "-q")
    remat("solve", "chain.json", "--budget", "none", "-q", "-o", "chain.plan.json")
    assert "goes with a snapshot" in remat("show", "chain.json", "--plan", "chain.plan.json", code=2).err
    assert "a snapshot has no svg" in remat("show", "step.pickle", "-o", "x.svg", code=2).err
    assert "--keys is for node-link graphs" in remat("show", "step.pickle", "--keys", "cost=a", code=2).err
    Path("cut.pickle").write_bytes(recording(5)[:-9])
    assert "not a complete pickle" in remat("show", "cut.pickle", code=2).err
