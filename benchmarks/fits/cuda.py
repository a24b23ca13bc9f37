"""What a model of the suite takes from a CUDA device, as predicted and as PyTorch's allocator takes it.

The prediction is that of ``remat fits`` for a card: tensors, and the gaps that the allocator leaves between them. What
is measured needs no kernels, so it runs on :mod:`benchmarks.torch.hollow`, too, where none takes any workspace.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import remat_cli
from benchmarks.fits.answers import stepping
from benchmarks.models.forking import forked
from benchmarks.models.listing import Listed
from benchmarks.models.training import Subject
from remat_cli.planning.fits import GAPS, WITHOUT

_ROOM = 10**15
"""A memory in which everything fits."""
_STEPS = 3
_LIMIT_S = 200


def answer(_step: str, model: Listed, limit_s: float) -> dict[str, Any]:
    """Bytes of training without recomputation, ``predicted`` and ``measured``.

    ``measured`` has the peaks of tensors (``allocated``) and of what the allocator takes if nothing limits it
    (``reserved``), what of it cuBLAS keeps (``libraries``), and the least memory, to 1%, within which it serves all
    requests (``limit``).
    """
    torch.set_num_threads(1)
    predicted = _apart(lambda: _predicted(model, limit_s))
    if isinstance(predicted, str):
        return {"ok": False, "problem": predicted}
    freely = _apart(lambda: _peaks(model, None))
    if isinstance(freely, str):
        return {"ok": False, "problem": freely, "predicted": predicted}
    low, high = freely["allocated"], freely["reserved"]
    middle = predicted["total"]  # tried first, and then one half at a time
    while high - low > high // 100:
        middle = middle if low < middle < high else (low + high) // 2
        if isinstance(_apart(partial(_peaks, model, middle)), str):
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
    return {"ok": True, "predicted": predicted, "measured": freely | {"limit": high}}


def _apart(work: Callable[[], dict[str, int]]) -> dict[str, int] | str:
    """What ``work`` returns, in a process of its own, since CUDA cannot start twice; or its error, in a line."""

    def told() -> None:
        try:
            print(json.dumps(work()))
        except Exception as error:  # one model must not end the others
            print(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}", file=sys.stderr)
            sys.exit(1)

    ended = forked(told, _LIMIT_S)
    if ended.code == 0:
        return dict(json.loads(ended.out.splitlines()[-1]))
    said = (ended.err.strip().splitlines() or [f"ended with code {ended.code}"])[-1]
    return re.sub(r"(?<!\S)/\S*/", "", said)[:300]  # without folders of this machine


def _predicted(model: Listed, limit_s: float) -> dict[str, int]:
    source, limits = f"torch:{model.file}:{model.name}", remat_cli.SolveOptions(time_limit_s=limit_s)
    fits = remat_cli.fits(source, f"{_ROOM}B", optimizer="adamw", context=0, options=limits).fits
    choice = fits.choice(WITHOUT)
    assert choice is not None  # every step may keep everything
    return {"total": choice.total_bytes, "gaps": choice.parts.get(GAPS, 0), "update": choice.in_update}


def _peaks(model: Listed, limit_bytes: int | None) -> dict[str, int]:
    """The peaks of the allocator in training, within a limit."""
    device = torch.device("cuda")
    if limit_bytes is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(limit_bytes / total)
    module = Subject(model).module  # on the CPU: RegNet computes its widths, and a hollow device computes nothing
    torch.set_default_device(device)
    subject = Subject(model)
    subject.module = module.to(device)
    optimizer = torch.optim.AdamW(subject.module.parameters(), lr=1e-4, foreach=True)
    step = stepping(optimizer, lambda: subject.loss_of(subject.module))
    for _ in range(_STEPS):
        step()
    peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    at_the_end = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    return peaks | {"libraries": at_the_end - torch.cuda.memory_allocated()}
