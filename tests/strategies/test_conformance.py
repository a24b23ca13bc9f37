"""What every strategy owes: a plan that replays, or an honest refusal; and never a cost below the optimum."""

from __future__ import annotations

import random
import re

import pytest
from bruteforce import cheapest
from families import random_graph

from remat_cli.errors import Infeasible, LimitReached, StrategyMismatch
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.plan.replay import replay
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.spec import describe_options, format_spec
from remat_cli.strategies.base import IGNORABLE, Needs
from remat_cli.strategies.registry import STRATEGIES, strategy_from_spec
from remat_cli.zoo.registry import build_graph

SEEDS = range(24)


def graph_of(seed: int) -> Graph:
    rng = random.Random(seed)
    return random_graph(
        rng,
        rng.randint(1, 6),
        max_outputs=rng.choice((1, 3)),
        workspace=seed % 2 == 0,
        recompute_false=rng.choice((0.0, 0.2)),
        random_outputs=seed % 3 == 0,
        zero_outputs=seed % 5 == 0,
        fixed_memory=rng.choice((0, 7)),
        phases=seed % 4 != 0,
    )


@pytest.fixture(params=STRATEGIES.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[*STRATEGIES.names(), "pwremat{spine=true}"])
def spec(request: pytest.FixtureRequest) -> str:
    """Strategies, and options that make another algorithm of one."""
    return str(request.param)


@pytest.mark.parametrize("seed", SEEDS)
def test_valid_plan_or_honest_refusal(spec: str, seed: int) -> None:
    name = spec.partition("{")[0]
    graph = graph_of(seed)
    top = no_remat_peak(graph)
    for budget in (None, top, top - 1, top - 3):
        if budget is not None and budget <= 0:
            continue
        truth = cheapest(graph, 10**9 if budget is None else budget)
        try:
            solved = solve(graph, budget, SolveOptions(strategy=spec, threads=1))
        except StrategyMismatch:
            assert STRATEGIES.load(name).needs is not Needs.ANY
            continue
        except Infeasible as refusal:
            _check_refusal(graph, budget, refusal, name)
            continue
        except LimitReached:
            assert name in {"search", "lns", "anneal"}, (
                "only a search may give up without a word on whether there is a plan"
            )
            continue
        assert truth is not None, "a plan within a budget in which a search of all schedules finds none"
        seen = replay(graph, solved.plan.statements)
        assert seen.valid
        assert budget is None or seen.peak_bytes <= budget
        assert seen.cost >= truth
        claim = solved.plan.claim
        assert claim.cost == seen.cost
        _check_bound(graph, budget, claim.lower_bound, claim.scope)
        if claim.status is ClaimStatus.OPTIMAL and claim.scope not in {Scope.RESTRICTED, Scope.CHAIN_PERSISTENT}:
            passes = 1 if claim.scope is Scope.FRONTIER else None
            best = cheapest(graph, 10**9 if budget is None else budget, passes=passes)
            assert best is None or seen.cost <= best * (1 + 1e-4)


def _check_bound(graph: Graph, budget: int | None, bound: float, scope: Scope) -> None:
    """No bound is above the true optimum of the schedules it speaks of."""
    if scope in {Scope.RESTRICTED, Scope.CHAIN_PERSISTENT}:  # the latter is tested where chains are
        return
    passes = 1 if scope is Scope.FRONTIER else None
    best = cheapest(graph, 10**9 if budget is None else budget, passes=passes)
    if best is not None:
        assert bound <= best + 1e-9


def _check_refusal(graph: Graph, budget: int | None, refusal: Infeasible, name: str) -> None:
    """A refusal is true: an unconditional one always, one of a class for that class."""
    assert budget is not None
    if few := re.match(r"no frontier-advancing schedule with at most (\d) computations? per node", refusal.message):
        assert cheapest(graph, budget, passes=1, times=int(few[1])) is None
    elif "frontier-advancing" in refusal.message:
        assert cheapest(graph, budget, passes=1) is None
    elif "at most 2 passes" in refusal.message:
        assert cheapest(graph, budget, passes=2) is None
    elif refusal.message.startswith("no schedule in document order"):
        assert cheapest(graph, budget) is None
    elif refusal.message.startswith("no plan fits"):
        assert budget < peak_bound(graph).bytes
        assert cheapest(graph, budget) is None
    elif refusal.message.startswith(f"no plan that {name} makes fits"):
        works = re.search(r"the smallest budget known to work is (\d+) bytes?", refusal.hint)
        assert works, refusal.hint
        assert int(works[1]) > budget
        assert cheapest(graph, int(works[1])) is not None
    else:
        assert not STRATEGIES.load(name).minds_budget, refusal.message


def test_every_strategy_describes_itself(name: str) -> None:
    strategy_class = STRATEGIES.load(name)
    assert strategy_class.name == name
    assert strategy_class.summary
    assert strategy_class.summary[0].islower()
    for option, default, text in describe_options(strategy_class):
        assert default, f"option {option} of {name} has no default"
        assert text, f"option {option} of {name} has no help"
    assert strategy_class.ignores <= set(IGNORABLE)
    assert ("budget" in strategy_class.ignores) is not strategy_class.minds_budget
    strategy = strategy_class()
    assert strategy_from_spec(format_spec(name, strategy)) == strategy


@pytest.mark.parametrize("budget", ["100%", "90%"])
def test_same_input_same_plan(spec: str, budget: str) -> None:
    graph = build_graph("linear{n=12}")
    options = SolveOptions(strategy=spec, threads=1)

    def outcome() -> object:
        try:
            return solve(graph, budget, options).plan.statements
        except (Infeasible, StrategyMismatch) as refusal:
            return refusal.message

    assert outcome() == outcome()
