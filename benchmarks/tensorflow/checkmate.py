"""The networks of Checkmate's experiments as Keras writes them, exported at the batches of the papers' tables.

    python -m benchmarks.tensorflow.checkmate export [NAME ...]
    python -m benchmarks.tensorflow.checkmate profile [NAME ...]

Jain et al., Checkmate, MLSys 2020, used graphs of Keras 2, profiled on a V100. Here Keras 3 writes the networks, and
TensorFlow captures the training step at that batch; nothing runs for that. Times are measured on a CPU, which
would need a day and 50 GB at such batches: so nodes are measured at two small batches, with the same operations
in each node as at the whole batch. ``export`` writes ``benchmarks/paper/keras/NAME.json`` and, for ``profile``, the
graphs of the small batches into ``build/checkmate``; ``profile`` adds the times. ``make paper`` reads these files.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks.machine import machine, versions
from benchmarks.paper.keras_graphs import FOLDER, FORM
from remat_cli.api import profile, save_graph
from remat_cli.frontends.tensorflow.capture.capture import as_model, capture
from remat_cli.frontends.tensorflow.capture.costs import Work, cost_model
from remat_cli.frontends.tensorflow.capture.graph_reader import read_graph
from remat_cli.frontends.tensorflow.capture.lower import lower
from remat_cli.frontends.tensorflow.document import read_groups
from remat_cli.frontends.tensorflow.framework import TensorFlow
from remat_cli.graph.batched import Batched
from remat_cli.graph.io import graph_to_document, load_graph
from remat_cli.graph.model import Graph

IMAGE = (416, 608)
SMALL = Path("build/checkmate")
REPEATS = 3
L = keras.layers


def classifier(name: str) -> Any:
    """A network of ``keras.applications`` on 224 x 224 pixels."""
    return getattr(keras.applications, name)(weights=None, classifier_activation=None)


def encoder(x: Any, *, normal: bool = False) -> list[Any]:
    """The convolutions of VGG16, and what each of its five blocks makes."""
    made = []
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = convolved(x, channels) if normal else L.Conv2D(channels, 3, padding="same", activation="relu")(x)
        x = L.MaxPooling2D()(x)
        made.append(x)
    return made


def convolved(x: Any, channels: int) -> Any:
    return L.ReLU()(L.BatchNormalization()(L.Conv2D(channels, 3, padding="same")(x)))


def unet() -> Any:
    image = keras.Input((*IMAGE, 3))
    *skips, x, _ = encoder(image)
    x = L.BatchNormalization()(L.Conv2D(512, 3, padding="same")(x))
    for channels in (256, 128, 64):
        x = L.Concatenate()([L.UpSampling2D()(x), skips.pop()])
        x = L.BatchNormalization()(L.Conv2D(channels, 3, padding="same")(x))
    return keras.Model(image, L.Conv2D(19, 3, padding="same")(x))


def fcn8() -> Any:
    image = keras.Input((*IMAGE, 3))
    *_, third, fourth, x = encoder(image)
    for size in (7, 1):
        x = L.Dropout(0.5)(L.Conv2D(4096, size, padding="same", activation="relu")(x))
    x = L.Conv2D(21, 1)(x)
    for skip in (fourth, third):
        x = L.Add()([L.Conv2DTranspose(21, 4, strides=2, padding="same", use_bias=False)(x), L.Conv2D(21, 1)(skip)])
    return keras.Model(image, L.Conv2DTranspose(21, 16, strides=8, padding="same", use_bias=False)(x))


def segnet() -> Any:
    image = keras.Input((*IMAGE, 3))
    x = encoder(image, normal=True)[-1]
    for channels in ((512, 512, 512), (512, 512, 256), (256, 256, 128), (128, 64), (64,)):
        x = L.UpSampling2D()(x)
        for count in channels:
            x = convolved(x, count)
    return keras.Model(image, L.Conv2D(21, 3, padding="same")(x))


@dataclass(frozen=True, slots=True)
class Network:
    """A network of the paper.

    Attributes:
        batch: The whole batch.
        small: The batches at which it is profiled.
        make: Makes the model.
    """

    batch: int
    small: tuple[int, int]
    make: Callable[[], Any]


NETWORKS = {
    "vgg16": Network(256, (4, 16), partial(classifier, "VGG16")),
    "mobilenet-v1": Network(512, (8, 32), partial(classifier, "MobileNet")),
    "unet": Network(32, (2, 8), unet),
    "resnet50": Network(256, (4, 16), partial(classifier, "ResNet50")),
    "vgg19": Network(256, (4, 16), partial(classifier, "VGG19")),
    "fcn8": Network(32, (2, 8), fcn8),
    "segnet": Network(32, (2, 8), segnet),
}


def step(network: Network, batch: int) -> Any:
    """The model, a batch, and the loss."""
    keras.backend.clear_session()
    model = network.make()
    inputs, labels = (tf.TensorSpec((batch, *shape[1:])) for shape in (model.input_shape, model.output_shape))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, (inputs, tf.fill(labels.shape[:-1], model.output_shape[-1] - 1)), loss


def smaller(whole: Graph, network: Network, batch: int) -> Graph:
    """The graph at a smaller batch, with the same operations in each node as ``whole`` has."""
    captured = capture(as_model(step(network, batch), whole.name))
    program = read_graph(captured)
    costs = cost_model("flops")
    for op in program.ops:
        op.cost = costs.cost(Work(program, op, captured.graph))
    made = lower(program, whole.name, whole.cost_unit, read_groups(whole))
    if made is None:
        raise SystemExit(f"{whole.name}: a batch of {batch} has other operations")
    return replace(made, metadata=whole.metadata | made.metadata)


def export(name: str) -> None:
    """Write the graph of a network at the whole batch, and what changes with the batch."""
    network = NETWORKS[name]
    build, source = partial(step, network, network.batch), "benchmarks.tensorflow.checkmate"
    [whole] = TensorFlow().capture(build, name, source, device="cpu", cost="flops", tell=print)
    small, middle = (smaller(whole, network, batch) for batch in network.small)
    SMALL.mkdir(parents=True, exist_ok=True)
    for batch, graph in zip(network.small, (small, middle), strict=True):
        save_graph(graph, SMALL / f"{name}-{batch}.json")
    at = Batched.of([(network.small[0], small), (network.batch, whole)]).at(network.small[1])
    if [(n.outputs, n.workspace) for n in at.nodes] != [(n.outputs, n.workspace) for n in middle.nodes]:
        raise SystemExit(f"{name}: bytes are not on a line through the batches {network.small[0]} and {network.batch}")
    bare = replace(whole, nodes=tuple(replace(n, payload=None) for n in whole.nodes), metadata=None)
    facts = {
        "form": FORM,
        "batch": network.batch,
        "parameters": whole.metadata["parameters"],
        "frameworks": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "graph": graph_to_document(bare),
        "small": {
            "batch": network.small[0],
            "fixed_memory": small.fixed_memory,
            "costs": [node.cost for node in small.nodes],
            "outputs": [list(node.outputs) for node in small.nodes],
            "workspaces": [node.workspace for node in small.nodes],
        },
    }
    write(name, facts)


def measure(name: str) -> None:
    """Add the times of the nodes at the small batches."""
    network, file = NETWORKS[name], FOLDER / f"{name}.json"
    facts = json.loads(file.read_text(encoding="utf-8"))
    times = {}
    for batch in network.small:
        found = profile(load_graph(str(SMALL / f"{name}-{batch}.json")), repeats=REPEATS, warmup=0)
        times[str(batch)] = [round(node.cost, 1) for node in found.nodes]
        print(name, batch, f"{sum(times[str(batch)]) / 1e6:.2f} s", flush=True)
    place = {"machine": machine(), "versions": versions(), "date": datetime.now(UTC).date().isoformat()}
    write(name, facts | {"microseconds": times, "measured": place | {"repeats": REPEATS}})


def write(name: str, facts: dict[str, Any]) -> None:
    """Write the file of a network: a line for each node and each list."""
    FOLDER.mkdir(exist_ok=True)
    lines = [f'"{key}": {json.dumps(value, sort_keys=True)}' for key, value in sorted(facts.items()) if key != "graph"]
    nodes = ",\n".join(json.dumps(node, sort_keys=True) for node in facts["graph"]["nodes"])
    rest = {key: value for key, value in facts["graph"].items() if key != "nodes"}
    head = json.dumps(rest, sort_keys=True).removesuffix("}")
    lines.append(f'"graph": {head}, "nodes": [\n{nodes}\n]}}')
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Do what is asked for."""
    works = {"export": export, "profile": measure}
    if not arguments or arguments[0] not in works or set(arguments[1:]) - set(NETWORKS):
        raise SystemExit(f"{__doc__}\nNetworks: {', '.join(NETWORKS)}")
    for name in arguments[1:] or NETWORKS:
        print(arguments[0], name, flush=True)
        works[arguments[0]](name)


if __name__ == "__main__":
    main(sys.argv[1:])
