"""The best plan that another tool's own recomputation can express, and how to say it to that tool."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.control import Progress
from remat_cli.errors import LimitReached, UsageError
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.planning.job import Solved
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve
from remat_cli.spec import split_spec
from remat_cli.strategies.base import Task
from remat_cli.strategies.tools.whole_modules import chosen_from, layers_of
from remat_cli.units import Budget

_CLASS_SHARE = 0.5
"""Share of the time limit for the best plan of the tool; the rest is for the best of all plans. Untuned."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that recomputes.

    Attributes:
        name: ``torch-checkpoint``.
        title: What it is.
        strategy: The strategy whose plans it can carry out.
        snippet: From the strategy's options to the lines that say so to the tool.
    """

    name: str
    title: str
    strategy: str
    snippet: Callable[[dict[str, str]], str]


@dataclass(frozen=True, slots=True)
class Policy:
    """The best plan of a tool.

    Attributes:
        tool: Name of the tool.
        graph: The graph.
        solved: The plan, replayed; its bound holds for all plans of the tool's class.
        settings: What is recomputed: names of modules, or the distance of layers.
        candidates: Number of modules, or of layers, to choose from.
        snippet: Lines to paste.
        best: The best of all plans, with its bound; None if none was found in time.
    """

    tool: str
    graph: Graph
    solved: Solved
    settings: tuple[str, ...]
    candidates: int
    snippet: str
    best: Solved | None

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "tool": self.tool,
            "graph": self.graph.name,
            "budget": self.solved.plan.budget_bytes,
            "strategy": self.solved.plan.strategy,
            "settings": list(self.settings),
            "candidates": self.candidates,
            "peak_memory": self.solved.report.replay.peak_bytes,
            "cost": self.solved.plan.claim.cost,
            "no_remat_cost": self.graph.total_cost,
            "lower_bound": self.solved.plan.claim.lower_bound,
            "best": None if self.best is None else _claim(self.best.plan),
            "snippet": self.snippet,
        }


def _claim(plan: Plan) -> dict[str, Any]:
    claim = plan.claim
    return {"cost": claim.cost, "lower_bound": claim.lower_bound, "scope": claim.scope.value, "strategy": plan.strategy}


def _torch_checkpoint(options: dict[str, str]) -> str:
    names = json.dumps(_names(options))
    return f"""\
from functools import partial
from torch.utils.checkpoint import checkpoint

for name in {names}:
    part = model.get_submodule(name)
    part.forward = partial(checkpoint, part.forward, use_reentrant=False)
"""


def _hf_every_n(options: dict[str, str]) -> str:
    return f"""\
TrainingArguments(
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={{"use_reentrant": False, "every_n_layers": {options["n"]}}},
)
"""


def _names(options: dict[str, str]) -> list[str]:
    return options["modules"].split("+") if "modules" in options else []


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("torch-checkpoint", "torch.utils.checkpoint around modules", "module-checkpoint", _torch_checkpoint),
        Tool("hf-every-n", "Transformers' every_n_layers", "every-n-layers", _hf_every_n),
    )
}
"""The tools by name."""


def policy(
    graph: Graph,
    budget: Budget | str | float,
    to: str,
    options: SolveOptions | None = None,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> Policy:
    """The best plan of the tool ``to`` within ``budget``, and the best of all plans beside it.

    Args:
        graph: The graph.
        budget: As :func:`solve` takes it.
        to: The tool: a key of :data:`TOOLS`.
        options: How to solve; the strategy is that of the tool, and the time limit is for both searches.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If no plan of the tool fits.
        LimitReached, Interrupted: If the search has to stop before it has found one.
        UsageError: If there is no such tool, or an option is for another strategy.
        StrategyMismatch: If the graph does not say which modules it has.
        SolverUnavailable, SolverFailed: From the solver.
    """
    if to not in TOOLS:
        raise UsageError(f'there is no tool "{to}"', hint=f"choose {', '.join(TOOLS)}")
    tool, asked = TOOLS[to], options or SolveOptions()
    if asked.strategy not in {"auto", tool.strategy}:
        raise UsageError(f"plans for {to} are those of {tool.strategy}", hint="leave the strategy out")
    began_s = time.monotonic() if asked.started_s is None else asked.started_s
    limit_s = asked.time_limit_s
    first = replace(asked, strategy=tool.strategy, started_s=began_s)
    if limit_s is not None:
        first = replace(first, time_limit_s=_CLASS_SHARE * limit_s)
    solved = solve(graph, budget, first, listener=listener)
    try:
        best: Solved | None = solve(
            graph, budget, replace(asked, strategy="auto", started_s=began_s, start=solved.plan), listener=listener
        )
    except LimitReached:
        best = None
    _, given = split_spec(solved.plan.strategy)
    choice = chosen_from(Task(graph, None), tool.strategy)
    settings = (given["n"],) if "n" in given else tuple(_names(given))
    candidates = len(layers_of(choice.modules)) if "n" in given else len(choice.modules)
    return Policy(to, graph, solved, settings, candidates, tool.snippet(given), best)
