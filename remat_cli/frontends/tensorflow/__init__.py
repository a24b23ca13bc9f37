"""The TensorFlow frontend: captures training steps with tf.function, runs plans as eager kernels, trains by plan.

:func:`compile` and :func:`attach` are for users; they import TensorFlow when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from remat_cli.plan.model import Plan
from remat_cli.tracebacks import door

if TYPE_CHECKING:
    from os import PathLike

    Source = Plan | str | PathLike[str]


@door
def compile(train_step: Callable[..., Any], *plans: Source, unknown: str = "error") -> Callable[..., Any]:
    """``train_step``, run by plan: the same results, variables and random numbers, in less memory.

    The step is captured when it is first called with tensors of some shapes; what is captured has to be what one of
    the plans is for. A smaller batch runs by the plan of a larger one.

    Args:
        train_step: A function of tensors that may assign to variables, such as one with a ``tf.GradientTape`` and an
            optimizer. Make the variables, those of the optimizer too, before it is called.
        plans: Plans, or their files.
        unknown: How to treat shapes without a plan: ``error``, or ``warn`` and run the step as it is.

    Raises:
        UsageError: If a plan is not valid, or its graph is not of TensorFlow, or ``unknown`` is neither. When the
            result is called: if no plan is for the step.
        InputError: If a file holds no plan.
        CaptureFailed: If the step is for XLA (``jit_compile=True``). When the result is called: if it cannot be
            captured.
        FrameworkUnavailable: If TensorFlow is missing.
    """
    from remat_cli.frontends.tensorflow.train import PlannedStep, read_plans

    return PlannedStep(train_step, read_plans(plans), unknown)


@door
def attach(model: Any, *plans: Source, unknown: str = "error") -> None:
    """Let ``model.fit`` train a Keras model by plan, from now on.

    Args:
        model: A model that is compiled, without ``jit_compile=True``.
        plans: Plans, or their files, for the graph of ``(model, batch)``.
        unknown: How to treat shapes without a plan: ``error``, or ``warn`` and train without one.

    Raises:
        UsageError, InputError, CaptureFailed, FrameworkUnavailable: As :func:`compile`.
    """
    from remat_cli.frontends.tensorflow.train import attach_plans, read_plans

    attach_plans(model, read_plans(plans), unknown)
