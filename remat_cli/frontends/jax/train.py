"""Training steps by plan: a replacement for ``jax.value_and_grad`` that runs what a plan says."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.captured.running import replay_of_valid
from remat_cli.frontends.jax.capture.capture import Loss, capture
from remat_cli.frontends.jax.capture.lower import lower
from remat_cli.frontends.jax.compat import is_tracer, key_implementation, tracing
from remat_cli.frontends.jax.document import FRONTEND, difference, read_step
from remat_cli.frontends.jax.execute import Program, load, program
from remat_cli.frontends.jax.installed import require_present
from remat_cli.plan.model import Plan
from remat_cli.printable import printable
from remat_cli.tracebacks import door


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What runs for arguments of one form.

    Attributes:
        program: The plan.
        captured: The arrays that the code refers to, and that the plan takes behind the arguments.
        keys: The generator of each result that is an array of keys; None for one of numbers.
        structure: The structure of what the step returns.
    """

    program: Program
    captured: tuple[Any, ...]
    keys: tuple[str | None, ...]
    structure: Any


@dataclass(slots=True, weakref_slot=True, eq=False)  # jax.jit keeps functions in a table, weakly
class PlannedStep:
    """The value and the gradients of a loss function, computed by plan.

    Attributes:
        loss: The loss function.
        plan: The plan.
        prepared: What runs for the arguments seen so far, by their form.
    """

    loss: Loss
    plan: Plan
    prepared: dict[Hashable, _Prepared] = field(default_factory=dict)

    @door
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What ``jax.value_and_grad`` of the function returns.

        Raises:
            UsageError: If another transformation of JAX calls it, or the plan is not for these arguments.
            CaptureFailed: If the function cannot be captured for them.
            OutOfMemory, ExecutionFailed: If an operation fails, with its node.
        """
        import jax

        leaves, structure = jax.tree_util.tree_flatten((arguments, keywords))
        _refuse_tracers(leaves)
        form = (structure, tuple(map(_form, leaves)))
        if form not in self.prepared:
            self.prepared[form] = _prepared(self.loss, self.plan, arguments, keywords)
        prepared = self.prepared[form]
        arrays = prepared.program.run([*map(_numbers, leaves), *prepared.captured])
        results = [
            array if key is None else jax.random.wrap_key_data(array, impl=key)
            for array, key in zip(arrays, prepared.keys, strict=True)
        ]
        return jax.tree_util.tree_unflatten(prepared.structure, results)


def planned_step(
    function: Callable[..., Any], plan: Plan, *, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> PlannedStep:
    """See :func:`remat_cli.frontends.jax.value_and_grad`.

    Raises:
        FrameworkUnavailable: If JAX or the plan's device is missing.
        UsageError: If the plan is not valid, or its graph is not of JAX, or was exported for another version of it.
    """
    step = read_step(plan.graph)
    replay_of_valid(plan)
    require_present(step.device)
    FRONTEND.require_environment(plan.graph, step.device)
    numbers = argnums if isinstance(argnums, int) else tuple(argnums)
    return PlannedStep(Loss(function, numbers, has_aux), plan)


def _prepared(loss: Loss, plan: Plan, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> _Prepared:
    """The program for arguments of this form."""
    planned = read_step(plan.graph)
    captured = capture(loss, arguments, keywords, scans=planned.scans)
    graph, arrays = lower(captured, lambda work: work.flops, planned.graph.name, planned.device)
    metadata = FRONTEND.metadata("", planned.device, {}) | graph.metadata
    reason = difference(read_step(replace(graph, metadata=metadata)), planned)
    if reason is not None:
        raise UsageError(
            f"the plan is for another graph than the one of this call: {reason}",
            hint="export the function with arguments of these shapes, and solve that graph",
        )
    runnable = program(load(planned, planned.device), plan.statements)
    results = tuple(result.spec.key for result in planned.results)
    return _Prepared(runnable, tuple(map(_numbers, arrays)), results, captured.structure)


def _refuse_tracers(leaves: Sequence[Any]) -> None:
    """Refuse to run inside another transformation, which would make one function of the step again."""
    inside = next((leaf for leaf in leaves if is_tracer(leaf)), None)
    if inside is None and not tracing():
        return
    what = "" if inside is None else f" ({printable(type(inside).__name__)} for {printable(str(inside.aval))})"
    raise UsageError(
        f"a step by plan was called inside another transformation of JAX{what}: jax.jit, vmap, grad or scan would "
        "compile it as one function, and XLA would undo the plan's order and its recomputation",
        hint="call it outside; jax.jit the rest of the training step, such as the optimizer's update, on its own",
    )


def _form(leaf: Any) -> Hashable:
    """What a program depends on: the type and the shape of an argument, not its numbers."""
    import jax

    aval = jax.typeof(leaf)
    return aval.shape, aval.dtype, bool(getattr(aval, "weak_type", False))


def _numbers(leaf: Any) -> Any:
    """An argument as an array, keys as the numbers in them."""
    import jax
    import jax.numpy as jnp

    array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    if len(array.sharding.device_set) > 1:
        raise UsageError(
            f"an argument is spread over {len(array.sharding.device_set)} devices, and plans are for one",
            hint="gather it on one device",
        )
    return array if key_implementation(array.dtype) is None else jax.random.key_data(array)
