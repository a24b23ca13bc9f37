"""Exports a user's function, or a model of the zoo, as a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from remat_cli.errors import CaptureFailed, RematError
from remat_cli.frontends.jax.document import AUTO, FRONTEND
from remat_cli.frontends.jax.installed import require_present
from remat_cli.frontends.source import frames_of, load_function, place_in
from remat_cli.graph.model import Graph
from remat_cli.printable import printable

_EXPECTED = (
    "it returns (loss, arguments) or (loss, arguments, options): loss is a function that returns a scalar, arguments a "
    'tuple for it, options a mapping with "argnums" or "has_aux" as for jax.value_and_grad'
)
_OPTIONS = ("argnums", "has_aux")


def export_jax(text: str, *, device: str, cost: str, tell: Callable[[str], None], scans: str = AUTO) -> Graph:
    """The graph of the training step that ``FILE.py:NAME`` builds: the value and the gradients of a loss function.

    Args:
        text: The function: it returns (loss, arguments) or (loss, arguments, options).
        device: ``cpu`` or ``cuda``: the device that the step is for. Nothing runs there during export.
        cost: ``device``, ``flops`` or ``roofline:NAME``.
        tell: Told that the device is measured, if it is.
        scans: What becomes of scans, one of :data:`~remat_cli.frontends.jax.document.SCANS`.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    require_here(device, cost)
    build = load_function(text, FRONTEND.name)
    name = text.rpartition(":")[2]
    return export_built(build, name, f"jax:{text}", device=device, cost=cost, tell=tell, scans=scans)


def require_here(device: str, cost: str) -> None:
    """Check that JAX is here, and the device too if it is measured."""
    from remat_cli.frontends.jax.installed import require_jax

    require_jax()
    if cost == "device":
        require_present(device)


def export_built(
    build: Callable[[], Any],
    name: str,
    source: str,
    *,
    device: str,
    cost: str,
    tell: Callable[[str], None],
    scans: str = AUTO,
) -> Graph:
    """The graph of the training step of what ``build()`` returns.

    Args:
        build: Returns (loss, arguments) or (loss, arguments, options).
        name: Name of the graph.
        source: Its origin, for the metadata.
        device: ``cpu`` or ``cuda``.
        cost: ``device``, ``flops`` or ``roofline:NAME``.
        tell: Told that the device is measured, if it is.
        scans: What becomes of scans, one of :data:`~remat_cli.frontends.jax.document.SCANS`.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
    """
    from remat_cli.frontends.jax.capture.capture import Captured, capture
    from remat_cli.frontends.jax.capture.costs import cost_model
    from remat_cli.frontends.jax.capture.lower import lower

    costs = cost_model(cost, device, tell)
    loss, arguments = _built(build)
    captured: Captured = capture(loss, arguments, scans=scans)
    graph = lower(captured, costs.cost, name, device).graph
    graph = described(graph, captured.notes, costs.unit, costs.description, source=source, device=device)
    return replace(graph, metadata=graph.metadata | {"scans": scans})


def described(
    graph: Graph, notes: tuple[str, ...], unit: str, costs: Mapping[str, Any], *, source: str, device: str
) -> Graph:
    """``graph`` with metadata on its origin."""
    import jax

    metadata = FRONTEND.metadata(source, str(jax.__version__), device, costs) | {"notes": list(notes)}
    return replace(graph, cost_unit=unit, metadata=metadata | graph.metadata)


def _built(build: Callable[[], Any]) -> tuple[Any, tuple[Any, ...]]:
    """The loss and its arguments, which ``build()`` returns.

    Raises:
        CaptureFailed: If it fails, or returns something else.
    """
    from remat_cli.frontends.jax.capture.capture import Loss

    name = getattr(build, "__name__", "build")
    try:
        returned = build()
    except RematError:
        raise
    except Exception as error:  # the user's code may do anything
        place = place_in(frames_of(error), FRONTEND.name)
        at = f" at {place}" if place else ""
        words = printable(str(error).splitlines()[0] if str(error) else "")
        raise CaptureFailed(f"{name}() failed{at}: {type(error).__name__}: {words}") from error
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
