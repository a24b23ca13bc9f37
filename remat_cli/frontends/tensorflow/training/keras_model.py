"""Keras models that train by plan in ``model.fit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.tensorflow.capturing.capture import (
    own_train_step,
    prepare_model,
    refused_xla,
    train_step_of,
)
from remat_cli.frontends.tensorflow.document import Step
from remat_cli.frontends.tensorflow.private import parts_of_keras
from remat_cli.frontends.tensorflow.training.step import PlannedStep
from remat_cli.plan.model import Plan
from remat_cli.printable import printable

Parts = Mapping[str, Any]


def attach_plans(model: Any, plans: Sequence[tuple[Plan, Step]], unknown: str) -> None:
    """Let ``model.fit`` run ``model.train_step`` by plan, in place of plans that were attached before.

    Raises:
        CaptureFailed: If the model is not compiled, or is for XLA.
    """
    _require_compiled(model)
    attached = _AttachedStep(model, plans, unknown)
    model.train_step = attached
    model.make_train_function = attached.make_train_function
    model.run_eagerly = True
    model.train_function = None


def _require_compiled(model: Any) -> None:
    if getattr(model, "jit_compile", None) is True:
        raise refused_xla()
    if getattr(model, "optimizer", None) is None:
        raise CaptureFailed(
            "the model is not compiled", hint="call model.compile(optimizer=..., loss=...) before attaching plans"
        )


class _AttachedStep:
    """Stands for the ``train_step`` of a model. A model that has changed is captured again, for the same plans.

    Attributes:
        own_train_step: The method that this stands for.
    """

    def __init__(self, model: Any, plans: Sequence[tuple[Plan, Step]], unknown: str) -> None:
        before, make = model.train_step, model.make_train_function
        self.own_train_step = own_train_step(model)
        self._own_make: Callable[[bool], Any] = before._own_make if isinstance(before, _AttachedStep) else make
        self._model = model
        self._plans = plans
        self._unknown = unknown
        self._attached = parts_of_keras(model)
        self._captured: Parts = {}
        self._planned: PlannedStep | None = None

    def __call__(self, data: Any) -> Any:
        """Run a step, after a look at whether the model is still the one that was captured."""
        _require_compiled(self._model)
        prepare_model(self._model, data)
        now = parts_of_keras(self._model)
        if self._planned is None or _changes(self._captured, now):
            changes = _changes(self._attached, {name: now.get(name) for name in self._attached})
            since = "; since the plans were attached, the model got another " + " and another ".join(changes)
            step = train_step_of(self._model, "attach")
            self._planned = PlannedStep(step, self._plans, self._unknown, since if changes else "")
            self._captured = now
        return self._planned(*(data if isinstance(data, tuple) else (data,)))

    def make_train_function(self, force: bool = False) -> Any:
        """As that of Keras, which ``fit`` calls first. A plan needs eager steps; ``compile`` may have set others.

        Raises:
            CaptureFailed: If the model is for XLA now.
        """
        if self._model.train_step is self:
            _require_compiled(self._model)
            self._model.run_eagerly = True
        return self._own_make(force)


def _changes(before: Parts, now: Parts) -> list[str]:
    """The parts that differ, in words; of another optimizer not each of its settings."""
    found = [name for name in {**before, **now} if not _same(before.get(name), now.get(name))]
    if "optimizer" in found:
        found = [name for name in found if not name.startswith("value of optimizer.")]
    return list(dict.fromkeys(printable(name.partition(":")[0]) for name in found))


def _same(old: Any, new: Any) -> bool:
    return old is new or (isinstance(old, str | float | int) and type(old) is type(new) and old == new)
