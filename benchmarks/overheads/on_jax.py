"""Models of JAX, and programs that time each of their operations."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.jax.models import LAYOUT, layer, resnet50, shape, unet, zoo
from benchmarks.overheads.steps import Subject
from remat_cli.frontends.jax.document import read_step
from remat_cli.frontends.jax.execute import Loaded, load, program, wide_numbers
from remat_cli.frontends.jax.framework import Jax
from remat_cli.frontends.jax.measure import place_arrays
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Statement


def mobilenet(batch: int = 16, resolution: int = 64) -> tuple[Any, tuple[Any, ...]]:
    """MobileNet: convolutions of single channels, and products over channels, each with batch normalisation."""
    channels = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)

    before, layers = 32, [layer(3, 3, 32)]
    for after in channels:
        layers += [layer(3, 1, before), layer(1, before, after)]
        before = after

    def normal(x: Any, p: Any, stride: int = 1) -> Any:
        groups = x.shape[-1] // p["w"].shape[2]
        x = jax.lax.conv_general_dilated(
            x, p["w"], (stride, stride), "SAME", dimension_numbers=LAYOUT, feature_group_count=groups
        )
        mean = x.mean((0, 1, 2))
        variance = jnp.square(x - mean).mean((0, 1, 2))
        return jax.nn.relu6((x - mean) * jax.lax.rsqrt(variance + 1e-3) * p["scale"] + p["shift"])

    def loss(parameters: Any, images: Any, labels: Any) -> Any:
        first, *rest = parameters["layers"]
        x = normal(images, first, 2)
        for depthwise, pointwise, stride in zip(rest[::2], rest[1::2], strides, strict=True):
            x = normal(normal(x, depthwise, stride), pointwise)
        scores = jax.nn.log_softmax(x.mean((1, 2)) @ parameters["dense"])
        return -jnp.take_along_axis(scores, labels[:, None], axis=-1).mean()

    given = {"layers": layers, "dense": shape(before, 10)}
    return loss, (given, shape(batch, resolution, resolution, 3), jax.ShapeDtypeStruct((batch,), jnp.int32))


class _Runner:
    """A plan as JAX runs it."""

    def __init__(self, loaded: Loaded, places: list[Any], statements: Sequence[Statement]) -> None:
        self.program, self.places = program(loaded, statements), places

    def step(self) -> float:
        with wide_numbers():
            started = time.perf_counter()
            self.program.run(self.places)
            return time.perf_counter() - started

    def computes(self) -> list[float]:
        moments = [0.0]
        with wide_numbers():
            moments[0] = time.perf_counter()
            self.program.run(self.places, lambda made: moments.append(time.perf_counter()))
        return [later - earlier for earlier, later in pairwise(moments)]


VERSION = f"JAX {jax.__version__}"


def runners(graph: Graph) -> Callable[[Sequence[Statement]], _Runner]:
    """What makes programs of a graph."""
    step = read_step(graph)
    with wide_numbers():
        return partial(_Runner, load(step, "cpu"), place_arrays(step.places, "cpu", 0))


def _subject(spec: str, build: Callable[[], Any]) -> Subject:
    def export() -> Graph:
        return Jax().capture(build, "step", "benchmarks.overheads", device="cpu", cost="flops", tell=print)[0]

    return Subject(spec, export)


_TRANSFORMER = partial(zoo, "jax/transformer", depth=4, width=128, heads=4, sequence=64, vocab=1000, batch=8)
SUBJECTS = {
    "transformer": _subject("4 layers, width 128, batch 8, 64 tokens", _TRANSFORMER),
    "U-Net": _subject("batch 4, resolution 64, width 16, depth 3", partial(unet, 4, 64, 16, 3)),
    "MobileNet": _subject("batch 16, resolution 64", mobilenet),
    "ResNet-50": _subject("batch 32, resolution 64", partial(resnet50, 32, 64)),
    "VGG16": _subject("batch 64, resolution 64", partial(zoo, "jax/vgg16", batch=64, resolution=64, classes=10)),
}
"""The models: small enough for one slow core, and batches so large that 60% of the peak has a plan."""
