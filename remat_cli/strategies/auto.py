"""What ``remat solve`` does unless told otherwise: nothing if the graph fits, else exact methods, then search."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Context, Found, Known, NotFound, Strategy, Task
from remat_cli.strategies.bounds import shortened, telling
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.strategies.retention.proof import PROVABLE, prove_inside

_EXACT_SHARE, _SEARCH_SHARE = 0.3, 0.2
"""Shares of the time left for ``optimal`` and then for the search, where a proof that looks inside stages follows."""
_PROOF_S = 300.0
_SMALL = 60
"""Up to this many nodes the paper's MILP can look beyond one pass per stage, and for the least peak."""


@dataclass(frozen=True, slots=True)
class Auto(Strategy):
    """``keep-all`` when it fits the budget, else ``optimal``, and ``search`` for what that leaves open.

    A few graphs have a plan though no frontier-advancing one exists. Where nothing else finds one and the graph is
    small, ``checkmate-ilp`` with split stages looks for it.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "keep-all when it fits, else optimal, then search for what that leaves open"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Choose strategies and run them; the answer names the one that made it."""
        graph = task.graph
        if task.budget_bytes is None or no_remat_peak(graph) <= task.budget_bytes:
            return _run("keep-all", task, context)
        provable = len(graph.nodes) <= PROVABLE
        exact = _run("optimal", task, _within(context, _EXACT_SHARE) if provable else context)
        if context.control.stopping() or _closed(graph, exact, context.gap):
            return exact
        within = _within(context, _SEARCH_SHARE) if provable and isinstance(exact, Found) else context
        searched = _run("search", replace(task, known=_known(exact)), within)
        best = _better(graph, exact, searched)
        if isinstance(best, Found):
            return _proved(task, best, context) if provable else best
        if context.control.stopping() or len(graph.nodes) > _SMALL:
            return best
        return _run("checkmate-ilp{stage_split=2}", task, context)


def _proved(task: Task, answer: Found, context: Context) -> Found:
    """``answer`` with the bound that looks inside stages, which is found the sooner, the better the schedule at hand.

    Should it come upon a cheaper schedule, that is the answer.
    """
    best = Incumbent.of(replace(task, known=_known(answer)), context)
    if not best.over():
        prove_inside(best, best.step(_PROOF_S, 1.0))
    found = best.found(exhausted=answer.exhausted or best.proven())
    cheaper = _cost(task.graph, found) < _cost(task.graph, answer)
    if cheaper:
        return replace(found, maker="optimal")
    return replace(answer, bounds=found.bounds, exhausted=found.exhausted)


def _within(context: Context, share: float) -> Context:
    """``context`` with a share of the time left, if there is a limit."""
    remaining = context.control.remaining_s()
    return context if remaining is None else replace(context, control=shortened(context.control, share * remaining))


def _run(choice: str, task: Task, context: Context) -> Found | NotFound:
    def publish(found: Found) -> None:
        context.publish(replace(found, maker=choice))

    answer = strategy_from_spec(choice).solve(task, replace(context, publish=publish))
    return replace(answer, maker=choice) if isinstance(answer, Found) else answer


def _closed(graph: Graph, answer: Found | NotFound, gap: float) -> bool:
    """Whether an answer leaves nothing open: no schedule in document order is cheaper, not just none of a class."""
    if isinstance(answer, NotFound):
        return answer.scope is Scope.DOCUMENT_ORDER
    cost = _cost(graph, answer)
    wide = [b for b in answer.bounds if b.scope.contains(Scope.DOCUMENT_ORDER)]
    return cost - telling(graph, wide, cost).cost <= gap * cost


def _known(answer: Found | NotFound) -> Known:
    if isinstance(answer, Found):
        return Known((answer.schedule,), answer.bounds)
    schedules = () if answer.best is None else (answer.best,)
    return Known(schedules, answer.bounds)


def _better(graph: Graph, exact: Found | NotFound, searched: Found | NotFound) -> Found | NotFound:
    """The cheaper answer; the earlier one on a tie. What is proven of the class stands if nothing was found."""
    if isinstance(searched, NotFound) or (isinstance(exact, Found) and _cost(graph, searched) >= _cost(graph, exact)):
        return exact
    return searched


def _cost(graph: Graph, found: Found) -> float:
    return math.fsum(graph.nodes[k].cost for k in found.schedule.computes)
