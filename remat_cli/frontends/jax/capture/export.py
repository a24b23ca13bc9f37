"""Exports a user's function, or a model of the zoo, as a graph."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.jax.capture.capture import Loss, capture
from remat_cli.frontends.jax.capture.costs import cost_model
from remat_cli.frontends.jax.capture.lower import lower
from remat_cli.frontends.jax.document import AUTO, FRONTEND
from remat_cli.frontends.messages import Tell
from remat_cli.frontends.source import called
from remat_cli.graph.model import Graph

_EXPECTED = (
    "it returns (loss, arguments) or (loss, arguments, options): loss is a function that returns a scalar, arguments a "
    'tuple for it, options a mapping with "argnums" or "has_aux" as for jax.value_and_grad'
)
_OPTIONS = ("argnums", "has_aux")


def export_built(
    build: Callable[[], Any], name: str, source: str, *, device: str, cost: str, tell: Tell, scans: str = AUTO
) -> Graph:
    """The graph of the training step of what ``build()`` returns: the value and the gradients of a loss function.

    Args:
        build: Returns (loss, arguments) or (loss, arguments, options).
        name: Name of the graph.
        source: Its origin, for the metadata.
        device: ``cpu`` or ``cuda``. Nothing runs there during export, unless it is measured.
        cost: ``device``, ``flops`` or ``roofline:NAME``.
        tell: Told that the device is measured, if it is.
        scans: What becomes of scans, one of :data:`~remat_cli.frontends.jax.document.SCANS`.

    Raises:
        UsageError: If there is no such cost model.
        CaptureFailed: If ``build`` fails or returns something else, or the step cannot be captured.
    """
    costs = cost_model(cost, device, tell)
    captured = capture(*_loss(called(build, name, FRONTEND.name), name), scans=scans)
    graph, _ = lower(captured, costs.cost, name, device)
    metadata = FRONTEND.metadata(source, device, costs.description) | {"notes": list(captured.notes)}
    return replace(graph, cost_unit=costs.unit, metadata=metadata | graph.metadata | {"scans": scans})


def _loss(returned: Any, name: str) -> tuple[Loss, tuple[Any, ...]]:
    """The loss and its arguments in what the user's function returned."""
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 3:
        raise CaptureFailed(f"{name}() returned {type(returned).__name__}", hint=_EXPECTED)
    function, arguments = returned[:2]
    options = returned[2] if len(returned) == 3 else {}
    if not callable(function):
        raise CaptureFailed(f"{name}() returned {type(function).__name__} as the loss", hint=_EXPECTED)
    if not isinstance(arguments, tuple | list):
        raise CaptureFailed(f"{name}() returned {type(arguments).__name__} as the arguments", hint=_EXPECTED)
    if not isinstance(options, Mapping) or any(key not in _OPTIONS for key in options):
        raise CaptureFailed(f"{name}() returned other options than {' and '.join(_OPTIONS)}", hint=_EXPECTED)
    return Loss(function, options.get("argnums", 0), bool(options.get("has_aux", False))), tuple(arguments)
