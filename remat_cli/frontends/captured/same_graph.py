"""Decides whether a plan is for a step, and if not, says what differs first."""

from collections.abc import Callable, Sequence
from typing import Any

from remat_cli.printable import printable

Step = Any
"""A captured step of a framework: it has ``graph``, ``places``, ``constants`` and ``results``."""
Place = Any
"""What a step is given, in a form of the framework's own."""


def first_difference(
    ours: Step,
    theirs: Step,
    given: str,
    of_places: Callable[[Place, Place], str | None],
    of_operations: Callable[[int], str | None],
) -> str | None:
    """Why a plan of ``theirs`` is not a plan of ``ours``, in a few words; None if it is. Costs do not matter.

    Args:
        ours: The step to be run.
        theirs: The step of a plan.
        given: What its places are, in words: ``inputs and variables``.
        of_places: What differs between one of our places and theirs.
        of_operations: What differs between the operations of a node, by its number, for both have it.
    """
    if len(ours.places) != len(theirs.places):
        return f"it has {len(theirs.places)} {given}, and this has {len(ours.places)}"
    for mine, other in zip(ours.places, theirs.places, strict=True):
        if (words := of_places(mine, other)) is not None:
            return words
    nodes = ours.graph.nodes, theirs.graph.nodes
    for number, (_, node) in enumerate(zip(*nodes, strict=False)):
        if (words := of_operations(number)) is not None:
            return f"its operation {printable(node.id)} {words}"
    if len(nodes[0]) != len(nodes[1]):
        return f"it has {len(nodes[1])} operations, and this has {len(nodes[0])}"
    if ours.constants != theirs.constants:
        return "constants in the code have other values"
    return None if ours.results == theirs.results else "it returns something else"


def differing_spec(name: str, facts: Sequence[tuple[str, Any, Any]]) -> str | None:
    """The first of ``(what, there, here)`` that differs, in words; None if none does. ``name`` is what they are of."""
    for what, there, here in facts:
        if there != here:
            return f"{printable(name)} has the {what} {there} there and {here} here"
    return None
