"""The undocumented names of JAX that the frontend uses do what it takes them to do."""

import jax
import jax.numpy as jnp
import pytest
from jax import export

from remat_cli.frontends.jax import compat


def _equations(function, *arguments):
    return jax.make_jaxpr(function)(*arguments).jaxpr.eqns


def test_literals_are_told_from_variables():
    [equation] = _equations(lambda x: x * 2.0, jnp.ones(3))
    assert [compat.is_literal(atom) for atom in equation.invars] == [False, True]


def test_the_jaxprs_in_parameters_are_found():
    [equation] = _equations(lambda x: jax.jit(jnp.sin)(x), jnp.ones(3))
    jaxpr, consts = compat.inner_jaxpr(equation.params["jaxpr"])
    assert [str(inner.primitive) for inner in jaxpr.eqns] == ["sin"]
    assert list(consts) == []
    assert compat.inner_jaxpr("sin") is None


def test_a_function_is_written_with_its_constants():
    array = jnp.arange(3.0)
    closed = compat.closed_jaxpr(lambda x: x + array, [jax.core.ShapedArray((3,), jnp.float32)])
    assert [str(equation.primitive) for equation in closed.jaxpr.eqns] == ["add"]
    [constant] = closed.consts
    assert constant is array


def test_the_backward_pass_is_told_by_its_scope():
    scopes = [compat.scope_of(e) for e in _equations(jax.value_and_grad(lambda x: jnp.sin(x) * x), 1.0)]
    backward = [scope.startswith("transpose(") for scope in scopes]
    assert backward == sorted(backward)
    assert 0 < sum(backward) < len(backward)


def test_equations_are_bound_under_their_own_settings():
    with jax.default_matmul_precision("highest"):
        equations = _equations(lambda x: x @ x, jnp.ones((2, 2)))
    [equation] = equations
    [made] = compat.bind(equation.primitive, equation.params, compat.context_of(equation), [jnp.ones((2, 2))] * 2)
    assert made.tolist() == [[2, 2], [2, 2]]


def test_an_equation_with_several_results_gives_a_list():
    [equation] = _equations(lambda x: jax.lax.top_k(x, 2), jnp.arange(3.0))
    made = compat.bind(equation.primitive, equation.params, compat.context_of(equation), [jnp.arange(3.0)])
    assert [array.tolist() for array in made] == [[2, 1], [2, 1]]


def test_tracers_and_tracing_are_seen():
    seen = []
    jax.jit(lambda x: seen.append((compat.is_tracer(x), compat.tracing())) or x)(1.0)
    assert seen == [(True, True)]
    assert not compat.is_tracer(jnp.ones(1))
    assert not compat.tracing()


@pytest.mark.parametrize("name", ["threefry2x32", "rbg"])
def test_the_generator_of_keys_is_known(name):
    assert compat.key_implementation(jax.random.key(0, impl=name).dtype) == name
    assert compat.key_implementation(jnp.ones(1).dtype) is None


def test_written_functions_hold_no_places():
    def function(x):
        return jnp.sin(x)

    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert b"test_compat" in export.export(jax.jit(function))(shape).serialize()
    with compat.without_places():
        written = bytes(export.export(jax.jit(lambda x: jnp.sin(x) + 1))(shape).serialize())
    assert b"test_compat" not in written
    assert compat.module_of(written).call(jnp.zeros(2)).tolist() == [1, 1]


def test_the_calls_that_jax_keeps_are_named():
    assert "lapack_spotrf_ffi" in compat.stable_calls()
    assert not any("callback" in name for name in compat.stable_calls())
