"""All undocumented names of TensorFlow that this frontend uses. No other module uses such names.

Each function here is small and has a test of its own (``tests/tensorflow_frontend/test_compat.py``). If a new version
of TensorFlow moves or changes a name, the test says which, before any plan goes wrong.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Execute = Callable[[str, list[Any], tuple[Any, ...], int], list[Any]]
"""``execute(op, inputs, attributes, outputs)``: runs one kernel, and returns its outputs. ``attributes`` are names and
values by turns."""


def executor(device: str) -> Execute:
    """The function that runs single kernels on ``device``: ``cpu`` or ``gpu``; nothing is optimised across calls."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context

    here = context.context()
    here.ensure_initialized()
    handle, name, run = here._handle, f"/device:{device.upper()}:0", pywrap_tfe.TFE_Py_Execute

    def execute(op: str, inputs: list[Any], attributes: tuple[Any, ...], outputs: int) -> list[Any]:
        results: list[Any] = run(handle, name, op, inputs, attributes, outputs)
        return results

    return execute


def op_def(op: str) -> Any:
    """The definition of an operation: ``is_stateful``, ``attr``, ``input_arg``, ``output_arg``; None if unknown."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


def flop_statistics(graph: Any, node_def: Any) -> float:
    """TensorFlow's own count of FLOPs for an operation of ``graph``; 0 if it has none."""
    from tensorflow.python.framework import ops

    logger = logging.getLogger("tensorflow")
    before, logger.disabled = logger.disabled, True  # it notes that these statistics are of version 1
    try:
        return float(ops.get_stats_for_node_def(graph, node_def, "flops").value or 0)
    except ValueError:  # an axis whose length depends on numbers, as where Keras 2 updates an embedding
        return 0.0
    finally:
        logger.disabled = before


def address(tensor: Any) -> tuple[int, int] | None:
    """Where the memory of an eager tensor on the CPU begins, and its bytes; None for one without numbers in memory."""
    import tensorflow as tf

    if tensor.dtype.name in {"string", "resource", "variant"}:
        return None
    view = (tensor if tensor.shape.rank else tf.reshape(tensor, [1]))._numpy_internal()  # of a scalar it is a copy
    return int(view.__array_interface__["data"][0]), int(view.nbytes)


def graph_of(concrete: Any) -> Any:
    """The graph of a concrete function, with ``captures`` and ``control_outputs``."""
    return concrete.graph


def captures_of(concrete: Any) -> list[tuple[Any, Any]]:
    """Pairs of what a concrete function captured and the placeholder in its graph that stands for it."""
    return list(concrete.graph.captures)


def control_outputs_of(concrete: Any) -> Sequence[Any]:
    """Operations that a concrete function runs for what they do, and not for a result."""
    return list(concrete.graph.control_outputs)


def function_definitions(graph: Any) -> dict[str, Any]:
    """The FunctionDefs of a graph's library, by name."""
    return {function.signature.name: function for function in graph.as_graph_def().library.function}


def add_function(definition: Any) -> None:
    """Make a FunctionDef known, so that graphs with operations that call it by name, such as While, can be made."""
    from tensorflow.python.eager import context

    here = context.context()
    here.ensure_initialized()
    if not here.has_function(definition.signature.name):
        here.add_function_def(definition)


def graph_of_function(definition: Any) -> Any:
    """The graph of a FunctionDef, with ``inputs`` and ``outputs``; functions that it calls have to be known."""
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

    return function_def_to_graph(definition)


def is_xla(function: Any) -> bool:
    """Whether XLA is to compile what ``tf.function`` returned."""
    return bool(getattr(function, "_jit_compile", None))


def is_traced(function: Any) -> bool:
    """Whether ``tf.function`` returned this."""
    return hasattr(function, "get_concrete_function")


def python_function(function: Any) -> Any:
    """The Python function inside what ``tf.function`` returned."""
    return function.python_function


def parts_of_keras(model: Any) -> dict[str, Any]:
    """What a captured training step of a Keras model holds and the user can replace, by names for messages.

    Values are plain, or objects that stay the same as long as nothing is replaced.
    """
    compiled = ("_loss_tracker", "_compile_loss", "_compile_metrics", "compiled_loss", "compiled_metrics")
    parts = {"loss": model.loss, "optimizer": model.optimizer}
    parts |= {f"compile: {name}": vars(model).get(name) for name in compiled}
    optimizer, prefix = model.optimizer, "value of optimizer."
    while optimizer is not None:
        settings = {name: value for name, value in vars(optimizer).items() if not name.startswith(("_", "built"))}
        parts |= {prefix + name: value for name, value in settings.items() if isinstance(value, int | float | None)}
        parts[prefix + "learning_rate"] = getattr(optimizer, "_learning_rate", None)
        optimizer, prefix = getattr(optimizer, "inner_optimizer", None), prefix + "inner_optimizer."
    trainable: dict[str, str] = {}
    for layer in model._flatten_layers():  # names of layers within models may be equal
        trainable[layer.name] = f"{trainable.get(layer.name, '')} {layer.trainable}"
    return parts | {f"value of {name}.trainable": values for name, values in trainable.items()}


@contextlib.contextmanager
def functions_inlined() -> Iterator[None]:
    """Within this context, a function of ``tf.function`` that is called runs as part of its caller."""
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
