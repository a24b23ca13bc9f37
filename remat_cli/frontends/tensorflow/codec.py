"""Attributes and small tensors: from TensorFlow to documents, and back to what eager kernels take."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from remat_cli.errors import CaptureFailed, ExecutionFailed
from remat_cli.frontends.tensorflow.compat import op_def
from remat_cli.frontends.tensorflow.document import ITEM_BYTES, PLURAL, Attribute, Data, TensorSpec
from remat_cli.graph.quoting import quote

_SKIPPED = ("config_proto", "executor_type")
"""Attributes of calls of functions that say how TensorFlow optimises them; those of the session hold."""
_SINGULAR = {"i": "int", "f": "float", "b": "bool", "s": "text", "type": "type", "shape": "shape", "func": "function"}


def attributes_of(node_def: Any, definition: Any, functions: Mapping[str, int]) -> dict[str, Attribute]:
    """The attributes of an operation that differ from their default; ``functions`` are numbers of functions by name.

    Raises:
        CaptureFailed: If one is of a kind that documents do not hold.
    """
    defaults = {a.name: a.default_value for a in definition.attr if a.HasField("default_value")}
    attributes = {}
    for name, value in node_def.attr.items():
        if name in _SKIPPED or name.startswith("_") or defaults.get(name) == value:
            continue
        attributes[name] = _attribute(value, functions, f"{node_def.name} ({node_def.op}): {name}")
    return attributes


def _attribute(value: Any, functions: Mapping[str, int], at: str) -> Attribute:
    kind = value.WhichOneof("value")
    if kind == "list":
        filled = [field.name for field, items in value.list.ListFields() if len(items)]
        if not filled:
            return Attribute("ints", ())
        if filled[0] not in _SINGULAR:
            raise _unknown(at)
        one = _SINGULAR[filled[0]]
        items = tuple(_single(one, item, functions, at) for item in getattr(value.list, filled[0]))
        return Attribute(f"{one}s", items)
    if kind not in _SINGULAR:
        raise _unknown(at)
    return Attribute(_SINGULAR[kind], _single(_SINGULAR[kind], getattr(value, kind), functions, at))


def _single(kind: str, value: Any, functions: Mapping[str, int], at: str) -> Any:
    import tensorflow as tf

    match kind:
        case "type":
            return tf.dtypes.as_dtype(value).name
        case "float":
            return float(value).hex()
        case "text":
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError:
                raise _unknown(at) from None
        case "shape":
            return None if value.unknown_rank else tuple(dim.size for dim in value.dim)
        case "function":
            return functions[value.name]
    return value


def _unknown(at: str) -> CaptureFailed:
    return CaptureFailed(f"{at} is of a kind that graphs of remat do not hold", hint="please report this operation")


def kernel_attributes(op: str, attributes: Mapping[str, Attribute], functions: Sequence[str]) -> tuple[Any, ...]:
    """``attributes`` as eager kernels take them: names and values by turns; those left out have their default.

    Args:
        op: The operation.
        attributes: The attributes.
        functions: The name of each function in this process, by number.

    Raises:
        ExecutionFailed: If this TensorFlow does not have the operation.
    """
    flat: list[Any] = []
    for name, attribute in {**_defaults(op), **attributes}.items():
        kind = PLURAL.get(attribute.kind)
        if kind is None:
            flat += [name, _kernel(attribute.kind, attribute.value, functions)]
        else:
            flat += [name, [_kernel(kind, item, functions) for item in attribute.value]]
    return tuple(flat)


@cache
def _defaults(op: str) -> dict[str, Attribute]:
    """The attributes of an operation that have a default."""
    definition = op_def(op)
    if definition is None:
        raise ExecutionFailed(f"this TensorFlow has no operation {quote(op)}", hint="export the graph again, here")
    defaults = {}
    for attr in definition.attr:
        if attr.HasField("default_value") and attr.default_value.WhichOneof("value") in {*_SINGULAR, "list"}:
            defaults[attr.name] = _attribute(attr.default_value, {}, f"{op}: {attr.name}")
    return defaults


def _kernel(kind: str, value: Any, functions: Sequence[str]) -> Any:
    import tensorflow as tf

    match kind:
        case "type":
            return tf.dtypes.as_dtype(value).as_datatype_enum
        case "float":
            return float.fromhex(value)
        case "text":
            return value.encode("utf-8")
        case "shape":
            return None if value is None else list(value)
        case "function":
            return functions[value].encode("utf-8")
    return value


def called_functions(node_def: Any) -> Iterator[Any]:
    """What an operation says of each function that it calls; ``name`` may be changed."""
    for attribute in node_def.attr.values():
        if attribute.HasField("func"):
            yield attribute.func
        yield from attribute.list.func


def data_of(tensor: Any) -> Data:
    """The document of a small tensor, with its data in row-major order."""
    spec = TensorSpec(tensor.dtype.name, tuple(tensor.shape.as_list()))
    if not ITEM_BYTES.get(spec.dtype):
        raise CaptureFailed(f"the step holds a constant of the type {spec.dtype}, which graphs of remat do not hold")
    return Data(spec, tensor.numpy().tobytes())


def tensor_of(data: Data, device: str) -> Any:
    """The tensor that :func:`data_of` wrote, on ``device``."""
    import numpy
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(data.spec.dtype)
    array = numpy.frombuffer(data.data, dtype.as_numpy_dtype).reshape(data.spec.shape)
    with tf.device(f"/device:{device.upper()}:0"):
        return tf.constant(array, dtype)
