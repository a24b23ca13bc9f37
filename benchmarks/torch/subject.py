"""A model in training, and plans for it, for the parts of the GPU benchmark."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.torch.devices import TURNS, Usage

_SHARES = {"cpu": 0.94, "cuda": 0.99}
"""Share of an allowed memory that plans may use. On CUDA plans take the gaps between blocks into account."""


class Subject:
    """A module with its inputs and, if chosen, an Adam optimizer."""

    def __init__(self, module: Any, inputs: tuple[Any, ...], device: Any, *, optimizer: bool) -> None:
        import torch

        self.owner, self.inputs, self.device = module, inputs, device
        self.module = module
        self.optimizer = torch.optim.Adam(module.parameters(), lr=1e-4) if optimizer else None

    def copied(self) -> Subject:
        """A copy of the model with the same initial weights."""
        return Subject(copy.deepcopy(self.owner), self.inputs, self.device, optimizer=self.optimizer is not None)

    def fit(self, planner: Callable[[Any], Any], reserve_bytes: int = 0, *, cost: str = "measured") -> Subject:
        """Train by plan from now on; graphs have measured sizes and times, unless ``cost`` says otherwise."""
        from remat_cli.frontends.torch.train.fitting import fit_module

        with TURNS.measuring():
            self.module = fit_module(
                self.owner, self.inputs, planner, cost=cost, reserve_bytes=reserve_bytes, unknown="error"
            )
        return self

    def step(self) -> Any:
        self.owner.zero_grad(set_to_none=True)
        loss = self.module(*self.inputs)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()

    def losses(self, steps: int) -> list[float]:
        import torch

        torch.manual_seed(3)
        with TURNS.turn():
            return [float(self.step()) for _ in range(steps)]

    def parameter_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.owner.parameters())

    def resident_bytes(self) -> int:
        """Bytes that stay from step to step: parameters, buffers, inputs, gradients and the optimizer's state."""
        import torch

        tensors = [*self.owner.parameters(), *self.owner.buffers(), *self.inputs]
        tensors += [p.grad for p in self.owner.parameters() if p.grad is not None]
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                tensors += [t for t in state.values() if isinstance(t, torch.Tensor)]
        return sum(t.numel() * t.element_size() for t in tensors)

    def usage(self) -> Usage:
        """Memory of a step; the gradients of the previous one are freed first."""
        self.owner.zero_grad(set_to_none=True)
        with TURNS.turn():
            usage: Usage = self.device.usage(self.step, self.resident_bytes())
        return usage

    def seconds(self, times: int) -> float:
        """Median seconds of a step, after two steps of warm-up."""
        taken = []
        with TURNS.turn():
            for _ in range(times + 2):
                self.device.wait()
                started = time.perf_counter()
                self.step()
                self.device.wait()
                taken.append(time.perf_counter() - started)
        return statistics.median(taken[2:])


def planner(
    budget_bytes: int | None, limit_s: float, made: list[Any], state_bytes: int | None = None
) -> Callable[[Any], Any]:
    """Makes plans as :func:`solved` does, and also appends them to ``made``."""

    def planned(graph: Any) -> Any:
        made.append(solved(graph, budget_bytes, limit_s, state_bytes))
        return made[-1]

    return planned


def solved(graph: Any, budget_bytes: int | None, limit_s: float, state_bytes: int | None = None) -> Any:
    """A plan within the budget by the best strategy that can run here; without a solver this is ``dtr``.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included; None for a plan without recomputation.
        limit_s: Seconds for it.
        state_bytes: The optimizer's part of the graph's fixed memory, if the budget is for all memory that the device's
            allocator takes; None if the budget is for values alone.
    """
    from remat_cli.api import SolveOptions, solve
    from remat_cli.api.fitting import CachedPlanner
    from remat_cli.errors import LimitReached, SolverFailed, SolverUnavailable
    from remat_cli.units import parse_budget

    if budget_bytes is None:
        return solve(graph, None, SolveOptions(strategy="keep-all")).plan

    def by(strategy: str) -> Any:
        options = SolveOptions(strategy=strategy, time_limit_s=limit_s)
        planner = CachedPlanner(parse_budget(str(budget_bytes)), options, None, state_bytes or 0)
        return planner.planned(graph, budget_bytes) if state_bytes is None else planner(graph)

    try:
        return by("search")
    except (ImportError, LimitReached, SolverFailed, SolverUnavailable):
        return by("dtr")


def plan_budget(allowed_bytes: int, device: str) -> int:
    """The part of an allowed memory that a plan may use."""
    return int(allowed_bytes * _SHARES[device])
