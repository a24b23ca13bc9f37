"""The steps of the suite. Each runs in a process of its own, within a time limit, and its answer is a mapping."""

import json
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.models.forking import Ended, command, forked
from benchmarks.models.listing import Listed

STEPS = ("export", "fullgraph", "solve60", "run60", "solve80", "run80", "fit", "checkpoint")
"""All steps, in the order in which they run for a model."""
FOREIGN_STEPS = ("told", "untold")
"""Those of the foreign models."""
_ANSWERS = {"fits": "benchmarks.fits.answers", "cuda": "benchmarks.fits.cuda"} | dict.fromkeys(
    FOREIGN_STEPS, "benchmarks.models.foreign"
)
"""The modules that answer steps besides those of the suite's training."""
LIMITS_S = {
    "export": 300,
    "fullgraph": 300,
    "solve": 60,
    "run": 200,
    "fit": 500,
    "checkpoint": 400,
    "told": 400,
    "untold": 400,
    "fits": 900,
    "cuda": 900,
}
_LIBRARIES = {"transformers": "transformers.integrations.moe"}
"""The modules that define operators of a namespace."""
_LONGEST = 600
_KEPT = ("budget", "no_remat_peak", "peak_memory", "overhead", "gap", "strategy")


def work_folder() -> Path:
    """Where graphs and plans go; they are not kept in the repository."""
    folder = ROOT / "build" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wanted(step: str, row: dict[str, Any]) -> bool:
    """Whether ``step`` can be asked of a model, by the answers to earlier steps in ``row``."""
    if step == "fullgraph":
        export = row.get("export", {})
        return not export.get("ok") or export.get("parts", 1) > 1
    if step.startswith("solve"):
        return bool(row.get("export", {}).get("ok"))
    if step.startswith("run"):
        return bool(row.get(step.replace("run", "solve"), {}).get("ok"))
    return True


def perform(step: str, model: Listed, limit_s: float) -> dict[str, Any]:
    """The answer of ``step`` for ``model``: ``ok``, ``seconds``, what was measured, and ``problem`` if there is one.

    A search for a plan gets ``limit_s`` seconds.
    """
    kind = step.rstrip("0123456789")
    budget = step.removeprefix(kind)
    graph, plan = work_folder() / f"{model.name}.json", work_folder() / f"{model.name}.{budget}.plan.json"
    limit = LIMITS_S[kind] + limit_s
    if kind == "export":
        source = f"torch:{model.file.relative_to(ROOT)}:{model.name}"
        for old in work_folder().glob(f"{model.name}.*json"):
            old.unlink()
        return _exported(command(["export", source, "-o", str(graph)], limit), limit, graph)
    if kind == "solve":
        asked = ["--budget", f"{budget}%", "--time-limit", f"{limit_s}s", "--format", "json", "-o", str(plan)]
        return _of_json(command(["solve", str(graph), *asked], limit), limit, _solved)
    if kind == "run":
        return _of_json(
            command(["run", str(plan), "--steps", "1", "--format", "json", *_libraries(plan)], limit), limit, _ran
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"

        def work() -> None:
            answer = import_module(_ANSWERS.get(step, "benchmarks.models.training")).answer
            path.write_text(json.dumps(answer(kind, model, limit_s)), encoding="utf-8")

        ended = forked(work, limit)
        told = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else _answer(ended, limit)
        return dict(told) | {"seconds": ended.seconds}


def _libraries(plan: Path) -> list[str]:
    """Options for the operators in a plan that are not PyTorch's."""
    text = plan.read_text(encoding="utf-8")
    return [part for space, module in _LIBRARIES.items() if f'"{space}.' in text for part in ("--library", module)]


def _answer(ended: Ended, limit_s: float) -> dict[str, Any]:
    """Whether a process did what it was to do, and if not what it said: remat's error and hint, or the last line."""
    answer: dict[str, Any] = {"ok": ended.code == 0, "seconds": ended.seconds}
    if ended.code is None:
        return answer | {"problem": f"not done in {limit_s} s"}
    if ended.code == 0:
        return answer
    lines = [line.strip() for line in ended.err.splitlines() if line.strip() and "USDT:" not in line]
    starts = [k for k, line in enumerate(lines) if line.startswith("remat: error:")]
    told = " ".join(lines[starts[-1] :] if starts else lines[-1:]) or f"exit code {ended.code}"
    return answer | {"problem": told.removeprefix("remat: error: ")[:_LONGEST]}


def _exported(ended: Ended, limit_s: float, graph: Path) -> dict[str, Any]:
    answer = _answer(ended, limit_s)
    if not answer["ok"]:
        return answer
    parts = sorted(graph.parent.glob(f"{graph.stem}.[0-9]*.json"), key=lambda part: part.stat().st_size)
    parts = [part for part in parts if ".plan" not in part.name]
    nodes = [len(json.loads(part.read_text(encoding="utf-8"))["nodes"]) for part in parts or [graph]]
    if parts:
        parts[-1].replace(graph)  # the largest; plans are made of that one
    return answer | {"nodes": sum(nodes), "parts": len(nodes)}


def _of_json(ended: Ended, limit_s: float, read: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    answer = _answer(ended, limit_s)
    return answer | (read(json.loads(ended.out)) if ended.out.lstrip().startswith("{") else {})


def _solved(document: dict[str, Any]) -> dict[str, Any]:
    kept = {key: document[key] for key in _KEPT if key in document}
    return kept | {"status": document.get("claim", {}).get("status")}


def _ran(document: dict[str, Any]) -> dict[str, Any]:
    memory = document["memory"]
    return {
        "identical": document["identical"],
        "differing": document["differing"],
        "finite": document["finite"],
        "exact": memory["measured"] == memory["predicted_without_workspace"],
        "measured_bytes": memory["measured"],
        "predicted_bytes": memory["predicted_without_workspace"],
    }
