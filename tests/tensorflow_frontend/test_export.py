"""Graphs of training steps: order, phases, memory, and what is refused."""

import keras
import pytest
import tensorflow as tf
from steps import LOSS, cnn, compiled_cnn, convolutional, graph_of, images, recurrent, transformer

import remat_cli
from remat_cli.cli.main import run
from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.tensorflow.capture.capture import Model, capture
from remat_cli.frontends.tensorflow.capture.graph_reader import sorted_operations
from remat_cli.graph.model import Phase


def test_batch_normalisation_is_few_nodes():
    graph = graph_of(cnn)
    names = [node.id for node in graph.nodes if "batch_normalization" in node.id and node.phase is Phase.FORWARD]
    assert len(names) <= 2 * 3
    assert len(graph.nodes) < 60


def test_phases_follow_the_order_of_a_training_step():
    phases = [node.phase for node in graph_of(compiled_cnn).nodes]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.UPDATE].index)
    assert phases.count(Phase.UPDATE) == 1
    # The loss that the step returns is a copy made at its very end; the border lies where the gradients begin.
    assert phases.index(Phase.BACKWARD) < len(phases) / 2


def test_the_update_is_last_and_runs_once():
    graph = graph_of(compiled_cnn)
    assert graph.metadata["update"] == graph.nodes[-1].id
    assert not graph.nodes[-1].recompute
    assert set(graph.outputs) <= {*graph.nodes[-1].inputs, *graph.values_of(len(graph.nodes) - 1)}


def test_variables_inputs_and_constants_are_fixed_memory():
    model, (x, y), _ = cnn()
    graph = graph_of(lambda: (model, (x, y), LOSS))
    held = sum(4 * v.shape.num_elements() if v.dtype == "float32" else 8 * 2 for v in model.variables)
    given = sum(int(t.shape.num_elements()) * t.dtype.size for t in (x, y))
    assert 0 <= graph.fixed_memory - held - given < 2048


def test_operations_of_a_loop_with_a_gradient_are_sorted():
    model, batch, loss = recurrent()

    def step(x, y):
        with tf.GradientTape() as tape:
            found = loss(y, model(x, training=True))
        return tape.gradient(found, [v.value for v in model.trainable_variables])

    graph = capture(Model(step, batch)).graph
    place = {op.name: k for k, op in enumerate(sorted_operations(graph))}
    assert len(place) == len(graph.get_operations())
    assert all(place[t.op.name] < place[op.name] for op in graph.get_operations() for t in op.inputs)
    as_made = {op.name: k for k, op in enumerate(graph.get_operations())}
    assert any(as_made[t.op.name] > as_made[op.name] for op in graph.get_operations() for t in op.inputs)


def test_control_flow_is_one_operation_and_said_so():
    graph = graph_of(recurrent)
    assert any("While" in note for note in graph.metadata["notes"])
    assert graph.metadata["functions"]


def test_reshape_and_aligned_slices_take_no_memory():
    def build():
        def step(x):
            whole = tf.nn.relu(x)
            first, second = tf.split(whole, 2)  # 512 bytes each, aligned
            return tf.reduce_sum(tf.reshape(first, [-1]) * tf.reshape(second, [-1]))

        return step, (tf.TensorSpec((16, 16)),)

    graph = graph_of(build)
    assert sum(graph.size) <= 16 * 16 * 4 + 8 * 16 * 4 + 4


def test_random_numbers_with_a_state_are_drawn_once():
    def build():
        def step(x):
            return tf.reduce_sum(x * tf.random.uniform((64, 64)))

        return step, (tf.TensorSpec((64, 64)),)

    [random] = [node for node in graph_of(build).nodes if node.op == "RandomUniform"]
    assert not random.recompute


def test_dropout_of_keras_may_be_drawn_again():
    nodes = [node for node in graph_of(cnn).nodes if "StatelessRandomUniformV2" in str(node.payload)]
    assert nodes
    assert all(node.recompute for node in nodes)


def test_a_step_function_with_sparse_gradients():
    table = tf.Variable(tf.ones((10, 4)))

    def build():
        def step(index):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, index) ** 2)
            return loss, tape.gradient(loss, table)

        return step, (tf.constant([1, 3], tf.int32),)

    graph = graph_of(build)
    assert len(graph.metadata["results"]) == 4  # the loss; values, indices and shape of the gradient


def test_sparse_gradients_of_an_optimizer_have_lengths_that_are_not_known():
    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Embedding(20, 8), keras.layers.Dense(3)])
        model.compile("rmsprop", LOSS)
        return model, (tf.constant([[1, 2, 3, 4]]), tf.constant([[0, 1, 2, 0]]))

    graph = graph_of(build)
    assert any("depend on numbers" in note for note in graph.metadata["notes"])
    assert graph.nodes[-1].op == "update"


def test_costs_fill_the_gaps_of_tensorflow():
    graph = graph_of(cnn)
    assert graph.cost_unit == "flops"
    assert all(node.cost > 0 for node in graph.nodes)
    conv = next(node for node in graph.nodes if "Conv2D" in (node.op or ""))
    assert conv.cost >= 2 * 16 * 12 * 12 * 8 * 9 * 3
    timed = graph_of(cnn, cost="roofline:a100")
    assert timed.cost_unit == "us"
    with pytest.raises(UsageError, match="is not a cost model"):
        graph_of(cnn, cost="guess")


def test_exports_are_the_same_in_all_but_names():
    first, second = graph_of(transformer), graph_of(transformer)
    assert [node.inputs for node in first.nodes] == [node.inputs for node in second.nodes]
    assert first.size == second.size


def _xla():
    return tf.function(lambda x: x * 2, jit_compile=True), (tf.TensorSpec((2,)),)


def _nested_xla():
    inner = tf.function(lambda x: x * 2, jit_compile=True)
    return lambda x: inner(x) + 1, (tf.TensorSpec((2,)),)


def _keras_xla():
    model = convolutional()
    model.compile(optimizer="sgd", loss=LOSS, jit_compile=True)
    return model, images()


def _grouped():
    model = keras.Sequential([keras.Input((8, 8, 4)), keras.layers.Conv2D(4, 3, groups=2), keras.layers.Flatten()])
    return model, (tf.TensorSpec((2, 8, 8, 4)), tf.zeros((2,), tf.int32)), LOSS


def test_convolutions_that_keras_leaves_to_xla_are_refused_with_a_way_out():
    with pytest.raises(CaptureFailed, match="a convolution in groups") as caught:
        graph_of(_grouped)
    assert "DepthwiseConv2D" in caught.value.hint


@pytest.mark.parametrize("build", [_xla, _nested_xla, _keras_xla])
def test_steps_for_xla_are_refused(build):
    with pytest.raises(CaptureFailed, match="jit_compile=True"):
        graph_of(build)


def _open():
    return lambda x: x * 2, (tf.TensorSpec((None, 2)),)


def _python():
    return lambda x: tf.numpy_function(lambda a: a, [x], tf.float32), (tf.TensorSpec((2,)),)


def _not_compiled():
    return convolutional(), images()


def _numbers_decide():
    return lambda x: tf.boolean_mask(x, x > 0), (tf.TensorSpec((4,)),)


def _fails():
    raise RuntimeError("no data")


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_open, "not fixed"),
        (_python, "does more than compute tensors"),
        (_not_compiled, "not compiled"),
        (_numbers_decide, "depends on numbers"),
        (_fails, "no data"),
        (lambda: 3, "returned int"),
    ],
)
def test_what_cannot_be_captured_is_refused_with_the_reason(build, reason):
    with pytest.raises(CaptureFailed, match=reason) as error:
        graph_of(build)
    assert "\n" not in error.value.message


def test_a_graph_can_be_written_and_read(tmp_path):
    graph = graph_of(transformer)
    remat_cli.save_graph(graph, tmp_path / "step.json")
    assert remat_cli.load_graph(tmp_path / "step.json").nodes == graph.nodes


def test_mixed_precision_has_half_sizes():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    graph = graph_of(cnn)
    convolved = next(node for node in graph.nodes if "Conv2D" in (node.op or ""))
    assert convolved.outputs == (16 * 12 * 12 * 8 * 2,)


def test_export_in_python_is_that_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("from steps import cnn as build", encoding="utf-8")
    graph = remat_cli.export_tensorflow("train.py:build", cost="roofline:a100")
    assert (graph.cost_unit, graph.metadata["source"]) == ("us", "tf:train.py:build")
    assert run(["export", "tf:train.py:build", "--cost", "roofline:a100", "-o", "step.json"]) == 0
    written = remat_cli.load_graph("step.json")
    assert [(n.op, n.cost, n.outputs) for n in written.nodes] == [(n.op, n.cost, n.outputs) for n in graph.nodes]
    with pytest.raises(UsageError, match="is not a cost model for TensorFlow"):
        remat_cli.export_tensorflow("train.py:build", cost="device")
