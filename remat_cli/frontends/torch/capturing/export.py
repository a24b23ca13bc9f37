"""Exports a user's function, or a model of the zoo, as a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remat_cli.errors import NotOneGraph
from remat_cli.frontends.source import load_function
from remat_cli.frontends.torch.document import FRONTEND
from remat_cli.frontends.torch.installed import require_present
from remat_cli.frontends.torch.telling import Tell, tell_stderr
from remat_cli.graph.metadata import LINES
from remat_cli.graph.model import Graph

if TYPE_CHECKING:
    from remat_cli.frontends.torch.capturing.capture import Captured
    from remat_cli.frontends.torch.capturing.costs import CostModel


_GROUPS = "groups of operations that Inductor is predicted to make one loop of: one launch, work, and stored bytes"


def export_torch(
    text: str, *, device: str = "cpu", cost: str = "flops", compiler: str = "eager", tell: Tell = tell_stderr
) -> Graph:
    """The graph of the training step that ``FILE.py:NAME`` builds.

    Args:
        text: The function: it returns (module, inputs) or (module, inputs, loss).
        device: ``cpu`` or ``cuda``: the device that the step is for. Nothing runs there during export.
        cost: ``device``, ``flops`` or ``roofline:NAME``.
        compiler: What compiles the step: ``eager``, which runs operations one by one, or ``inductor``.
        tell: Called before much memory is taken, and before the device is measured.

    Raises:
        NotOneGraph: If PyTorch captures the step in parts only.
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    return export_model(*_named(text, device), device=device, cost=cost, compiler=compiler, tell=tell)


def export_torch_parts(
    text: str, *, device: str = "cpu", cost: str = "flops", compiler: str = "eager", tell: Tell = tell_stderr
) -> tuple[Graph, ...]:
    """As :func:`export_torch`, but a graph for each part if PyTorch captures the step in parts.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    return export_parts(*_named(text, device), device=device, cost=cost, compiler=compiler, tell=tell)


def _named(text: str, device: str) -> tuple[Callable[[], Any], str, str]:
    """The function that ``FILE.py:NAME`` names, the name of its graph, and its source."""
    require_present(device)
    return load_function(text, FRONTEND.name), text.rpartition(":")[2], f"torch:{text}"


def export_model(
    build: Callable[[], Any],
    name: str,
    source: str,
    *,
    device: str = "cpu",
    cost: str = "flops",
    compiler: str = "eager",
    tell: Tell = tell_stderr,
) -> Graph:
    """The graph of the training step of what ``build()`` returns.

    Args:
        build: Called with fake tensors in place of large ones, or with real ones if it needs their numbers.
        name: Name of the graph.
        source: Its origin, for the metadata.
        device: ``cpu`` or ``cuda``.
        cost: ``device``, ``flops`` or ``roofline:NAME``.
        compiler: What compiles the step: ``eager``, which runs operations one by one, or ``inductor``.
        tell: Called before much memory is taken, and before the device is measured.

    Raises:
        NotOneGraph: If PyTorch captures the step in parts only.
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    [graph] = _exported(build, name, source, device, cost, compiler, tell, parts=False)
    return graph


def export_parts(
    build: Callable[[], Any],
    name: str,
    source: str,
    *,
    device: str = "cpu",
    cost: str = "flops",
    compiler: str = "eager",
    tell: Tell = tell_stderr,
) -> tuple[Graph, ...]:
    """As :func:`export_model`, but a graph for each part if PyTorch captures the step in parts.

    The graphs are named ``name.0``, ``name.1`` and so on, and ``metadata["part"]`` tells the place of each among the
    others: its ``number``, the number of ``parts``, how often it ``runs`` in a step, the reason why it ``ends`` there,
    and what it ``takes`` from others.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    return _exported(build, name, source, device, cost, compiler, tell, parts=True)


def _exported(
    build: Callable[[], Any],
    name: str,
    source: str,
    device: str,
    cost: str,
    compiler: str,
    tell: Tell,
    *,
    parts: bool,
) -> tuple[Graph, ...]:
    """The graph of a step; or, if it is not one and ``parts`` are wanted, those of its parts."""
    require_present(device)
    from remat_cli.frontends.torch.capturing.capture import capture, fake_mode
    from remat_cli.frontends.torch.capturing.costs import cost_model
    from remat_cli.frontends.torch.capturing.inductor_joint import way_of
    from remat_cli.frontends.torch.capturing.lower import lowering
    from remat_cli.frontends.torch.capturing.parts import graphs_of, parts_of
    from remat_cli.frontends.torch.capturing.places import line_in
    from remat_cli.frontends.torch.capturing.source import build_model

    way = way_of(compiler)
    costs = cost_model(cost, device, tell)

    def lowered(captured: Captured, name: str) -> Graph:
        made = lowering(captured, costs.cost, name)
        graph = described(made.graph, captured, costs, source=source, device=device)
        lines = {node.id: line for node, fx in zip(graph.nodes, made.made, strict=True) if (line := line_in(fx))}
        return replace(graph, metadata=graph.metadata | ({LINES: lines} if lines else {}))

    mode = fake_mode()
    model = build_model(build, mode, device, tell)
    try:
        return (lowered(capture(model, mode, way), name),)
    except NotOneGraph as error:
        if not parts:
            raise
        whole = error
    return tuple(graphs_of(parts_of(model, mode, build, device, tell, whole, way), lowered, name, whole))


def described(graph: Graph, captured: Captured, costs: CostModel, *, source: str, device: str) -> Graph:
    """``graph``, lowered from ``captured`` with ``costs``, with metadata on its origin."""
    import torch

    said = costs.description | ({} if captured.inductor is None else {"of": _GROUPS})
    metadata = FRONTEND.metadata(source, str(torch.__version__), device, said)
    if captured.model.loss is not None:
        metadata["loss"] = "separate"
    metadata["parameters"] = sum(p.numel() for p in captured.model.module.parameters())
    if captured.inductor is not None:
        metadata["compiler"] = "inductor"
    notes = {"notes": [*captured.notes, *graph.metadata["notes"]]}
    return replace(graph, cost_unit=costs.unit, metadata=metadata | graph.metadata | notes)
