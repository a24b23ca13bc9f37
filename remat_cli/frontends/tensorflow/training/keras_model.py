"""Keras models that train by plan in ``model.fit``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.tensorflow.capturing.capture import prepare_model, refused_xla, train_step_of
from remat_cli.frontends.tensorflow.document import Step
from remat_cli.frontends.tensorflow.training.step import PlannedStep
from remat_cli.plan.model import Plan


def attach_plans(model: Any, plans: Sequence[tuple[Plan, Step]], unknown: str) -> None:
    """Let ``model.fit`` run ``model.train_step`` by plan. Keras then calls it eagerly, which is what a plan needs.

    Raises:
        CaptureFailed: If the model is not compiled, or is for XLA.
    """
    if getattr(model, "jit_compile", None) is True:
        raise refused_xla()
    if getattr(model, "optimizer", None) is None:
        raise CaptureFailed(
            "the model is not compiled", hint="call model.compile(optimizer=..., loss=...) before attaching plans"
        )
    planned = PlannedStep(train_step_of(model, "attach"), plans, unknown)

    def train_step(data: Any) -> Any:
        prepare_model(model, data)
        return planned(*(data if isinstance(data, tuple) else (data,)))

    model.train_step = train_step
    model.run_eagerly = True
    model.train_function = None
