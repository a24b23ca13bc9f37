"""Models of Keras, and programs that time each of their operations."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from benchmarks.overheads.steps import Subject
from benchmarks.tensorflow.plans import vgg16
from remat_cli.frontends.tensorflow.document import Step, read_step
from remat_cli.frontends.tensorflow.execute.program import program
from remat_cli.frontends.tensorflow.framework import TensorFlow
from remat_cli.frontends.tensorflow.measure import Given
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Compute, Statement


class _Runner:
    """A plan as TensorFlow runs it."""

    def __init__(self, step: Step, given: Given, statements: Sequence[Statement]) -> None:
        self.given = given
        self.program = program(step, statements, "cpu", unseeded=0)
        computes = [statement.node for statement in statements if isinstance(statement, Compute)]
        self.calls = [len(step.operations[node].calls) for node in computes]
        results = sum(len(result.calls) for result in step.results)
        self.before = self.program.text.count('run("') - sum(self.calls) - results  # reading variables

    def step(self) -> float:
        self.given.restore()
        started = time.perf_counter()
        self.program.run(self.given.places)
        return time.perf_counter() - started

    def computes(self) -> list[float]:
        taken: list[float] = []
        execute = self.program.execute

        def timed(*arguments: Any) -> list[Any]:
            started = time.perf_counter()
            found = execute(*arguments)
            taken.append(time.perf_counter() - started)
            return found

        self.given.restore()
        self.program.run(self.given.places, timed)
        found, position = [], self.before
        for calls in self.calls:
            found.append(sum(taken[position : position + calls]))
            position += calls
        return found


VERSION = f"TensorFlow {tf.__version__}"


def runners(graph: Graph) -> Callable[[Sequence[Statement]], _Runner]:
    """What makes programs of a graph."""
    step = read_step(graph)
    return partial(_Runner, step, Given(step.places, "cpu", 0))


def _zoo(spec: str) -> Subject:
    return Subject(spec, partial(TensorFlow().export_architecture, spec))


SUBJECTS = {
    "transformer": _zoo("tf/bert{batch=8,depth=4,heads=4,width=128,sequence=64,vocab=1000}"),
    "U-Net": _zoo("tf/unet{batch=4,resolution=64,width=16,depth=3}"),
    "MobileNet": _zoo("tf/mobilenet{batch=16,resolution=64,classes=10}"),
    "ResNet-50": _zoo("tf/resnet50{batch=32,resolution=64,classes=10}"),
    "VGG16": Subject("without its large dense layers, batch 40, resolution 48", partial(vgg16, 40, 48)),
}
"""The models: small enough for one slow core, and batches so large that 60% of the peak has a plan."""
