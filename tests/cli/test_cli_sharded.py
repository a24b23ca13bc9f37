"""``remat export --world``: the function on the page exports, and what an export of a rank needs is asked for."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMED = ("--cost", "roofline:h100")


@pytest.fixture
def shown(remat, tmp_path, monkeypatch):
    """``remat``, beside the function that docs/sharded.md shows."""
    monkeypatch.chdir(tmp_path)
    code = (ROOT / "docs" / "sharded.md").read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    Path("train.py").write_text(code, encoding="utf-8")
    return remat


def test_the_step_of_a_rank_is_exported_and_planned(shown):
    done = shown(
        "export", "torch:train.py:build", "--world", "256", "--interconnect", "fsdp=50GB/s", *TIMED, "-o", "rank.json"
    )
    assert "wrote rank.json: build, " in done.err
    document = shown("convert", "rank.json", "--to", "json").json()
    assert document["metadata"]["world"] == {"ranks": 256, "rank": 0}
    collectives = [node for node in document["nodes"] if node.get("queue") == "communication"]
    assert [node["op"] for node in collectives] == ["all_gather_into_tensor"] * 4 + ["reduce_scatter_tensor"] * 4
    done = shown("run", shown_plan(shown), code=None)
    assert done.code not in {0, 1}
    assert "waits for other processes, and here is one" in done.err


def shown_plan(remat):
    remat("solve", "rank.json", "-b", "100%", "--strategy", "keep-all", "-o", "rank.plan.json")
    return "rank.plan.json"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--world", "8"), "add --interconnect 400GB/s"),
        (("--world", "0", "--interconnect", "1GB/s"), '"0" is not a number of ranks'),
        (("--world", "many", "--interconnect", "1GB/s"), '"many" is not a number of ranks'),
        (("--world", "8", "--interconnect", "fast"), '"fast" is not a bandwidth'),
        (("--world", "8", "--interconnect", "1GB/s", "--cost", "flops"), "takes time and no FLOPs"),
        (("--world", "8", "--interconnect", "1GB/s", "--compiler", "inductor"), "not planned for Inductor"),
    ],
)
def test_what_the_export_of_a_rank_needs(shown, options, words):
    assert words in shown("export", "torch:train.py:build", *options, code=2).err


def test_worlds_are_for_pytorch(shown):
    assert "--world is not for JAX" in shown("export", "jax:train.py:build", "--world", "8", code=2).err
