"""Is a plan for this graph? If not, why not: torch, device, shapes, types, or another model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.executing.program import resolved
from remat_cli.graph.model import Graph, Node


def same_operations(a: Graph, b: Graph) -> bool:
    """Whether two graphs do the same with tensors of the same form, whatever their nodes are called and cost."""
    return difference(a, b) is None


def difference(compiled: Graph, planned: Graph) -> str | None:
    """Why a plan of ``planned`` is none of ``compiled``, in a few words; None if it is one.

    Args:
        compiled: What is to be run.
        planned: The graph of a plan.
    """
    return _places(compiled, planned) or _operations(compiled, planned) or _rest(compiled, planned)


def foreign(metadata: Mapping[str, Any], version: str, device: str) -> str | None:
    """Why a graph with this metadata is not for this torch and device; None if it is, or does not say.

    Operators may change from one minor version to the next, so a plan is for the one it was exported with.

    Args:
        metadata: Metadata of a graph that this frontend made.
        version: Version of torch that is to run it.
        device: Kind of device on which it is to run.
    """
    made = str(metadata.get("torch", version))
    if _minor(made) != _minor(version):
        return f"it was exported with torch {made}, and this is torch {version}"
    planned = metadata.get("device", device)
    return None if planned == device else f"it was exported for {planned}, and this runs on {device}"


def require_home(graph: Graph, device: str) -> None:
    """Make sure that a graph was exported for this torch and for ``device``.

    Raises:
        UsageError: If it was not, with what differs.
    """
    import torch

    reason = foreign(graph.metadata, str(torch.__version__), device)
    if reason is not None:
        raise UsageError(
            f"the graph {graph.name} is not for here: {reason}",
            hint=f"export it again here, with --device {device}; or --force, and operators may be missing or do "
            "something else",
        )


def require_same(planned: Graph, wanted: Graph) -> None:
    """Make sure that a plan of ``planned`` does what ``wanted`` says. Costs and names do not matter.

    Raises:
        UsageError: If it does something else, with the first thing that differs.
    """
    reason = difference(wanted, planned)
    if reason is not None:
        raise UsageError(
            f"the plan of {planned.name} is for another graph than {wanted.name}: {reason}",
            hint="solve the graph that is to be run",
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _places(compiled: Graph, planned: Graph) -> str | None:
    ours, theirs = compiled.metadata["places"], planned.metadata["places"]
    here, there = ([place["kind"] for place in places].count("tangent") for places in (ours, theirs))
    if here != there and len(ours) - here == len(theirs) - there:
        return (
            f"{there} of its results {'takes' if there == 1 else 'take'} a gradient, and {here} of this: compile what "
            "returns the same, the loss alone if there is one"
        )
    if len(ours) != len(theirs):
        return f"it has {len(theirs)} parameters, buffers and inputs, and this has {len(ours)}"
    for mine, other in zip(ours, theirs, strict=True):
        name = other.get("name", "?")
        if (mine["kind"] == "tangent") != (other["kind"] == "tangent"):
            return f"{name} is {other['kind']} there and {mine['kind']} here"
        for key, what in (("dtype", "type"), ("shape", "shape"), ("stride", "stride")):
            here, there = mine[key], other[key]
            if (here if key == "dtype" else list(here)) != (there if key == "dtype" else list(there)):
                return f"{name} has the {what} {there} there and {here} here"
    return None


def _operations(compiled: Graph, planned: Graph) -> str | None:
    for mine, other in zip(compiled.nodes, planned.nodes, strict=False):
        if _form(mine) != _form(other):
            there, here = ((node.payload or {}).get("call", "?") for node in (other, mine))
            if there == here:
                return f"its operation {other.id} ({there}) has other arguments"
            return f"its operation {other.id} is {there} there and {here} here"
    if len(compiled.nodes) != len(planned.nodes):
        return f"it has {len(planned.nodes)} operations, and this has {len(compiled.nodes)}"
    return None


def _form(node: Node) -> tuple[Any, ...]:
    return node.payload, node.inputs, len(node.outputs)


def _rest(compiled: Graph, planned: Graph) -> str | None:
    if compiled.metadata["constants"] != planned.metadata["constants"]:
        return "constants in the code have other values"
    return None if _results(compiled) == _results(planned) else "it returns something else"


def _results(graph: Graph) -> list[Any]:
    """Results of a graph, with numbers for the names of values."""
    names = {graph.value_name(value): value for value in range(len(graph.size))}
    return [(r["kind"], r["of"], resolved(r["tensor"], names)) for r in graph.metadata["results"]]
