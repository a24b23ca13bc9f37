"""Captures the joint graph of a training step, forward and backward in one, from AOTAutograd's partitioner.

Export and training with a plan both use ``torch.compile`` with a partitioner of our own, so both get the same graph.
For export all tensors are fake: they have shapes and no memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capture.random_state import RandomPaths, undisturbed
from remat_cli.frontends.torch.capture.refusals import (
    Refusal,
    not_captured,
    read_refusal,
    refusal_of,
    second_gradient,
)
from remat_cli.frontends.torch.capture.sharded import plain_joint
from remat_cli.frontends.torch.compat.aot_autograd import aot, as_given, default_split
from remat_cli.frontends.torch.compat.autograd import (
    compiled_node,
    has_second_gradient,
    kept_by,
    nodes_behind,
    parameter_of,
    refuses_second_gradient,
)
from remat_cli.frontends.torch.compat.dynamo import break_of, own_code, undistributed, without_logging
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes, silent_fakes
from remat_cli.frontends.torch.compat.masks import with_eager_masks
from remat_cli.frontends.torch.tensors import leaves, total_bytes
from remat_cli.frontends.torch.types import AutogradNode, Context, FakeMode, FxNode, GraphModule, Module, Tensor

_FORMS_IN_A_STEP = 1024
"""How often a function is compiled while a step is captured. PyTorch stops at 8 and runs the rest as it is; training by
plan does not stop there, and layers of one class with as many shapes are as many parts of the step. Untuned."""


@dataclass(frozen=True, slots=True)
class Model:
    """What to capture.

    Attributes:
        module: The module, in the mode (training or not) in which it is to be captured.
        inputs: Its positional arguments.
        keywords: Its keyword arguments.
        loss: From the module's output to a scalar; None if the output is the loss, or holds one.
    """

    module: Module
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    loss: Callable[[Any], Any] | None

    def tensors(self) -> list[Tensor]:
        """Its parameters and buffers, then its inputs."""
        inputs = [tensor for _, tensor in leaves([self.inputs, self.keywords])]
        return [*self.module.parameters(), *self.module.buffers(), *inputs]


def no_model() -> Model:
    """A model that is nobody's, for a joint graph of which nothing else is known."""
    import torch

    return Model(torch.nn.Module(), (), {}, None)


@dataclass(frozen=True, slots=True)
class Group:
    """Operations that a compiler makes one loop of.

    Attributes:
        root: The FX node whose result is stored.
        members: All of them, ``root`` first.
        reads: The FX nodes of the stored tensors that they read.
    """

    root: FxNode
    members: tuple[FxNode, ...]
    reads: tuple[FxNode, ...]


class Groups(Protocol):
    """The groups of a joint graph: which operations a compiler makes one loop of.

    Attributes:
        inlined: The FX nodes whose results are not stored; each is computed in the loops of its readers.
    """

    inlined: set[FxNode]

    def group(self, root: FxNode) -> Group:
        """The group that stores the result of the FX node ``root``."""


@dataclass(frozen=True, slots=True)
class Inductor:
    """What the joint graph of Inductor has besides.

    Attributes:
        metas: What Inductor's own graph says of each node of the joint graph: the ``meta`` of its nodes.
        writes: The nodes of Inductor's own graph that write into inputs; their values are the first results.
        groups: Predicts which operations of a joint graph module Inductor makes one loop of.
    """

    metas: Mapping[FxNode, dict[str, Any]]
    writes: tuple[FxNode, ...]
    groups: Callable[[GraphModule], Groups]


@dataclass(frozen=True, slots=True)
class Captured:
    """A joint graph.

    Attributes:
        joint: The FX graph module: placeholders for parameters, buffers and inputs, then one for each tangent.
        forward_outputs: Number of its outputs that the forward pass makes: updates of inputs, then results.
        tensors: The compiler's inputs, in its order: (fake) tensors, DTensors, and the meshes of DTensors.
        model: The model that was captured.
        notes: What the user has to know about it.
        inductor: What it has besides if Inductor compiles it; else None.
    """

    joint: GraphModule
    forward_outputs: int
    tensors: tuple[Tensor, ...]
    model: Model
    notes: tuple[str, ...] = ()
    inductor: Inductor | None = None


@dataclass(slots=True)
class Part:
    """A graph that PyTorch compiles: the whole step, or what lies between two graph breaks.

    Attributes:
        tensors: Its inputs.
        ends: Why it ends before the step does; None if it does not.
        captured: Its joint graph; None if it has no backward pass.
        error: Why PyTorch could not capture it, and runs it as it is; None if it could.
        results: Weak references to the tensors that its runs have returned.
        runs: How often it has run.
    """

    tensors: tuple[Tensor, ...]
    ends: Refusal | None
    captured: Captured | None = None
    error: Exception | None = None
    results: list[weakref.ref[Tensor]] = field(default_factory=list)
    runs: int = 0

    def watched(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, which from now on also records its runs and results."""
        import torch

        def run(*inputs: Any) -> Any:
            results = compiled(*inputs)
            self.runs += 1
            self.results += [weakref.ref(item) for item in results if isinstance(item, torch.Tensor)]
            return results

        return run


@dataclass(frozen=True, slots=True)
class PythonBackward:
    """The backward pass of an autograd function written in Python, which was run once to measure it.

    Attributes:
        takes_bytes: Most bytes that it takes at a time, the gradients that it reads included.
        parameters: The parameters to whose gradients it adds by itself.
    """

    takes_bytes: int
    parameters: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Results(Sequence[Any]):
    """What a call of a compiled graph returned.

    Attributes:
        tensors: The results.
        nodes: For each result, the node of autograd of the graph behind it when the graph returned, its position there
            and whether it is that result itself; None if there is none. Code that writes into a result later puts
            another node in its place.
    """

    tensors: tuple[Tensor, ...] = ()
    nodes: tuple[tuple[AutogradNode, int, bool] | None, ...] = ()

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Results:
        """Results that a graph has just returned."""
        return cls(tuple(tensors), tuple(map(compiled_node, tensors)))

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, at: Any) -> Any:
        return self.tensors[at]


@dataclass(slots=True)
class Calls:
    """What a module did when it was captured.

    Attributes:
        runs: For each call of a compiled graph in order, its number (None without a backward pass) and its results.
        inputs: The inputs of these calls.
        output: What the module returned; None if it did not come to its end.
        paths: The paths that it takes at random; it is called until the largest of them is there.
        python_backward: For nodes of autograd functions written in Python, what their backward passes need.
    """

    runs: list[tuple[int | None, Results]] = field(default_factory=list)
    inputs: list[Sequence[Any]] = field(default_factory=list)
    output: Any = None
    paths: RandomPaths = field(default_factory=RandomPaths)
    python_backward: dict[AutogradNode, PythonBackward] = field(default_factory=dict)

    def watched(self, number: int | None, compiled: Any) -> Any:
        """``compiled``, a compiled graph, with its calls recorded."""

        def run(*args: Any) -> Any:
            if number is not None:
                self.paths.enter()
            results = compiled(*args)
            if number is not None:
                self.paths.leave(results)
            self.runs.append((number, Results.of(results)))
            self.inputs.append(args)
            return results

        return run

    def again(self) -> bool:
        """Whether the module is to be called once more, on another of its paths. Then this pass is forgotten."""
        if not self.paths.following(0 if self.output is None else self.held_bytes()):
            return False
        self.runs, self.inputs, self.output = [], [], None
        self.paths.begin()
        return True

    def held_bytes(self) -> int:
        """Bytes that wait for the backward pass when the forward pass has ended."""
        return total_bytes(tensor for node in self.nodes() for tensor in kept_by(node))

    def nodes(self) -> Iterator[AutogradNode]:
        """All nodes of autograd behind what the module and its graphs returned, but those of parameters."""
        import torch

        tensors = [tensor for _, tensor in leaves(self.output)]
        tensors += [t for _, results in self.runs for t in results if isinstance(t, torch.Tensor)]
        roots = [tensor.grad_fn for tensor in tensors]
        roots += [at[0] for _, results in self.runs for at in results.nodes if at is not None]
        return (node for node in nodes_behind(roots) if parameter_of(node) is None)

    def only_called(self, count: int) -> list[int]:
        """The numbers of the graphs that were called, of ``count``; from now on they are numbered in that order."""
        called = sorted({number for number, _ in self.runs if number is not None})
        self.runs = self.without(set(range(count)) - set(called)).runs
        return called

    def without(self, left_out: Collection[int]) -> Calls:
        """The same, if the graphs with these numbers had no backward pass; the others are numbered anew."""

        def renumbered(number: int | None) -> int | None:
            if number is None or number in left_out:
                return None
            return number - sum(other < number for other in left_out)

        calls = [(renumbered(number), results) for number, results in self.runs]
        return Calls(calls, self.inputs, self.output, self.paths, self.python_backward)


Receive = Callable[[Captured], None]
"""Receives each joint graph that is captured."""
Tracer = Callable[[GraphModule, Sequence[Tensor], Model, Receive], Any]
"""Compiles a graph for its inputs, as a part of a model, and hands the joint graph on before it is divided."""


def through_aot(graph_module: GraphModule, inputs: Sequence[Tensor], model: Model, receive: Receive) -> Any:
    """Capture what AOTAutograd makes, operation by operation."""

    def partition(joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        receive(Captured(*plain_joint(joint, num_fwd_outputs), tuple(inputs), model))
        return default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

    return aot(graph_module, list(inputs), compiler=as_given, partition=partition)


def capture(model: Model, mode: FakeMode, tracer: Tracer = through_aot, *, varying: bool = False) -> Captured:
    """The joint graph of one training step of ``model``.

    A step whose first call does things that PyTorch does not capture, such as installing hooks under a lock, is
    captured as its later calls run it; a note in the graph says so. ``mode`` is the fake mode of its tensors,
    ``tracer`` compiles it. With ``varying``, sizes that ``let_vary`` names are symbols.

    Raises:
        NotOneGraph: If PyTorch captures the step in parts only.
        CaptureFailed: If the step cannot be captured, or has nothing to train.
    """
    parts, problem = _captured(model, _step(model), mode, tracer, whole=True, varying=varying)
    notes: tuple[str, ...] = ()
    if problem is not None:
        called_once(model, mode)
        parts, again = _captured(model, _step(model), mode, tracer, whole=True, varying=varying)
        if again is not None:
            raise not_captured(problem) from problem
        notes = (
            f"the first call of the model does something that later calls do not ({refusal_of(problem).line()}); this "
            "is the graph of the later calls: call the model once before you compile it",
        )
    graphs = [part.captured for part in parts if part.captured is not None]
    if not graphs:
        raise nothing_to_train()
    return replace(graphs[0], notes=notes)


def capture_parts(
    model: Model, mode: FakeMode, calls: Calls | None = None, tracer: Tracer = through_aot
) -> tuple[list[Captured], str]:
    """The joint graphs of ``model.module`` without a loss: one, or several if graph breaks divide it.

    ``calls`` receives what the compiled graphs are given and return. With ``mode`` None the tensors are real, and the
    forward pass is computed.

    Returns:
        The graphs, in order, and a short reason why there may be more; empty if these are all. If the control flow of
        the module depends on the numbers in its tensors, fake tensors cannot follow it to the end. What PyTorch cannot
        compile in a pass that comes to its end runs as it is, in training too, and is no reason.
    """
    parts, problem = _captured(model, model.module, mode, tracer, whole=False, calls=calls)
    graphs = [part.captured for part in parts if part.captured is not None]
    if calls is not None and calls.paths.sizes:  # other paths have other parts
        graphs = [graphs[number] for number in calls.only_called(len(graphs))]
    return graphs, "" if problem is None else refusal_of(problem).line()


def capture_units(
    model: Model, mode: FakeMode, units: Sequence[Module], calls: Calls, tracer: Tracer = through_aot
) -> tuple[list[Captured], str]:
    """The joint graphs of ``units``, modules in ``model.module``, each of them one graph; those of like ones are one.

    ``calls`` receives what they are given and return, in the order of their calls.

    Returns:
        The graphs, and a short reason why there may be more; empty if these are all.
    """
    parts, problem = _captured(model, model.module, mode, tracer, whole=True, calls=calls, units=units)
    graphs = [part.captured for part in parts if part.captured is not None]
    return graphs, "" if problem is None else refusal_of(problem).line()


def divided(model: Model, mode: FakeMode, tracer: Tracer = through_aot) -> tuple[list[Part], Exception | None]:
    """The parts into which graph breaks divide one training step of ``model``, also those without a backward pass.

    With ``mode`` None its tensors are real, and one forward pass is computed. Also returns the error that ended the
    step early; None if none did.
    """
    return _captured(model, _step(model), mode, tracer, whole=False)


def no_graph(model: Model, mode: FakeMode) -> CaptureFailed:
    """The error for a ``model`` in which ``capture_parts`` found no graph with a backward pass."""
    _, problem = _captured(model, model.module, mode, through_aot, whole=True)
    return nothing_to_train() if problem is None else not_captured(problem)


def nothing_to_train() -> CaptureFailed:
    """The error for a step without gradients."""
    return CaptureFailed(
        "the model has nothing to train: no parameter that requires a gradient has a part in the output",
        hint="is it frozen, or does it run under no_grad?",
    )


def _captured(
    model: Model,
    step: Callable[..., Any],
    mode: FakeMode,
    tracer: Tracer,
    *,
    whole: bool,
    calls: Calls | None = None,
    varying: bool = False,
    units: Sequence[Module] = (),
) -> tuple[list[Part], Exception | None]:
    """The parts of ``step``, and the error that ended the capture early; None if none did.

    With ``units``, the forward passes of these modules in it are compiled, each as a whole, and nothing else is.
    """
    import torch

    parts: list[Part] = []

    def receive(captured: Captured) -> None:
        parts[-1].captured = captured

    def backend(graph_module: GraphModule, example_inputs: list[Any]) -> Any:
        broken = break_of(graph_module)
        parts.append(Part(tuple(example_inputs), None if broken is None else read_refusal(*broken)))
        try:
            compiled = tracer(graph_module, tuple(example_inputs), model, receive)
        except Exception as error:  # PyTorch turns some errors into graph breaks, and would hide them
            parts[-1].error = error
            raise
        if calls is not None:
            number = sum(part.captured is not None for part in parts) - 1
            compiled = calls.watched(None if parts[-1].captured is None else number, compiled)
        return parts[-1].watched(compiled)

    torch.compiler.reset()
    try:
        with _capturing(mode):
            compile_ = partial(torch.compile, backend=backend, dynamic=None if varying else False)
            if units:
                compiled = step
                replace_forward(units, compile_(own_code(own_forward), fullgraph=True))
            else:
                compiled = compile_(step, fullgraph=whole)
            if calls is None:
                output = compiled(*model.inputs, **model.keywords)
            else:
                output = _largest(lambda: compiled(*model.inputs, **model.keywords), calls)
            if has_second_gradient(tensor for _, tensor in leaves(output)):
                raise second_gradient()
    except CaptureFailed:
        raise
    except Exception as error:  # anything can happen in a user's model
        if refuses_second_gradient(error):
            raise second_gradient() from error
        return parts, next((part.error for part in parts if part.error is not None), error)
    finally:
        torch.compiler.reset()
    return parts, next((part.error for part in parts if part.error is not None), None) if whole else None


@contextlib.contextmanager
def _capturing(mode: FakeMode) -> Iterator[None]:
    """A context for calls of what is captured; ``mode`` is None for real tensors."""
    import torch

    with (
        undisturbed(),
        contextlib.nullcontext() if mode is None else mode,
        torch.enable_grad(),
        exact_sizes(),
        undistributed(_FORMS_IN_A_STEP),
        without_logging(),
        with_eager_masks(),
        _quiet(),
    ):
        yield


def _largest(run: Callable[[], Any], calls: Calls) -> Any:
    """What ``run`` returns. If it takes its path at random, it runs several times, and the last pass is the largest."""
    calls.paths.begin()
    calls.output = run()
    while calls.again():
        with contextlib.suppress(Exception):  # a path that is not the user's batch's may meet anything, and is left out
            calls.output = run()
    return calls.output


def called_once(model: Model, mode: FakeMode, listening: Context | None = None) -> bool:
    """Call the step once as it is, for what only a first call does; as far as it comes. Whether it came to its end.

    ``listening`` is a context in which it runs.
    """
    listening = contextlib.nullcontext() if listening is None else listening
    try:
        with in_eager_mode(model, mode) as step, listening:
            step()
    except Exception:  # the error of the capture says more
        return False
    return True


@contextlib.contextmanager
def in_eager_mode(model: Model, mode: FakeMode) -> Iterator[Callable[[], Any]]:
    """A context in which the step of ``model`` may be called as it is, and what calls it; ``mode`` as in capture."""
    import torch

    under = contextlib.nullcontext() if mode is None else mode
    with undisturbed(), under, torch.enable_grad(), exact_sizes(), silent_fakes(), _quiet():
        yield lambda: _step(model)(*model.inputs, **model.keywords)


def _step(model: Model) -> Callable[..., Any]:
    """The function to capture: the module, and the loss where there is one."""
    module, loss = model.module, _results if model.loss is None else model.loss

    def step(*inputs: Any, **keywords: Any) -> Any:
        return loss(module(*inputs, **keywords))

    return step


def _results(output: Any) -> Any:
    """The loss in ``output`` if it holds one by name; else ``output``."""
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    loss = getattr(output, "loss", None)
    return output if loss is None else loss


def own_forward(unit: Module, /, *args: Any, **kwargs: Any) -> Any:
    """The forward pass of a module as its class defines it."""
    return type(unit).forward(unit, *args, **kwargs)


def replace_forward(units: Sequence[Module], forward: Callable[..., Any]) -> None:
    """Have ``forward``, which gets the module first, run as the forward pass of each unit, inside of its hooks."""
    for unit in units:
        unit.forward = partial(forward, unit)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's loggers and its own warnings, since remat reports every error itself.

    If the user has set TORCH_LOGS, the loggers are not silent.
    """
    names = [] if "TORCH_LOGS" in os.environ else list(logging.root.manager.loggerDict)
    loggers = [logging.getLogger(name) for name in names if name.split(".")[0] == "torch"]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
