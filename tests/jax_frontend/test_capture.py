"""Captured steps: they compute what JAX computes, hold what they should, and refuse what they cannot hold."""

import jax
import jax.numpy as jnp
import jax_models
import numpy as np
import pytest
from jax_plans import exported, graph_of, plain, plan_of, repeated, value_and_grad

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.jax.capture.capture import Loss, capture
from remat_cli.frontends.jax.train import planned_step
from remat_cli.graph.model import Phase


def notes_of(graph):
    return " | ".join(graph.metadata["notes"])


@pytest.mark.parametrize("name", jax_models.ALL)
def test_a_graph_computes_what_jax_computes(name):
    function, arguments, *options = getattr(jax_models, name)()
    found = planned_step(function, plain(graph_of(name)), **(options[0] if options else {}))(*arguments)
    step, arguments = value_and_grad(name)
    wanted = jax.jit(step)(*arguments)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(wanted)
    for mine, other in zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(wanted), strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, other = map(jax.random.key_data, (mine, other))
        rough = 2e-2 if name == "mixed" else 2e-5
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=rough, atol=rough)


@pytest.mark.parametrize("name", jax_models.ALL)
def test_the_forward_pass_comes_first_and_nothing_is_free(name):
    graph = graph_of(name)
    phases = [node.phase for node in graph.nodes]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD].index)
    assert set(phases) == {Phase.FORWARD, Phase.BACKWARD}
    assert all(node.cost >= 1 for node in graph.nodes)
    assert all(node.recompute for node in graph.nodes)


def test_exports_are_the_same_every_time():
    assert exported(jax_models.mlp).metadata["functions"] == exported(jax_models.mlp).metadata["functions"]


def test_a_scan_over_layers_is_unrolled_and_a_long_one_is_divided():
    unrolled, divided = graph_of("layers"), graph_of("control")
    assert sum(node.op == "dot_general" for node in unrolled.nodes) == 4 * 3 - 1  # the input needs no gradient
    assert not any(node.op == "scan" for node in unrolled.nodes)
    assert "unrolled: 2 scans" in notes_of(unrolled)
    assert sum(node.op == "scan" for node in divided.nodes) == 2 * 9  # 70 steps, 8 in each block
    assert "divided: 2 scans, into blocks of steps" in notes_of(divided)
    assert "kept whole, as one operation each: 1 of while" in notes_of(divided)


def recurrent(steps=7, reverse=False):
    """Steps of time that share their weights; what they make is stacked and read as a whole."""

    def loss(w, xs, start):
        def step(carry, x):
            carry = jnp.tanh(carry @ w + x)
            return carry, jnp.square(carry)

        last, ys = jax.lax.scan(step, start, xs, reverse=reverse)
        return (ys * jnp.arange(1.0, steps + 1)[:, None, None]).mean() + last.sum()

    generator = np.random.default_rng(5)
    w, xs, start = (generator.standard_normal(shape, np.float32) for shape in ((6, 6), (steps, 3, 6), (3, 6)))
    return loss, (jnp.asarray(w) * 0.3, jnp.asarray(xs), jnp.asarray(start)), {"argnums": (0, 1, 2)}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("scans", "nodes"), [("unrolled", 0), ("blocks", 6), ("whole", 2)])
def test_scans_become_what_is_asked_for_and_compute_the_same(scans, nodes, reverse):
    def build():
        return recurrent(reverse=reverse)

    function, arguments, options = build()
    graph = exported(build, scans=scans)
    assert sum(node.op == "scan" for node in graph.nodes) == nodes
    wanted = jax.tree_util.tree_leaves(jax.jit(jax.value_and_grad(function, **options))(*arguments))
    often = plan_of(graph, repeated(graph, share=0.4))
    found, again = (
        jax.tree_util.tree_leaves(planned_step(function, plan, **options)(*arguments)) for plan in (plain(graph), often)
    )
    for mine, recomputed, other in zip(found, again, wanted, strict=True):
        assert np.array_equal(mine, recomputed)
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_blocks_of_a_scan_hand_their_residuals_to_blocks_of_its_gradient():
    """A plan may then drop those of one block, and compute them again from the carry before it."""

    def build():
        def loss(w, xs):
            return jnp.square(jax.lax.scan(lambda c, x: (jnp.tanh(c @ w) * x, None), jnp.ones((64, 8)), xs)[0]).mean()

        return loss, (jnp.eye(8), jnp.linspace(0.5, 1.5, 16))

    def most(scans):
        graph = exported(build, scans=scans)
        return max(sum(map(graph.size.__getitem__, node.inputs)) + sum(node.outputs) for node in graph.nodes)

    assert most("blocks") < 0.5 * most("whole")


def test_a_loop_that_stacks_nothing_stays_whole_and_one_without_steps_is_no_trouble():
    def build():
        def loss(x, none):
            x = jax.lax.scan(lambda c, _: (jnp.cos(c), None), jax.lax.stop_gradient(x), None, length=9)[0] + x
            return jax.lax.scan(lambda c, y: (c * y, None), x, none)[0].sum()

        return loss, (jnp.ones(3), jnp.ones((0, 3)))

    graph = exported(build)
    assert "kept whole, as one operation each: 3 of scan" in notes_of(graph)  # the loop, and both without steps
    function, arguments = build()
    for mine, other in zip(
        planned_step(function, plain(graph))(*arguments), jax.value_and_grad(function)(*arguments), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_a_reversed_scan_with_stacked_results_is_unrolled_in_order():
    def build():
        def loss(w, xs):
            _, ys = jax.lax.scan(lambda c, x: (c * w + x, c * x), jnp.float32(1), xs, reverse=True)
            return (ys * jnp.arange(3.0)).sum()

        return loss, (jnp.float32(0.5), jnp.array([1.0, 2.0, 3.0]))

    function, arguments = build()
    found = planned_step(function, plain(exported(build)))(*arguments)
    np.testing.assert_allclose(found, jax.value_and_grad(function)(*arguments), rtol=1e-6)


def test_what_jax_checkpoint_computes_again_is_left_to_the_plan():
    def without():
        function, arguments = jax_models.checkpointed()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax, "checkpoint", lambda f: f)
            return capture(Loss(function), arguments)

    plain_step, graph = without(), graph_of("checkpointed")
    function, arguments = jax_models.checkpointed()
    assert len(capture(Loss(function), arguments).flat.equations) == len(plain_step.flat.equations)
    assert "jax.checkpoint in the function is undone" in notes_of(graph)


def test_small_arrays_of_the_code_are_constants_and_large_ones_are_given():
    metadata = graph_of("checkpointed").metadata
    assert [place["name"] for place in metadata["places"] if place["kind"] == "captured"] == ["captured0"]
    assert [4] in [constant["shape"] for constant in metadata["constants"]]


def test_prints_are_left_out_and_said_so():
    def build():
        def loss(x):
            jax.debug.print("{}", x)
            return jnp.sin(x).sum()

        return loss, (jnp.ones(3),)

    assert "left out: 1 prints" in notes_of(exported(build))


def test_shapes_are_enough():
    def build():
        function, arguments = jax_models.mlp()
        return function, jax.tree_util.tree_map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)

    assert [node.outputs for node in exported(build).nodes] == [node.outputs for node in graph_of("mlp").nodes]


def test_equal_operations_share_a_function():
    graph = graph_of("transformer")
    numbers = [node.payload["function"] for node in graph.nodes]
    assert len(set(numbers)) == len(graph.metadata["functions"]) < len(numbers)


def _calls_back(x):
    return jax.pure_callback(np.sin, x, x).sum()


def _has_effects(x):
    return jax.experimental.io_callback(np.sin, x, x, ordered=True).sum()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((_calls_back, (jnp.ones(2),)), "JAX|callback"),
        (3, "returned int"),
        ((3, (1,)), "as the loss"),
        ((jnp.sum, 3), "as the arguments"),
        ((jnp.sum, (1.0,), {"argnum": 1}), "other options"),
        ((lambda x: x, (jnp.ones(2),)), r"returns an array of shape \(2,\), and not a loss"),
        ((lambda x: x @ jnp.ones(3), (jnp.ones(2),)), "could not be captured: .*TypeError"),
        ((lambda x: x.sum(), (jnp.arange(3),)), "could not be captured: TypeError: grad requires"),
    ],
)
def test_what_is_no_step_is_refused_with_the_reason(returned, message):
    with pytest.raises(CaptureFailed, match=message):
        exported(lambda: returned)


def test_python_code_behind_a_stopped_gradient_is_refused():
    def loss(x):
        return (x * jax.lax.stop_gradient(jax.pure_callback(np.sin, x, jax.lax.stop_gradient(x)))).sum()

    with pytest.raises(CaptureFailed, match=r"calls Python code \(jax.pure_callback\)"):
        exported(lambda: (loss, (jnp.ones(2),)))


def test_an_error_of_the_user_names_its_line(tmp_path):
    def build():
        raise ValueError("no data")

    with pytest.raises(CaptureFailed, match=r"build\(\) failed at test_capture.py:\d+ in build: ValueError: no data"):
        exported(build)


@pytest.mark.parametrize(("scans", "most"), [("unrolled", 16), ("blocks", 8)])
def test_steps_of_a_scan_run_the_same_functions(scans, most):
    """Each function is compiled, so that their number decides how long the first step takes."""

    def build(length):
        def loss(w, xs, keys):
            def cell(carry, given):
                x, key = given
                carry = jnp.tanh(carry @ w + x) * jax.random.bernoulli(key, 0.5, (4,))
                return carry, carry.sum()

            return jnp.square(jax.lax.scan(cell, jnp.ones(4), (xs, keys))[1]).mean()

        keys = jax.random.split(jax.random.key(0), length)
        return loss, (jnp.eye(4), jnp.arange(4.0 * length).reshape(length, 4), keys)

    graph = exported(lambda: build(36), scans=scans)
    assert len(graph.metadata["functions"]) <= most
    loss, arguments = build(36)
    found, wanted = planned_step(loss, plain(graph))(*arguments), jax.jit(jax.value_and_grad(loss))(*arguments)
    for mine, other in zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=2e-5, atol=2e-5)
