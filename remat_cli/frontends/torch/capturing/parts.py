"""Makes a graph of each part into which PyTorch divides a training step, and says what crosses between the parts.

Code that PyTorch does not capture (a graph break) ends a part; the code runs as it is, and the next part begins behind
it. Every part has a forward and a backward pass of its own. In a step, first all parts run forward, then all backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from remat_cli.errors import CaptureFailed, NotOneGraph
from remat_cli.frontends.torch.capturing.capture import Captured, Model, Part, Way, called_once, divided
from remat_cli.frontends.torch.capturing.construction import leaves_of
from remat_cli.frontends.torch.capturing.placeholders import joint_inputs
from remat_cli.frontends.torch.capturing.refusals import in_no_part, not_captured, refusal_of
from remat_cli.frontends.torch.capturing.source import build_real
from remat_cli.frontends.torch.telling import Tell
from remat_cli.frontends.torch.tensors import storage, storage_bytes
from remat_cli.graph.model import Graph
from remat_cli.units import format_bytes

_UNUSED = "parameter "
"""Begins the note on a parameter that a graph does not read."""


def parts_of(
    model: Model, mode: Any, build: Callable[[], Any], device: str, tell: Tell, whole: NotOneGraph, way: Way
) -> list[Part]:
    """The parts of the step of ``model``.

    If the way that the step takes depends on numbers, the model is built again with real tensors, and one forward pass
    is computed.

    Args:
        model: What to capture; its tensors are of ``mode``.
        mode: The fake mode.
        build: The function that made the model.
        device: ``cpu`` or ``cuda``.
        tell: Called before something is computed.
        whole: Why the step is not one graph.
        way: What compiles it.

    Raises:
        CaptureFailed: If the step cannot be captured in parts either.
    """
    parts, problem = divided(model, mode, way)
    if problem is not None:
        tell(
            f"the way that the step takes depends on numbers ({refusal_of(problem).line()}): its forward pass runs "
            "with real tensors; another way gives other graphs"
        )
        real = build_real(build, device, tell, "the way that the step takes depends on numbers")
        called_once(real, None)
        parts, problem = divided(real, None, way)
    if problem is not None:
        raise not_captured(problem) from problem
    if not any(_parameters(part) for part in parts):
        raise in_no_part(whole)
    return parts


def graphs_of(
    parts: Sequence[Part], lowered: Callable[[Captured, str], Graph], name: str, whole: NotOneGraph
) -> list[Graph]:
    """The graph of every part that has a backward pass; its metadata tells its place among the others.

    Args:
        parts: All parts, in order.
        lowered: Makes a graph with a name of a captured one.
        name: Name of the step.
        whole: Why the step is not one graph.

    Raises:
        CaptureFailed: If remat can plan none of the parts.
    """
    refused = _refused(parts)
    trained = [(part, part.captured) for part in parts if part.captured is not None and id(part) not in refused]
    if not trained and refused:
        raise next(iter(refused.values()))
    graphs = []
    for number, (part, captured) in enumerate(trained):
        told = {
            "number": number,
            "parts": len(trained),
            "runs": part.runs,
            "ends": "" if part.ends is None else part.ends.sentence(),
            "takes": _taken(captured, [earlier for earlier, _ in trained[:number]]),
        }
        graph = lowered(captured, f"{name}.{number}" if len(trained) > 1 else name)
        graphs.append(replace(graph, metadata=graph.metadata | {"part": told}))
    notes = _notes(parts, whole if len(trained) == 1 else None)
    notes += [f"a part of the step has no graph, and runs without a plan: {e.message}" for e in refused.values()]
    for number, graph in enumerate(graphs):
        kept = [note for note in graph.metadata["notes"] if not note.startswith(_UNUSED)]
        told = {"notes": kept + (notes if not number else [])}
        graphs[number] = replace(graph, metadata=graph.metadata | told)
    return graphs


def _refused(parts: Sequence[Part]) -> dict[int, CaptureFailed]:
    """The parts with a backward pass that remat cannot plan, by identity, and why."""
    found = {}
    for part in parts:
        try:
            if part.captured is not None:
                joint_inputs(part.captured)
        except CaptureFailed as error:
            found[id(part)] = error
    return found


def _taken(captured: Captured, earlier: Sequence[Part]) -> list[dict[str, Any]]:
    """The tensors that a part takes, and that are neither the module's nor the step's inputs.

    ``from`` is the number of the part that made one; None if code between the parts made it.
    """
    model = captured.model
    given = [*model.module.parameters(), *model.module.buffers(), *leaves_of(model.inputs), *leaves_of(model.keywords)]
    known = set(map(id, given))
    taken = []
    for k, tensor in enumerate(captured.tensors):
        if _is_tensor(tensor) and id(tensor) not in known:
            maker = next((number for number, part in enumerate(earlier) if _made(part, tensor)), None)
            taken.append({"name": f"captured{k}", "bytes": storage_bytes(tensor), "from": maker})
    return taken


def _made(part: Part, tensor: Any) -> bool:
    """Whether a tensor, or the memory in which it lies, is a result of ``part``."""
    results = [result for reference in part.results if (result := reference()) is not None]
    return any(result is tensor or storage(result) == storage(tensor) for result in results)


def _notes(parts: Sequence[Part], whole: NotOneGraph | None) -> list[str]:
    """What of a step is in no graph. ``whole`` says why there is one graph and not the whole step in it."""
    notes = [] if whole is None else [f"the graph is not the whole step: {whole.reason}"]
    failed = [refusal_of(part.error).sentence() for part in parts if part.error is not None]
    notes += [f"PyTorch runs a part of the step as it is, since it cannot capture it: {reason}" for reason in failed]
    count = sum(1 for part in parts if part.captured is None and part.error is None)
    if count:
        graphs = "one more graph" if count == 1 else f"{count} more graphs"
        notes.append(f"PyTorch compiles {graphs} of the step without a backward pass, which needs no plan")
    model = next(part.captured for part in parts if part.captured is not None).model
    read = {key for part in parts for key in _parameters(part)}
    others = {name: p for name, p in model.module.named_parameters() if storage(p) not in read}
    if others:
        first, size = next(iter(others)), sum({storage(p): storage_bytes(p) for p in others.values()}.values())
        notes.append(
            f"{len(others)} of {len(list(model.module.parameters()))} parameters ({format_bytes(size)}), such as "
            f"{first}, have no part in a graph: the step, or what PyTorch compiles of it, does not read them"
        )
    return notes


def _parameters(part: Part) -> set[int]:
    """The memory of the parameters that the graph of a part reads."""
    if part.captured is None:
        return set()
    known = set(map(storage, part.captured.model.module.parameters()))
    return {storage(tensor) for tensor in filter(_is_tensor, part.tensors) if storage(tensor) in known}


def _is_tensor(item: Any) -> bool:
    """Whether an input of a graph is a tensor, and not a number."""
    import torch

    return isinstance(item, torch.Tensor)
