"""Plans for jax.checkpoint: names are put in; what is kept between the passes is what the plan says, to the byte."""

import re

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import jax_models
import numpy as np
import pytest
from jax_plans import exported

from remat_cli.api import SolveOptions, policy
from remat_cli.errors import StrategyMismatch
from remat_cli.frontends.jax import named

FAST = SolveOptions(time_limit_s=10)


def pasted(snippet, loss):
    """The loss function as the snippet makes it."""
    names = {"loss": loss}
    exec(snippet, names)
    return names["loss"]


def kept_bytes(loss, arguments, argnums=0):
    """Bytes that JAX keeps from the forward pass for the backward pass, without the arguments."""

    def by_one(x):
        result = loss(*arguments[:argnums], x, *arguments[argnums + 1 :])
        return result[0] if isinstance(result, tuple) else result

    _, backward = jax.vjp(by_one, arguments[argnums])
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    given = {leaf.unsafe_buffer_pointer() for leaf in leaves}
    kept = {leaf.unsafe_buffer_pointer(): leaf.nbytes for leaf in jax.tree.leaves(backward)}
    return sum(size for place, size in kept.items() if place not in given)


def scanned():
    """A scan over layers, whose activations are larger than its parameters."""

    def loss(parameters, x):
        def layer(x, w):
            return jnp.sin(jnp.tanh(x @ w) @ w) + x, None

        return jnp.square(jax.lax.scan(layer, x, parameters)[0]).mean()

    rng = np.random.default_rng(0)
    return loss, (
        jnp.asarray(rng.standard_normal((5, 8, 8)), jnp.float32),
        jnp.asarray(rng.standard_normal((64, 8)), jnp.float32),
    )


@pytest.mark.parametrize(("build", "budget", "spare"), [(jax_models.deep, "60%", 0), (scanned, "70%", 2048)])
def test_jax_keeps_what_the_plan_saves(build, budget, spare):
    """A scan keeps a value in every step, also in the one (2048 bytes) whose value the graph merges with another."""
    graph = exported(build)
    loss, arguments = build()[:2]
    found = policy(graph, budget, "jax-names", FAST)
    assert found.settings
    assert found.solved.plan.claim.cost > graph.total_cost
    limited = pasted(found.snippet, loss)
    tags = graph.metadata["tags"]
    saved = sum(graph.size[v] for v in range(len(graph.size)) if tags.get(graph.value_name(v)) in found.settings)
    kept = kept_bytes(limited, arguments)
    assert saved <= kept <= saved + spare
    assert kept < kept_bytes(loss, arguments)
    value, gradients = jax.jit(jax.value_and_grad(limited))(*arguments)
    wanted, plain = jax.jit(jax.value_and_grad(loss))(*arguments)
    assert np.allclose(value, wanted)
    assert np.allclose(*(jnp.concatenate([x.ravel() for x in jax.tree.leaves(g)]) for g in (gradients, plain)))


def test_jax_names_the_values_that_the_plan_saves(capsys):
    graph = exported(jax_models.transformer)
    loss, arguments = jax_models.transformer()
    found = policy(graph, "95%", "jax-names", FAST)
    assert found.solved.plan.claim.cost > graph.total_cost
    jax.ad_checkpoint.print_saved_residuals(pasted(found.snippet, loss), *arguments)
    named_by_jax = re.findall(r"named '([^']+)'", capsys.readouterr().out)
    assert sorted(named_by_jax) == sorted(found.settings)


def test_the_layers_of_a_scan_share_their_names():
    graph = exported(scanned)
    count = list(graph.metadata["tags"].values()).count
    assert count("dot_general.0") == 5
    assert count("dot_general.1") == 5


def feed_forward():
    """A scan over wide layers, whose activations are far larger than the parameters."""

    def loss(parameters, x):
        def layer(x, w):
            up, down = w
            return x + jax.nn.gelu(jnp.tanh(x @ up)) @ down, None

        return jnp.square(jax.lax.scan(layer, x, parameters)[0]).mean()

    rng = np.random.default_rng(0)
    up, down = (jnp.asarray(0.1 * rng.standard_normal(shape), jnp.float32) for shape in ((8, 32, 128), (8, 128, 32)))
    return loss, ((up, down), jnp.asarray(rng.standard_normal((1024, 32)), jnp.float32))


def compiled_bytes(loss, arguments):
    """All memory of the compiled step."""
    used = jax.jit(jax.value_and_grad(loss)).lower(*arguments).compile().memory_analysis()
    return used.temp_size_in_bytes + used.argument_size_in_bytes + used.output_size_in_bytes


@pytest.mark.parametrize("budget", ["12MB", "8.5MB"])
def test_a_compiled_scan_keeps_the_budget(budget):
    """XLA on a CPU undoes recomputation elsewhere, but not inside of loops."""
    graph = exported(feed_forward)
    loss, arguments = feed_forward()
    found = policy(graph, budget, "jax-scan", FAST)
    predicted = found.solved.report.replay.peak_bytes
    limited = pasted(found.snippet, loss)
    measured = compiled_bytes(limited, arguments)
    assert measured <= predicted
    assert measured < 0.5 * compiled_bytes(loss, arguments)
    value, gradients = jax.jit(jax.value_and_grad(limited))(*arguments)
    wanted, plain = jax.jit(jax.value_and_grad(loss))(*arguments)
    assert np.allclose(value, wanted)
    assert all(np.allclose(a, b, rtol=1e-4) for a, b in zip(*map(jax.tree.leaves, (gradients, plain)), strict=True))


@pytest.mark.parametrize(("tool", "said"), [("jax-names", "on a CPU it undoes"), ("jax-scan", "may fuse or copy more")])
def test_no_peak_is_said_where_xla_orders_operations(tool, said):
    """A step over bfloat16, which a CPU computes in 32 bits, takes more than its plan."""

    def build():
        loss, arguments = feed_forward()
        return loss, jax.tree.map(lambda a: a.astype(jnp.bfloat16), arguments)

    found = policy(exported(build), "90%" if tool == "jax-names" else "9MB", tool, FAST)
    loss, arguments = build()
    assert found.settings
    assert compiled_bytes(pasted(found.snippet, loss), arguments) > found.solved.report.replay.peak_bytes
    assert found.document()["peak_memory"] is None
    assert said in found.document()["note"]
    assert "memory_analysis()" in found.document()["note"]


def test_names_around_a_scan_say_what_xla_undoes():
    graph = exported(feed_forward)
    told = policy(graph, "12MB", "jax-names", FAST).document()
    assert "on a CPU it undoes the recomputation" in told["note"]
    assert {other["tool"] for other in told["others"]} == {"jax-scan"}
    with pytest.raises(StrategyMismatch, match=r"jax-scan needs a jax.lax.scan whose steps the graph tells apart"):
        policy(exported(jax_models.deep), "90%", "jax-scan", FAST)


@pytest.mark.parametrize("name", ["mixed", "control", "flax_module", "checkpointed"])
def test_names_change_no_bit(name):
    loss, arguments = getattr(jax_models, name)()[:2]
    plain, with_names = (jax.make_jaxpr(f)(*arguments) for f in (loss, named(loss)))
    assert str(with_names).count("name[") > 0
    for a, b in zip(
        jax.core.eval_jaxpr(plain.jaxpr, plain.consts, *jax.tree.leaves(arguments)),
        jax.core.eval_jaxpr(with_names.jaxpr, with_names.consts, *jax.tree.leaves(arguments)),
        strict=True,
    ):
        assert np.array_equal(a, b)


def test_graphs_of_other_frameworks_are_refused():
    graph = exported(jax_models.deep)
    with pytest.raises(StrategyMismatch, match=r"torch-tags needs a graph of remat export torch:.*this one is of"):
        policy(graph, "80%", "torch-tags", FAST)
