"""Exports a user's function, or a model of the zoo, as a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remat_cli.frontends.torch.costing.device import Tell, tell_stderr
from remat_cli.frontends.torch.document import FRONTEND, VERSION
from remat_cli.frontends.torch.installed import require_present
from remat_cli.graph.model import Graph

if TYPE_CHECKING:
    from remat_cli.frontends.torch.capturing.capture import Captured
    from remat_cli.frontends.torch.capturing.costs import CostModel


def export_torch(text: str, *, device: str = "cpu", cost: str = "flops", tell: Tell = tell_stderr) -> Graph:
    """The graph of the training step that ``FILE.py:NAME`` builds.

    Args:
        text: The function: it returns (module, inputs) or (module, inputs, loss).
        device: ``cpu`` or ``cuda``: the device that the step is for. Nothing runs there during export.
        cost: ``device``, ``flops`` or ``roofline:NAME``.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    from remat_cli.frontends.torch.capturing.source import load_function

    require_present(device)
    function = load_function(text)
    name = text.rpartition(":")[2]
    return export_model(function, name=name, source=f"torch:{text}", device=device, cost=cost, tell=tell)


def export_model(
    build: Callable[[], Any],
    *,
    name: str,
    source: str,
    device: str = "cpu",
    cost: str = "flops",
    tell: Tell = tell_stderr,
) -> Graph:
    """The graph of the training step of what ``build()`` returns.

    Args:
        build: Called under fake tensors.
        name: Name of the graph.
        source: Its origin, for the metadata.
        device: ``cpu`` or ``cuda``.
        cost: ``device``, ``flops`` or ``roofline:NAME``.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    require_present(device)
    from remat_cli.frontends.torch.capturing.capture import capture, fake_mode
    from remat_cli.frontends.torch.capturing.costs import cost_model
    from remat_cli.frontends.torch.capturing.lower import lower
    from remat_cli.frontends.torch.capturing.source import build_model

    costs = cost_model(cost, device, tell)
    mode = fake_mode()
    captured = capture(build_model(build, mode, device), mode)
    return described(lower(captured, costs.cost, name), captured, costs, source=source, device=device)


def described(graph: Graph, captured: Captured, costs: CostModel, *, source: str, device: str) -> Graph:
    """``graph``, lowered from ``captured`` with ``costs``, with metadata on its origin."""
    import torch

    metadata = {
        "frontend": FRONTEND,
        "version": VERSION,
        "source": source,
        "torch": str(torch.__version__),
        "device": device,
        "costs": costs.description,
        "parameters": sum(p.numel() for p in captured.model.module.parameters()),
    }
    return replace(graph, cost_unit=costs.unit, metadata=metadata | graph.metadata)
