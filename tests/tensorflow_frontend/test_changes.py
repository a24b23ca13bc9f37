"""Keras models that change after ``attach``: they train as models without plans do, or one error says what changed."""

from functools import partial

import keras
import numpy
import pytest
from keras_changes import compile_with, freeze, freeze_and_compile, other_adam, other_optimizer, same, squares
from steps import LOSS, L, graph_of, plan_of

import remat_cli.frontends.tensorflow as remat_tensorflow
from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.tensorflow import train

ROWS = 64


def dense():
    model = keras.Sequential([keras.Input((12,)), *(L.Dense(24, "gelu", name=f"d{k}") for k in range(2)), L.Dense(5)])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=LOSS, metrics=["accuracy"])
    return model, data(ROWS)


def data(rows):
    source = numpy.random.default_rng(0)
    return source.normal(size=(rows, 12)).astype("float32"), source.integers(0, 5, rows).astype("int32")


@pytest.fixture(scope="module")
def plan():
    keras.utils.set_random_seed(7)
    return plan_of(graph_of(dense), "90%")


ACCURACY = {"metrics": ["accuracy"]}
compiled = partial(compile_with, **ACCURACY)


def other_rate(model):
    model.optimizer.learning_rate = 0.05


def schedule(model):
    model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.5)


def decay(model):
    model.optimizer.weight_decay = 0.1


def trained(change, plan=None, unknown="error"):
    """What a model holds after two steps, a change, and two more."""
    keras.utils.set_random_seed(5)
    model, _ = dense()
    if plan is not None:
        remat_tensorflow.attach(model, plan, unknown=unknown)
    found = []
    for number in range(2):
        if plan is None:
            model.run_eagerly = True
            model.train_function = None
        history = model.fit(*data(ROWS * 2), batch_size=ROWS, shuffle=False, verbose=0).history
        found += [numpy.array(history[name]) for name in sorted(history)]
        if number == 0:
            change(model)
    return found + [v.numpy().copy() for v in (*model.variables, *model.optimizer.variables)]


def nothing(model):
    pass


FITTING = {
    "compile": compiled(),
    "compile eagerly": compiled(run_eagerly=True),
    "compile with another Adam": compiled(lambda: keras.optimizers.Adam(0.1)),
    "another Adam": other_adam,
    "another rate": other_rate,
}
OTHER = {
    "loss": (compiled(loss=squares), "another loss"),
    "loss eagerly": (compiled(loss=squares, run_eagerly=True), "another loss"),
    "metrics": (compiled(metrics=["sparse_top_k_categorical_accuracy"]), "another compile"),
    "compiled optimizer": (compiled(lambda: keras.optimizers.SGD(0.5)), "another optimizer"),
    "optimizer": (other_optimizer, "another optimizer"),
    "decay": (decay, r"another value of optimizer\.weight_decay"),
    "schedule": (schedule, r"another value of optimizer\.learning_rate"),
    "frozen": (freeze, r"another value of d0\.trainable"),
    "frozen and compiled": (partial(freeze_and_compile, **ACCURACY), r"another value of d0\.trainable"),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_change_that_a_plan_fits_trains_as_without_one(plan, name):
    wanted = trained(FITTING[name])
    assert same(trained(FITTING[name], plan), wanted)
    assert name.startswith("compile") or not same(wanted, trained(nothing))


@pytest.mark.parametrize("name", OTHER)
def test_a_change_that_no_plan_fits_is_named_before_a_step_runs(plan, name):
    change, words = OTHER[name]
    with pytest.raises(UsageError, match=f"attached, the model got .*{words}") as told:
        trained(change, plan)
    assert "call attach again" in told.value.hint
    assert len(str(told.value)) < 600
    with pytest.warns(UserWarning, match=f"runs without a plan: .*{words}"):
        found = trained(change, plan, "warn")
    assert same(found, trained(change))


def test_steps_and_new_rates_do_not_capture_again(plan, monkeypatch):
    made, step = [], train.PlannedStep
    monkeypatch.setattr(train, "PlannedStep", lambda *given: made.append(given) or step(*given))
    trained(other_rate, plan)
    assert len(made) == 1


def test_another_attach_replaces_the_plan(plan):
    keras.utils.set_random_seed(7)
    whole = plan_of(graph_of(dense), "100%")
    assert whole.statements != plan.statements
    assert same(trained(lambda model: remat_tensorflow.attach(model, whole), plan), trained(nothing))


def test_the_model_as_it_is_now_can_be_solved_and_attached(plan):
    def again(model):
        freeze_and_compile(model, **ACCURACY)
        remat_tensorflow.attach(model, plan_of(graph_of(lambda: (model, data(ROWS))), "100%"))

    assert same(trained(again, plan), trained(partial(freeze_and_compile, **ACCURACY)))


def test_compile_for_xla_is_refused_before_a_step_runs(plan):
    model, batch = dense()
    remat_tensorflow.attach(model, plan)
    model.compile("sgd", LOSS, jit_compile=True)
    with pytest.raises(CaptureFailed, match="jit_compile=True"):
        model.fit(*batch, verbose=0)
