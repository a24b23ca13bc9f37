"""Save named values and recompute the others once, as jax.checkpoint's policies and torch's partitioner do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from remat_cli.errors import LimitReached, UsageError
from remat_cli.graph.tools import Tagged
from remat_cli.milp.saved_choice import SavedChoice, Step
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.model import Scope
from remat_cli.registry import suggestion
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound, Context, Found, Needs, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.published.min_cut import cheapest_cut, cost_limits
from remat_cli.tolerances import SAME_COST

AnyStep = TypeVar("AnyStep")
_MOST = 12
"""Steps that get a row at a time: the highest of as many stretches of steps. Untuned."""


def highest_steps(steps: Sequence[AnyStep], levels: Sequence[int], budget: int) -> set[AnyStep]:
    """Steps above the budget: the highest of each stretch of them, and of those the highest.

    Args:
        steps: The steps.
        levels: Bytes in use during each.
        budget: Bytes.
    """
    tops: list[tuple[int, int]] = []
    inside = False
    for k, level in enumerate(levels):
        if level <= budget:
            inside = False
        elif not inside:
            tops.append((level, k))
            inside = True
        elif level > tops[-1][0]:
            tops[-1] = level, k
    return {steps[k] for _, k in sorted(tops, reverse=True)[:_MOST]}


BEST = "best"
_COARSE = 0.01
"""Gap of the first models, which only show where choices exceed the budget; finer whenever one does not. Untuned."""
_NONE = "none"
_PLAIN = re.compile(r"[\w./+-]+")
"""Names that can stand in the text form of a strategy."""


@dataclass(frozen=True, slots=True)
class SaveOnly(Strategy):
    """The set of names to save that fits the budget with the cheapest recomputation.

    A MILP over the names, whose rows for memory are added where a choice exceeds the budget. The bound holds for all
    sets of names.

    Attributes:
        saved: Names of the values to save, joined by +; ``none`` saves nothing, ``best`` chooses the cheapest set.
    """

    saved: str = field(default=BEST, metadata={"help": "names of values to save, joined by +; best: the cheapest set"})

    name: ClassVar[str] = "save-only"
    summary: ClassVar[str] = "save a set of named values, recompute the others once, as jax.checkpoint's policies do"
    reference: ClassVar[str] = "JAX, jax.checkpoint_policies.save_only_these_names"
    needs: ClassVar[Needs] = Needs.PHASES
    uses_solver: ClassVar[bool] = True

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Choose, look where that exceeds the budget, and choose again.

        Raises:
            StrategyMismatch: If the graph's values have no names, or a node has no phase.
            LimitReached, Interrupted: If it has to stop and has no schedule.
        """
        choice = SavedChoice(Tagged.of(task.graph, self.name))
        if self.saved != BEST:
            return self._given(choice, task)
        budget = sum(task.graph.size) + task.graph.fixed_memory if task.budget_bytes is None else task.budget_bytes
        best = _Best(choice, budget, context)
        for chosen in openings(choice):
            best.offer(chosen)
        bound = task.graph.total_cost
        gap = max(context.gap, _COARSE)
        while True:
            context.control.check()
            solved = context.solver.solve(context.request(choice.model(budget), context.control, gap=gap))
            if solved.termination is Termination.INFEASIBLE:
                return self._nothing_fits(best)
            if solved.bound is not None:
                bound = max(bound, solved.bound)
            best.bound = bound
            if solved.values is None:
                return best.answer()
            chosen = frozenset(name for name in range(len(choice.tagged.groups)) if solved.values[name] > 0.5)
            over = best.offer(chosen)
            if best.proven() or (not over and gap <= context.gap) or solved.termination is not Termination.OPTIMAL:
                return best.answer()
            if not over:
                gap = max(context.gap, gap / 10)
            if over and choice.rows.issuperset(over):
                choice.refused.append(chosen)
            choice.rows.update(over)

    def _given(self, choice: SavedChoice, task: Task) -> Found | NotFound:
        """The answer if the names are given."""
        computes, _ = choice.schedule(numbers_of(choice.tagged, self.saved))
        if task.budget_bytes is not None and max(heights(task.graph, computes)) > task.budget_bytes:
            reason = "saving these values does not fit"
            return NotFound(reason, scope=Scope.RESTRICTED, best=Schedule(tuple(computes)))
        return Found(Schedule(tuple(computes)), (Bound(cost_of(task.graph, computes), Scope.RESTRICTED),))

    def _nothing_fits(self, best: _Best) -> NotFound:
        return NotFound(
            "no set of values to save fits",
            scope=Scope.RESTRICTED,
            best=None if best.lowest is None else Schedule(best.lowest[1]),
            hint="other strategies, such as auto, recompute more than once",
        )


@dataclass(slots=True)
class _Best:
    """The cheapest choice so far within the budget.

    Attributes:
        choice, budget, context: What it is for.
        bound: Proven for all choices.
        found: Its cost and its schedule.
        lowest: The lowest peak of any choice so far, and its schedule.
    """

    choice: SavedChoice
    budget: int
    context: Context
    bound: float = 0.0
    found: tuple[float, tuple[int, ...]] | None = None
    lowest: tuple[int, tuple[int, ...]] | None = None

    def offer(self, chosen: frozenset[int]) -> set[Step]:
        """Take a choice if it is better; returns steps above the budget."""
        graph = self.choice.tagged.training.graph
        computes, steps = self.choice.schedule(chosen)
        levels = heights(graph, computes)
        if self.lowest is None or max(levels) < self.lowest[0]:
            self.lowest = max(levels), tuple(computes)
        over = highest_steps(steps, levels, self.budget)
        cost = cost_of(graph, computes)
        if not over and (self.found is None or cost < self.found[0]):
            self.found = cost, tuple(computes)
            self.context.publish(self.answer())
        return over

    def proven(self) -> bool:
        """Whether no choice is cheaper."""
        return self.found is not None and self.found[0] <= self.bound * (1 + max(SAME_COST, self.context.gap))

    def answer(self) -> Found:
        """The choice with its bound.

        Raises:
            LimitReached: If there is none.
        """
        if self.found is None:
            raise LimitReached("the search for values to save was stopped before it found a set that fits")
        _, computes = self.found
        saved = "+".join(needed(self.choice.tagged, computes)) or _NONE
        maker = f"{SaveOnly.name}{{saved={saved}}}" if _PLAIN.fullmatch(saved) else ""
        bounds = (Bound(self.bound, Scope.RESTRICTED),) if self.bound else ()
        return Found(Schedule(computes), bounds, used_solver=True, maker=maker)


def openings(choice: SavedChoice) -> Iterator[frozenset[int]]:
    """Choices to begin with: all names, and those of the values of minimum cuts for many limits on cost."""
    yield frozenset(range(len(choice.tagged.groups)))
    tried: set[frozenset[int]] = set()
    for limit in cost_limits(choice.tagged.training):
        cut = cheapest_cut(choice.tagged.training, limit)
        makers = {choice.tagged.training.graph.producer[value] for value in cut}
        chosen = frozenset(choice.tagged.group[node] for node in makers if choice.tagged.group[node] >= 0)
        if chosen not in tried:
            tried.add(chosen)
            yield chosen


def needed(tagged: Tagged, computes: Sequence[int]) -> list[str]:
    """The names of the saved values that the backward pass of a schedule reads, in the order in which they are made."""
    training = tagged.training
    read: set[int] = set()
    again: set[int] = set()
    for node in computes[training.sweep :]:
        read.update(v for v in training.graph.nodes[node].inputs if training.graph.producer[v] not in again)
        again.add(node)
    saved = [value for value in sorted(read) if tagged.free(training.graph.producer[value])]
    return list(dict.fromkeys(name for value in saved if (name := tagged.names[value]) is not None))


def numbers_of(tagged: Tagged, text: str) -> frozenset[int]:
    """The groups of the names in ``text``, which are joined by +.

    Raises:
        UsageError: If there is no such name.
    """
    groups = {name: number for number, group in enumerate(tagged.groups) for name in group}
    wanted = [] if text == _NONE else text.split("+")
    for name in wanted:
        if name not in groups:
            raise UsageError(f'there is no value named "{name}" to save', hint=suggestion(name, list(groups)))
    return frozenset(groups[name] for name in wanted)
