"""Errors for "no plan": why none fits, by how many bytes, and which budget would do."""

from remat_cli.control import Control
from remat_cli.errors import Infeasible, Interrupted, LimitReached, RematError, Worded, worded
from remat_cli.graph.analysis import PeakBound, no_remat_peak, peak_bound
from remat_cli.graph.metadata import OTHERS, PARAMETERS, fixed_bytes, fixed_words, gradient_bytes, outputs_are_gradients
from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import NotFound
from remat_cli.strategies.objective import peak_of
from remat_cli.units import Budget, format_bytes, format_cost


def refuse_impossible(graph: Graph, budget_bytes: int, asked: Budget | None) -> None:
    """Refuse a budget that is smaller than a working set, which every plan in any order needs.

    Raises:
        Infeasible: If it is.
    """
    bound = peak_bound(graph)
    if budget_bytes >= bound.bytes:
        return
    missing = bound.bytes - budget_bytes
    fixed = f" beside {fixed_words(graph)}" if graph.fixed_memory else ""
    error = Infeasible(
        f"no plan fits {_budget_words(budget_bytes, asked)}: {_bound_words(graph, bound)}{fixed}, "
        f"{_exact(missing)} too much",
        hint=_least_words(graph, bound.bytes, no_remat_peak(graph)),
    )
    error.scope = Scope.ANY_ORDER
    raise error


def _least_words(graph: Graph, needs: int, no_remat: int) -> str:
    """What is known of the least budget: what every plan needs, and what keeping everything takes."""
    if needs >= _HOPELESS * no_remat:
        enough = "and is enough" if needs == no_remat else f"and {_exact(no_remat)} is enough"
        return f"recomputation cannot help: {_exact(needs)} is needed, {enough} without any{_what_helps(graph)}"
    works = f"{_exact(no_remat)} works without recomputation"
    return _and_the_least(f"no budget below {_exact(needs)} can work; {works}", "finds the least that works")


_HOPELESS = 0.99
"""The share of the peak without recomputation from which on, if every plan needs it, recomputation is no help."""


def _what_helps(graph: Graph) -> str:
    """What needs less where recomputation is no help; empty if the graph does not say what it holds."""
    bound, fixed = peak_bound(graph), fixed_bytes(graph)
    outside, trained = fixed.get(OTHERS, 0), fixed.get(PARAMETERS, 0) + gradient_bytes(graph)
    if 2 * outside >= bound.bytes:
        return "; most of it is memory outside the graph, such as what reserve asks for"
    if 2 * trained >= bound.bytes:
        return (
            "; parameters and their gradients are most of it, and a smaller batch leaves them as they are: train fewer "
            "of them, in a smaller type, or spread over more devices"
        )
    if bound.node is not None and trained:
        return "; a smaller batch, or this operation in parts, needs less"
    return ""


def _and_the_least(text: str, does: str) -> str:
    """What is known of the least budget, and what finds or looks for it; ``fit`` has nothing that does."""
    finder = Worded(f"; solve_smallest {does}", f"; --minimize peak {does}", fit="")
    return worded(lambda text, more: text + more, text, finder)


def no_plan(
    graph: Graph, asked: Budget | None, budget_bytes: int | None, answer: NotFound, control: Control
) -> RematError:
    """The error for a strategy that found nothing: infeasible as far as proven, or out of time."""
    if answer.scope is None:
        bound = ""
        if answer.bounds:
            highest = max(answer.bounds, key=lambda b: b.cost)
            bound = f"; {_EVERY[highest.scope]} costs at least {format_cost(highest.cost, graph.cost_unit)}"
        hint = answer.hint or _MORE
        if control.cancelled.is_set():
            return Interrupted(f"interrupted before a plan was found{bound}", hint=hint)
        return LimitReached(worded(lambda reason: f"no plan: {reason}{bound}", answer.reason), hint=hint)
    budget = _budget_words(budget_bytes, asked)
    error = Infeasible(
        worded(lambda reason: f"{reason} {budget}", answer.reason), hint=_what_works(graph, answer, budget_bytes)
    )
    error.scope = answer.scope
    return error


def _what_works(graph: Graph, answer: NotFound, budget_bytes: int | None) -> str:
    """The smallest budget known to work, and the budget below which none does."""
    works = no_remat_peak(graph)
    if answer.best is not None:
        works = min(works, peak_of(graph, answer.best))
    if budget_bytes is not None and works <= budget_bytes:  # this method makes no such plan, and others do
        facts = f"{_exact(works)} is known to work: take"
        return Worded(
            f'{facts} strategy="auto", or strategy="keep-all" to recompute nothing',
            f"{facts} --strategy auto, or --strategy keep-all to recompute nothing",
        )
    needs, who = peak_bound(graph).bytes, "every plan"
    if answer.peak_bound_bytes is not None and answer.peak_bound_bytes > needs:
        needs, who = answer.peak_bound_bytes, _EVERY[answer.scope or Scope.RESTRICTED]
    facts = f"the smallest budget known to work is {_exact(works)}"
    text = worded(lambda who: f"{facts}; {who} needs at least {_exact(needs)}", who)
    return text if needs >= works else _and_the_least(text, "looks for a smaller one")


STOPPED = Worded(
    "stopped before any schedule was found",
    fit="the search stopped before it found a plan",
)
"""Why there is no plan of a search that had too little time."""
_MORE = Worded(
    "give more time (time_limit_s), a larger budget, or another strategy",
    "give more time with --time-limit, a larger --budget, or another --strategy",
    fit="give a larger budget, or more time: options=remat.SolveOptions(time_limit_s=300)",
)

_EVERY = {
    Scope.ANY_ORDER: "every plan",
    Scope.DOCUMENT_ORDER: Worded(
        "every plan in document order",
        fit="every plan that keeps the order of operations",
    ),
    Scope.FRONTIER: "every frontier-advancing plan",
    Scope.CHAIN_PERSISTENT: "every memory-persistent plan",
    Scope.RESTRICTED: "every plan of the kind searched",
}


def over_budget(report: Report) -> Infeasible:
    """The error for a strategy that ignores the budget, and whose plan is over it."""
    assert report.budget_bytes is not None
    over = report.replay.peak_bytes - report.budget_bytes
    return Infeasible(
        f"the plan of {report.strategy} needs {_exact(report.replay.peak_bytes)}, "
        f"{format_bytes(over)} more than the budget of {_exact(report.budget_bytes)}",
        hint="take a strategy that minds the budget, such as auto, or a larger budget",
    )


def _bound_words(graph: Graph, bound: PeakBound) -> str:
    need = format_bytes(bound.bytes - graph.fixed_memory)
    if bound.node is None:
        outputs = "the gradients of the parameters" if outputs_are_gradients(graph) else "the graph outputs"
        return f"{outputs} alone take {need} at the end"
    return f"node {graph.nodes[bound.node].id} alone needs {need} (its inputs, outputs and workspace)"


def _budget_words(budget_bytes: int | None, asked: Budget | None) -> str:
    if budget_bytes is None:
        return "without a budget"
    words = f"a budget of {_exact(budget_bytes)}"
    return f"{words}, {asked.text} of the no-remat peak" if asked is not None and asked.relative else words


def _exact(count: int) -> str:
    if count >= 1000:
        return f"{format_bytes(count)} ({count} bytes)"
    return "1 byte" if count == 1 else f"{count} bytes"
