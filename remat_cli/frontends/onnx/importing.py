"""Makes a graph of an ONNX file, with notes on the origin of every number."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from remat_cli.errors import InputError
from remat_cli.frontends.captured.installed import require_version
from remat_cli.frontends.imported import DefaultCosts, Imported, Model, Wishes, count, live, model_graph
from remat_cli.frontends.onnx.lower import Lowered, lower
from remat_cli.frontends.onnx.read import Read, read_model
from remat_cli.printable import printable
from remat_cli.zoo.training import Backward

OLDEST = (1, 16)
BELOW = (2, 0)
"""Versions of onnx from ``OLDEST`` up to, but not including, ``BELOW`` are supported; pyproject.toml says the same."""


def import_onnx(path: str, wishes: Wishes) -> Imported:
    """The graph of an ONNX model.

    Raises:
        FrameworkUnavailable: If the ``onnx`` package is missing.
        InputError: If the model cannot be read, or sizes or costs cannot be determined.
        UsageError: If the backward rule does not fit the model.
    """
    require_version("the onnx package", "onnx", OLDEST, BELOW, ("onnx",))
    read = read_model(path, wishes.sizes)
    costs = DefaultCosts(path, wishes.default_cost)
    lowered = lower(read, costs)
    model = _model(read, lowered, costs)
    backward = wishes.backward
    alive = live(model, model.outputs)
    graph = model_graph(alive, backward, path)
    notes = _notes(read, lowered, costs, model, alive, backward)
    metadata = dict(alive.metadata) | wishes.facts(notes)
    return Imported(replace(graph, metadata=metadata), notes)


def _model(read: Read, lowered: Lowered, costs: DefaultCosts) -> Model:
    path = costs.source
    types = read.types
    places = (lowered.where.get(value.name) for value in read.model.graph.output)
    outputs = dict.fromkeys(place for place in places if place is not None)
    if not outputs:
        raise InputError.of(path, "nothing is computed in it: all results are inputs or constants")
    held = {*read.inputs, *read.initializers, *lowered.constants}
    return Model(
        name=Path(path).stem or "model",
        operations=tuple(lowered.operations),
        outputs=tuple(outputs),
        fixed_memory=sum(types[name].bytes for name in held),
        gradient_memory=sum(types[name].bytes for name in lowered.trained),
        element_bytes=_element_bytes(read),
        metadata=_metadata(read, lowered, costs),
    )


def _element_bytes(read: Read) -> int:
    """Bytes of the most frequent floating-point type."""
    kinds = Counter(t.element for t in read.types.values() if t.floating)
    if not kinds:
        return 4
    element = kinds.most_common(1)[0][0]
    return max(1, next(t.bytes // t.elements for t in read.types.values() if t.element == element and t.elements))


def _metadata(read: Read, lowered: Lowered, costs: DefaultCosts) -> dict[str, Any]:
    import onnx

    model = read.model
    return {
        "format": "onnx",
        "onnx": onnx.__version__,
        "opsets": {o.domain or "ai.onnx": o.version for o in model.opset_import},
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "dimensions": dict(read.sizes),
        "costs": costs.description(),
        "sizes": {"by": "shape inference"},
        "parameters": sum(math.prod(read.types[n].shape) for n in lowered.trained),
    }


def _notes(
    read: Read, lowered: Lowered, costs: DefaultCosts, model: Model, alive: Model, backward: Backward
) -> tuple[str, ...]:
    types = read.types
    inputs = sum(types[name].bytes for name in read.inputs)
    data = sum(types[name].bytes for name in read.initializers)
    constants = sum(types[name].bytes for name in lowered.constants)
    given = ", ".join(f"{name}={size}" for name, size in read.sizes.items())
    notes = [
        "costs: derived, FLOPs by a formula per operator, 2 for a multiply-accumulate; the file has none",
        "sizes: derived from element types and shapes; shapes of inputs and initializers were read"
        + (f" ({given} as asked)" if given else "")
        + ", the others inferred by onnx"
        + (f" and from {count(read.folded, 'computed constant')}" if read.folded else ""),
        f"fixed memory: {inputs} bytes of inputs and {data} bytes of "
        f"{count(len(read.initializers), 'initializer')}, read"
        + (f"; {constants} bytes of what depends on constants alone, derived" if constants else ""),
        "workspace: not in the file, 0 bytes",
        *costs.notes(),
    ]
    dead = len(model.operations) - len(alive.operations)
    left_out = [
        *([f"{count(lowered.views, 'view')} (their readers read the memory behind them)"] if lowered.views else []),
        *([f"{count(lowered.folded, 'operator')} on constants alone"] if lowered.folded else []),
        *([f"{count(dead, 'operation')} that no output depends on"] if dead else []),
    ]
    if left_out:
        notes.append("left out: " + ", ".join(left_out))
    if lowered.random:
        notes.append(f"computed at most once, because they draw random numbers: {', '.join(lowered.random)}")
    return tuple(map(printable, (*notes, _backward_note(model, lowered, backward))))


def _backward_note(model: Model, lowered: Lowered, backward: Backward) -> str:
    if backward is Backward.NONE:
        return "forward pass only, as the file has it; a backward rule derives a training step"
    return (
        f"backward pass: derived by rule {backward}, not read; gradients of "
        f"{count(len(lowered.trained), 'initializer')} (floating point, more than one number, no tracked statistics) "
        f"in fixed memory: {model.gradient_memory} bytes"
    )
