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
import time
from pathlib import Path

os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")

import tensorflow as tf

import remat_cli
from remat_cli.frontends.tensorflow.architectures import build_tensorflow_graph
from remat_cli.frontends.tensorflow.capturing.export import export_model
from remat_cli.frontends.tensorflow.executing.inputs import Given
from remat_cli.frontends.tensorflow.executing.program import program
from remat_cli.frontends.tensorflow.measuring.profile import profile
from remat_cli.frontends.tensorflow.measuring.run import run_plan
from remat_cli.frontends.tensorflow.reading import read_step
from remat_cli.plan.derive import derive, peak

MODELS = {
    "VGG16": "VGG16 without its large dense layers, batch 32, resolution 64",
    "ResNet-50": "tf/resnet50{batch=32,resolution=64,classes=10}",
    "MobileNet": "tf/mobilenet{batch=16,resolution=64,classes=10}",
    "U-Net": "tf/unet{batch=4,resolution=64,width=16,depth=3}",
    "transformer": "tf/bert{batch=8,depth=4,heads=4,width=128,sequence=64,vocab=1000}",
}
SHARES = (0.60, 0.65, 0.70, 0.80)
"""Budgets as shares of the no-remat peak; the first that has a plan is taken."""
ROUNDS = 5
HERE = Path(__file__).parent / "results"


def measured(spec: str) -> dict[str, object]:
    """The numbers of one model."""
    graph = profile(build_tensorflow_graph(spec) if "{" in spec else vgg16(), repeats=3, warmup=1)
    plain = derive(graph, range(len(graph.nodes)))
    share, plan = planned(graph)
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
        "share": share,
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


def vgg16():
    import keras

    def build():
        base = keras.applications.VGG16(weights=None, include_top=False, pooling="avg", input_shape=(64, 64, 3))
        model = keras.Sequential([base, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return model, (tf.TensorSpec((32, 64, 64, 3)), tf.fill((32,), 9)), loss

    return export_model(build, "vgg16", "benchmarks.tensorflow")


def planned(graph):
    highest = peak(graph, range(len(graph.nodes)))
    for share in SHARES:
        try:
            solved = remat_cli.solve(graph, round(share * highest), remat_cli.SolveOptions(time_limit_s=20))
        except (remat_cli.Infeasible, remat_cli.LimitReached):
            continue
        return share, solved.plan
    raise SystemExit(f"{graph.name}: no plan at any of {SHARES}")


def timed(runnable, given) -> float:
    started = time.perf_counter()
    runnable.run(given.places)
    return time.perf_counter() - started


def table(found: dict[str, dict]) -> str:
    lines = [
        "# Plans on TensorFlow's CPU",
        "",
        f"Made by `python -m benchmarks.tensorflow` with TensorFlow {tf.__version__} on one core that other programs",
        "use too. The *budget* is a share of the peak without recomputation, fixed memory and kernels' needs included.",
        "Peaks are of live buffers, by address; *allocator* is what TensorFlow's allocator handed out, and *with",
        f"kernels* what the profiled plan predicts for it. Times are medians of {ROUNDS} steps, with and without",
        "recomputation by turns. *Recomputed* is the share of measured costs that the plan computes again: it should",
        "take that much longer.",
        "",
        "| model | budget | nodes (operations) | no-remat | predicted | measured | difference | with kernels "
        "| allocator | equal | step | without | extra time | recomputed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found.items():
        sizes = [f"{row[key] / 1e6:.3f} MB" for key in ("no_remat_bytes", "predicted_bytes", "measured_bytes")]
        more = [f"{row[key] / 1e6:.3f} MB" for key in ("predicted_with_kernels_bytes", "allocator_bytes")]
        equal = f"all {row['compared']}" if row["identical"] else "NO"
        lines.append(
            f"| {name} | {row['share']:.0%} | {row['nodes']} ({row['operations']}) | {' | '.join(sizes)} "
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
