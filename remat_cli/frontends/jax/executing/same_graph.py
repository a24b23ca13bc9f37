"""Decides whether a plan is for a graph. If not, says what differs: JAX, shapes, types, or the function."""

from __future__ import annotations

from remat_cli.frontends.captured.origin import differing_spec
from remat_cli.frontends.jax.document import FRONTEND, Step
from remat_cli.frontends.jax.reading import read_step
from remat_cli.graph.model import Graph
from remat_cli.printable import printable


def difference(ours: Step, theirs: Step) -> str | None:
    """Why a plan of ``theirs`` is not a plan of ``ours``, in a few words; None if it is. Costs do not matter."""
    return _places(ours, theirs) or _operations(ours, theirs) or _rest(ours, theirs)


def difference_of_graphs(ours: Graph, theirs: Graph) -> str | None:
    """As :func:`difference`, of graphs.

    Raises:
        UsageError: If a payload is damaged.
    """
    return difference(read_step(ours), read_step(theirs))


def require_home(graph: Graph, device: str) -> None:
    """Check that a graph was exported for this version of JAX and for ``device``.

    Raises:
        UsageError: If it was not, with the difference.
    """
    import jax

    FRONTEND.require_home(graph, str(jax.__version__), device)


def _places(ours: Step, theirs: Step) -> str | None:
    if len(ours.places) != len(theirs.places):
        return f"it has {len(theirs.places)} arrays in its arguments, and this has {len(ours.places)}"
    for mine, other in zip(ours.places, theirs.places, strict=True):
        if mine.name != other.name or mine.kind != other.kind:
            return f"{printable(other.name)} there is {printable(mine.name)} here"
        facts = (
            ("type", other.spec.key or other.spec.dtype, mine.spec.key or mine.spec.dtype),
            ("shape", list(other.spec.shape), list(mine.spec.shape)),
        )
        if (words := differing_spec(other.name, facts)) is not None:
            return words
    return None


def _operations(ours: Step, theirs: Step) -> str | None:
    mine, others = ours.graph.nodes, theirs.graph.nodes
    for k, (here, there) in enumerate(zip(mine, others, strict=False)):
        own, other = ours.operations[k], theirs.operations[k]
        same = own.reads == other.reads and own.values == other.values and here.inputs == there.inputs
        if not same or ours.functions[own.function] != theirs.functions[other.function]:
            return f"its operation {printable(there.id)} computes something else"
    return None if len(mine) == len(others) else f"it has {len(others)} operations, and this has {len(mine)}"


def _rest(ours: Step, theirs: Step) -> str | None:
    if ours.constants != theirs.constants:
        return "constants in the code have other values"
    return None if ours.results == theirs.results else "it returns something else"
