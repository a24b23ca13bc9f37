"""Costs of the collectives of a step: times of a ring on a stated interconnect."""

from __future__ import annotations

from dataclasses import replace

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.interconnect import ONE_QUEUE, Interconnect
from remat_cli.frontends.torch.capture.capture import Captured, Group
from remat_cli.frontends.torch.capture.sharded import whole_bytes
from remat_cli.frontends.torch.compat.distributed import COLLECTIVES, COMMUNICATING, group_dimensions, group_size
from remat_cli.frontends.torch.compat.operators import schema
from remat_cli.frontends.torch.measure.costs import CostModel
from remat_cli.frontends.torch.types import FxNode

INTERCONNECT = "give an interconnect such as 400GB/s, what a rank sends in one direction"
"""What to do where nothing is known of the link between ranks."""
_LEAST_US = 1e-3
"""No cost is 0, see :func:`remat_cli.frontends.rates.named_costs`."""


def with_collectives(costs: CostModel, interconnect: Interconnect | None, captured: Captured) -> CostModel:
    """``costs``, with those of the collectives of a captured step.

    Raises:
        UsageError: When it is asked for the cost of a collective, and costs are no times, or nothing is known of the
            link that it takes; or if the mesh has not the dimensions that the interconnect names.
        CaptureFailed: When it is asked for the cost of a collective that is not known.
    """
    module = captured.model.module
    dimensions = group_dimensions([*captured.tensors, *module.parameters(), *module.buffers()])
    if interconnect is not None:
        interconnect.require_dimensions(dimensions.values())
    launch_us = float(costs.description.get("launch_us", 0.0))

    def cost(node: FxNode | Group) -> float:
        if isinstance(node, Group):  # of Inductor, which does not compile a step of several ranks
            return costs.cost(node)
        name = str(node.target)
        if name.partition(".")[0] not in COMMUNICATING:
            return costs.cost(node)
        if name not in COLLECTIVES:
            raise CaptureFailed(
                f"the step communicates with {name}, which remat does not know",
                hint="collectives that all ranks take part in are known; sending from one to another is not",
            )
        if costs.unit != "us":
            raise UsageError(
                f"the step communicates ({name}), which takes time, and its costs are {costs.unit}",
                hint="take costs that are times: device, or roofline:a100",
            )
        if interconnect is None:
            raise UsageError(
                f"the step communicates ({name}), and the bandwidth between ranks is not given",
                hint=INTERCONNECT,
            )
        group = _group(node)
        sizes = whole_bytes(node), group_size(group)
        took = interconnect.us(COLLECTIVES[name], *sizes, dimensions.get(group, ""), launch_us)
        return max(_LEAST_US, round(took, 3))

    if interconnect is None:
        return replace(costs, cost=cost)
    return replace(costs, cost=cost, description=costs.description | {"interconnect": interconnect.document()})


def group_notes(captured: Captured) -> list[str]:
    """What is assumed if the collectives of a captured step are those of several groups of ranks."""
    calls = (node for node in captured.joint.graph.nodes if str(node.target) in COLLECTIVES)
    return [ONE_QUEUE] if len({_group(node) for node in calls}) > 1 else []


def _group(node: FxNode) -> str:
    """The name of the process group of a collective."""
    for argument, value in zip(schema(node.target).arguments, node.args, strict=False):
        if argument.name == "group_name":
            return str(value)
    return str(node.kwargs["group_name"])
