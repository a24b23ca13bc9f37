"""Training by plan: a step of the user, or ``model.fit`` of a Keras model."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import CaptureFailed, UsageError, wrong_type
from remat_cli.frontends.captured.running import replay_of_valid
from remat_cli.frontends.tensorflow.capture.capture import (
    Model,
    own_train_step,
    prepare_model,
    refused_xla,
    train_step_of,
)
from remat_cli.frontends.tensorflow.capture.costs import cost_model
from remat_cli.frontends.tensorflow.capture.lower import graph_of_step, lower
from remat_cli.frontends.tensorflow.capture.program import Program as Captured
from remat_cli.frontends.tensorflow.compat import is_traced, is_xla, parts_of_keras
from remat_cli.frontends.tensorflow.document import FRONTEND, Step, read_groups, read_step
from remat_cli.frontends.tensorflow.execute.program import Program, program
from remat_cli.frontends.tensorflow.execute.same_graph import difference, resized
from remat_cli.frontends.tensorflow.installed import require_tensorflow
from remat_cli.graph.model import Graph
from remat_cli.plan.io import load_plan
from remat_cli.plan.model import Plan
from remat_cli.printable import printable
from remat_cli.tracebacks import door

UNKNOWN = ("error", "warn")
Parts = Mapping[str, Any]
"""What a Keras model is trained with, such as its optimizer, by name."""


def read_plans(plans: Sequence[Any]) -> tuple[tuple[Plan, Step], ...]:
    """The plans, with the contents of their graphs.

    Raises:
        UsageError: If one is not valid, or its graph is not of TensorFlow, or there is none.
        InputError: If a file holds no plan.
    """
    if not plans:
        raise UsageError("there is no plan", hint="make one: remat export tf:train.py:build, then remat solve")
    loaded = []
    for source in plans:
        plan = source if isinstance(source, Plan) else getattr(source, "plan", None) or load_plan(str(source))[0]
        FRONTEND.require(plan.graph)
        replay_of_valid(plan)
        loaded.append((plan, read_step(plan.graph)))
    return tuple(loaded)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A step for arguments of some shapes.

    Attributes:
        program: The plan as a function.
        given: For each place, the number of an argument, or a tensor or variable.
        outputs: The structure that the step returns.
    """

    program: Program
    given: tuple[Any, ...]
    outputs: Any

    def __call__(self, tensors: Sequence[Any]) -> Any:
        """Run a step with tensors for its arguments, flat."""
        import tensorflow as tf

        places = [tensors[item] if isinstance(item, int) else getattr(item, "handle", item) for item in self.given]
        results = iter(self.program.run(places))
        leaves = [
            next(results) if isinstance(leaf, tf.Tensor) else leaf
            for leaf in tf.nest.flatten(self.outputs, expand_composites=True)
        ]
        return tf.nest.pack_sequence_as(self.outputs, leaves, expand_composites=True)


class PlannedStep:
    """A training step that runs by plan; called like the step that it was made from.

    Attributes:
        step: The user's step.
    """

    def __init__(
        self, step: Callable[..., Any], plans: Sequence[tuple[Plan, Step]], unknown: str, since: str = ""
    ) -> None:
        """``since`` says in messages what has changed since the plans were given."""
        require_tensorflow()
        if not callable(step):
            raise wrong_type("train_step", step, "a function of tensors")
        if unknown not in UNKNOWN:
            raise UsageError(f'unknown="{unknown!s}" is neither error nor warn')
        if is_traced(step) and is_xla(step):
            raise refused_xla()
        self.step = step
        self._plans = tuple(plans)
        self._unknown = unknown
        self._since = since
        self._compiled: dict[Any, _Compiled | None] = {}

    @door
    def __call__(self, *args: Any) -> Any:
        """Run a step.

        Raises:
            UsageError: If no plan is for the step with arguments of these shapes.
            CaptureFailed: If it cannot be captured.
            OutOfMemory, ExecutionFailed: If an operation fails, with its node.
        """
        import tensorflow as tf

        arguments = tf.nest.map_structure(_as_tensor, args)
        leaves = tf.nest.flatten(arguments)
        tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
        forms = [(leaf.dtype.name, tuple(leaf.shape)) if isinstance(leaf, tf.Tensor) else repr(leaf) for leaf in leaves]
        key = repr((tf.nest.map_structure(lambda _: 0, args), forms))
        if key not in self._compiled:
            self._compiled[key] = self._compile(arguments)
        compiled = self._compiled[key]
        return self.step(*args) if compiled is None else compiled(tensors)

    def _compile(self, arguments: tuple[Any, ...]) -> _Compiled | None:
        """The step for arguments like these; None if it is to run as it is."""
        graph, captured_program, captured = graph_of_step(
            Model(self.step, arguments), "step", "compile", "cpu", cost_model("flops")
        )
        step = read_step(graph)
        reasons = []
        for plan, planned in self._plans:
            reason = difference(step, planned)
            runnable = step if reason is None else _smaller(captured_program, graph, plan, planned)
            if runnable is not None:
                device = str(plan.graph.metadata.get("device", "cpu"))
                FRONTEND.require_environment(plan.graph, device)
                return _Compiled(
                    program(runnable, plan.statements, device),
                    tuple(captured_program.bound),
                    captured.concrete.structured_outputs,
                )
            reasons.append(f"the plan of {printable(plan.graph.name)}: {reason}")
        if self._unknown == "error":
            raise UsageError(
                f"no plan is for this step: {'; '.join(reasons)}{self._since}",
                hint="export and solve the model as it is now, and call attach again with that plan"
                if self._since
                else "export and solve the step with the shapes that it is called with; several plans may be given, "
                'and unknown="warn" runs other shapes without one',
            )
        warnings.warn(f"this step runs without a plan: {'; '.join(reasons)}{self._since}", stacklevel=4)
        return None


def _smaller(captured: Captured, graph: Graph, plan: Plan, planned: Step) -> Step | None:
    """The captured step with the nodes of the plan's graph, if it is that of the plan with smaller inputs."""
    again = lower(captured, graph.name, graph.cost_unit, read_groups(plan.graph))
    if again is None:
        return None
    step = read_step(replace(again, metadata=graph.metadata | again.metadata))
    return step if resized(step, planned) else None


def _as_tensor(item: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(item) if hasattr(item, "__array__") and not isinstance(item, tf.Tensor) else item


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
    names = [name for name in {**before, **now} if not _same(before.get(name), now.get(name))]
    if "optimizer" in names:
        names = [name for name in names if not name.startswith("value of optimizer.")]
    return list(dict.fromkeys(printable(name.partition(":")[0]) for name in names))


def _same(old: Any, new: Any) -> bool:
    return old is new or (isinstance(old, str | float | int) and type(old) is type(new) and old == new)
