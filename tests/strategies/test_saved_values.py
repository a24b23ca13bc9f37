"""Saving named values: the choice against all choices, the schedule against that of the minimum cut's strategy."""

from __future__ import annotations

import random

import pytest
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.tools import Tagged
from remat_cli.milp.saved_choice import SavedChoice
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.model import Scope
from remat_cli.solvers.registry import solver_from_spec
from remat_cli.strategies.base import Context, Found, NotFound, Task
from remat_cli.strategies.policies.saved_values import SaveOnly
from remat_cli.strategies.published.min_cut import recomputed_once
from remat_cli.strategies.registry import strategy_from_spec


def tagged(rng: random.Random) -> Graph:
    """A training step whose forward values have names, some of them together and some none."""
    nodes: list[Node] = []
    tags: dict[str, str] = {}
    values: list[int] = []
    count = rng.randint(3, 7)
    for i in range(count):
        reads = rng.sample(values, min(len(values), rng.randint(1, 2)))
        sizes = tuple(rng.randint(1, 9) * 100 for _ in range(rng.choice([1, 1, 1, 2])))
        workspace, recompute = rng.choice([0, 0, 150]), rng.random() > 0.1
        name = f"shared.{rng.randint(0, 2)}" if rng.random() < 0.3 else f"own.{i}"
        for k in range(len(sizes)):
            if rng.random() < 0.9:
                tags[f"f{i}:{k}"] = name if rng.random() < 0.8 else f"own.{i}.{k}"
            values.append(len(values))
        cost = float(rng.randint(0, 9))
        nodes.append(Node(f"f{i}", cost, tuple(sorted(reads)), sizes, workspace, recompute, phase=Phase.FORWARD))
    last = len(values)
    nodes.append(Node("loss", 1.0, (last - 1,), (4,), phase=Phase.LOSS))
    for k in range(count):
        reads = sorted({last + k, *rng.sample(values, rng.randint(0, min(3, len(values))))})
        nodes.append(
            Node(f"b{k}", float(rng.randint(0, 9)), tuple(reads), (rng.randint(1, 9) * 100,), phase=Phase.BACKWARD)
        )
    outputs = {last, last + count, *rng.sample(values, rng.choice([0, 0, 1]))}
    return Graph("tagged", tuple(nodes), tuple(sorted(outputs)), metadata={"tags": tags})


def context() -> Context:
    return Context(Control(), solver_from_spec("highs"), gap=0.0, threads=1)


@seeded(range(60), fits=100, impossible=40, recomputed=50)
def test_the_choice_is_the_cheapest_of_all(seed):
    rng = random.Random(seed)
    graph = tagged(rng)
    names = Tagged.of(graph, "test")
    choice, priced = SavedChoice(names), []
    for number in range(1 << len(names.groups)):
        chosen = frozenset(k for k in range(len(names.groups)) if number >> k & 1)
        computes, _ = choice.schedule(chosen)
        saved = frozenset(v for v in range(len(graph.size)) if names.saves(graph.producer[v], chosen))
        assert tuple(computes) == recomputed_once(names.training, saved)
        priced.append((max(heights(graph, computes)), cost_of(graph, computes)))
    peaks = sorted({peak for peak, _ in priced})
    for budget in {peaks[0] - 1, peaks[0], peaks[len(peaks) // 2], peaks[-1]}:
        wanted = min((cost for peak, cost in priced if peak <= budget), default=None)
        answer = SaveOnly().solve(Task(graph, budget), context())
        if isinstance(answer, NotFound):
            assert wanted is None
            assert answer.scope is Scope.RESTRICTED
            yield "impossible"
            continue
        computes = answer.schedule.computes
        assert cost_of(graph, computes) == pytest.approx(wanted)
        assert max(heights(graph, computes)) <= budget
        [bound] = answer.bounds
        assert bound.cost == pytest.approx(wanted)
        again = strategy_from_spec(answer.maker).solve(Task(graph, budget), context())
        assert isinstance(again, Found)
        assert again.schedule.computes == computes
        yield "fits"
        if len(computes) > len(graph.nodes):
            yield "recomputed"


def test_names_that_there_are_not_are_refused():
    graph = tagged(random.Random(1))
    with pytest.raises(UsageError, match='there is no value named "nothing" to save'):
        SaveOnly("nothing").solve(Task(graph, None), context())
    bare = Graph("bare", graph.nodes, graph.outputs)
    with pytest.raises(StrategyMismatch, match="save-only needs names of values in the graph's metadata"):
        SaveOnly().solve(Task(bare, None), context())
