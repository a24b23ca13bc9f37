"""Checks a plan, against a budget as people write it."""

from __future__ import annotations

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan import check as judging
from remat_cli.plan.check import Report
from remat_cli.plan.model import Plan
from remat_cli.units import Budget, parse_budget


def check(plan: Plan, budget: Budget | str | int | None = None) -> Report:
    """Replay ``plan`` and say whether it is valid, what it costs, and whether it fits.

    >>> import remat_cli as remat
    >>> plan = remat.solve(remat.build_graph("unit-chain{n=17}"), "60%").plan
    >>> remat.check(plan).ok
    True
    >>> smaller = remat.check(plan, budget="5B")
    >>> smaller.valid, smaller.within_budget
    (True, False)
    >>> [finding.message for finding in smaller.findings]
    ['statement ...: peak memory 6 bytes is 1 over the budget 5']

    Args:
        plan: The plan.
        budget: ``"16GB"``, ``"80%"`` (of the no-remat peak) or bytes, fixed memory included; None for the budget that
            the plan was made for.

    Returns:
        The report. An invalid plan is a finding in it, never an exception.

    Raises:
        UsageError: If the budget is invalid.
    """
    if budget is None:
        return judging.check(plan)
    asked = budget if isinstance(budget, Budget) else parse_budget(str(budget))
    return judging.check(plan, budget_bytes=asked.bytes_for(no_remat_peak(plan.graph)), budget_text=asked.text)
