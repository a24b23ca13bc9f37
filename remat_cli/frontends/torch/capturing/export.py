"""Exports a user's function, or a model of the zoo, as a graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remat_cli.frontends.torch.document import FRONTEND, VERSION
from remat_cli.frontends.torch.installed import require_present
from remat_cli.graph.model import Graph

if TYPE_CHECKING:
    from remat_cli.frontends.torch.capturing.capture import Captured
    from remat_cli.frontends.torch.capturing.costs import CostModel

Tell = Callable[[str], None]
"""Receives a message of one line for the user."""


def warn(text: str) -> None:
    """A :data:`Tell` that warns."""
    warnings.warn(f"remat: {text}", stacklevel=2)


def export_torch(text: str, *, device: str = "cpu", cost: str = "flops") -> Graph:
    """The graph of the training step that ``FILE.py:NAME`` builds.

    Args:
        text: The function: it returns (module, inputs) or (module, inputs, loss).
        device: ``cpu`` or ``cuda``: the device that the step is for. Nothing runs there during export.
        cost: ``flops`` or ``roofline:NAME``.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    from remat_cli.frontends.torch.capturing.source import load_function

    require_present(device)
    function = load_function(text)
    return export_model(function, name=text.rpartition(":")[2], source=f"torch:{text}", device=device, cost=cost)


def export_model(
    build: Callable[[], Any], *, name: str, source: str, device: str = "cpu", cost: str = "flops", tell: Tell = warn
) -> Graph:
    """The graph of the training step of what ``build()`` returns.

    Args:
        build: Called with fake tensors in place of large ones, or with real ones if it needs their numbers.
        name: Name of the graph.
        source: Its origin, for the metadata.
        device: ``cpu`` or ``cuda``.
        cost: ``flops`` or ``roofline:NAME``.
        tell: Called before much memory is taken.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    require_present(device)
    from remat_cli.frontends.torch.capturing.capture import capture, fake_mode
    from remat_cli.frontends.torch.capturing.costs import cost_model
    from remat_cli.frontends.torch.capturing.lower import lower
    from remat_cli.frontends.torch.capturing.source import build_model

    costs = cost_model(cost)
    mode = fake_mode()
    captured = capture(build_model(build, mode, device, tell), mode)
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
