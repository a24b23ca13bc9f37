"""Published methods that take milliseconds; they give the first plans of every search."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from remat_cli.control import Control
from remat_cli.errors import Interrupted, LimitReached, StrategyMismatch
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Context, Found, NotFound, Task
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.registry import strategy_from_spec

QUICK_METHODS = ("dtr", "twremat", "xla-greedy{cost_aware=true}")
"""Published methods that take any graph, and whose plans are the cheapest of those (``anytime``); the fastest first."""
OPENING_METHODS = (*QUICK_METHODS, "ap-greedy", "linearized-greedy", "xla-greedy", "min-cut")
"""All methods with which searches begin, for searches over budgets."""


@dataclass(slots=True)
class PublishedMethods(Engine):
    """Runs strategies one after the other and takes every schedule that they publish.

    Attributes:
        asked: Methods that were not stopped: they would say the same again.
    """

    asked: set[str] = field(default_factory=set)

    def work(self, methods: tuple[str, ...], *, last_word: bool = False) -> bool:
        """Run each of ``methods`` that accepts the graph.

        Args:
            methods: Strategies with options, such as ``xla-greedy{cost_aware=true}``.
            last_word: Whether a refusal of theirs is the answer of the whole search if no schedule is found.
        """
        incumbent = self.incumbent
        for spec in methods:
            if incumbent.over():
                break
            if spec in self.asked:
                continue
            incumbent.report(f"running {spec}")
            answer = self._asked(spec, incumbent.context.control)
            if not incumbent.context.control.stopping():
                self.asked.add(spec)
            if isinstance(answer, Found):
                self._take(answer, spec)
            elif answer is not None:
                if answer.best is not None:
                    incumbent.offer(answer.best.computes, spec)
                if last_word and answer.scope is not None:
                    incumbent.refusal = answer
        return False

    def _asked(self, spec: str, clock: Control) -> Found | NotFound | None:
        """The answer of a strategy; None if it does not accept the graph, or was stopped."""
        incumbent = self.incumbent
        context: Context = replace(
            incumbent.context, control=clock, publish=lambda found: self._take(found, spec), trace=[]
        )
        try:
            return strategy_from_spec(spec).solve(Task(incumbent.graph, incumbent.budget_bytes), context)
        except (StrategyMismatch, LimitReached, Interrupted):
            return None

    def _take(self, found: Found, spec: str) -> None:
        """Take a schedule, and those of its bounds whose scope covers this search."""
        wide = tuple(bound for bound in found.bounds if bound.scope.contains(Scope.DOCUMENT_ORDER))
        self.incumbent.take(replace(found, bounds=wide, maker=found.maker or spec))
