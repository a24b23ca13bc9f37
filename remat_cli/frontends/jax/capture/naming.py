"""Names for what a function computes: ``dot_general.3`` is the fourth product in the order of the code.

``jax.checkpoint`` saves values by name, and users give few. Here every result of a primitive operation gets one; those
in the body of a ``scan`` have one name for all steps, and what a step hands to the next is ``carry.0.1``: the second
such value of the first scan. Calls are dissolved, also those of ``jax.checkpoint``, as the one
around all of it takes its place.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.jax.compat import bind, closed_jaxpr, context_of, inner_jaxpr, is_literal, key_implementation

CARRY = "carry"
CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "call", "remat2", "checkpoint"})
"""Calls that can be dissolved. Functions with derivatives of their own have to stay, or they would lose them."""


def with_names(
    function: Callable[..., Any], dissolved: Counter[str] | None = None, *, policy: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """``function``, in which every result of a primitive operation has a name. It computes the same.

    Args:
        function: Any function that JAX can trace.
        dissolved: Counts the calls that are dissolved, by their kind.
        policy: What ``jax.checkpoint`` saves of each step of a scan; None for no recomputation.
    """

    @functools.wraps(function)
    def named(*arguments: Any, **keywords: Any) -> Any:
        import jax

        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments, **keywords)
        leaves = jax.tree_util.tree_leaves((arguments, keywords))
        namer = _Namer(Counter() if dissolved is None else dissolved, policy)
        results = namer.evaluated(closed.jaxpr, closed.consts, leaves)
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), results)

    return named


@dataclass(slots=True)
class _Namer:
    """Runs a jaxpr and names what it computes.

    Attributes:
        dissolved: How many calls of each kind there were.
        policy: What is saved of each step of an outermost scan; None for no recomputation.
        seen: How many operations of each primitive there have been.
    """

    dissolved: Counter[str]
    policy: Callable[..., Any] | None
    seen: Counter[str] = field(default_factory=Counter)

    def evaluated(self, jaxpr: Any, consts: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """The results of ``jaxpr`` for the arguments ``given``."""
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given), strict=True))

        def operand(atom: Any) -> Any:
            return atom.val if is_literal(atom) else env[atom]

        for equation in jaxpr.eqns:
            results = self.results(equation, [operand(atom) for atom in equation.invars])
            env |= dict(zip(equation.outvars, results, strict=True))
        return [operand(atom) for atom in jaxpr.outvars]

    def results(self, equation: Any, reads: Sequence[Any]) -> list[Any]:
        """The results of one equation, with names."""
        primitive, params = str(equation.primitive.name), equation.params
        inner = inner_jaxpr(params.get("jaxpr", params.get("call_jaxpr"))) if primitive in CALLS | {"scan"} else None
        if inner is not None and primitive in CALLS:
            self.dissolved[primitive] += 1
            return self.evaluated(*inner, reads)
        if inner is not None:
            params = {**params, "jaxpr": self.body(*inner, params["num_carry"])}
        results = bind(equation.primitive, params, context_of(equation), reads)
        if primitive == "name":  # what it names has a name already
            return results
        number = self.seen[primitive]
        self.seen[primitive] += 1
        name = f"{primitive}.{number}"
        return [
            self.named(result, name if len(results) == 1 else f"{name}.{slot}") for slot, result in enumerate(results)
        ]

    def named(self, result: Any, name: str) -> Any:
        from jax.ad_checkpoint import checkpoint_name

        return result if key_implementation(result.dtype) is not None else checkpoint_name(result, name)

    def body(self, jaxpr: Any, consts: Sequence[Any], carried: int) -> Any:
        """The body of a ``scan`` with names."""
        import jax

        policy, self.policy = self.policy, None  # a scan inside of it is part of what is recomputed
        number = self.seen[CARRY]
        self.seen[CARRY] += 1

        def step(*arguments: Any) -> list[Any]:
            results = self.evaluated(jaxpr, consts, arguments)
            return [self.named(one, f"{CARRY}.{number}.{k}") if k < carried else one for k, one in enumerate(results)]

        body = step if policy is None else jax.checkpoint(step, policy=policy, prevent_cse=False)
        try:
            return closed_jaxpr(body, [v.aval for v in jaxpr.invars])
        finally:
            self.policy = policy
