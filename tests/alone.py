"""What commands print of a step of JAX or TensorFlow, and say where the framework is missing."""

import json
from collections.abc import Collection
from pathlib import Path

from absent import remat_without


def exported(place: Path, script: str, source: str, *, silent: bool = True) -> Path:
    """A folder with a user's script, the graph of its step and a plan, as the commands printed them.

    ``silent`` says whether the framework itself writes nothing on standard error.
    """
    (place / "train.py").write_text(Path(script).read_text(encoding="utf-8"), encoding="utf-8")
    for line, file in (
        (f"export {source} -q -o -", "step.json"),
        ("solve step.json --budget 75% --time-limit 5s -q -o -", "step.plan.json"),
    ):
        done = remat_without(set(), place, line)
        assert done.code == 0, done.err
        assert not (silent and done.err)
        (place / file).write_text(done.out, encoding="utf-8")
    return place


def require_documents(folder: Path) -> None:
    """Standard output holds the document alone."""
    assert json.loads((folder / "step.json").read_text(encoding="utf-8"))["schema"] == "remat-graph/1"
    profiled = remat_without(set(), folder, "profile step.json --repeats 1 -o -")
    assert (profiled.code, json.loads(profiled.out)["cost_unit"]) == (0, "us"), profiled.err
    ran = remat_without(set(), folder, "run step.plan.json --steps 1 --format json")
    assert (ran.code, json.loads(ran.out)["identical"]) == (0, True), ran.err


def require_named(folder: Path, hidden: Collection[str], line: str, extra: str) -> str:
    """What a command says where packages are missing: it names the extra."""
    done = remat_without(set(hidden), folder, line)
    assert (done.code, done.out) == (2, "")
    assert "is not installed" in done.err
    assert f"[{extra}]" in done.err
    return done.err
