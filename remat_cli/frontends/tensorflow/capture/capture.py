"""Captures a training step: from what a user's function builds to a graph of TensorFlow with its captures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.source import one_line
from remat_cli.frontends.tensorflow.capture.layers import marked_layers
from remat_cli.frontends.tensorflow.compat import (
    function_definitions,
    functions_inlined,
    graph_of,
    is_traced,
    is_xla,
    python_function,
)

EXPECTED = (
    "it returns (model, batch) for a Keras model that is compiled, (model, batch, loss), or (step, inputs): a batch is "
    "(x, y), a loss takes (y, prediction), inputs are tensors or tf.TensorSpec"
)
_KERAS_GROUPS = "_conv_xla"
"""In the names of the functions by which Keras 3 convolves in groups, which TensorFlow's kernels on a CPU cannot."""
_BY_XLA = "the step is to be compiled by XLA (jit_compile=True), which orders and merges operations as it likes"


@dataclass(frozen=True, slots=True)
class Model:
    """A step and what it is called with.

    Attributes:
        step: A Python function of tensors.
        inputs: Its arguments: tensors, TensorSpecs, or nested structures of them.
        model: The Keras model that it trains, if it was made from one.
    """

    step: Callable[..., Any]
    inputs: tuple[Any, ...]
    model: Any = None


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured step.

    Attributes:
        concrete: The concrete function.
        inputs: The arguments that it was captured with, flat: tensors or TensorSpecs.
        parameters: Number of numbers in trainable variables.
    """

    concrete: Any
    inputs: tuple[Any, ...]
    parameters: int

    @property
    def graph(self) -> Any:
        """TensorFlow's graph."""
        return graph_of(self.concrete)


def as_model(returned: Any, name: str) -> Model:
    """The step in ``returned``, which the function ``name`` returned.

    Raises:
        CaptureFailed: If it is not of the expected form.
    """
    import keras

    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 3:
        raise CaptureFailed(f"{name}() returned {type(returned).__name__}", hint=EXPECTED)
    first, batch, *rest = returned
    if isinstance(first, keras.Model):
        if getattr(first, "jit_compile", None) is True:
            raise refused_xla()
        batch = _as_tensors(batch)
        if rest:
            return Model(gradients_of(first, rest[0], name), batch, first)
        return Model(train_step_of(first, name), batch, first)
    if rest or not callable(first):
        raise CaptureFailed(f"{name}() returned {type(first).__name__} as the model", hint=EXPECTED)
    return Model(first, tuple(batch) if isinstance(batch, Sequence) else (batch,))


def _as_tensors(batch: Any) -> tuple[Any, ...]:
    """A batch with tensors in place of arrays, as a tuple."""
    import tensorflow as tf

    def leaf(item: Any) -> Any:
        return item if isinstance(item, tf.TensorSpec | tf.Tensor) or item is None else tf.convert_to_tensor(item)

    return tuple(tf.nest.map_structure(leaf, tuple(batch) if isinstance(batch, tuple | list) else (batch,)))


def gradients_of(model: Any, loss: Any, name: str) -> Callable[..., Any]:
    """A step that returns the loss and the gradients of all trainable variables.

    Raises:
        CaptureFailed: If ``loss`` cannot be called.
    """
    import tensorflow as tf

    if not callable(loss):
        raise CaptureFailed(f"{name}() returned {type(loss).__name__} as the loss", hint=EXPECTED)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(y, model(x, training=True)))
            value += tf.add_n(model.losses) if model.losses else 0.0
        variables = [
            getattr(v, "value", v) if type(v).__module__.startswith("keras") else v for v in model.trainable_variables
        ]
        return value, tape.gradient(value, variables)

    return step


def train_step_of(model: Any, name: str) -> Callable[..., Any]:
    """The step by which ``model.fit`` trains a model that is compiled.

    Raises:
        CaptureFailed: If it is not compiled.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise CaptureFailed(
            f"{name}() returned a model that is not compiled, and no loss",
            hint="call model.compile(optimizer=..., loss=...), or return the loss as a third item",
        )

    own = own_train_step(model)

    def step(*data: Any) -> Any:
        return own(data if len(data) > 1 else data[0])

    return step


def own_train_step(model: Any) -> Callable[..., Any]:
    """The ``train_step`` of a Keras model, also where a step by plan stands for it."""
    step: Callable[..., Any] = model.train_step
    return getattr(step, "own_train_step", step)


def capture(model: Model) -> Captured:
    """Capture a step, twice: what is made while it runs first, such as an optimizer's variables, is there then.

    Raises:
        CaptureFailed: If it cannot be captured as a graph.
    """
    import tensorflow as tf

    step = model.step
    if is_traced(step):
        if is_xla(step):
            raise refused_xla()
        step = python_function(step)
    arguments = tf.nest.map_structure(_spec, list(model.inputs))
    if model.model is not None:
        prepare_model(model.model, model.inputs)
    try:
        concrete = _traced(step, arguments)
    except CaptureFailed:
        raise
    except Exception as error:  # the user's code may do anything
        raise CaptureFailed(
            f"TensorFlow cannot capture the step: {type(error).__name__}: {one_line(error, 400)}",
            hint="does it run inside tf.function?",
        ) from error
    trainable = {id(v) for v in graph_of(concrete).trainable_variables}
    parameters = sum(int(v.shape.num_elements()) for v in graph_of(concrete).variables if id(v) in trainable)
    return Captured(concrete, tuple(tf.nest.flatten(list(model.inputs))), parameters)


def _traced(step: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The concrete function of a step. Functions of ``tf.function`` that it calls become part of it where they can."""
    import tensorflow as tf

    with marked_layers():
        first = tf.function(step).get_concrete_function(*arguments)
        functions = function_definitions(graph_of(first))
        compiled = [name for name, function in functions.items() if function.attr["_XlaMustCompile"].b]
        if any(_KERAS_GROUPS in name for name in compiled):
            raise CaptureFailed(
                "Keras leaves a convolution in groups to XLA, which orders and merges operations as it likes, so that "
                "no plan holds there",
                hint="use DepthwiseConv2D, or one Conv2D for each group and Concatenate",
            )
        if compiled:
            raise refused_xla()
        try:
            with functions_inlined():
                return tf.function(step).get_concrete_function(*arguments)
        except Exception:  # such as an ``if`` on a tensor, which only a function of its own can do
            return tf.function(step).get_concrete_function(*arguments)


def prepare_model(model: Any, inputs: Sequence[Any]) -> None:
    """Make the variables of a Keras model and of its optimizer, which are made when they are first needed."""
    import tensorflow as tf

    if not model.built:
        model(tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), inputs[0]))
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not getattr(optimizer, "built", False):  # Keras 2 does not tell, and may build twice
        optimizer.build(model.trainable_variables)


def _spec(item: Any) -> Any:
    """What stands for an argument while the step is captured."""
    import tensorflow as tf

    if isinstance(item, tf.TensorSpec):
        example = item
    elif isinstance(item, tf.Tensor) or hasattr(item, "__array__"):
        tensor = tf.convert_to_tensor(item)
        example = tf.TensorSpec(tensor.shape, tensor.dtype)
    else:
        return item
    if not example.shape.is_fully_defined():
        raise CaptureFailed(
            f"an input has the shape {example.shape}, which is not fixed",
            hint="sizes of memory need fixed shapes: give the size of the batch, and batch with drop_remainder=True",
        )
    return example


def refused_xla() -> CaptureFailed:
    """The error for a step that XLA is to compile."""
    return CaptureFailed(
        f"{_BY_XLA}, so that no plan holds there",
        hint="leave jit_compile out (in Keras: model.compile(..., jit_compile=False)); the plan replaces it",
    )
