"""JAX: capture of training steps, costs, measurement and execution. Needs the extra ``remat[jax]``.

Nothing here imports jax before it is needed; nothing elsewhere imports it at all.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

from remat_cli.plan.io import load_plan
from remat_cli.plan.model import Plan
from remat_cli.tracebacks import door


@door
def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    plan: Plan | str | PathLike[str],
) -> Callable[..., Any]:
    """As ``jax.value_and_grad``, but every call runs the operations of a plan, in its order.

    The first call captures the function again for its arguments, and refuses the plan if it is for another graph. Do
    not put ``jax.jit``, ``vmap``, ``grad`` or ``scan`` around it: they would compile one function of it, in which XLA
    decides on its own what is kept.

    Args:
        function: The loss function that was exported. As with ``jax.jit``, arrays that it refers to are those of the
            first call.
        argnums: The arguments to differentiate by; those of the export.
        has_aux: Whether the function returns a pair, of the loss and anything else; that of the export.
        plan: A plan for a graph that ``remat export jax:FILE.py:NAME`` made, or its file.

    Raises:
        InputError: If the file holds no plan.
        UsageError: If the plan is not valid, or its graph is not of JAX, or was exported for another version of it.
        FrameworkUnavailable: If JAX or the plan's device is missing.
    """
    from remat_cli.frontends.jax.train import planned_step

    loaded = plan if isinstance(plan, Plan) else load_plan(str(plan))[0]
    return planned_step(function, loaded, argnums=argnums, has_aux=has_aux)


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, in which every result of an operation has a name for ``jax.checkpoint``'s policies.

    The names are those in graphs that ``remat export jax:FILE.py:NAME`` makes of the function, and in what ``remat
    policy --to jax-names`` prints: ``dot_general.3`` is the fourth product in the order of the code. What it computes
    stays the same, bit for bit; it can be jitted and differentiated as before.

    Args:
        function: Any function that JAX can trace, such as a loss function.
    """
    from remat_cli.frontends.jax.capture.naming import with_names

    return with_names(function)


def checkpointed_scans(function: Callable[..., Any], policy: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, in which each step of a ``jax.lax.scan`` is a ``jax.checkpoint`` of its own.

    What it computes stays the same; it can be jitted and differentiated as before. XLA keeps the order of the
    recomputation here, on a CPU too, since a loop runs one step after another.

    Args:
        function: Any function that JAX can trace, such as a loss function.
        policy: What is saved of a step, beside what it hands to the next: a policy of ``jax.checkpoint_policies``. The
            names are those of :func:`named`.
    """
    from remat_cli.frontends.jax.capture.naming import with_names

    return with_names(function, policy=policy)
