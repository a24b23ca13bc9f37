"""Computes the small constants that shapes depend on, if the shape inference of ONNX cannot.

Exporters write the shape of a reshaped tensor as a small program on the shapes of other tensors. The shape inference of
ONNX evaluates some of its operators. The reference implementation in the ``onnx`` package evaluates the others here, as
long as all tensors stay small.
"""

import math
from typing import Any

_LARGEST = 4096
"""Most elements of a tensor that is computed. Untuned."""
_LARGEST_FLOATING = 16
"""The same for floating-point numbers. Shapes depend on a few scales at most, and small weights must stay weights.
Untuned."""
_ROUNDS = 100
"""Most rounds of folding and inference. Untuned."""
_SMALL_OPERATORS = """
Abs Add And Cast Ceil Concat Div Equal Flatten Floor Gather Greater GreaterOrEqual Identity Less LessOrEqual Max Min
Mod Mul Neg Not Or Pow ReduceMax ReduceMin ReduceProd ReduceSum Reshape ScatterElements ScatterND Slice Split Sqrt
Squeeze Sub Transpose Unsqueeze Where Xor
"""
_PLAIN = frozenset(_SMALL_OPERATORS.split())
"""Operators that make small tensors of small tensors."""


def folded(model: Any) -> tuple[Any, int]:
    """``model``, with inferred shapes, and all that follow from constants; and how many tensors were computed."""
    import onnx

    names: set[str] = set()
    for _ in range(_ROUNDS):
        shapes = _shapes(model)
        if all(name in shapes for node in model.graph.node for name in node.output if name):
            break
        values = _values(model, shapes)
        new = values.keys() - names
        if not new:  # another round would find the same
            break
        names |= new
        keep = [node for node in model.graph.node if not set(node.output) <= values.keys()]
        del model.graph.node[:]
        model.graph.node.extend(keep)
        held = {tensor.name for tensor in model.graph.initializer}
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(value, name) for name, value in values.items() if name not in held
        )
        _forget_symbols(model)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return model, len(names)


def _forget_symbols(model: Any) -> None:
    """Remove symbols that the last inference invented for unknown sizes, and types of tensors that are data now.

    The next inference would keep those symbols instead of inferring the sizes.
    """
    graph = model.graph
    data = {tensor.name for tensor in graph.initializer}
    stated = [value for value in graph.value_info if value.name not in data]
    del graph.value_info[:]
    graph.value_info.extend(stated)
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Shapes in which every size is known."""
    graph = model.graph
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            found[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return found


def _values(model: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Small tensors that depend only on constants and known shapes, by name."""
    import numpy
    import onnx

    arrays = ((t.name, onnx.numpy_helper.to_array(t)) for t in model.graph.initializer)
    constants = {name: array for name, array in arrays if _is_small(array)}
    found: dict[str, Any] = {}
    for node in model.graph.node:
        known = {name: found.get(name, constants.get(name)) for name in node.input if name}
        made: list[Any] | None = None
        if node.op_type == "Shape" and node.input[0] in shapes:
            made = [_shape(node, shapes[node.input[0]])]
        elif node.op_type == "Size" and node.input[0] in shapes:
            made = [numpy.array(numpy.prod(shapes[node.input[0]], dtype=numpy.int64))]
        elif all(value is not None for value in known.values()):
            made = _computed(model, node, [known.get(name) for name in node.input])
        if made is not None and all(_is_small(value) for value in made):
            found |= {name: value for name, value in zip(node.output, made, strict=True) if name}
    return found


def _is_small(array: Any) -> bool:
    return bool(array.size <= (_LARGEST_FLOATING if array.dtype.kind in "fcV" else _LARGEST))


def _shape(node: Any, shape: tuple[int, ...]) -> Any:
    """The result of ``Shape``; since opset 15 its attributes may select a part."""
    import numpy

    ends = {a.name: a.i for a in node.attribute}
    return numpy.array(shape[ends.get("start") : ends.get("end")], dtype=numpy.int64)


def _computed(model: Any, node: Any, inputs: list[Any]) -> list[Any] | None:
    """The results of a node on small tensors; None if they may be large, or cannot be computed."""
    import onnx.reference

    if not _stays_small(node, inputs):
        return None
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(filter(None, node.input))],
        [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    alone = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        feeds = {name: value for name, value in zip(node.input, inputs, strict=True) if name}
        made = onnx.reference.ReferenceEvaluator(alone).run(None, feeds)
    except Exception:  # the shape then stays unknown, and the caller reports that
        return None
    return list(made) if len(made) == len(node.output) else None


def _stays_small(node: Any, inputs: list[Any]) -> bool:
    """Whether the result of a node is certainly small; decided before it is computed, or it could exhaust memory."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Constant":
        return bool(node.ByteSize() <= 16 * _LARGEST)
    if node.op_type in {"ConstantOfShape", "Expand"}:
        shape = inputs[0] if node.op_type == "ConstantOfShape" else inputs[1]
        elements = math.prod(max(1, int(size)) for size in shape.tolist())
        return elements * (1 if node.op_type == "ConstantOfShape" else max(1, inputs[0].size)) <= _LARGEST
    if node.op_type == "Range":
        start, limit, step = (float(value) for value in inputs)
        return step != 0 and abs(limit - start) <= _LARGEST * abs(step)
    return node.op_type in _PLAIN
