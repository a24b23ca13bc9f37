"""Follows the plan of another rank on a rank that pads its parts, which are smaller than those of the first ranks.

PyTorch gathers parts of equal size, so a rank whose part is smaller copies it into a larger tensor first. Its graph has
these copies besides; all else is the same. So the plan of the other rank is followed node by node, and each copy is
made right before the gather that reads it: collectives are issued in the same order on all ranks.
"""

from dataclasses import replace

from remat_cli.frontends.torch.compat.distributed import COMMUNICATING
from remat_cli.frontends.torch.document import Step
from remat_cli.graph.model import Graph, NodeQueue
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Compute, Plan, Scope
from remat_cli.plan.replay import replay
from remat_cli.units import format_bytes

_PAD = "constant_pad_nd"


def followed(plan: Plan, step: Step, planned: Step) -> tuple[Plan | None, str]:
    """The plan for ``step`` that computes as ``plan`` does, whose graph is that of ``planned``; else None, and why not.

    The reason is empty if the graphs differ in more than copies that pad.
    """
    places = _places(step, planned)
    if places is None or plan.host is not None or len(places) == len(step.graph.nodes):  # no copies: other sizes
        return None, ""
    costs = dict(zip(places, (node.cost for node in planned.graph.nodes), strict=True))
    nodes = (replace(node, cost=costs.get(k, 0.0)) for k, node in enumerate(step.graph.nodes))
    graph = replace(step.graph, nodes=tuple(nodes), cost_unit=planned.graph.cost_unit)
    computes: list[int] = []
    for statement in plan.statements:
        if isinstance(statement, Compute):
            node = places[statement.node]
            copies = (graph.producer[v] for v in graph.nodes[node].inputs)
            computes += [maker for maker in copies if maker not in places]
            computes.append(node)
    budget = plan.budget_bytes
    statements = derive(graph, computes, within_bytes=budget)
    seen = replay(graph, statements, any_order=True)  # a gather that reads a copy may still be issued early
    if budget is not None and seen.peak_bytes > budget:
        over = format_bytes(seen.peak_bytes - budget)
        return None, f"this rank pads its part, and needs {over} more than the budget of the plan"
    claim = Claim(ClaimStatus.FEASIBLE, seen.time, 0.0, Scope.ANY_ORDER)
    provenance = {**plan.provenance, "reorder": True}
    own = replace(plan, graph=graph, statements=statements, claim=claim, provenance=provenance)
    return (own if check(own).valid else None), ""


def _places(step: Step, planned: Step) -> list[int] | None:
    """The node of ``step`` for each of ``planned``; None if ``step`` has anything else but copies that pad parts."""
    ours, theirs = step.graph, planned.graph
    if not theirs.overlaps or len(step.places) != len(planned.places):
        return None
    places: list[int] = []
    values: dict[int, int] = {}
    copies: set[int] = set()
    for k, node in enumerate(ours.nodes):
        other = theirs.nodes[len(places)] if len(places) < len(theirs.nodes) else None
        reads = [values[v] for v in node.inputs if ours.producer[v] not in copies]
        gathers = node.queue is NodeQueue.COMMUNICATION
        if other is None or _calls(step, k) != _calls(planned, len(places)) or reads != list(other.inputs):
            if node.op != _PAD or node.inputs:
                return None
            copies.add(k)
            continue
        if len(node.outputs) != len(other.outputs) or (len(reads) != len(node.inputs) and not gathers):
            return None
        values.update(zip(ours.values_of(k), theirs.values_of(len(places)), strict=True))
        places.append(k)
    complete = len(places) == len(theirs.nodes) and _read_by_one(ours, copies)
    kept = [values.get(v) for v in ours.outputs]
    return places if complete and kept == list(theirs.outputs) else None


def _calls(step: Step, node: int) -> tuple[str, int]:
    operation = step.operations[node]
    group = step.in_dimensions(node).args[1:] if operation.call.startswith(COMMUNICATING) else ()
    return f"{operation.call}{group}", len(operation.values)


def _read_by_one(graph: Graph, copies: set[int]) -> bool:
    return all(len(graph.readers[v]) == 1 for k in copies for v in graph.values_of(k))
