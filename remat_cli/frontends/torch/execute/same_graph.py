"""Decides whether a plan is for a graph. If not, says what differs: torch, device, shapes, types, or the model."""

from __future__ import annotations

from remat_cli.frontends.captured.origin import differing_spec
from remat_cli.frontends.torch.document import Step
from remat_cli.printable import printable


def difference(compiled: Step, planned: Step) -> str | None:
    """Why a plan of ``planned`` is not a plan of ``compiled``, in a few words; None if it is.

    Args:
        compiled: The step to be run.
        planned: The step of a plan.
    """
    return _places(compiled, planned) or _operations(compiled, planned) or _rest(compiled, planned)


def _places(compiled: Step, planned: Step) -> str | None:
    ours, theirs = compiled.places, planned.places
    here, there = (len(step.places) - len(step.given) for step in (compiled, planned))
    if here != there and len(compiled.given) == len(planned.given):
        return (
            f"{there} of its results {'takes' if there == 1 else 'take'} a gradient, and {here} of this: compile what "
            "returns the same, the loss alone if there is one"
        )
    if len(ours) != len(theirs):
        return f"it has {len(theirs)} parameters, buffers and inputs, and this has {len(ours)}"
    for mine, other in zip(ours, theirs, strict=True):
        if (mine.kind == "tangent") != (other.kind == "tangent"):
            return f"{printable(other.name)} is {other.kind} there and {mine.kind} here"
        facts = (
            ("type", other.spec.dtype, mine.spec.dtype),
            ("shape", list(other.spec.shape), list(mine.spec.shape)),
            ("stride", list(other.spec.stride), list(mine.spec.stride)),
        )
        if (words := differing_spec(other.name, facts)) is not None:
            return words
    return None


def _operations(compiled: Step, planned: Step) -> str | None:
    ours, theirs = compiled.graph.nodes, planned.graph.nodes
    for k, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        here, there = compiled.operations[k], planned.operations[k]
        if (here, mine.inputs, len(mine.outputs)) != (there, other.inputs, len(other.outputs)):
            name, called = printable(other.id), printable(there.call)
            if there.call == here.call:
                return f"its operation {name} ({called}) has other arguments"
            return f"its operation {name} is {called} there and {here.call} here"
    if len(ours) != len(theirs):
        return f"it has {len(theirs)} operations, and this has {len(ours)}"
    return None


def _rest(compiled: Step, planned: Step) -> str | None:
    if compiled.constants != planned.constants:
        return "constants in the code have other values"
    return None if compiled.results == planned.results else "it returns something else"
