"""Every tolerance that a claim depends on, from a solver's feasibility to the bound in a plan.

The chain:

1. A solver may violate a row, a bound or integrality by :data:`FEASIBILITY`; CBC and GLPK by their own tolerances,
   1e-7 to 1e-5. No plan depends on that: a schedule is read from the rounded values and replayed in whole bytes, and
   its cost is recomputed. A schedule that exceeds the budget through a violation is cut off, and the model is solved
   anew. A larger violation than :data:`GROSS_VIOLATION` is a failure of the solver. Sizes are stated so that no
   coefficient is small enough to be dropped (``milp/memory_scale``).
2. A violation can only lower the optimum, and a bound on a lower optimum is still a bound. The tests that end the
   search can raise a bound: a solver takes reduced costs down to -1e-7 for zero, and stops at :data:`ABSOLUTE_GAP`.
   Both are absolute, so the objective is scaled until a typical cost is 1 (``solvers/checked``). For the rest a bound
   is lowered by :data:`BOUND_MARGIN`, a share of C0, before anything is claimed.
3. Then, and only then, a bound on costs that are whole numbers is rounded up to the next multiple of their gcd. So a
   margin of less than one such step costs nothing where the solver's bound is exact.
4. Bounds that remat computes itself are lowered by the rounding of their own sums: :data:`ROUNDING` for a product or
   a few terms, :data:`CHAIN_ROUNDING` for prefix sums, :data:`SUM_ROUNDING` for sums over a whole graph.
5. Rows that exclude schedules above the cost of the incumbent are relaxed by :data:`CUTOFF_MARGIN`, far more than
   :data:`FEASIBILITY` and far less than :data:`BOUND_MARGIN`. Without it a solver could find the incumbent itself
   infeasible, and a wrong "infeasible" would become a bound.
6. Two costs within :data:`SAME_COST` are one cost summed in two orders: a bound above a cost by no more than that
   does not contradict it.
7. The difference between cost and bound is the gap; it is compared with :data:`GAP`. Solvers get :data:`INNER_GAP`,
   which is far smaller, so that their own gap does not keep a plan from being proven. A gap of at most :data:`SETTLED`
   counts as closed even if a smaller one was asked for: by links 2 and 3 nothing can be proven below it, unless costs
   are whole numbers whose gcd is larger. The claim states what is left of it.

Sizes, shares and seconds that steer a search are no tolerances; they stand beside the code that they steer, and so do
the constants of compiled kernels.
"""

FEASIBILITY = 1e-8
"""By how much HiGHS and Gurobi may violate a row, a bound or integrality by default (link 1).

Their own 1e-6 is 16 kB of a budget of 16 GB, which would take a round of cuts each time. With 1e-9 HiGHS 1.16.0 cuts
off optima: of a model of `checkmate/ResNet50` with 19 cuts it calls 30.73% over no-remat the optimum, where 27.66% is a
solution without any violation. One of four seeds does so, and none of six with 1e-8, 1e-7 and 1e-6."""
FEASIBILITY_LEAST, GUROBI_LEAST = 1e-10, 1e-9
"""The smallest values that HiGHS and Gurobi accept for it."""
INTEGRAL_WITHIN = 1e-5
"""An integer column this close to a whole number is that number (link 1); GLPK allows as much."""
GROSS_VIOLATION = 1e-4
"""Beyond this, in units of the largest coefficient (at least 1), an answer is no solution of the model (link 1)."""
START_VIOLATION = 1e-6
"""A start may violate a model by this much (link 1); the rounding of sums of scaled sizes is far less."""

NEGLIGIBLE_COST = 1e-30
"""Costs below this share of the largest are 0 to a solver (link 2): CBC cannot read denormal numbers, and no sum of
floats would show them."""
LEAST_SCALED = 1e-280
"""A largest cost below this is not scaled (link 2): its reciprocal would overflow."""
ABSOLUTE_GAP = 1e-6
"""A solver stops this close to its bound, on an objective whose typical cost is 1 (link 2)."""
CBC_INCREMENT = 1e-7
"""CBC accepts a new incumbent only if it is better by this much, on the same scale (link 2)."""
BOUND_MARGIN = 1e-6
"""By how much a solver's bound may be too high (link 2): a share of C0, or of the peak if that is minimised."""
SETTLED = 1.05e-6
"""A schedule this close to a bound meets it within a solver's tolerance: a little above :data:`BOUND_MARGIN`, so that
the bound of a schedule that attains the solver's optimum counts as met (link 2)."""
CLEARLY_ABOVE = 1e-6
"""A bound this much above a limit, relatively, counts as above it (link 2)."""
NOTHING_LEFT = 2e-6
"""A schedule this close to a bound is not searched further: at twice :data:`BOUND_MARGIN` nothing can be proven."""
CBC_GAP_DIGITS = 1e-5
"""Relative error of a gap as CBC prints it, with about six digits (link 2)."""
CBC_BOUND_DIGITS = 1e-7
"""Relative error of a bound as CBC prints it (link 2)."""
GLPK_BOUND_DIGITS = 1e-9
"""Relative error of a bound as GLPK prints it, with ten digits (link 2)."""

ROUNDING = 1e-12
"""Relative error of a product, or of a few operations on floats (link 4)."""
CHAIN_ROUNDING = 1e-11
"""Relative error of differences of prefix sums along a chain (link 4).

Below :data:`SAME_COST`, so that a bound that was lowered by it still meets the schedule that attains it (link 6)."""
SUM_ROUNDING = 1e-9
"""Relative error of a sum over a whole graph, in any order (link 4)."""

CUTOFF_MARGIN = 1e-7
"""Share of C0 by which the row that cuts off more expensive schedules is relaxed (link 5)."""

SAME_COST = 1e-9
"""Costs this close, relatively, are the same cost summed in another order (link 6)."""
SAME_GAP = 1e-6
"""The gap that a plan states may differ by this much from the one that follows from its cost and bound."""
SAME_OBJECTIVE = 1e-6
"""The answer to the problem that tests a solver may differ from the optimum, 1.5, by this much, and the objective that
a solver claims from that of its own values, relatively."""

GAP = 1e-4
"""The default relative gap; a plan with at most the requested gap is called optimal."""
INNER_GAP = 1e-6
"""The gap for solvers where rows are still to be added, or where the bound itself is the result (link 7)."""
CUTS_GAP = 1e-5
"""The gap for models of a few bottleneck stages, which are solved many times, each time for a better bound (link 7)."""
