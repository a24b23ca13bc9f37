"""Graphs of the models in ``jax_models``, captured once per run of the tests, and plans with many recomputations."""

import functools
import random

import jax_models

from remat_cli.frontends.jax.capture.export import export_built
from remat_cli.frontends.jax.document import read_step
from remat_cli.frontends.jax.execute import load
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope

HELD = []
"""The functions of these graphs, so that they are compiled once."""


@functools.cache
def graph_of(name: str):
    """The exported graph of a model, the same object each time; graphs are frozen."""
    source = f"jax:jax_models.py:{name}"
    graph = export_built(getattr(jax_models, name), name, source, device="cpu", cost="flops", tell=print)
    HELD.append(load(read_step(graph), "cpu"))
    return graph


def plan_of(graph, computes) -> Plan:
    """A plan that computes these nodes in this order."""
    claim = Claim(ClaimStatus.FEASIBLE, sum(graph.nodes[i].cost for i in computes), 0.0, Scope.ANY_ORDER)
    return Plan(graph, derive(graph, computes), None, claim, "by-hand")


def plain(graph) -> Plan:
    """The plan without recomputation."""
    return plan_of(graph, range(len(graph.nodes)))


def repeated(graph, seed=3, share=0.1) -> list[int]:
    """A schedule with recomputations of many nodes, at random places."""
    source = random.Random(seed)
    computes = []
    for node in range(len(graph.nodes)):
        computes += [i for i in range(node) if source.random() < share]
        computes.append(node)
    return computes


def value_and_grad(name: str):
    """JAX's own step of a model, and its arguments."""
    import jax

    function, arguments, *options = getattr(jax_models, name)()
    return jax.value_and_grad(function, **(options[0] if options else {})), arguments
