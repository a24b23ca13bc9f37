"""Plans as the settings of other tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from remat_cli.api.arguments import as_text, options_of
from remat_cli.api.reading import Source, as_graph
from remat_cli.graph.model import Graph
from remat_cli.tracebacks import door
from remat_cli.units import Budget, as_budget

if TYPE_CHECKING:
    from remat_cli.control import Progress
    from remat_cli.planning.options import SolveOptions
    from remat_cli.planning.policies import Policy


@door
def policy(
    graph: Graph | Source,
    budget: Budget | str | float,
    to: str,
    options: SolveOptions | None = None,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> Policy:
    """The best plan of ``graph`` that the tool ``to`` can carry out, and the best of all plans beside it.

    Args:
        graph: The graph: an object, a path, or the data of a document, from ``remat export``.
        budget: ``"16GB"``, ``"80%"`` or a number of bytes, fixed memory included.
        to: ``torch-checkpoint`` (``torch.utils.checkpoint`` around modules), ``hf-every-n`` (every n-th layer),
            ``torch-tags`` (tags for operations), ``jax-names`` (names of values that ``jax.checkpoint`` saves),
            ``jax-scan`` (inside of scans) or ``keras-layers`` (layers for ``keras.RematScope``).
        options: How to solve; the time limit is for both searches.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If nothing that the tool can express fits, with the reason.
        LimitReached, Interrupted: If the search has to stop before it has found a plan.
        InputError: If the graph's document is invalid.
        UsageError, SolverUnavailable, SolverFailed, StrategyMismatch: As their names say.
    """
    from remat_cli.planning import policies

    return policies.policy(
        as_graph(graph), as_budget(budget), as_text(to, "to"), options_of(options), listener=listener
    )
