"""``remat pipeline``: reports, files and refusals."""

from pathlib import Path

from cli_process import TOY

STAGE = "zoo:gpt2{depth=1,batch=1,sequence=128,width=64,heads=2,vocab=512}"
ASKED = ("--microbatches", "8", "--memory", "4MB", "--time-limit", "20s")


def test_the_command(remat):
    remat("export", STAGE, "-o", "s.json", "-q")
    done = remat("pipeline", "s.json", "s.json", "s.json", "s.json", *ASKED)
    assert "fits: a step of 8 microbatches takes" in done.out
    assert "1f1b: 4 stages on 4 devices" in done.out
    assert "the whole forward pass of every stage" in done.out
    plans = [f"s.stage{k}.plan.json" for k in range(4)]
    assert all(f"wrote {plan}" in done.err for plan in plans)
    assert remat("check", *plans)
    document = remat("pipeline", *["s.json"] * 4, *ASKED, "-o", "plans/", "--format", "json").json("pipeline")
    assert [stage["in_flight"] for stage in document["stages"]] == [4, 3, 2, 1]
    assert document["stages"][0]["plan"] == "plans/s.stage0.plan.json"
    assert document["lower_bound"] <= document["makespan"]
    assert all(device["needed"] <= 4_000_000 for device in document["devices"])
    assert Path("plans/s.stage3.plan.json").is_file()
    remat("pipeline", "s.json", "s.json", *ASKED, "-o", "p{stage}.json")
    assert Path("pstage1.json").is_file()


def test_schedules_and_memories(remat):
    remat("export", STAGE, "-o", "s.json", "-q")
    asked = ("--microbatches", "4", "--time-limit", "20s", "--format", "json")
    made = remat("pipeline", *["s.json"] * 4, *asked, "--memory", "9MB,8MB", "--schedule", "interleaved")
    document = made.json("pipeline")
    assert [device["memory"] for device in document["devices"]] == [9_000_000, 8_000_000]
    assert [stage["device"] for stage in document["stages"]] == [0, 1, 0, 1]
    slower = remat("pipeline", "s.json", "s.json", *asked, "--memory", "9MB", "--transfer", "1e9").json("pipeline")
    faster = remat("pipeline", "s.json", "s.json", *asked, "--memory", "9MB").json("pipeline")
    assert slower["makespan"] >= faster["makespan"] + 1e9


def test_refusals(remat):
    remat("export", STAGE, "-o", "s.json", "-q")
    two = ("pipeline", "s.json", "s.json")
    assert "no plans of device 0 (stage 0) fit" in remat(*two, "--microbatches", "2", "--memory", "1MB", code=1).err
    asked = ("--microbatches", "2", "--memory", "9MB")
    assert 'did you mean "1f1b"' in remat(*two, *asked, "--schedule", "1f1", code=2).err
    assert "gradients of parameters" in remat(*two, *asked, "--schedule", "zb-h1", code=2).err
    assert "3 memories for 2 devices" in remat(*two, "--microbatches", "2", "--memory", "9MB,9MB,9MB", code=2).err
    assert "several plans cannot go to standard output" in remat(*two, *asked, "-o", "-", code=2).err
    assert "standard input is one graph" in remat("pipeline", "-", "-", *asked, code=2).err
    assert "has no unit" in remat(*two, "--microbatches", "2", "--memory", "9", code=2).err


def test_one_of_the_graphs_may_come_through_a_pipe(remat):
    graph = remat("convert", TOY).out
    done = remat("pipeline", "-", TOY, "--microbatches", "1", "--memory", "1GB", "--time-limit", "10s", stdin=graph)
    assert "2 stages on 2 devices" in done.out
