"""Graphs of the models in ``jax_models``, captured once per run of the tests, and plans with many recomputations."""

import functools

import jax_models
from plans_by_hand import plain as plain
from plans_by_hand import plan_of as plan_of
from plans_by_hand import repeated as repeated

from remat_cli.frontends.jax.document import read_step
from remat_cli.frontends.jax.execute import load
from remat_cli.frontends.jax.framework import Jax

HELD = []
"""The functions of these graphs, so that they are compiled once."""


def exported(build, name="build", **options):
    """The graph of what ``build()`` returns."""
    source = f"jax:jax_models.py:{name}"
    [graph] = Jax().capture(build, name, source, device="cpu", cost="flops", tell=print, **options)
    return graph


@functools.cache
def graph_of(name: str):
    """The exported graph of a model, the same object each time; graphs are frozen."""
    graph = exported(getattr(jax_models, name), name)
    HELD.append(load(read_step(graph), "cpu"))
    return graph


def value_and_grad(name: str):
    """JAX's own step of a model, and its arguments."""
    import jax

    function, arguments, *options = getattr(jax_models, name)()
    return jax.value_and_grad(function, **(options[0] if options else {})), arguments
