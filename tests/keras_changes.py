"""Changes of a Keras model that is trained by plan already, and whether two trainings are the same."""

import keras
import numpy
import tensorflow as tf

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compile_with(optimizer=None, loss=LOSS, **options):
    """A change: ``compile``, with another optimizer if a function makes one."""

    def change(model):
        model.compile(optimizer() if optimizer else model.optimizer, loss, jit_compile=False, **options)

    return change


def other_adam(model):
    model.optimizer = keras.optimizers.Adam(0.05)


def other_optimizer(model):
    model.optimizer = keras.optimizers.SGD(0.5)


def freeze(model):
    """Keras 2 leaves this aside until ``compile``."""
    model.get_layer("d0").trainable = False


def freeze_and_compile(model, **options):
    freeze(model)
    compile_with(lambda: keras.optimizers.Adam(0.01), **options)(model)


def squares(wanted, found):
    return tf.reduce_mean(found**2, axis=-1)


def same(first, second):
    return len(first) == len(second) and all(numpy.array_equal(a, b) for a, b in zip(first, second, strict=True))
