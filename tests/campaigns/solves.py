"""Solves of small graphs, whose plans are judged and whose claims are compared with the truth.

A wrong answer is a plan that is not what it says; a bound above the least cost; ``optimal`` of a plan that is not;
"no plan" where one fits; a hint that does not hold; and other bytes for the same request.
"""

import json
import re
from collections import Counter
from typing import Any

from hypothesis import strategies as st

from campaigns.engine import Failure, name_of, place_of
from campaigns.instances import MOST_STATES, budgets, graph_documents, has_room
from campaigns.judge import Verdict, Wrong, judged
from campaigns.truth import ANY_ORDER, DOCUMENT_ORDER, FRONTIER, Instance, least_cost, least_peak
from remat_cli import SolveOptions, solve, solve_smallest
from remat_cli.errors import (
    Infeasible,
    InputError,
    LicenceLimit,
    LimitReached,
    RematError,
    SolverFailed,
    StrategyMismatch,
    UsageError,
)
from remat_cli.graph.document import Document
from remat_cli.graph.io import dump_document, graph_from_document
from remat_cli.plan.io import plan_to_document
from remat_cli.planning.solved import Solved
from remat_cli.strategies.registry import STRATEGIES

TIME_LIMIT_S = 10.0
_SOLVERS = ("highs", "highs", "cbc", "glpk", "gurobi")
_OFTEN = ("auto", "optimal", "checkmate-ilp", "checkmate-lp")
_VARIANTS = (
    "optimal{depth=1}",
    "checkmate-ilp{stage_split=2}",
    "checkmate-lp{formulation=retention}",
    "moccasin{instances=3}",
)
_SCOPES = (ANY_ORDER, DOCUMENT_ORDER, FRONTIER)
_SETTLED = 2.1e-6
"""How far, as a share of its cost, an optimal plan may be from the optimum at any gap: twice the margin of bounds."""
_SAME = 1e-9
"""Costs this close, relatively, are the same cost summed in another order."""

_NO = (
    ("no plan fits", ANY_ORDER),
    ("no schedule in any order fits", ANY_ORDER),
    ("no schedule fits", ANY_ORDER),
    ("no schedule in document order fits", DOCUMENT_ORDER),
    ("no frontier-advancing schedule fits", FRONTIER),
    ("not even the linear relaxation has a solution", FRONTIER),
)
"""How a "no" begins, and the schedules for which it holds. Other words are for the plans of one method alone."""
_EVERY = {"plan": ANY_ORDER, "plan in document order": DOCUMENT_ORDER, "frontier-advancing plan": FRONTIER}
_BYTES = r"(?:[\d.]+ \w+ \((\d+) bytes\)|(\d+) bytes?)"
_WORKS = re.compile(rf"the smallest budget known to work is {_BYTES}")
_NEEDS = re.compile(rf"every ([\w\- ]+) needs at least {_BYTES}")
_BELOW = re.compile(rf"no budget below {_BYTES} can work; {_BYTES} works without recomputation")
_COSTS = re.compile(r"; every ([\w\- ]+) costs at least ([\d.e+\-]+)$")


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    """A graph, a budget, and how to solve."""
    document = graph_documents()
    graph = draw(document.filter(has_room) if draw(st.integers(0, 7)) else document)
    names = [*_OFTEN * 5, *STRATEGIES.names(), *_VARIANTS]
    goal = draw(st.sampled_from(["cost"] * 14 + ["peak", "reorder"]))
    return {
        "graph": graph,
        "budget": draw(budgets(graph)) if goal != "peak" and draw(st.integers(0, 29)) else None,
        "goal": goal,
        "strategy": draw(st.sampled_from(names)),
        "solver": draw(st.sampled_from(_SOLVERS)),
        "gap": draw(st.sampled_from([1e-4, 1e-4, 0.0, 0.1])),
        "twice": draw(st.integers(0, 19)) == 19,
    }


def check(case: dict[str, Any], counts: Counter[str]) -> None:
    """Solve, and compare every claim with the truth; a Failure if a claim is false."""
    try:
        solved = _solved(case)
    except Infeasible as no:
        counts['answers "no"'] += 1
        _check_no(case, no, counts)
    except LimitReached as limit:
        counts["limits reached"] += 1
        if said := _COSTS.search(limit.message):
            _check_bound(case, float(said[2]), _EVERY.get(said[1]), counts)
    except LicenceLimit:
        counts["beyond a licence"] += 1
    except (StrategyMismatch, InputError, UsageError):
        counts["refused"] += 1
    except SolverFailed:
        counts["solver failed (exit 3)"] += 1
    except RematError as error:
        raise Failure(f"{_what(case)}: {type(error).__name__}", error.message) from error
    else:
        counts["plans judged"] += 1
        _check_plan(case, solved, counts)


def _solved(case: dict[str, Any]) -> Solved:
    graph = graph_from_document(Document("case.json", case["graph"]))
    options = SolveOptions(
        strategy=case["strategy"],
        solver=case["solver"],
        gap=case["gap"],
        threads=1,
        time_limit_s=TIME_LIMIT_S,
        reorder=case["goal"] == "reorder",
    )
    try:
        return solve_smallest(graph, options) if case["goal"] == "peak" else solve(graph, case["budget"], options)
    except RematError:
        raise
    except Exception as error:
        raise Failure(f"{_what(case)}: {name_of(error)} at {place_of(error)}", str(error)) from error


def _what(case: dict[str, Any]) -> str:
    """The strategy and, if that takes one, the solver, as failures are told apart."""
    name = case["strategy"].partition("{")[0]
    solver = f"/{case['solver']}" if name.startswith(("checkmate", "optimal", "auto", "lns", "search")) else ""
    return f"{name}{solver}" + (f" for {case['goal']}" if case["goal"] != "cost" else "")


# A plan ----------------------------------------------------------------------------------------------------------


def _check_plan(case: dict[str, Any], solved: Solved, counts: Counter[str]) -> None:
    document = json.loads(dump_document(plan_to_document(solved.plan)))
    what, claim = _what(case), document["claim"]
    try:
        verdict = judged(document, case["graph"])
    except Wrong as wrong:
        raise Failure(f"{what}: invalid plan", str(wrong)) from wrong
    if solved.report.replay.peak_bytes != verdict.peak:
        raise Failure(f"{what}: peak", f"said {solved.report.replay.peak_bytes}, is {verdict.peak}")
    if case["goal"] != "reorder" and not verdict.in_document_order:
        raise Failure(f"{what}: order", f"computes {verdict.computes} without --reorder")
    _check_bound(case, claim["lower_bound"], claim["scope"], counts, document["budget"])
    if claim["status"] == "optimal":
        _check_optimal(case, document, verdict, counts)
    if "peak" in claim and claim["peak"]["scope"] in _SCOPES and _searchable(case):
        counts["claims compared"] += 1
        if claim["peak"]["lower_bound"] > (least := _least_peak(case, claim["peak"]["scope"])):
            raise Failure(f"{what}: false bound on the peak", f"said {claim['peak']['lower_bound']}, least is {least}")
    if case["twice"] and document["run"]["outcome"] == "finished":
        counts["solved twice"] += 1
        again = json.loads(dump_document(plan_to_document(_solved(case).plan)))
        if again["run"]["outcome"] == "finished" and {**again, "run": 0} != {**document, "run": 0}:
            raise Failure(f"{what}: other bytes for the same request", "")


def _check_optimal(case: dict[str, Any], document: dict[str, Any], verdict: Verdict, counts: Counter[str]) -> None:
    scope = document["claim"]["scope"]
    if scope not in _SCOPES or not _searchable(case) or document["budget"] is None:
        return
    counts["optimal confirmed"] += 1
    least = _least_cost(case, document["budget"], scope)
    if least is None and "stage_split" in case["strategy"]:
        return  # split stages have more schedules than the class that the claim is about, and no schedule of that fits
    within = max(_SETTLED, min(case["gap"], 1e-4))
    if least is None or verdict.cost * (1 - within) > least * (1 + _SAME):
        raise Failure(f"{_what(case)}: false optimal", f"cost {verdict.cost!r}, least is {least!r} ({scope})")


def _check_bound(
    case: dict[str, Any], bound: float, scope: str | None, counts: Counter[str], budget: int | None = None
) -> None:
    """No schedule of the scope may be cheaper than the bound."""
    budget = case["budget"] if budget is None else budget
    if scope not in _SCOPES or not _searchable(case) or bound == 0 or budget is None:
        return
    counts["claims compared"] += 1
    least = _least_cost(case, budget, scope)
    if least is not None and bound > least * (1 + _SAME):
        raise Failure(f"{_what(case)}: false bound", f"said {bound!r}, least is {least!r} ({scope})")


# A "no" ----------------------------------------------------------------------------------------------------------


def _check_no(case: dict[str, Any], no: Infeasible, counts: Counter[str]) -> None:
    if not _searchable(case):
        return
    what, said = _what(case), f"{no.message}\n{no.hint}"
    scope = next((scope for words, scope in _NO if no.message.startswith(words)), None)
    if case["budget"] is None:  # a method that ignores the budget does not reach the least peak either
        if case["goal"] == "cost" or scope is not None:
            raise Failure(f"{what}: no without a budget", said)
        return
    if scope is not None:
        counts['"no" confirmed'] += 1
        if (least := _least_cost(case, case["budget"], scope)) is not None:
            raise Failure(f"{what}: false no", f"{said}\na schedule of cost {least!r} fits ({scope})")
    widest = ANY_ORDER if case["goal"] == "reorder" else DOCUMENT_ORDER
    if works := _WORKS.search(said):
        counts["hints compared"] += 1
        budget = _number(works[1], works[2])
        if _least_peak(case, widest) > budget:
            raise Failure(f"{what}: hint that does not work", f"{said}\nleast peak {_least_peak(case, widest)}")
        if scope is not None and budget <= case["budget"]:
            raise Failure(f"{what}: hint contradicts the answer", said)
    if (
        (needs := _NEEDS.search(said))
        and needs[1] in _EVERY
        and _number(needs[2], needs[3]) > _least_peak(case, _EVERY[needs[1]])
    ):
        raise Failure(f"{what}: hint needs too much", f"{said}\nleast peak {_least_peak(case, _EVERY[needs[1]])}")
    if below := _BELOW.search(said):
        counts["hints compared"] += 1
        low, works_bytes = _number(below[1], below[2]), _number(below[3], below[4])
        if low > _least_peak(case, ANY_ORDER) or works_bytes < _least_peak(case, DOCUMENT_ORDER):
            raise Failure(f"{what}: hint that does not hold", said)


def _number(in_brackets: str | None, plain: str | None) -> int:
    return int(in_brackets or plain or 0)


def _searchable(case: dict[str, Any]) -> bool:
    return Instance.of(case["graph"]).states <= MOST_STATES


def _least_cost(case: dict[str, Any], budget: int, scope: str) -> float | None:
    return least_cost(Instance.of(case["graph"]), budget, scope)


def _least_peak(case: dict[str, Any], scope: str) -> int:
    return least_peak(Instance.of(case["graph"]), scope)
