"""What a model of the suite takes to train, as predicted and as measured: forward, backward, and a step of AdamW.

Peaks are those of PyTorch's allocator on a CPU, by the events of its profiler, with parameters, buffers, inputs and the
state of the optimizer. AdamW updates all parameters at once (``foreach``), as it does on a GPU.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

import remat_cli
from benchmarks.models.listing import Listed
from benchmarks.models.training import Subject, seeded, storage_bytes, tensors_of
from benchmarks.torch.devices import allocated_peak
from remat_cli.errors import RematError
from remat_cli.frontends.torch import blocks
from remat_cli.frontends.torch.compat.operators import dropout_of_gpus
from remat_cli.plan.model import Plan
from remat_cli.planning import fits as planning
from remat_cli.planning.fits import BEST, BLOCKS, WITHOUT, Choice

SHARES = (0.6, 0.8, 0.9)
"""Memory for the best plan, as shares of what the step takes without recomputation; the first that a plan fits."""
_ROOM = 10**15


def answer(_step: str, model: Listed, limit_s: float) -> dict[str, Any]:
    """Predicted and measured bytes; a search for a plan gets ``limit_s`` seconds.

    ``measured`` has the peak of eager mode (``eager``) and, by the names of choices, of training by their plans.
    ``gpu_dropout`` is the peak of eager mode whose dropout keeps what it keeps on a GPU. ``predicted`` has the choices
    with the workspace that operations have on this CPU, and ``by_graph`` those without, as ``remat fits`` gives them.
    """
    torch.set_num_threads(1)
    subject = Subject(model)
    return {"others": _others(subject)} | own(subject, model, limit_s)


def own(subject: Subject, model: Listed, limit_s: float) -> dict[str, Any]:
    """The answer without the other tools."""
    found: dict[str, Any] = {"measured": {"eager": _eager(subject)}}
    try:
        choices = _predicted(model, limit_s, found)
    except RematError as error:
        return found | {"ok": False, "refused_by": type(error).__name__, "problem": error.message.partition("\n")[0]}
    found["update"] = choices[0].in_update
    planned = [choice for choice in choices if choice.name != WITHOUT]
    found["measured"] |= {choice.name: _by_plan(subject, choice.plan) for choice in planned}
    with dropout_of_gpus():
        return found | {"gpu_dropout": _eager(subject), "ok": True}


def _predicted(model: Listed, limit_s: float, found: dict[str, Any]) -> list[Choice]:
    """The ways to train on this CPU."""
    from remat_cli.frontends.torch.measure.memory import with_workspaces

    source, limits = f"torch:{model.file}:{model.name}", remat_cli.SolveOptions(time_limit_s=limit_s)
    with mock.patch.object(
        blocks, "as_on_cards", contextlib.nullcontext
    ):  # plans run here, with the attention of a CPU
        asked = remat_cli.fits(source, f"{_ROOM}B", optimizer="adamw", context=0, options=limits).fits
    bare = replace(asked.need, reserved=None)  # no gaps of CUDA's allocator
    found["by_graph"] = {WITHOUT: planning.usual(bare, WITHOUT, "keep-all", limits).total_bytes}
    found["by_graph"] |= {
        c.name: planning.choice_of(c.name, bare, c.solved).total_bytes for c in asked.choices if c.name == BLOCKS
    }
    need = replace(bare, graph=with_workspaces(bare.graph), eager=bare.eager and with_workspaces(bare.eager))
    whole = planning.usual(need, WITHOUT, "keep-all", limits).total_bytes
    for share in SHARES:
        answer = planning.fits(need, int(share * whole), limits)
        if answer.choice(BEST) is not None:
            found["share"] = share
            break
    choices = [choice for choice in answer.choices if choice.name in {WITHOUT, BLOCKS, BEST}]
    found["predicted"] = {choice.name: choice.total_bytes for choice in choices}
    return choices


def _eager(subject: Subject) -> int:
    owner = subject.copied()
    return _peak(subject, owner, lambda: subject.loss_of(owner))


def _by_plan(subject: Subject, plan: Plan) -> int | str:
    """The peak of training by a plan; a text that says why there is none."""
    owner = subject.copied()
    subject.loss_of(owner)  # some models do something at their first call that the captured step has not
    torch.compiler.reset()
    backend = remat_cli.remat_backend(plan)
    try:
        return _peak(subject, owner, torch.compile(lambda: subject.loss_of(owner), backend=backend, dynamic=False))
    except Exception as error:  # torch.compile wraps what a backend raises; one model must not end the others
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _peak(subject: Subject, owner: Any, loss: Callable[[], Any]) -> int:
    """The peak of a whole training step, once the optimizer has its state."""
    optimizer = torch.optim.AdamW(owner.parameters(), lr=1e-4, foreach=True)
    step = stepping(optimizer, loss)
    step()
    step()  # what is made once is not counted
    state = [moment for kept in optimizer.state.values() for name, moment in kept.items() if name != "step"]
    resident = storage_bytes([*owner.parameters(), *owner.buffers(), *tensors_of(subject.inputs), *state])
    return resident + allocated_peak(step)


def stepping(optimizer: torch.optim.Optimizer, loss: Callable[[], Any]) -> Callable[[], None]:
    """A whole training step."""

    def step() -> None:
        seeded()  # the same shapes every time, where they are random
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _others(subject: Subject) -> dict[str, Any]:
    """What other tools predict for the same module, batch and optimizer."""
    return {"accelerate": _accelerate(subject), **_kitsune(subject)}


def _accelerate(subject: Subject) -> int:
    """*Training using Adam* of ``accelerate estimate-memory``, by its functions: the command takes names on the hub."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total_bytes, _ = calculate_maximum_sizes(subject.copied())
    return int(max(estimate_training_usage(total_bytes, "float32").values()))


def _kitsune(subject: Subject) -> dict[str, Any]:
    """The prediction of torch-kitsune, the part of it that is its margin, and whether it fell back on formulas.

    It takes the shape of one input, and its batch apart: of the first input here, or of the first image in a list.
    """
    from kitsune.predict import predict_memory

    first = tensors_of(subject.inputs)[0]
    notes = _Notes()
    logger = logging.getLogger("kitsune.predict.activation_estimator")
    logger.addHandler(notes)
    logger.setLevel(logging.DEBUG)
    images = subject.inputs[0] if isinstance(subject.inputs, tuple) else None
    batch, shape = (len(images), first.shape) if isinstance(images, list) else (first.shape[0], first.shape[1:])
    told = predict_memory(subject.copied(), tuple(shape), batch_size=batch, optimizer="adamw", training=True)
    return {
        "kitsune": told.total_bytes,
        "kitsune_margin": told.overhead_bytes,
        "kitsune_formulas": any(text.startswith("[formula]") for text in notes.texts),
    }


class _Notes(logging.Handler):
    """Keeps the messages of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
