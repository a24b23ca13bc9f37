"""Checks plans, compares two, and explains what one does with a node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from remat_cli.api.documents import Source, as_graph, as_plan
from remat_cli.errors import UsageError, wrong_type
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan import check as judging
from remat_cli.plan import explanation
from remat_cli.plan.check import Report
from remat_cli.plan.difference import Difference, compare_plans
from remat_cli.plan.explanation import Explanation
from remat_cli.plan.model import Plan
from remat_cli.tracebacks import door
from remat_cli.units import Budget, as_budget

if TYPE_CHECKING:
    from remat_cli.planning.solved import Solved


@door
def check(
    plan: Plan | Solved | Source,
    budget: Budget | str | float | None = None,
    *,
    graph: Graph | Source | None = None,
) -> Report:
    """Replay ``plan`` and say whether it is valid, what it costs, and whether it fits.

    >>> import remat_cli as remat
    >>> plan = remat.solve(remat.build_graph("unit-chain{n=17}"), "60%").plan
    >>> remat.check(plan).ok
    True
    >>> smaller = remat.check(plan, budget="5B")
    >>> smaller.valid, smaller.within_budget
    (True, False)
    >>> [finding.message for finding in smaller.findings]
    ['statement 22: peak memory 6 B is 1 B over the budget of 5 B (6 bytes, budget 5)']

    Args:
        plan: The plan: an object, the result of :func:`solve`, a path, or the data of a document.
        budget: ``"16GB"``, ``"80%"`` (of the no-remat peak) or bytes, fixed memory included; None for the budget that
            the plan was made for.
        graph: The graph that the plan has to be for; None for any.

    Returns:
        The report. An invalid plan is a finding in it, never an exception.

    Raises:
        UsageError: If the budget is invalid.
        InputError: If a document is invalid.
    """
    asked = None if budget is None else as_budget(budget)
    judged = as_plan(plan)
    if asked is None:
        report = judging.check(judged)
    else:
        budget_bytes = asked.bytes_for(no_remat_peak(judged.graph))
        report = judging.check(judged, budget_bytes=budget_bytes, budget_text=asked.text)
    if graph is None:
        return report
    findings = judging.other_graph(judged.graph, as_graph(graph))
    return replace(report, findings=(*findings, *report.findings))


@door
def diff(old: Plan | Solved | Source, new: Plan | Solved | Source) -> Difference:
    """What changed from the plan ``old`` to the plan ``new``: peak, cost, recomputed nodes. Both are replayed.

    >>> import remat_cli as remat
    >>> chain = remat.build_graph("unit-chain{n=17}")
    >>> changed = remat.diff(remat.solve(chain, "60%"), remat.solve(chain, "80%"))
    >>> f"{changed.peak_increase:.0%} {changed.cost_increase:.1%}", len(changed.removed)
    ('33% -9.5%', 2)

    Args:
        old: A plan, as :func:`check` takes it.
        new: Another. Nodes of different graphs correspond if they have the same id.

    Raises:
        InputError, UsageError: If one of them is not a plan.
    """
    return compare_plans(judging.check(as_plan(old, "old")), judging.check(as_plan(new, "new")))


@door
def explain(plan: Plan | Solved | Source, node: str) -> Explanation:
    """What ``plan`` does with ``node``: when it is computed, read and dropped, and what the alternatives would cost.

    >>> import remat_cli as remat
    >>> solved = remat.solve(remat.build_graph("unit-chain{n=17}"), "60%")
    >>> explained = remat.explain(solved, "n1")
    >>> len(explained.computed), [change.peak_bytes for change in explained.keep]
    (2, [7])

    Args:
        plan: A plan, as :func:`check` takes it.
        node: Id of a node (``relu1``), or of one of its values (``relu1:0``).

    Raises:
        UsageError: If there is no such node.
        InputError: If the document is not a plan.
    """
    from remat_cli.reports.explanation import no_such_node  # a check loads no reports

    explained = as_plan(plan)
    graph = explained.graph
    if not isinstance(node, str):
        raise wrong_type("node", node, "the id of a node")
    places = {item.id: i for i, item in enumerate(graph.nodes)}
    values = {graph.value_name(v): producer for v, producer in enumerate(graph.producer)}
    found = places.get(node, values.get(node))
    if found is None:
        message, hint = no_such_node(node, graph)
        raise UsageError(message, hint=hint)
    return explanation.explain(explained, judging.check(explained), found)
