"""Training by plan: several steps equal to eager ones, bit for bit."""

import warnings

import keras
import numpy
import pytest
import tensorflow as tf
from steps import LOSS, L, compiled_cnn, convolutional, graph_of, images, plan_of, transformer

import remat_cli.frontends.tensorflow as remat_tensorflow
from remat_cli.errors import CaptureFailed, UsageError

STEPS = 4


def custom(optimizer):
    """A step of a loop of one's own, with its model and optimizer."""
    keras.utils.set_random_seed(7)
    model = convolutional()
    optimizer = optimizer()
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step, [*model.variables, *optimizer.variables]


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped by norm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.5),
    "clipped by all": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "average": lambda: keras.optimizers.AdamW(0.01, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), dynamic_growth_steps=2),
}


def trained(optimizer, batches, plan=None):
    step, variables = custom(optimizer)
    step = step if plan is None else remat_tensorflow.compile(step, plan)
    losses = [step(x, y).numpy() for x, y in batches]
    return losses, [variable.numpy().copy() for variable in variables]


def plan_for(optimizer, budget="70%"):
    specs = (tf.TensorSpec((16, 12, 12, 3)), tf.TensorSpec((16,), tf.int32))
    return plan_of(graph_of(lambda: (custom(optimizer)[0], specs)), budget)


def same(first, second):
    return all(numpy.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("name", "policy"),
    [*((name, "float32") for name in OPTIMIZERS), ("adam", "mixed_bfloat16"), ("scaled", "mixed_float16")],
)
def test_a_loop_of_one_s_own_trains_as_without_a_plan(name, policy):
    keras.mixed_precision.set_global_policy(policy)
    batches = [images() for _ in range(STEPS)]
    plan = plan_for(OPTIMIZERS[name])
    eager, planned = trained(OPTIMIZERS[name], batches), trained(OPTIMIZERS[name], batches, plan)
    assert same(eager[0], planned[0])
    assert same(eager[1], planned[1])
    assert len(set(map(float, eager[0]))) == STEPS


def fitted(x, y, plan=None):
    keras.utils.set_random_seed(7)
    model, _ = compiled_cnn()
    if plan is None:
        model.run_eagerly = True
    else:
        remat_tensorflow.attach(model, plan)
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return history.history, [v.numpy().copy() for v in (*model.variables, *model.optimizer.variables)]


def test_fit_trains_as_without_a_plan_also_with_a_smaller_last_batch():
    x, y = (tensor.numpy() for tensor in images(16 * 2 + 5))
    plan = plan_of(graph_of(compiled_cnn))
    eager, planned = fitted(x, y), fitted(x, y, plan)
    assert eager[0] == planned[0]
    assert same(eager[1], planned[1])


def test_a_larger_batch_has_no_plan():
    model, _ = compiled_cnn()
    plan = plan_of(graph_of(compiled_cnn))
    remat_tensorflow.attach(model, plan)
    x, y = images(20)
    with pytest.raises(UsageError, match=r"has the shape \[16, 12, 12, 3\] there and \[20, 12, 12, 3\] here"):
        model.fit(x, y, batch_size=20, verbose=0)


def test_shapes_without_a_plan_run_as_they_are_if_asked():
    plan = plan_for(OPTIMIZERS["sgd"])
    batches = [images(), images(20)]
    step, variables = custom(OPTIMIZERS["sgd"])
    planned = remat_tensorflow.compile(step, plan, unknown="warn")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        losses = [planned(x, y).numpy() for x, y in batches]
    assert any("without a plan" in str(warning.message) for warning in told)
    eager = trained(OPTIMIZERS["sgd"], batches)
    assert same(losses, eager[0])
    assert same([v.numpy() for v in variables], eager[1])


def test_each_shape_takes_its_plan():
    plans = [plan_for(OPTIMIZERS["sgd"])]
    specs = (tf.TensorSpec((20, 12, 12, 3)), tf.TensorSpec((20,), tf.int32))
    plans.append(plan_of(graph_of(lambda: (custom(OPTIMIZERS["sgd"])[0], specs))))
    step, _ = custom(OPTIMIZERS["sgd"])
    planned = remat_tensorflow.compile(step, *plans)
    batches = [images(), images(20)]
    assert same([planned(x, y).numpy() for x, y in batches], trained(OPTIMIZERS["sgd"], batches)[0])


def test_structures_come_back_as_the_step_returns_them():
    table = tf.Variable(tf.ones((10, 4)))

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, batch["index"]) ** 2)
        return {"gradient": tape.gradient(loss, table), "losses": (loss, [2 * loss])}

    batch = {"index": tf.constant([1, 3])}
    plan = plan_of(graph_of(lambda: (step, (batch,))), "100%")
    found = remat_tensorflow.compile(step, plan)(batch)
    assert found["losses"][1][0] == 2 * found["losses"][0]
    assert isinstance(found["gradient"], tf.IndexedSlices)
    assert tf.reduce_all(tf.convert_to_tensor(found["gradient"]) == tf.convert_to_tensor(step(batch)["gradient"]))


@pytest.fixture
def _graphs_as_they_are():
    """Without TensorFlow's optimizer of graphs, which merges operations and so rounds elsewhere."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.usefixtures("_graphs_as_they_are")
def test_loops_of_many_turns_have_the_gradients_of_tensorflow_s_graphs():
    """Eager mode sums the gradients of 20 turns in another order."""
    model = keras.Sequential([keras.Input((20, 6)), L.GRU(24), L.Dense(4)])
    batch = tf.random.normal((16, 20, 6)), tf.constant([0, 1, 2, 3] * 4)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(LOSS(y, model(x, training=True)))
        return loss, tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    plan = plan_of(graph_of(lambda: (step, batch)), "100%")
    found, wanted = remat_tensorflow.compile(step, plan)(*batch), tf.function(step)(*batch)
    pairs = zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True)
    assert all(numpy.array_equal(mine.numpy(), other.numpy()) for mine, other in pairs)


def test_a_plan_for_another_graph_is_refused():
    plan = plan_of(graph_of(transformer), "100%")
    step, _ = custom(OPTIMIZERS["sgd"])
    with pytest.raises(UsageError, match="no plan is for this step"):
        remat_tensorflow.compile(step, plan)(*images())


def test_steps_for_xla_are_refused():
    plan = plan_for(OPTIMIZERS["sgd"], "100%")
    step, _ = custom(OPTIMIZERS["sgd"])
    with pytest.raises(CaptureFailed, match="jit_compile=True"):
        remat_tensorflow.compile(tf.function(step, jit_compile=True), plan)
    model = convolutional()
    model.compile(optimizer="sgd", loss=LOSS, jit_compile=True)
    with pytest.raises(CaptureFailed, match="jit_compile=True"):
        remat_tensorflow.attach(model, plan)


def test_wrong_arguments_are_refused():
    step, _ = custom(OPTIMIZERS["sgd"])
    with pytest.raises(UsageError, match="there is no plan"):
        remat_tensorflow.compile(step)
    plan = plan_for(OPTIMIZERS["sgd"], "100%")
    with pytest.raises(UsageError, match="unknown"):
        remat_tensorflow.compile(step, plan, unknown="ignore")
