"""Measures what kernels need for a part of the rows, besides what they read and return."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from remat_cli.frontends.torch.execute.division import Division
from remat_cli.frontends.torch.execute.trial import Trial
from remat_cli.frontends.torch.measure.memory import above_end, changes_of
from remat_cli.frontends.torch.measure.operations import seeded
from remat_cli.frontends.torch.types import FxNode, Tensor


def part_workspaces(division: Division, size: int) -> Sequence[int]:
    """Bytes that each call of a division needs for a part of ``size`` rows, on this machine's CPU.

    Every call runs once, on random numbers; whole numbers are 0, which every index may be. The state of the user's
    random generators is preserved.
    """
    import torch

    trial = Trial(division, size)
    calls, generator = set(trial.nodes), seeded("cpu", 0)

    def made(form: Tensor) -> Tensor:
        tensor = torch.empty_strided(form.shape, form.stride(), dtype=form.dtype)
        tensor.untyped_storage().fill_(0)
        flat = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,))
        if flat.is_floating_point():
            flat.normal_(generator=generator)
        return tensor

    def real(node: FxNode) -> Any:
        """The tensor that an argument stands for: a new one, or a view of one."""
        if node.op == "placeholder" or node in calls or node.target is operator.getitem:
            return made(node.meta["val"])
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), real)
        return node.target(*args, **kwargs)

    def bound(node: FxNode) -> Callable[[], Any]:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), real)

        def call() -> Any:
            with torch.no_grad():
                return node.target(*args, **kwargs)

        return call

    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
        return [above_end(changes) for changes in changes_of(map(bound, trial.nodes))]
