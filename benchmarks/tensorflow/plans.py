"""Plans on TensorFlow's CPU.

Five models, small enough for one slow core that other programs use too; needs the extra `remat[tensorflow]`. The
*budget* is a share of the peak without recomputation, fixed memory and kernels' needs included. Peaks are of live
buffers, by address; *allocator* is what TensorFlow's allocator handed out, and *with kernels* what the profiled plan
predicts for it. Costs are measured first, so that the cost of a plan says how long it should take: *recomputed* is the
share of measured costs that the plan computes again. Steps with and without recomputation take turns, since other
programs disturb both alike, and times are medians.
"""

import os
import statistics
import time
from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.solving import first_plan

_VGG16 = "VGG16 without its large dense layers, batch 32, resolution 64"
_MODELS = {
    "VGG16": _VGG16,
    "ResNet-50": "tf/resnet50{batch=32,resolution=64,classes=10}",
    "MobileNet": "tf/mobilenet{batch=16,resolution=64,classes=10}",
    "U-Net": "tf/unet{batch=4,resolution=64,width=16,depth=3}",
    "transformer": "tf/bert{batch=8,depth=4,heads=4,width=128,sequence=64,vocab=1000}",
}
_QUICK = {"U-Net": "tf/unet{batch=1,resolution=32,width=4,depth=2}"}
_SHARES = (0.60, 0.65, 0.70, 0.80)
"""Budgets as shares of the no-remat peak; the first that has a plan is taken."""
_SOLVE_S = 20.0
_ROUNDS = 5

TABLES = (
    Table(
        "plans",
        "",
        (
            *columns("text", model="model", spec="step", budget="budget"),
            *columns("count", nodes="nodes", operations="operations"),
            Column("fixed_bytes", "fixed memory", "bytes"),
            *columns("count", no_remat_bytes="no-remat, B", predicted_bytes="predicted, B"),
            *columns("count", measured_bytes="measured, B"),
            *columns("bytes", with_kernels_bytes="with kernels", allocator_bytes="allocator"),
            Column("equal", "results equal"),
            Column("recomputations", "recomputations", "count"),
            *columns("number", step_ms="step, ms", without_ms="without, ms", extra="extra time, %"),
            *columns("number", recomputed="recomputed, %"),
        ),
        f"Times are medians of {_ROUNDS} steps.",
        named_by=("model",),
    ),
)


def run(session: Session) -> list[Row]:
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")  # before TensorFlow is imported
    models = _QUICK if session.quick else _MODELS
    rounds = session.times(_ROUNDS)
    return rows_of(session, [Cell(name, partial(_row, name, spec, rounds)) for name, spec in models.items()])


def _row(name: str, spec: str, rounds: int) -> Row:
    """The numbers of one model."""
    from remat_cli.api import profile, run_plan
    from remat_cli.frontends.tensorflow.document import read_step
    from remat_cli.frontends.tensorflow.execute.program import program
    from remat_cli.frontends.tensorflow.framework import TensorFlow
    from remat_cli.frontends.tensorflow.measure import Given
    from remat_cli.plan.derive import derive

    graph = profile(vgg16() if spec == _VGG16 else TensorFlow().export_architecture(spec), repeats=3, warmup=1)
    share, plan = first_plan(graph, _SHARES, _SOLVE_S)
    ran = run_plan(plan, steps=1)
    step = read_step(graph)
    given = Given(step.places, "cpu", 0)
    orders = (derive(graph, range(len(graph.nodes))), plan.statements)
    programs = [program(step, statements, "cpu", unseeded=0) for statements in orders]
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for runnable, taken in zip(programs, times, strict=True):
            given.restore()
            started = time.perf_counter()
            runnable.run(given.places)
            taken.append(time.perf_counter() - started)
    without, with_plan = (statistics.median(taken[1:]) for taken in times)
    values: Row = {
        "budget": f"{share:.0%}",
        "operations": sum(len(operation.calls) for operation in step.operations),
        "nodes": len(graph.nodes),
        "fixed_bytes": graph.fixed_memory,
        "no_remat_bytes": ran.reference_peak,
        "predicted_bytes": ran.memory.predicted_without_workspace,
        "measured_bytes": ran.memory.measured,
        "with_kernels_bytes": ran.memory.predicted,
        "allocator_bytes": ran.memory.allocator,
        "equal": f"all {ran.compared}" if ran.identical else "no",
        "recomputations": ran.recomputations,
        "step_ms": round(1000 * with_plan, 1),
        "without_ms": round(1000 * without, 1),
        "extra": round(100 * (with_plan / without - 1), 1),
        "recomputed": round(100 * (plan.claim.cost / graph.total_cost - 1), 1),
    }
    return TABLES[0].row({"model": name, "spec": spec}, values)


def vgg16(batch: int = 32, resolution: int = 64) -> Any:
    """VGG16 without its large dense layers."""
    import keras
    import tensorflow as tf

    from remat_cli.frontends.tensorflow.framework import TensorFlow

    def build() -> Any:
        shape = (resolution, resolution, 3)
        base = keras.applications.VGG16(weights=None, include_top=False, pooling="avg", input_shape=shape)
        model = keras.Sequential([base, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return model, (tf.TensorSpec((batch, *shape)), tf.fill((batch,), 9)), loss

    return TensorFlow().capture(build, "vgg16", "benchmarks.tensorflow", device="cpu", cost="flops", tell=print)[0]
