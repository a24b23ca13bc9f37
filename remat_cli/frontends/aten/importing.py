"""Makes a graph of a file that PyTorch wrote, with notes on the origin of every number."""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from remat_cli.errors import UsageError, Worded
from remat_cli.files import read_text
from remat_cli.frontends.aten.dump import read_dump
from remat_cli.frontends.aten.flops import cost_of
from remat_cli.frontends.aten.lower import Computation, Lowered, lower
from remat_cli.frontends.aten.phases import with_phases
from remat_cli.frontends.aten.program import TANGENTS, Input, Program
from remat_cli.frontends.aten.pt2 import read_archive
from remat_cli.frontends.imported import (
    DefaultCosts,
    Imported,
    Model,
    Operation,
    Wishes,
    count,
    live,
    model_graph,
    some,
)
from remat_cli.graph.model import Phase
from remat_cli.printable import printable
from remat_cli.zoo.training import Backward


def import_aten(path: str, format: str, wishes: Wishes) -> Imported:
    """The graph of a model in a file that PyTorch wrote.

    Args:
        path: The file.
        format: ``pt2`` or ``fx``.
        wishes: How to import it; its default cost is for operators that are not PyTorch's own.

    Raises:
        InputError: If the file cannot be read, or sizes or costs cannot be determined.
        UsageError: If a backward rule is given, and the model has a backward pass already or no gradients.
    """
    program = read_archive(path, wishes.sizes) if format == "pt2" else read_dump(*read_text(path), wishes.sizes)
    program = with_phases(program)
    backward = wishes.backward
    if backward is not Backward.NONE and any(call.phase is not Phase.FORWARD for call in program.calls):
        raise UsageError(
            f"{path}: it has a backward pass already", hint=Worded("leave backward out", "leave --backward out")
        )
    costs = DefaultCosts(path, wishes.default_cost)
    lowered = lower(program, path, partial(cost_of, defaults=costs))
    costs.require_known("operators that are not PyTorch's own,")
    model = _model(program, lowered, costs, path)
    alive = live(model, model.outputs)
    graph = model_graph(alive, backward, path)
    notes = _notes(program, lowered, costs, len(model.operations) - len(alive.operations), alive, backward)
    metadata = dict(alive.metadata) | wishes.facts(notes)
    return Imported(replace(graph, metadata=metadata), notes)


def _operation(made: Computation) -> Operation:
    return Operation(
        id=made.id,
        op=made.op,
        reads=made.reads,
        outputs=made.sizes,
        flops=int(made.cost),
        phase=made.call.phase,
        recompute=not made.random and made.call.op != TANGENTS,
        differentiable=tuple(output[1].floating for output in made.call.outputs if output is not None),
    )


def _model(program: Program, lowered: Lowered, costs: DefaultCosts, path: str) -> Model:
    results = [name for name, _ in program.outputs] + list(lowered.mutated)
    places = (lowered.where.get(name) for name in results)
    outputs = dict.fromkeys(place for place in places if isinstance(place, tuple))
    floats = Counter(kind.itemsize for kind in lowered.types.values() if kind.floating)
    return Model(
        name=Path(path).stem or "model",
        operations=tuple(map(_operation, lowered.computations)),
        outputs=tuple(outputs),
        fixed_memory=_bytes(program.inputs),
        gradient_memory=_bytes([i for i in program.inputs if i.kind == "parameter" and i.type.floating]),
        element_bytes=floats.most_common(1)[0][0] if floats else 4,
        metadata=dict(program.metadata) | {"costs": costs.description(), "sizes": {"by": "types in the file"}},
    )


def _bytes(inputs: tuple[Input, ...] | list[Input]) -> int:
    """Bytes of the inputs; tensors that share memory count once."""
    storages: dict[str, int] = {}
    for given in inputs:
        key = f"storage {given.type.storage}" if given.type.storage is not None else given.name
        storages[key] = max(storages.get(key, 0), given.type.bytes)
    return sum(storages.values())


def _notes(
    program: Program, lowered: Lowered, costs: DefaultCosts, dead: int, model: Model, backward: Backward
) -> tuple[str, ...]:
    dimensions = ", ".join(f"{name}={size}" for name, size in program.metadata["dimensions"].items())
    kinds = Counter(given.kind for given in program.inputs)
    told = ", ".join(count(number, kind) for kind, number in sorted(kinds.items())) or "nothing"
    notes = [
        "costs: derived, FLOPs by formulas for products, convolutions and attention, else 1 per element of the largest "
        "tensor; the file has none",
        "sizes: read, from types and shapes in the file" + (f" ({dimensions} as asked)" if dimensions else ""),
        f"fixed memory: read, {model.fixed_memory} bytes of {told}",
        "workspace: not in the file, 0 bytes",
    ]
    if program.metadata["format"] == "fx":
        notes.append("results without a reader: not in the file, left out")
        if any(kind.stride is None for kind in lowered.types.values()):
            notes.append("strides: not in the file; whether a reshape copies is derived from the views before it")
    notes += costs.notes()
    if lowered.views or dead:
        notes.append(
            f"left out: {count(len(lowered.views), 'view')} (their readers read the memory behind them), "
            f"{count(dead, 'operation')} that no output depends on"
        )
    if lowered.in_place:
        notes.append(f"{count(lowered.in_place, 'operation')} in place: replaced by operations that make a new value")
    if random := [made.id for made in lowered.computations if made.random]:
        notes.append(f"computed at most once, because they draw random numbers: {some(random)}")
    if lowered.tracking:
        notes.append(
            f"these update running statistics, which a recomputation must not repeat: {some(lowered.tracking)}"
        )
    return tuple(map(printable, (*notes, _backward_note(program, model, backward))))


def _backward_note(program: Program, model: Model, backward: Backward) -> str:
    if all(call.phase is Phase.BACKWARD for call in program.calls):
        return "backward pass by itself, as the file has it: what it reads of the forward pass is fixed memory"
    if any(call.phase is Phase.BACKWARD for call in program.calls):
        return "backward pass: read, as the file has it"
    if backward is Backward.NONE:
        return "forward pass only, as the file has it; remat export torch:FILE.py:NAME captures a whole training step"
    return (
        f"backward pass: derived by rule {backward}, not read; gradients of parameters in fixed memory: "
        f"{model.gradient_memory} bytes"
    )
