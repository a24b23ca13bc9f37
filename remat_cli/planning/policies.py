"""The best plan that another tool's own recomputation can express, and how to say it to that tool."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.control import Progress
from remat_cli.errors import Infeasible, LimitReached, StrategyMismatch, UsageError, Worded
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.graph.tools import Tagged
from remat_cli.plan.liveness import priced
from remat_cli.plan.model import Compute, Plan
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.policy_chosen import Chosen
from remat_cli.planning.policy_tools import TOOLS, Tool
from remat_cli.planning.solved import Solved
from remat_cli.planning.solving import solve
from remat_cli.planning.warm_start import WarmStart
from remat_cli.reports.words import exact_bytes, percent_over
from remat_cli.strategies.base import Found, Schedule, Task
from remat_cli.strategies.policies.layer_settings import settings_for
from remat_cli.strategies.policies.saved_values import SaveOnly
from remat_cli.strategies.policies.whole_modules import EveryNLayers, chosen_from, layers_of
from remat_cli.units import Budget, as_budget

_CLASS_SHARE, _OTHERS_SHARE = 0.4, 0.2
"""Shares of the time limit for the best plan of the tool, and for those of the framework's other tools. The rest is for
the best of all plans. Untuned."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The best plan of a tool.

    Attributes:
        tool: Name of the tool.
        graph: The graph.
        solved: The plan, replayed as the tool holds memory; its bound holds for all plans of the tool's class.
        settings: What is recomputed: names of modules, the distance of layers, or the kind of a setting and its names.
        candidates: Number of modules, of layers, or of settings, to choose from.
        snippet: Lines to paste.
        others: What other tools of the framework can do, those that can within the budget.
        best: The best of all plans, with its bound; None if none was found in time.
    """

    tool: str
    graph: Graph
    solved: Solved
    settings: tuple[str, ...]
    candidates: int
    snippet: str
    others: tuple[tuple[str, Plan], ...]
    best: Solved | None

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        best = None
        if self.best is not None:
            plan, claim = self.best.plan, self.best.plan.claim
            best = {"cost": claim.cost, "lower_bound": claim.lower_bound, "scope": claim.scope.value}
            best["strategy"] = plan.strategy
        return {
            "schema": "remat-policy/1",
            "tool": self.tool,
            "unit": TOOLS[self.tool].unit,
            "graph": self.graph.name,
            "budget": self.solved.plan.budget_bytes,
            "strategy": self.solved.plan.strategy,
            "settings": list(self.settings),
            "candidates": self.candidates,
            "peak_memory": self.solved.report.replay.peak_bytes if TOOLS[self.tool].orders else None,
            "note": TOOLS[self.tool].note,
            "cost": self.solved.plan.claim.cost,
            "no_remat_cost": self.graph.no_remat_cost,
            "lower_bound": self.solved.plan.claim.lower_bound,
            "others": [
                {"tool": name, "cost": plan.claim.cost, "lower_bound": plan.claim.lower_bound}
                for name, plan in self.others
            ],
            "best": best,
            "snippet": self.snippet,
        }


def policy(
    graph: Graph,
    budget: Budget | str | float,
    to: str,
    options: SolveOptions | None = None,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> Policy:
    """The best plan of the tool ``to`` within ``budget``, and the best of all plans; see :func:`remat_cli.policy`."""
    if to not in TOOLS:
        raise UsageError(f'there is no tool "{to}"', hint=f"choose {', '.join(TOOLS)}")
    tool, asked = TOOLS[to], replace(options or SolveOptions(), split=False)  # no tool runs operations in parts
    _require(graph, tool)
    if asked.strategy not in {"auto", tool.strategy}:
        raise UsageError(f"plans for {to} are those of {tool.strategy}", hint="leave the strategy out")
    limit = as_budget(budget).bytes_for(no_remat_peak(graph))
    began_s = time.monotonic() if asked.started_s is None else asked.started_s
    limit_s = asked.time_limit_s
    first = replace(asked, strategy=tool.strategy, started_s=began_s)
    if limit_s is not None:
        first = replace(first, time_limit_s=_CLASS_SHARE * limit_s)
    solved = solve(tool.memory(graph), limit, first, listener=listener)
    others = _others(graph, limit, tool, asked, listener)
    anything = replace(asked, strategy="auto", started_s=began_s)
    # The search for the best of all starts from the tool's plan, whose graph may hold more than ``graph`` does.
    schedule = priced(graph, [s.node for s in solved.plan.statements if isinstance(s, Compute)])
    found = Found(Schedule(schedule.computes), exhausted=False, maker=solved.plan.strategy)
    near = (WarmStart(found, schedule.cost, schedule.peak_bytes),)
    try:
        best: Solved | None = solve(graph, limit, anything, listener=listener, near=near)
    except LimitReached:
        best = None
    chosen = Chosen.of(graph, solved.plan, _facts(graph, solved, best))
    return Policy(to, graph, solved, chosen.settings, _candidates(graph, tool), tool.snippet(chosen), others, best)


def _others(
    graph: Graph,
    limit: int,
    tool: Tool,
    asked: SolveOptions,
    listener: Callable[[Progress], None] | None,
) -> tuple[tuple[str, Plan], ...]:
    """The best plans of other tools of the graph's framework, as far as they are found in time."""
    rivals = [other for other in TOOLS.values() if other is not tool and other.frontend == _frontend(graph) is not None]
    rivals = [other for other in rivals if other.unit != "settings"]  # asked for by those who ride that tool
    rivals = [other for other in rivals if other.needs is None or graph.metadata.get(other.needs)]
    limit_s = None if asked.time_limit_s is None else _OTHERS_SHARE * asked.time_limit_s / max(1, len(rivals))
    plans = []
    for other in rivals:
        options = replace(asked, strategy=other.strategy, started_s=time.monotonic(), time_limit_s=limit_s)
        try:
            plans.append((other.name, solve(other.memory(graph), limit, options, listener=listener).plan))
        except (Infeasible, LimitReached, StrategyMismatch):  # then there is nothing to say about it
            continue
    return tuple(plans)


def _facts(graph: Graph, solved: Solved, best: Solved | None) -> tuple[str, ...]:
    """What is predicted of a plan, for people who find its setting in a file."""
    base, claim = graph.total_cost, solved.plan.claim

    def over(cost: float) -> str:
        return f"+{percent_over(cost / base - 1)}" if base else f"{cost:g} more"

    price = f"{over(claim.cost)} {graph.cost_unit} over no recomputation"
    if best is not None:
        bound = best.plan.claim
        price += f" (the best of all plans: {over(bound.cost)}, none below {over(bound.lower_bound)})"
    peak = exact_bytes(solved.report.replay.peak_bytes)
    return (f"By remat for the graph {graph.name or 'without a name'}: peak {peak},", f"{price}.")


def _frontend(graph: Graph) -> object:
    """The frontend that made a graph; None for none."""
    return graph.metadata.get("frontend") if isinstance(graph.metadata, dict) else None


def _candidates(graph: Graph, tool: Tool) -> int:
    """How many things ``tool`` chooses from."""
    if tool.strategy == SaveOnly.name:
        return sum(map(len, Tagged.of(graph, tool.strategy).groups))
    if tool.unit == "settings":
        return len(settings_for(Task(tool.memory(graph), None), tool.name))
    choice = chosen_from(Task(graph, None), tool.strategy)
    return len(layers_of(choice) if tool.strategy == EveryNLayers.name else choice.modules)


def _require(graph: Graph, tool: Tool) -> None:
    """Refuse a graph of another framework, or without what the tool chooses from.

    Raises:
        StrategyMismatch: If it is one.
    """
    frontend = _frontend(graph)
    if frontend != tool.frontend and not tool.others:
        raise StrategyMismatch(
            f"{tool.name} needs a graph of remat export {tool.frontend}:..., and this one is "
            + (f"of {frontend}:..." if isinstance(frontend, str) else "not exported from a framework"),
            hint=f"export the training step: remat export {tool.frontend}:train.py:build",
        )
    if tool.needs is not None and not graph.metadata.get(tool.needs):
        raise StrategyMismatch(
            f"{tool.name} is for models of Transformers, and this one has no GradientCheckpointingLayer",
            hint=Worded('to="torch-checkpoint" takes any modules', "--to torch-checkpoint takes any modules"),
        )
