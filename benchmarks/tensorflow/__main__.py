"""Runs plans at 60% for five models, small enough for one slow core, and writes ``results/cpu.json`` and ``cpu.md``.

    python -m benchmarks.tensorflow [NAME ...]

Costs are measured first, so that the cost of a plan says how long it should take. Steps with and without recomputation
alternate, and the time of each is the median, since other processes disturb both alike.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")

import tensorflow as tf

import remat_cli
from remat_cli.frontends.tensorflow.architectures import build_tensorflow_graph
from remat_cli.frontends.tensorflow.executing.inputs import Given
from remat_cli.frontends.tensorflow.executing.program import program
from remat_cli.frontends.tensorflow.measuring.profile import profile
from remat_cli.frontends.tensorflow.measuring.run import run_plan
from remat_cli.frontends.tensorflow.reading import read_step
from remat_cli.plan.derive import derive

MODELS = {
    "VGG16": "tf/vgg16{batch=4,resolution=64,classes=10}",
    "ResNet-50": "tf/resnet50{batch=4,resolution=64,classes=10}",
    "MobileNet": "tf/mobilenet{batch=8,resolution=64,classes=10}",
    "U-Net": "tf/unet{batch=4,resolution=64,width=16,depth=3}",
    "transformer": "tf/bert{batch=8,depth=4,heads=4,width=128,sequence=64,vocab=1000}",
}
ROOM = 0.60
"""The budget, as a share of what the no-remat peak is above the fixed memory."""
ROUNDS = 15
HERE = Path(__file__).parent / "results"


def measured(spec: str) -> dict[str, object]:
    """The numbers of one model."""
    graph = profile(build_tensorflow_graph(spec), repeats=5, warmup=1)
    plain = derive(graph, range(len(graph.nodes)))
    highest = remat_cli.solve(graph, None, remat_cli.SolveOptions(strategy="keep-all")).report.peak_memory
    budget = graph.fixed_memory + round(ROOM * (highest - graph.fixed_memory))
    plan = remat_cli.solve(graph, budget, remat_cli.SolveOptions(time_limit_s=40)).plan
    ran = run_plan(plan, steps=1)
    step = read_step(graph)
    given = Given(step.places, "cpu", 0)
    programs = [program(step, statements, "cpu", unseeded=0) for statements in (plain, plan.statements)]
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS + 1):
        for runnable, found in zip(programs, times, strict=True):
            given.restore()
            found.append(timed(runnable, given))
    without, with_plan = (statistics.median(found[1:]) for found in times)
    recomputed = plan.claim.cost / graph.total_cost - 1
    return {
        "spec": spec,
        "operations": sum(len(operation.calls) for operation in step.operations),
        "nodes": len(graph.nodes),
        "fixed_bytes": graph.fixed_memory,
        "no_remat_bytes": ran.reference_peak,
        "predicted_bytes": ran.memory.predicted_without_workspace,
        "measured_bytes": ran.memory.measured,
        "predicted_with_kernels_bytes": ran.memory.predicted,
        "allocator_bytes": ran.memory.allocator,
        "compared": ran.compared,
        "identical": ran.identical,
        "recomputed_nodes": ran.recomputations,
        "recomputed_time": recomputed,
        "step_ms": 1000 * with_plan,
        "without_ms": 1000 * without,
        "extra_time": with_plan / without - 1,
    }


def timed(runnable, given) -> float:
    import time

    started = time.perf_counter()
    runnable.run(given.places)
    return time.perf_counter() - started


def table(found: dict[str, dict]) -> str:
    lines = [
        "# Plans on TensorFlow's CPU",
        "",
        f"Made by `python -m benchmarks.tensorflow` with TensorFlow {tf.__version__}, one core. The budget is the fixed",
        f"memory and {ROOM:.0%} of what the step without recomputation needs above it. Peaks are of live buffers, by",
        "address; *allocator* is what TensorFlow's allocator handed out, and *with kernels* what the profiled plan predicts",
        f"for it. Times are medians of {ROUNDS} steps, with and without recomputation by turns. *Recomputed* is the share",
        "of measured costs that the plan computes again, so a plan should take that much longer.",
        "",
        "| model | nodes (operations) | no-remat | predicted | measured | difference | with kernels | allocator | equal "
        "| step | without | extra time | recomputed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found.items():
        sizes = [f"{row[key] / 1e6:.3f} MB" for key in ("no_remat_bytes", "predicted_bytes", "measured_bytes")]
        more = [f"{row[key] / 1e6:.3f} MB" for key in ("predicted_with_kernels_bytes", "allocator_bytes")]
        equal = f"all {row['compared']}" if row["identical"] else "NO"
        lines.append(
            f"| {name} | {row['nodes']} ({row['operations']}) | {' | '.join(sizes)} "
            f"| {row['measured_bytes'] - row['predicted_bytes']:+d} B | {' | '.join(more)} | {equal} "
            f"| {row['step_ms']:.0f} ms | {row['without_ms']:.0f} ms | {row['extra_time']:+.1%} "
            f"| {row['recomputed_time']:+.1%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    HERE.mkdir(exist_ok=True)
    file = HERE / "cpu.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in sys.argv[1:] or MODELS:
        found[name] = measured(MODELS[name])
        print(name, found[name], flush=True)
        found = {key: found[key] for key in MODELS if key in found}
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (HERE / "cpu.md").write_text(table(found), encoding="utf-8")


if __name__ == "__main__":
    main()
