"""Models of Keras 2 are captured, run by plan, and trained by plan like in eager mode, bit for bit."""

import keras
import numpy
import pytest
import tensorflow as tf
from keras_changes import LOSS, compile_with, freeze, freeze_and_compile, other_adam, other_optimizer, same, squares
from plans_by_hand import plain, plan_of, repeated

import remat_cli.frontends.tensorflow as remat_tensorflow
from remat_cli.errors import UsageError
from remat_cli.frontends.tensorflow.framework import TensorFlow

run_plan = TensorFlow().run

L = keras.layers


def compiled(model, batch):
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=LOSS, jit_compile=False)
    return model, batch


def application(name):
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(32, 32, 3), classes=7, classifier_activation=None
    )
    return compiled(model, (tf.random.normal((2, 32, 32, 3)), tf.constant([3, 6])))


def mobilenet():
    return application("MobileNet")


def vgg16():
    return application("VGG16")


def resnet50():
    return application("ResNet50")


def unet():
    x = image = keras.Input((16, 16, 3))
    skips = []
    for channels in (4, 8):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(channels, 3, padding="same")(x)))
        skips.append(x)
        x = L.MaxPool2D()(x)
    for channels in (8, 4):
        x = L.Concatenate()([L.Conv2DTranspose(channels, 2, strides=2)(x), skips.pop()])
        x = L.Conv2D(channels, 3, padding="same", activation="relu")(x)
    return compiled(keras.Model(image, L.Conv2D(3, 1)(x)), (tf.random.normal((2, 16, 16, 3)), tf.fill((2, 16, 16), 2)))


def transformer(dropout=0.0):
    """Adam updates the embedding by rows, whose number TensorFlow does not know."""
    tokens = keras.Input((8,), dtype="int32")
    x = L.Embedding(20, 16)(tokens)
    for _ in range(2):
        normal = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(2, 8, dropout=dropout)(normal, normal)
        x = x + L.Dropout(dropout)(L.Dense(16)(L.Dense(32, activation="gelu")(L.LayerNormalization()(x))))
    batch = tf.random.uniform((4, 8), 0, 20, tf.int32)
    return compiled(keras.Model(tokens, L.Dense(20)(x)), (batch, batch))


def with_dropout():
    return transformer(0.1)


def half():
    keras.mixed_precision.set_global_policy("mixed_float16")
    layers = [keras.Input((12, 12, 3)), L.Conv2D(8, 3), L.BatchNormalization(), L.ReLU(), L.GlobalAveragePooling2D()]
    model = keras.Sequential([*layers, L.Dense(4, dtype="float32")])
    return compiled(model, (tf.random.normal((4, 12, 12, 3)), tf.constant([0, 1, 2, 3])))


def graph_of(build):
    return TensorFlow().capture(build, build.__name__, "tf:test", device="cpu", cost="flops", tell=print)[0]


def plan_with_recomputations(graph):
    """A plan that computes nodes again at random places."""
    return plan_of(graph, repeated(graph, share=3 / len(graph.nodes)))


def trained(build, plan=None, change=None, unknown="error"):
    """What a model holds after two steps of ``fit``; with a change, after that and two more."""
    keras.utils.set_random_seed(5)
    model, batch = build()
    if plan is not None:
        remat_tensorflow.attach(model, plan, unknown=unknown)
    x, y = (numpy.concatenate([array.numpy()] * 2) for array in batch)
    losses = []
    for number in range(1 if change is None else 2):
        if number:
            change(model)
        if plan is None:
            model.run_eagerly, model.train_function = True, None
        losses += model.fit(x, y, batch_size=len(x) // 2, shuffle=False, verbose=0).history["loss"]
    return [*losses, *(v.numpy().copy() for v in (*model.variables, *model.optimizer.variables))]


@pytest.mark.parametrize("build", [mobilenet, resnet50, unet, transformer, with_dropout, half, vgg16])
def test_plans_run_with_the_same_bits_and_the_predicted_peak(build):
    graph = graph_of(build)
    assert graph.metadata["tensorflow"].startswith("2.15")
    ran = run_plan(plan_with_recomputations(graph), steps=1)
    assert ran.recomputations > 0
    assert ran.identical
    assert ran.memory.measured == pytest.approx(ran.memory.predicted, abs=2048)


@pytest.mark.parametrize("build", [unet, transformer, half])
def test_fit_by_plan_is_fit_in_eager_mode(build):
    plan = plan_with_recomputations(graph_of(build))
    found, wanted = trained(build, plan), trained(build)
    assert len(found) == len(wanted)
    assert all(numpy.array_equal(mine, other) for mine, other in zip(found, wanted, strict=True))


def dense():
    model = keras.Sequential([keras.Input((12,)), *(L.Dense(24, "gelu", name=f"d{k}") for k in range(2)), L.Dense(5)])
    return compiled(model, (tf.random.normal((32, 12)), tf.random.uniform((32,), 0, 5, tf.int32)))


@pytest.fixture
def dense_plan():
    return plan_with_recomputations(graph_of(dense))


@pytest.mark.parametrize(
    "change",
    [
        compile_with(),
        compile_with(run_eagerly=True),
        compile_with(lambda: keras.optimizers.Adam(0.1)),
        other_adam,
        freeze,
    ],
)
def test_a_change_that_a_plan_fits_trains_as_without_one(dense_plan, change):
    assert same(trained(dense, dense_plan, change), trained(dense, change=change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (compile_with(loss=squares), "another loss"),
        (compile_with(loss=squares, run_eagerly=True), "another loss"),
        (compile_with(metrics=["accuracy"]), "another compile"),
        (compile_with(lambda: keras.optimizers.SGD(0.5)), "another optimizer"),
        (other_optimizer, "another optimizer"),
        (freeze_and_compile, r"another value of d0\.trainable"),
    ],
)
def test_a_change_that_no_plan_fits_is_named_before_a_step_runs(dense_plan, change, words):
    with pytest.raises(UsageError, match=f"attached, the model got .*{words}"):
        trained(dense, dense_plan, change)
    with pytest.warns(UserWarning, match=f"runs without a plan: .*{words}"):
        found = trained(dense, dense_plan, change, "warn")
    assert same(found, trained(dense, change=change))


def test_another_attach_replaces_the_plan(dense_plan):
    attach = lambda model: remat_tensorflow.attach(model, plain(dense_plan.graph))  # noqa: E731
    assert same(trained(dense, dense_plan, attach), trained(dense, change=lambda model: None))
