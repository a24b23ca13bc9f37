"""The largest batch that fits a memory: predicted from two captured graphs, and found by trial."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.torch.subject import Subject, plan_budget, planner, solved

_MOST_COST = 4 / 3
"""Most cost of a step by plan for the largest batch: about one more forward pass."""
_SMALL, _LARGE = 2, 4
"""Batches that are captured; sizes and costs of others are interpolated linearly."""


class Batches:
    """Searches for the largest batch of a model that ``subject`` makes, with ``solve_s`` seconds for each plan."""

    def __init__(
        self,
        subject: Callable[[int], Subject],
        device: Any,
        allowed_bytes: int,
        solve_s: float,
        left_s: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.subject, self.device, self.allowed_bytes = subject, device, allowed_bytes
        self.solve_s, self.left_s, self.say = solve_s, left_s, say
        self.budget = plan_budget(allowed_bytes, device.name)
        self.reserve = 2 * subject(_SMALL).parameter_bytes()  # Adam's state
        self.graphs = {b: _captured(subject(b)) for b in (_SMALL, _LARGE)}

    def predicted(self, *, plan: bool) -> int:
        """The largest batch whose graph fits without recomputation, or by a plan of bounded cost."""
        return largest(self._plan_fits if plan else self._graph_fits, start=8)

    def measured(self, guess: int, *, plan: bool) -> int:
        """The largest batch that was trained within the memory.

        Raises:
            TimeoutError: If no time is left.
        """
        return largest(partial(self._trains, plan=plan), start=max(1, guess), near=True)

    def _graph(self, batch: int) -> Any:
        share = (batch - _SMALL) / (_LARGE - _SMALL)
        return stretched(self.graphs[_SMALL], self.graphs[_LARGE], share, self.reserve)

    def _graph_fits(self, batch: int) -> bool:
        from remat_cli.graph.analysis import no_remat_peak

        return no_remat_peak(self._graph(batch)) <= self.budget

    def _plan_fits(self, batch: int) -> bool:
        from remat_cli.api import SolveOptions, solve
        from remat_cli.errors import RematError

        graph = self._graph(batch)
        try:
            plan = solve(graph, self.budget, SolveOptions(strategy="dtr", time_limit_s=self.solve_s)).plan
        except RematError:
            return False
        return bool(plan.claim.cost <= _MOST_COST * graph.total_cost)

    def _trains(self, batch: int, *, plan: bool) -> bool:
        if self.left_s() < 0:
            raise TimeoutError
        import torch

        from remat_cli.errors import Infeasible, LimitReached, OutOfMemory

        self.say(f"batch {batch}{' by plan' if plan else ''}")
        subject = self.subject(batch)
        try:
            if plan:
                made: list[Any] = []
                subject.fit(planner(self.budget, self.solve_s, made, self.reserve), reserve_bytes=self.reserve)
                self.say(f"batch {batch}: plan by {made[0].strategy}")
            with self.device.limited(self.allowed_bytes):
                subject.losses(2)
                subject.usage()
        except (torch.OutOfMemoryError, Infeasible, LimitReached, OutOfMemory):
            return False
        finally:
            del subject
            torch.compiler.reset()
            self.device.free()
        return True


def _captured(subject: Subject) -> Any:
    """The graph of a subject, with FLOPs as costs."""
    graphs: list[Any] = []

    def keep(graph: Any) -> Any:
        graphs.append(graph)
        return solved(graph, None, 1.0)

    subject.fit(keep, cost="flops")
    return graphs[0]


def stretched(small: Any, large: Any, share: float, reserve: int) -> Any:
    """The graph of another batch: sizes and costs are interpolated linearly from those of two batches."""

    def between(a: float, b: float) -> float:
        return a + share * (b - a)

    nodes = tuple(
        replace(
            a,
            cost=max(between(a.cost, b.cost), 1e-9),
            outputs=tuple(max(0, round(between(m, n))) for m, n in zip(a.outputs, b.outputs, strict=True)),
        )
        for a, b in zip(small.nodes, large.nodes, strict=True)
    )
    return replace(small, nodes=nodes, fixed_memory=round(between(small.fixed_memory, large.fixed_memory)) + reserve)


def largest(fits: Callable[[int], bool], *, start: int, near: bool = False) -> int:
    """The largest number that fits, found by doubling or halving from ``start`` and then halving gaps; 0 if none.

    If the answer is probably ``near`` the start, the first steps are small.
    """
    low, high, stride = 0, None, 1
    at = start
    while high is None or high - low > 1:
        if fits(at):
            low = at
            at = low + stride if near else 2 * low
            if high is not None:
                at = (low + high) // 2
        else:
            high = at
            at = (low + high) // 2 if low or not near else max(1, high - stride)
        stride *= 2
        if high is not None and high - low > 1 and not low < at < high:
            at = (low + high) // 2
    return low
