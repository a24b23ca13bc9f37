"""The steps of the suite. Each runs in a process of its own, within a time limit, and its answer is a mapping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.models.listing import Listed

STEPS = ("export", "fullgraph", "solve60", "run60", "solve80", "run80", "fit", "checkpoint")
"""All steps, in the order in which they run for a model."""
LIMITS_S = {"export": 300, "fullgraph": 300, "solve": 90, "run": 200, "fit": 500, "checkpoint": 400}
SOLVE_LIMIT = "10s"
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


def perform(step: str, model: Listed) -> dict[str, Any]:
    """The answer of ``step`` for ``model``: ``ok``, ``seconds``, what was measured, and ``problem`` if there is one."""
    kind, budget = step.rstrip("0123456789"), step[len(step.rstrip("0123456789")) :]
    graph, plan = work_folder() / f"{model.name}.json", work_folder() / f"{model.name}.{budget}.plan.json"
    remat = [sys.executable, "-m", "remat_cli"]
    limit = LIMITS_S[kind]
    if kind == "export":
        source = f"torch:{model.file.relative_to(ROOT)}:{model.name}"
        return _exported(_called([*remat, "export", source, "-o", str(graph)], limit), graph)
    if kind == "solve":
        asked = ["--budget", f"{budget}%", "--time-limit", SOLVE_LIMIT, "--format", "json", "-o", str(plan)]
        answer = _called([*remat, "solve", str(graph), *asked], limit)
        return _of_json(answer, _solved)
    if kind == "run":
        answer = _called([*remat, "run", str(plan), "--steps", "1", "--format", "json"], limit)
        return _of_json(answer, _ran)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        answer = _called([sys.executable, "-m", "benchmarks.models.child", kind, model.name, str(path)], limit)
        if path.is_file():
            return dict(json.loads(path.read_text(encoding="utf-8")))
    return {"ok": False, "seconds": answer["seconds"], "problem": answer["problem"] or "no answer"}


def _called(command: Sequence[str], limit_s: float) -> dict[str, Any]:
    """Run a command; its exit code, its output, its seconds, and the end of what it said if it failed."""
    started = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the solvers that it has started
            process.communicate()
            return {"code": None, "out": "", "problem": f"not done in {limit_s} s", "seconds": float(limit_s)}
    seconds = round(time.perf_counter() - started, 1)
    return {"code": process.returncode, "out": out, "problem": _problem(process.returncode, err), "seconds": seconds}


def _problem(code: int, err: str) -> str:
    """What a failed command said: remat's error and hint, or the last lines; empty if it did not fail."""
    if code == 0:
        return ""
    lines = [line.strip() for line in err.splitlines() if line.strip() and "USDT:" not in line]
    starts = [k for k, line in enumerate(lines) if line.startswith("remat: error:")]
    told = " ".join(lines[starts[-1] :] if starts else lines[-3:]) or f"exit code {code}"
    return told.removeprefix("remat: error: ")[:_LONGEST]


def _exported(answer: dict[str, Any], graph: Path) -> dict[str, Any]:
    said = {"ok": answer["code"] == 0, "seconds": answer["seconds"], "problem": answer["problem"]}
    if said["ok"]:
        said["nodes"] = len(json.loads(graph.read_text(encoding="utf-8"))["nodes"])
    return said


def _of_json(answer: dict[str, Any], read: Any) -> dict[str, Any]:
    said = {"ok": answer["code"] == 0, "seconds": answer["seconds"], "problem": answer["problem"]}
    if answer["out"].lstrip().startswith("{"):
        try:
            said |= read(json.loads(answer["out"]))
        except json.JSONDecodeError:
            said["problem"] = said["problem"] or "its output is not JSON"
    return said


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
