"""Reads an ONNX model: its structure and the shape of every tensor, without its weights.

Weights in separate files are never opened. Weights inside the model are removed before shapes are inferred, because
only their types and shapes count. Small constants stay, because shapes may depend on them.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import InputError, Problem, Worded
from remat_cli.frontends.imported import some
from remat_cli.frontends.onnx.fold import folded
from remat_cli.frontends.onnx.tensors import TensorType, element_bits
from remat_cli.graph.quoting import quote
from remat_cli.printable import printable
from remat_cli.registry import suggestion

_SMALL = 4096
"""Most elements of a constant that shapes may depend on. Untuned."""
STANDARD = ("", "ai.onnx")
"""The two names of the domain of ONNX's own operators."""
SUBGRAPHS = ("If", "Loop", "Scan", "SequenceMap")
"""Operators that contain graphs: how often those run is known only at run time."""


@dataclass(frozen=True, slots=True)
class Read:
    """An ONNX model with all shapes.

    Attributes:
        model: The model, with its own functions inlined, and with large initializers as inputs.
        types: Type of every tensor by name.
        initializers: Names of the tensors whose data the model holds.
        inputs: Names of the tensors that are fed from outside.
        folded: Number of tensors that were computed from constants to determine all shapes.
        sizes: Symbolic dimensions that were given a size.
    """

    model: Any
    types: Mapping[str, TensorType]
    initializers: tuple[str, ...]
    inputs: tuple[str, ...]
    folded: int
    sizes: Mapping[str, int]


def read_model(path: str, sizes: Mapping[str, int]) -> Read:
    """The model in a file.

    Args:
        path: The file.
        sizes: Sizes of symbolic dimensions by name, and of axes of tensors by ``TENSOR:AXIS``.

    Raises:
        InputError: If the file is not a valid ONNX model, or shapes remain unknown.
    """
    model = _load(path)
    graph = model.graph
    constants = [tensor.name for tensor in graph.initializer]
    constants += [sparse.values.name for sparse in graph.sparse_initializer]
    data = frozenset(constants)
    inputs = tuple(value.name for value in graph.input if value.name not in data)
    _refuse_subgraphs(graph, path)
    known = _set_sizes(model, sizes, data, path)
    given = {value.name: value for value in graph.value_info}
    _set_aside(model)
    model, count = _inferred(model, _axes(sizes, known), path)
    try:
        types, unknown = _types(model, given)
    except ValueError as error:
        raise InputError.of(path, f"not a good ONNX model: {error}") from None
    if unknown:
        raise InputError(path, [*_reason(model), *_unknown(unknown)])
    _check_axes(_axes(sizes, known), types, path)
    return Read(model, types, tuple(constants), inputs, count, dict(sizes))


def _load(path: str) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise InputError.of(path, "there is no such file") from None
    except OSError as error:
        raise InputError.of(path, f"cannot be read: {error.strerror or error}") from None
    except (DecodeError, ValueError) as error:  # by suffix, onnx reads text formats too: ValueError
        raise InputError.of(path, f"not an ONNX model: {_first_line(error)}") from None
    if not model.graph.node or not model.opset_import:
        raise InputError.of(path, "not an ONNX model: there are no operators in it")
    broken = next(_not_utf8(model), None)
    if broken is not None:
        raise InputError.of(path, "not a good ONNX model: text that is not UTF-8", pointer=broken)
    if model.functions:
        import onnx.inliner

        model = onnx.inliner.inline_local_functions(model)
    return model


def _not_utf8(message: Any, at: str = "") -> Iterator[str]:
    """Places of the text that is not UTF-8 in a message; protobuf returns bytes for it. Data of tensors is not read."""
    for field in message.DESCRIPTOR.fields:
        if field.cpp_type not in (field.CPPTYPE_STRING, field.CPPTYPE_MESSAGE) or field.type == field.TYPE_BYTES:
            continue
        found = getattr(message, field.name)
        if hasattr(found, "add") or hasattr(found, "append"):  # a repeated field
            items = [(item, f"{at}/{field.name}/{k}") for k, item in enumerate(found)]
        elif message.HasField(field.name):
            items = [(found, f"{at}/{field.name}")]
        else:
            continue
        for item, place in items:
            if isinstance(item, bytes):
                yield place
            elif not isinstance(item, str):
                yield from _not_utf8(item, place)


def _refuse_subgraphs(graph: Any, path: str) -> None:
    found = [node for node in graph.node if node.op_type in SUBGRAPHS]
    if found:
        names = some([f"{printable(node.op_type)} {quote(node.name)}" for node in found])
        raise InputError.of(
            path,
            f"control flow runs graphs as often as data decides, which remat cannot represent: {names}",
            "export the model with fixed shapes and without control flow, or simplify it first",
        )


def _dims(value: Any) -> Iterator[tuple[int, Any]]:
    yield from enumerate(value.type.tensor_type.shape.dim)


def _set_sizes(model: Any, sizes: Mapping[str, int], data: frozenset[str], path: str) -> frozenset[str]:
    """Replace symbolic dimensions of inputs by sizes; returns the names of all tensors of the graph."""
    graph = model.graph
    tensors = frozenset(name for node in graph.node for name in (*node.input, *node.output))
    symbols: set[str] = set()
    problems: list[Problem] = []
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis, dim in _dims(value):
            size = sizes.get(f"{value.name}:{axis}")
            if dim.HasField("dim_param"):
                symbols.add(dim.dim_param)
                size = sizes.get(dim.dim_param, size)
            if size is not None:
                dim.dim_value = size
    for value in graph.input:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type" or not value.type.tensor_type.HasField("shape"):
            what = "has no shape" if kind == "tensor_type" else "is not a tensor"
            problems.append(
                Problem(f"input {quote(value.name)} {what}", hint="export the model with tensors as inputs")
            )
            continue
        for axis, dim in _dims(value):
            if value.name not in data and dim.dim_value <= 0:  # old files write 0 or -1 for an unknown size
                name = dim.dim_param or f"{value.name}:{axis}"
                told = f"symbolic dimension {quote(dim.dim_param)}" if dim.dim_param else "dimension without a size"
                problems.append(
                    Problem(
                        f"axis {axis} of input {quote(value.name)} is a {told}",
                        hint=Worded(f'say sizes={{"{name}": SIZE}}', f"say --dim {name}=SIZE"),
                    )
                )
    for name in sizes:
        if name not in symbols and name.rpartition(":")[0] not in tensors:
            known = sorted(symbols)
            hint = suggestion(name, known) or printable(f"known: {', '.join(known) or 'none'}, or TENSOR:AXIS")
            problems.append(Problem(f"there is no symbolic dimension {quote(name)}", hint=hint))
    if problems:
        raise InputError(path, problems)
    return tensors


def _axes(sizes: Mapping[str, int], tensors: frozenset[str]) -> dict[str, dict[int, int]]:
    """Sizes of axes by tensor."""
    axes: dict[str, dict[int, int]] = {}
    for name, size in sizes.items():
        tensor, _, axis = name.rpartition(":")
        if tensor in tensors and axis.isdigit():
            axes.setdefault(tensor, {})[int(axis)] = size
    return axes


def _check_axes(axes: Mapping[str, Mapping[int, int]], types: Mapping[str, TensorType], path: str) -> None:
    """Check that axes have the sizes that the user gave."""
    problems = []
    for name, wanted in axes.items():
        shape = types[name].shape if name in types else ()
        for axis, size in wanted.items():
            if axis >= len(shape) or shape[axis] != size:
                told = f"{quote(name)} has the shape {list(shape)}"
                problems.append(
                    Problem(f"the size {size} of {name}:{axis} is another: {told}", hint="choose another axis or size")
                )
    if problems:
        raise InputError(path, problems)


def _set_aside(model: Any) -> None:
    """Turn large initializers into inputs, and remove the shapes of intermediate tensors that the file states."""
    import onnx

    graph = model.graph
    listed = {value.name for value in graph.input}
    kept = []
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            kept.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    for sparse in graph.sparse_initializer:
        if sparse.values.name not in listed:
            shape = list(sparse.dims)
            graph.input.append(onnx.helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, shape))
    foreign = {name for node in graph.node if node.domain not in STANDARD for name in node.output}
    stated = [value for value in graph.value_info if value.name in foreign]  # they cannot be inferred
    del graph.initializer[:], graph.sparse_initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)
    graph.value_info.extend(stated)
    model.ir_version = max(model.ir_version, 4)  # since version 4, initializers need not be inputs


def _inferred(model: Any, axes: Mapping[str, Mapping[int, int]], path: str) -> tuple[Any, int]:
    """``model`` with all shapes that can be inferred, and the number of tensors computed for that."""
    import onnx

    try:
        onnx.checker.check_model(model)
        for value in model.graph.output:  # the shape in the file may be symbolic
            value.type.tensor_type.ClearField("shape")
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        if axes:
            for value in (*model.graph.value_info, *model.graph.output):
                for axis, dim in _dims(value):
                    if axis in axes.get(value.name, {}) and not dim.HasField("dim_value"):
                        dim.dim_value = axes[value.name][axis]
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        return folded(model)
    except onnx.checker.ValidationError as error:
        raise InputError.of(path, f"not a good ONNX model: {_first_line(error)}") from None
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise InputError.of(path, f"shapes cannot be inferred: {_first_line(error)}") from None


def _types(model: Any, given: Mapping[str, Any]) -> tuple[dict[str, TensorType], dict[str, str]]:
    """Type of every tensor; and for those without a known size, the operator or element type to name in an error."""
    import onnx

    graph = model.graph
    types = {t.name: TensorType(_element(t.data_type), tuple(t.dims)) for t in graph.initializer}
    for value in (*given.values(), *graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for _, dim in _dims(value)]
        if tensor.elem_type and tensor.HasField("shape") and None not in dims:
            types[value.name] = TensorType(_element(tensor.elem_type), tuple(d for d in dims if d is not None))
    outside = [*(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)]
    unknown = {n: types[n].element.lower() for n in outside if n in types and not _sized(types[n].element)}
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] not in types:
            tensors = [a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
            if tensors:
                types[node.output[0]] = TensorType(_element(tensors[-1].data_type), tuple(tensors[-1].dims))
        for name in filter(None, node.output):
            if name not in types:
                unknown[name] = node.op_type
            elif not _sized(types[name].element):
                unknown[name] = f"{node.op_type}, {types[name].element.lower()}"
    return types, unknown


def _element(number: int) -> str:
    import onnx

    try:
        return str(onnx.TensorProto.DataType.Name(number))
    except ValueError:
        return f"type {number}"


def _sized(element: str) -> bool:
    try:
        return element_bits(element) > 0
    except KeyError:
        return False


def _reason(model: Any) -> list[Problem]:
    """The reason that shape inference gives in its strict mode."""
    import onnx

    try:
        onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        return [Problem(f"shapes cannot be inferred: {_first_line(error)}")]
    return []


def _unknown(unknown: Mapping[str, str]) -> list[Problem]:
    """One problem for all tensors without a shape. Only the first are named: the others usually depend on them."""
    names = some([f"{quote(name)} ({printable(op)})" for name, op in unknown.items()])
    rest = "the first tensor first; tensors of operators outside ONNX need their shapes in the file"
    return [
        Problem(
            f"the sizes of {len(unknown)} tensors are unknown: {names}",
            hint=Worded(
                f'give sizes that depend on data as sizes={{"TENSOR:AXIS": SIZE}}, {rest}',
                f"give sizes that depend on data with --dim TENSOR:AXIS=SIZE, {rest}",
            ),
        )
    ]


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[0][:300]) if lines else type(error).__name__
