"""A start changes how long a solver takes, and nothing about its answer."""

from dataclasses import replace

import pytest
from solver_problems import installed

import remat_cli as remat
from remat_cli.control import Control
from remat_cli.solvers.base import Outcome, Request, Termination
from remat_cli.solvers.highs import Highs

CHAINS = (("unit-chain{n=9}", "5B"), ("unit-chain{n=9}", "6B"), ("unit-chain{n=17}", "8B"), ("linear{n=8}", "70%"))
"""Models come of these of which highspy 1.16.0 calls the start optimal, with an objective that it does not have."""


@pytest.fixture(scope="module")
def started() -> list[Request]:
    """The requests with a start that searches on chains make."""
    found: list[Request] = []
    solve = Highs.solve

    def remember(self: Highs, request: Request) -> Outcome:
        if request.start is not None:
            found.append(replace(request, control=Control(), on_progress=None))
        return solve(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Highs, "solve", remember)
        for name, budget in CHAINS:
            solved = remat.solve(remat.build_graph(name), budget, remat.SolveOptions(strategy="checkmate-ilp"))
            assert solved.plan.claim.status.value == "optimal"
    assert len(found) >= len(CHAINS)
    return found


@pytest.mark.parametrize("spec", ["highs", "highs{presolve=off}", "cbc", "gurobi"])
def test_a_start_changes_no_optimum_and_no_bound(started: list[Request], spec: str) -> None:
    solver = installed(spec)
    for request in started:
        with_start, without = (solver.solve(replace(request, start=start)) for start in (request.start, None))
        assert with_start.termination is without.termination is Termination.OPTIMAL
        assert with_start.objective == pytest.approx(without.objective, rel=2 * request.gap)
        assert with_start.bound == pytest.approx(without.bound, rel=2 * request.gap)
