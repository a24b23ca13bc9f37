"""Graphs of the models in ``torch_models``, captured once per run of the tests, and plans with many recomputations."""

from __future__ import annotations

import functools
import random

import torch_models

from remat_cli.frontends.torch.export import export_model
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope


@functools.cache
def graph_of(name: str) -> Graph:
    """The exported graph of a model, the same object each time; graphs are frozen."""
    return export_model(getattr(torch_models, name), name=name, source=f"torch:torch_models.py:{name}")


def plan_of(graph, computes) -> Plan:
    """A plan that computes these nodes in this order."""
    claim = Claim(ClaimStatus.FEASIBLE, sum(graph.nodes[i].cost for i in computes), 0.0, Scope.ANY_ORDER)
    return Plan(graph, derive(graph, computes), None, claim, "by-hand")


def plain(graph) -> Plan:
    """The plan without recomputation."""
    return plan_of(graph, range(len(graph.nodes)))


def repeated(graph, seed=3, share=0.1) -> list[int]:
    """A schedule with recomputations of many nodes, at random places, the random ones among them."""
    source = random.Random(seed)
    computes = []
    for node in range(len(graph.nodes)):
        computes += [i for i in range(node) if graph.nodes[i].recompute and source.random() < share]
        computes.append(node)
    return computes
