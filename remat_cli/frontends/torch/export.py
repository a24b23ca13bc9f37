"""Exports a user's function, or a model of the zoo, as a graph, or as a graph for each part of the step.

Code that PyTorch does not capture (a graph break) ends a part; the code runs as it is, and the next part begins behind
it. Every part has a forward and a backward pass of its own. In a step, first all parts run forward, then all backward.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from remat_cli.errors import NotOneGraph
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.source import load_function
from remat_cli.frontends.torch.capture.capture import (
    Captured,
    Part,
    Tracer,
    called_once,
    capture,
    divided,
)
from remat_cli.frontends.torch.capture.construction import build_model, build_real
from remat_cli.frontends.torch.capture.lower import Lowering, lowering
from remat_cli.frontends.torch.capture.naming import line_in
from remat_cli.frontends.torch.capture.placeholders import unplannable
from remat_cli.frontends.torch.capture.refusals import in_no_part, not_captured, refusal_of
from remat_cli.frontends.torch.capture.sharded import with_padding
from remat_cli.frontends.torch.compat.distributed import has_group, local_tensor
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.document import FRONTEND
from remat_cli.frontends.torch.inductor.joint import tracer_of
from remat_cli.frontends.torch.installed import require_present
from remat_cli.frontends.torch.measure.collectives import group_notes, with_collectives
from remat_cli.frontends.torch.measure.costs import CostModel, cost_model
from remat_cli.frontends.torch.regions import require_splittable, with_regions
from remat_cli.frontends.torch.tensors import storage, storage_bytes, total_bytes
from remat_cli.frontends.torch.world import require_gathered_in_code, require_links, world_of
from remat_cli.graph.metadata import LINES
from remat_cli.graph.model import Graph
from remat_cli.units import format_bytes

_GROUPS = "groups of operations that Inductor is predicted to make one loop of: one launch, work, and stored bytes"
_UNUSED = "parameter "
"""Begins the note on a parameter that a graph does not read."""


class ExportOptions(TypedDict, total=False):
    """How to export a step.

    Attributes:
        device: ``cpu`` (the default) or ``cuda``: the device that the step is for. Nothing runs there during export.
        cost: ``device``, ``flops`` (the default) or ``roofline:NAME``.
        compiler: What compiles the step: ``eager`` (the default), which runs operations one by one, or ``inductor``.
        world: Number of ranks of a training of which the step is that of one; None (the default) for no others.
        interconnect: The bandwidths between ranks; None (the default) if nothing is known of them.
        tell: Called before much memory is taken, and before the device is measured.
        split: Whether the graph offers regions that may run in parts; not by default.
    """

    device: str
    cost: str
    compiler: str
    world: int | None
    interconnect: Interconnect | None
    tell: Tell
    split: bool


def export_torch(text: str, **options: Unpack[ExportOptions]) -> Graph:
    """The graph of the step of what ``FILE.py:NAME`` returns: (module, inputs) or (module, inputs, loss).

    Raises:
        NotOneGraph: If PyTorch captures the step in parts only.
        UsageError: If there is no such function, device, cost model or compiler.
        FrameworkUnavailable: If PyTorch is missing, or was not built for the device.
        CaptureFailed: If the step cannot be captured, or trains nothing.
    """
    require_present(options.get("device", "cpu"))
    build, name = load_function(text, FRONTEND.name), text.rpartition(":")[2]
    return export_model(build, name, f"torch:{text}", **options)


def export_model(build: Callable[[], Any], name: str, source: str, **options: Unpack[ExportOptions]) -> Graph:
    """As :func:`export_parts`, but an error if PyTorch captures the step in parts only.

    Raises:
        NotOneGraph: If it does.
    """
    [graph] = export_parts(build, name, source, whole=True, **options)
    return graph


def export_parts(
    build: Callable[[], Any],
    name: str,
    source: str,
    *,
    device: str = "cpu",
    cost: str = "flops",
    compiler: str = "eager",
    world: int | None = None,
    interconnect: Interconnect | None = None,
    tell: Tell = tell_stderr,
    whole: bool = False,
    split: bool = False,
) -> tuple[Graph, ...]:
    """The graph of the training step of what ``build()`` returns, or of each part if PyTorch captures it in parts.

    The graphs of parts are named ``name.0`` and so on, and ``metadata["part"]`` tells the place of each among the
    others: its ``number``, the number of ``parts``, how often it ``runs`` in a step, the reason why it ``ends`` there,
    and what it ``takes`` from others.

    Args:
        build: Called with fake tensors in place of large ones, or with real ones if it needs their numbers.
        name: Name of the graph.
        source: Its origin, for the metadata.
        device: See :class:`ExportOptions`, as for all others but ``whole``.
        cost: See there.
        compiler: See there.
        world: See there.
        interconnect: See there.
        tell: See there.
        whole: Whether parts are an error.
        split: See there.

    Raises:
        NotOneGraph: If they are, and PyTorch captures the step in parts only.
        UsageError: If there is no such device, cost model or compiler.
        FrameworkUnavailable: If PyTorch is missing, or was not built for the device.
        CaptureFailed: If the step cannot be captured, or trains nothing.
    """
    require_present(device)
    tracer = tracer_of(compiler)
    require_links(world, interconnect, cost, compiler)
    if split:
        require_splittable(compiler, world)
    costs = cost_model(cost, device, tell)

    def lowered(captured: Captured, name: str) -> Graph:
        own = with_collectives(costs, interconnect, captured)
        graph = lowered_graph(captured, name, own, source=source, device=device, world=world)
        return with_regions(graph, own.cost) if split else graph

    with world_of(world):
        return _export(build, name, device, tell, tracer, lowered, whole=whole)


def _export(
    build: Callable[[], Any],
    name: str,
    device: str,
    tell: Tell,
    tracer: Tracer,
    lowered: Callable[[Captured, str], Graph],
    *,
    whole: bool,
) -> tuple[Graph, ...]:
    """See :func:`export_parts`; ``lowered`` makes a graph with a name of a captured one."""
    mode = new_fake_mode()
    model = build_model(build, mode, device, tell)
    require_gathered_in_code(model.module)
    try:
        return (lowered(capture(model, mode, tracer), name),)
    except NotOneGraph as error:
        if whole:
            raise
        reason = error
    parts, problem = divided(model, mode, tracer)
    if problem is not None and not has_group():  # a group without processes computes nothing
        parts, problem = _divided_with_numbers(build, device, tell, problem, tracer)
    if problem is not None:
        raise not_captured(problem) from problem
    if not any(_parameters(part) for part in parts):
        raise in_no_part(reason)
    return tuple(_graphs_of(parts, lowered, name, reason))


def lowered_graph(
    captured: Captured, name: str, costs: CostModel, *, source: str, device: str, world: int | None = None
) -> Graph:
    """The graph of ``captured`` with ``costs``, with its origin; of a rank of ``world`` if it is not None."""
    graph = with_origin(lowering(captured, costs.cost, name), captured, costs, source=source, device=device)
    graph = with_padding(graph, captured.model.module)
    of_world = {} if world is None else {"world": {"ranks": world, "rank": 0}}
    return replace(graph, metadata=graph.metadata | of_world)


def with_origin(low: Lowering, captured: Captured, costs: CostModel, *, source: str, device: str) -> Graph:
    """The graph of ``low``, made from ``captured`` with ``costs``, with its origin and the lines of its nodes."""
    graph = described(low.graph, captured, costs, source=source, device=device)
    lines = {node.id: line for node, fx in zip(graph.nodes, low.fx_nodes, strict=True) if (line := line_in(fx))}
    return replace(graph, metadata=graph.metadata | ({LINES: lines} if lines else {}))


def described(graph: Graph, captured: Captured, costs: CostModel, *, source: str, device: str) -> Graph:
    """``graph``, lowered from ``captured`` with ``costs``, with metadata on its origin."""
    said = costs.description | ({} if captured.inductor is None else {"of": _GROUPS})
    metadata = FRONTEND.metadata(source, device, said)
    if captured.model.loss is not None:
        metadata["loss"] = "separate"
    metadata["parameters"] = sum(local_tensor(p).numel() for p in captured.model.module.parameters())
    if captured.inductor is not None:
        metadata["compiler"] = "inductor"
    notes = {"notes": [*captured.notes, *group_notes(captured), *graph.metadata["notes"]]}
    return replace(graph, cost_unit=costs.unit, metadata=metadata | graph.metadata | notes)


def _divided_with_numbers(
    build: Callable[[], Any], device: str, tell: Tell, problem: Exception, tracer: Tracer
) -> tuple[list[Part], Exception | None]:
    """As :func:`divided`, for a step whose path depends on numbers: built with real tensors, it runs forward once."""
    tell(
        f"the way that the step takes depends on numbers ({refusal_of(problem).line()}): its forward pass runs "
        "with real tensors; another way gives other graphs"
    )
    real = build_real(build, device, tell, "the way that the step takes depends on numbers")
    called_once(real, None)
    return divided(real, None, tracer)


def _graphs_of(
    parts: Sequence[Part], lowered: Callable[[Captured, str], Graph], name: str, whole: NotOneGraph
) -> list[Graph]:
    """The graph of every part that has a backward pass; its metadata tells its place among the others.

    ``lowered`` makes a graph with a name of a captured one; ``whole`` says why the step is not one graph.
    """
    refused = unplannable([part.captured for part in parts])
    trained = [(one, one.captured) for k, one in enumerate(parts) if one.captured is not None and k not in refused]
    if not trained and refused:
        raise next(iter(refused.values()))
    graphs = []
    for number, (part, captured) in enumerate(trained):
        facts = {
            "number": number,
            "parts": len(trained),
            "runs": part.runs,
            "ends": "" if part.ends is None else part.ends.sentence(),
            "takes": _taken(captured, [earlier for earlier, _ in trained[:number]]),
        }
        graph = lowered(captured, f"{name}.{number}" if len(trained) > 1 else name)
        graphs.append(replace(graph, metadata=graph.metadata | {"part": facts}))
    notes = _notes(parts, whole if len(trained) == 1 else None)
    notes += [f"a part of the step has no graph, and runs without a plan: {e.message}" for e in refused.values()]
    for number, graph in enumerate(graphs):
        own_notes = [note for note in graph.metadata["notes"] if not note.startswith(_UNUSED)]
        facts = {"notes": own_notes + (notes if not number else [])}
        graphs[number] = replace(graph, metadata=graph.metadata | facts)
    return graphs


def _taken(captured: Captured, earlier: Sequence[Part]) -> list[dict[str, Any]]:
    """The tensors that a part takes, and that are neither the module's nor the step's inputs.

    ``from`` is the number of the part that made one; None if code between the parts made it.
    """
    own_ids = set(map(id, captured.model.tensors()))
    crossing = []
    for k, tensor in enumerate(captured.tensors):
        if _is_tensor(tensor) and id(tensor) not in own_ids:
            maker = next((number for number, part in enumerate(earlier) if _made(part, tensor)), None)
            crossing.append({"name": f"captured{k}", "bytes": storage_bytes(tensor), "from": maker})
    return crossing


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
        first, size = next(iter(others)), total_bytes(others.values())
        notes.append(
            f"{len(others)} of {len(list(model.module.parameters()))} parameters ({format_bytes(size)}), such as "
            f"{first}, have no part in a graph: the step, or what PyTorch compiles of it, does not read them"
        )
    return notes


def _parameters(part: Part) -> set[int]:
    """The memory of the parameters that the graph of a part reads."""
    if part.captured is None:
        return set()
    own = set(map(storage, part.captured.model.module.parameters()))
    return {storage(tensor) for tensor in filter(_is_tensor, part.tensors) if storage(tensor) in own}


def _is_tensor(item: Any) -> bool:
    """Whether an input of a graph is a tensor, and not a number."""
    import torch

    return isinstance(item, torch.Tensor)
