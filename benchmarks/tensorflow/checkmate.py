"""The networks of Checkmate's experiments as Keras writes them: memory, and the least overhead found on 16 GB.

    python -m benchmarks.tensorflow.checkmate [NAME ...]

Jain et al., Checkmate, MLSys 2020, used graphs of Keras 2. Here Keras 3 writes the networks at the paper's batches,
TensorFlow captures the training step, and nothing runs: costs are FLOPs, as in figure 6. The numbers beside ours are in
``benchmarks/paper/published.py``. Results go to ``results/checkmate.json`` and ``checkmate.md``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import remat_cli
from remat_cli.frontends.tensorflow.capturing.export import export_model
from remat_cli.graph.analysis import no_remat_peak

MEMORY = 16 * 10**9
LIMIT_S = 20.0
IMAGE = (416, 608)
HERE = Path(__file__).parent / "results"
L = keras.layers
PUBLISHED = {"vgg-unet": {"peak": "23 GB (section 6.3)", "overhead": "below 10% (section 6.3)"}}
"""What the paper prints of these networks at these batches."""


def classifier(name: str) -> Callable[[], Any]:
    """A network of ``keras.applications`` on 224 x 224 pixels."""
    return lambda: getattr(keras.applications, name)(weights=None, classifier_activation=None)


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


def vgg_unet() -> Any:
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


NETWORKS: dict[str, tuple[int, Callable[[], Any]]] = {
    "vgg16": (256, classifier("VGG16")),
    "vgg19": (256, classifier("VGG19")),
    "mobilenet-v1": (512, classifier("MobileNet")),
    "fcn8": (32, fcn8),
    "vgg-unet": (32, vgg_unet),
    "segnet": (32, segnet),
    "resnet50": (256, classifier("ResNet50")),
}
"""Batch and network; ``remat export zoo:NAME`` has the same as the paper's graphs count them."""


def measured(name: str) -> dict[str, Any]:
    """The numbers of one network."""
    batch, make = NETWORKS[name]

    def build() -> Any:
        model = make()
        inputs, labels = (tf.TensorSpec((batch, *shape[1:])) for shape in (model.input_shape, model.output_shape))
        last = model.output_shape[-1] - 1
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return model, (inputs, tf.fill(labels.shape[:-1], last)), loss

    graph = export_model(build, name, "benchmarks.tensorflow.checkmate")
    whole = no_remat_peak(graph)
    row = {"batch": batch, "nodes": len(graph.nodes), "parameters": graph.metadata["parameters"], "peak_bytes": whole}
    started = time.perf_counter()
    try:
        solved = remat_cli.solve(
            graph, min(MEMORY, whole), remat_cli.SolveOptions(time_limit_s=LIMIT_S, threads=1)
        ).plan.claim
    except remat_cli.RematError as error:
        return row | {"problem": error.message}
    found = {"overhead": solved.cost / graph.total_cost - 1, "bound": solved.lower_bound / graph.total_cost - 1}
    return row | found | {"solved_s": round(time.perf_counter() - started, 1)}


def page(rows: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# Checkmate's networks as Keras 3 writes them",
        "",
        "Made by `python -m benchmarks.tensorflow.checkmate`, with numbers of Jain et al., Checkmate, 2020,",
        "where the paper prints them. The *zoo's* peak is that of `zoo:NAME`, which follows the paper's rules for a",
        "graph; Keras's graph has what TensorFlow keeps, in operations that are joined where one is of no use alone.",
        f"Overheads are in FLOPs, found and proven on 16 GB within {LIMIT_S:g} s; 0 where all fits.",
        "",
        "| network | batch | nodes | parameters | peak, Keras | zoo | published | overhead | proven | published |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- |",
    ]
    for name, row in rows.items():
        told = PUBLISHED.get(name, {})
        found = (
            f"{row['problem']} | " if "problem" in row else f"+{row['overhead']:.2%} | +{max(0.0, row['bound']):.2%}"
        )
        lines.append(
            f"| {name} | {row['batch']} | {row['nodes']} | {row['parameters']:,} | {row['peak_bytes'] / 1e9:.2f} GB | "
            f"{row['zoo_bytes'] / 1e9:.2f} GB | {told.get('peak', '')} | {found} | {told.get('overhead', '')} |"
        )
    return "\n".join(lines) + "\n"


def zoo_peak(name: str) -> int:
    """The peak of the same network as the zoo has it."""
    fused = "{fused=true}" if name in {"vgg16", "vgg19", "vgg-unet", "fcn8"} else ""
    return no_remat_peak(remat_cli.build_graph(f"{name}{fused}"))


def main() -> None:
    path = HERE / "checkmate.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows = stored.get("networks", {})
    for name in sys.argv[1:] or NETWORKS:
        print(name, flush=True)
        rows[name] = measured(name) | {"zoo_bytes": zoo_peak(name)}
        rows = {known: rows[known] for known in NETWORKS if known in rows}
        facts = {"tensorflow": tf.__version__, "keras": keras.__version__, "remat": remat_cli.__version__}
        path.write_text(json.dumps(facts | {"networks": rows}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
