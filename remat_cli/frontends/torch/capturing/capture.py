"""Captures the joint graph of a training step, forward and backward in one, from AOTAutograd's partitioner.

Export and training with a plan both use ``torch.compile`` with a partitioner of our own, so both get the same graph.
For export all tensors are fake: they have shapes and no memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.private import aot, as_given, default_split, exact_sizes, new_fake_mode

if TYPE_CHECKING:
    from remat_cli.frontends.torch.capturing.results import Calls

_LONGEST = 400
_OWN_ERROR = "when making fake tensor call"
"""Part of PyTorch's error if the user's code failed, and not its capture."""
_DEPENDS_ON_NUMBERS = ("DataDependentOutputException", "DynamicOutputShapeException")
"""Errors of fake tensors whose text is only the name of an operator."""
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Model:
    """What to capture.

    Attributes:
        module: The module, in the mode (training or not) in which it is to be captured.
        inputs: Its positional arguments.
        keywords: Its keyword arguments.
        loss: From the module's output to a scalar; None if the output is the loss, or holds one.
    """

    module: Any
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    loss: Callable[[Any], Any] | None


@dataclass(frozen=True, slots=True)
class Captured:
    """A joint graph.

    Attributes:
        joint: The FX graph module: placeholders for parameters, buffers and inputs, then one for each tangent.
        forward_outputs: Number of its outputs that the forward pass makes: updates of inputs, then results.
        tensors: The (fake) tensors behind the placeholders that are not tangents, in the order of the compiler.
        model: The model that was captured.
    """

    joint: Any
    forward_outputs: int
    tensors: tuple[Any, ...]
    model: Model


def fake_mode() -> Any:
    """A mode under which tensors have no data; real tensors may be mixed in.

    Its cache is off. A cached result has the smallest memory for its strides, which may be less than the operator
    allocates (``aten.copy`` of a slice). Sizes would then depend on earlier captures.
    """
    return new_fake_mode()


def capture(model: Model, mode: Any) -> Captured:
    """The joint graph of one training step of ``model``.

    Args:
        model: What to capture; made under ``mode``.
        mode: The fake mode.

    Raises:
        CaptureFailed: If the step cannot be captured as one graph, or has nothing to train.
    """
    seen, problem = _graphs(model, _step(model), mode, whole=True)
    if problem is not None:
        raise _not_captured(problem) from problem
    if not seen:
        raise _nothing_to_train()
    return seen[0]


def capture_parts(model: Model, mode: Any, calls: Calls | None = None) -> tuple[list[Captured], str]:
    """The joint graphs of ``model.module`` without a loss: one, or several if graph breaks divide it.

    Args:
        model: What to capture; its tensors are of ``mode``.
        mode: The fake mode.
        calls: Receives what the compiled graphs are given and return.

    Returns:
        The graphs, in order, and a short reason why there may be more; empty if these are all. If the control flow of
        the module depends on the numbers in its tensors, fake tensors cannot follow it to the end.
    """
    seen, problem = _graphs(model, model.module, mode, whole=False, calls=calls)
    return seen, "" if problem is None else _first_words(problem)


def no_graph(model: Model, mode: Any) -> CaptureFailed:
    """The error for a ``model`` in which ``capture_parts`` found no graph with a backward pass."""
    _, problem = _graphs(model, model.module, mode, whole=True)
    return _nothing_to_train() if problem is None else _not_captured(problem)


def _not_captured(problem: Exception) -> CaptureFailed:
    hint = "what PyTorch calls a graph break has to go: data-dependent control flow, .item(), printing"
    if _OWN_ERROR in str(problem) or not type(problem).__module__.startswith("torch"):
        hint = "does the step run as it is, without remat?"
    if "RNN, GRU, or LSTM" in str(problem):
        hint = "that setting will do for nn.RNN and nn.GRU; build an LSTM from nn.LSTMCell, which needs no setting"
    return CaptureFailed(f"the model could not be captured: {_first_words(problem)}", hint=hint)


def _nothing_to_train() -> CaptureFailed:
    return CaptureFailed(
        "the model has nothing to train: no parameter that requires a gradient has a part in the output",
        hint="is it frozen, or does it run under no_grad?",
    )


def _graphs(
    model: Model, step: Any, mode: Any, *, whole: bool, calls: Calls | None = None
) -> tuple[list[Captured], Exception | None]:
    """The joint graphs of ``step``, and the error that ended the capture early or excluded a part; None if none did."""
    import torch

    seen: list[Captured] = []
    failed: list[Exception] = []
    tensors: list[Any] = []

    def partition(joint: Any, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        seen.append(Captured(joint, num_fwd_outputs, tuple(tensors), model))
        return default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

    def backend(graph_module: Any, example_inputs: list[Any]) -> Any:
        tensors[:] = example_inputs
        before = len(seen)
        try:
            compiled = aot(graph_module, example_inputs, compiler=as_given, partition=partition)
        except Exception as error:  # PyTorch turns some errors into graph breaks, and would hide them
            failed.append(error)
            raise
        return compiled if calls is None else calls.watched(before if len(seen) > before else None, compiled)

    torch.compiler.reset()
    try:
        with mode, torch.enable_grad(), exact_sizes(), _quiet():
            compiled = torch.compile(step, backend=backend, fullgraph=whole, dynamic=False)
            output = compiled(*model.inputs, **model.keywords)
            if calls is not None:
                calls.output = output
    except CaptureFailed:
        raise
    except Exception as error:  # anything can happen in a user's model
        return seen, failed[0] if failed else error
    finally:
        torch.compiler.reset()
    return seen, failed[0] if failed else None


def _step(model: Model) -> Callable[..., Any]:
    """The function to capture: the module, and the loss where there is one."""
    module, loss = model.module, model.loss
    if loss is None:

        def step(*inputs: Any, **keywords: Any) -> Any:
            return _results(module(*inputs, **keywords))

    else:

        def step(*inputs: Any, **keywords: Any) -> Any:
            return loss(module(*inputs, **keywords))

    return step


def _results(output: Any) -> Any:
    """The loss in ``output`` if it holds one by name; else ``output``."""
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    found = getattr(output, "loss", None)
    return output if found is None else found


def _first_words(error: BaseException) -> str:
    """The text of an error of PyTorch in one line, with the last place in the user's code that it names."""
    text = str(error)
    if type(error).__name__ in _DEPENDS_ON_NUMBERS:
        return f"what it does depends on the numbers in a tensor ({text})"
    cause = _cause(error) if _OWN_ERROR in text else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    words = " ".join(lines[:3]) if lines else type(cause).__name__
    words = words if len(words) <= _LONGEST else words[:_LONGEST] + " ..."
    place = _place_of(_PLACE.findall(text.partition("from user code:")[2]))
    return f"{place}: {words}" if place else words


def _cause(error: BaseException) -> BaseException:
    """The first error in the chain of causes of ``error``."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def _place_of(places: Sequence[tuple[str, str]]) -> str:
    """``model.py:12``: the last of ``places`` that is the user's, else the last; empty if there is none."""
    import torch

    library = str(Path(torch.__file__).parent)
    users = [place for place in places if not place[0].startswith(library) and Path(place[0]) != Path(__file__)]
    file, line = (users or places or [("", "")])[-1]
    return f"{Path(file).name}:{line}" if file else ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's loggers, since remat reports every error itself; unless the user has set TORCH_LOGS."""
    names = [] if "TORCH_LOGS" in os.environ else list(logging.root.manager.loggerDict)
    loggers = [logging.getLogger(name) for name in names if name.split(".")[0] == "torch"]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
