"""Connections to a Dask cluster."""

from __future__ import annotations

import warnings
from typing import Any

from remat_cli.errors import SolverUnavailable, UsageError
from remat_cli.extras import install_command
from remat_cli.graph.model import Graph

CONNECT_S = 20
"""Seconds to wait for a scheduler."""


def connected(address: str) -> Any:
    """A client of the scheduler at ``address``.

    Raises:
        SolverUnavailable: If ``distributed`` is not installed.
        UsageError: If no scheduler answers there.
    """
    try:
        from distributed import Client
    except ImportError:
        raise SolverUnavailable("Dask is not installed", hint=f"install it with: {install_command('dask')}") from None
    try:
        return Client(address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise UsageError(
            f"no Dask scheduler answers at {address}: {reason}", hint="start one with: dask scheduler"
        ) from None


def held(client: Any, graph: Graph) -> Any:
    """The graph as the result of a task, sent once.

    Dask recomputes the result of a lost task. Scattered data would be lost with its workers.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")  # it has to be sent, and it is sent only once
        return client.submit(_itself, graph, pure=False)


def _itself(graph: Graph) -> Graph:
    return graph
