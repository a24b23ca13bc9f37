"""Each undocumented name of TensorFlow that the frontend uses, so that a new version tells which one has moved."""

import gc
import weakref

import keras
import pytest
import tensorflow as tf

from remat_cli.frontends.tensorflow import compat

FLOAT = tf.float32.as_datatype_enum


def test_single_kernels_run_and_outputs_come_in_a_list():
    a = tf.constant([1.0, 2.0])
    [total] = compat.executor("cpu")("AddV2", [a, a], ("T", FLOAT), 1)
    assert total.numpy().tolist() == [2.0, 4.0]


def test_a_kernel_does_not_take_the_memory_of_its_input():
    a = tf.ones((64,))
    [b] = compat.executor("cpu")("Neg", [a], ("T", FLOAT), 1)
    assert compat.address(a) != compat.address(b)
    assert a.numpy().tolist() == [1.0] * 64


def test_definitions_tell_what_is_stateful():
    assert compat.op_def("RandomUniform").is_stateful
    assert not compat.op_def("Conv2D").is_stateful
    assert compat.op_def("NoSuchOperation") is None


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16, tf.int64, tf.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_addresses_are_those_of_the_memory(dtype, shape):
    tensor = tf.cast(tf.zeros(shape), dtype)
    look = tf.reshape(tensor, [-1])
    assert compat.address(tensor) == compat.address(look)
    assert compat.address(tensor)[1] == dtype.size * tensor.shape.num_elements()
    assert compat.address(tf.constant("text")) is None


def test_the_memory_of_a_variable_is_that_of_what_is_read():
    variable = tf.Variable(tf.ones((8,)))
    read = [compat.executor("cpu")("ReadVariableOp", [variable.handle], ("dtype", FLOAT), 1)[0] for _ in range(2)]
    assert compat.address(read[0]) == compat.address(read[1])


def test_tensors_are_gone_with_their_last_reference():
    tensor = tf.ones((8,)) + 1
    reference = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert reference() is None


def test_what_a_concrete_function_holds():
    variable = tf.Variable(1.0)

    def step(x):
        variable.assign_add(1.0)
        return x * variable

    concrete = tf.function(step).get_concrete_function(tf.TensorSpec(()))
    [(held, placeholder)] = compat.captures_of(concrete)
    assert held is variable.handle
    assert placeholder.op.type == "Placeholder"
    assert "AssignAddVariableOp" in {op.type for op in compat.control_outputs_of(concrete)}
    assert compat.graph_of(concrete).outputs


def test_statistics_of_flops():
    graph = tf.Graph()
    with graph.as_default():
        a = tf.compat.v1.placeholder(tf.float32, (4, 5))
        product, relu = tf.matmul(a, a, transpose_b=True), tf.nn.relu(a)
    assert compat.flop_statistics(graph, product.op.node_def) == 2 * 4 * 5 * 4
    assert compat.flop_statistics(graph, relu.op.node_def) == 0


def test_functions_are_known_by_name():
    @tf.function
    def outer(x):
        return tf.while_loop(lambda v: tf.reduce_sum(v) < 10, lambda v: (v + 1,), [x])[0]

    concrete = outer.get_concrete_function(tf.TensorSpec((2,)))
    definitions = compat.function_definitions(compat.graph_of(concrete))
    assert len(definitions) == 2
    for definition in definitions.values():
        compat.add_function(definition)
        compat.add_function(definition)  # a second time does nothing
        signature, graph = definition.signature, compat.graph_of_function(definition)
        assert len(graph.inputs) == len(signature.input_arg)
        assert len(graph.outputs) == len(signature.output_arg)


def test_functions_of_tensorflow_are_told_apart():
    assert compat.is_traced(tf.function(len))
    assert not compat.is_traced(len)
    assert compat.is_xla(tf.function(abs, jit_compile=True))
    assert not compat.is_xla(tf.function(abs))
    assert compat.python_function(tf.function(abs)) is abs


def test_functions_are_inlined_only_within_the_context():
    with compat.functions_inlined():
        assert tf.config.functions_run_eagerly()
    assert not tf.config.functions_run_eagerly()


def test_parts_of_a_keras_model_change_with_what_compile_and_the_user_replace():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="d")])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])

    def changed(change):
        before, _ = compat.parts_of_keras(model), change()
        now = compat.parts_of_keras(model)
        return {name for name in now if now[name] is not before[name] and now[name] != before[name]}

    assert changed(lambda: setattr(model.get_layer("d"), "trainable", False)) == {"value of d.trainable"}
    assert changed(lambda: setattr(model.optimizer, "clipnorm", 2.0)) == {"value of optimizer.clipnorm"}
    assert changed(lambda: setattr(model.optimizer, "learning_rate", 2.0)) == set()
    compiled = changed(lambda: model.compile(model.optimizer, "mae", metrics=["mse"]))
    assert compiled == {"loss", "compile: _loss_tracker", "compile: _compile_loss", "compile: _compile_metrics"}
