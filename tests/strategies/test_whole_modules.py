"""Recomputation of whole modules: the choice against all choices, and the schedule against its description."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations

import pytest
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.modules import lies_in, modules_of
from remat_cli.graph.phases import Training
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.model import Scope
from remat_cli.solvers.registry import solver_from_spec
from remat_cli.strategies.base import Context, Found, NotFound, Task
from remat_cli.strategies.policies.whole_modules import EveryNLayers, ModuleCheckpoint, chosen_from, every, layers_of


def modular(rng: random.Random, layers: int) -> Graph:
    """A network of layers with one or two modules each, skips between them, and gradients that read what they need."""
    nodes: list[Node] = []
    reads: list[tuple[int, ...]] = []

    def add(name: str, inputs: tuple[int, ...], phase: Phase, workspace: int = 0) -> int:
        nodes.append(
            Node(name, float(rng.randint(1, 9)), inputs, (rng.randint(1, 9),), workspace=workspace, phase=phase)
        )
        return len(nodes) - 1

    x, paths = add("embed/op", (), Phase.FORWARD), ["embed"]
    reads.append(())
    for layer in range(layers):
        for part in "ab"[: rng.randint(1, 2)]:
            for op in range(rng.randint(1, 3)):
                inputs = tuple(sorted({x, *rng.sample(range(x + 1), rng.randint(0, min(1, x)))}))
                x = add(f"layers.{layer}.{part}/op{op}", inputs, Phase.FORWARD, rng.choice([0, 0, 4]))
                paths.append(f"layers.{layer}.{part}")
                reads.append(inputs)
    count = len(nodes)
    gradient = add("loss/op", (x,), Phase.LOSS)
    for k in reversed(range(count)):
        saved = [v for v in (*reads[k], k) if rng.random() < 0.6]
        gradient = add(f"grad/{paths[k]}/op{k}", tuple(sorted({gradient, *saved})), Phase.BACKWARD)
    return Graph("modular", tuple(nodes), (gradient,), fixed_memory=rng.choice([0, 5]))


def context() -> Context:
    return Context(Control(), solver_from_spec("highs"), gap=0.0, threads=1)


def sets(training: Training):
    """All sets of modules of which none lies in another."""
    modules = modules_of(training)
    for size in range(len(modules) + 1):
        for chosen in combinations(range(len(modules)), size):
            names = [modules[m].name for m in chosen]
            if not any(a != b and lies_in(a, b) for a in names for b in names):
                yield chosen


@seeded(range(80), fits=80, chosen=30, impossible=20)
def test_the_choice_is_the_cheapest_of_all(seed):
    rng = random.Random(seed)
    graph = modular(rng, rng.randint(1, 4))
    training = Training.of(graph, "test")
    if not modules_of(training):
        return
    choice = chosen_from(Task(graph, None), "test")
    priced = []
    for chosen in sets(training):
        computes, _ = choice.schedule(chosen)
        priced.append((max(heights(graph, computes)), cost_of(graph, computes)))
    plain = max(heights(graph, range(len(graph.nodes))))
    for budget in sorted(rng.sample(range(min(p for p, _ in priced) - 2, plain + 1), 2)):
        wanted = min((cost for peak, cost in priced if peak <= budget), default=math.inf)
        answer = ModuleCheckpoint().solve(Task(graph, budget), context())
        if isinstance(answer, NotFound):
            assert wanted == math.inf
            assert answer.scope is Scope.RESTRICTED
            yield "impossible"
            continue
        computes = answer.schedule.computes
        assert cost_of(graph, computes) == pytest.approx(wanted)
        assert max(heights(graph, computes)) <= budget
        [bound] = answer.bounds
        assert bound.cost == pytest.approx(wanted)
        yield "fits"
        if len(computes) > len(graph.nodes):
            yield "chosen"


@seeded(range(60), fits=25)
def test_every_nth_layer_is_tried_for_every_n(seed):
    rng = random.Random(seed)
    graph = modular(rng, rng.randint(2, 5))
    choice = chosen_from(Task(graph, None), "test")
    layers = layers_of(choice)
    if not layers:
        return
    assert [choice.modules[m].name for m in layers] == sorted(choice.modules[m].name for m in layers)
    budget = rng.randint(
        3 * max(heights(graph, range(len(graph.nodes)))) // 4, 2 * max(heights(graph, range(len(graph.nodes))))
    )
    found = []
    for n in range(1, len(layers) + 1):
        computes, _ = choice.schedule([m for k, m in enumerate(layers) if k % n == 0])
        if max(heights(graph, computes)) <= budget:
            found.append(cost_of(graph, computes))
    answer = EveryNLayers().solve(Task(graph, budget), context())
    assert isinstance(answer, Found) == bool(found)
    if isinstance(answer, Found):
        assert cost_of(graph, answer.schedule.computes) == pytest.approx(min(found))
        yield "fits"


def test_a_module_runs_again_up_to_what_its_own_gradients_read():
    """The last operation of the module saves nothing, and so does not run again; its result is there for others."""
    f, b = Phase.FORWARD, Phase.BACKWARD
    nodes = (
        Node("in/op", 1.0, (), (1,), phase=f),
        Node("block/first", 2.0, (0,), (10,), phase=f),
        Node("block/inner/second", 3.0, (1,), (10,), phase=f),
        Node("block/last", 5.0, (2,), (1,), phase=f),
        Node("loss/op", 1.0, (3,), (1,), phase=Phase.LOSS),
        Node("grad/block/last", 1.0, (4,), (1,), phase=b),
        Node("grad/block/inner/second", 1.0, (1, 2, 5), (1,), phase=b),
        Node("grad/block/first", 1.0, (6,), (1,), phase=b),
    )
    graph = Graph("block", nodes, (7,))
    choice = chosen_from(Task(graph, None), "test")
    assert [module.name for module in choice.modules] == ["block", "block/inner"]
    computes, _ = choice.schedule([0])
    assert computes == [0, 1, 2, 3, 4, 5, 1, 2, 6, 7]
    assert choice.modules[0].cost == 5.0
    assert every([3, 5, 7, 9, 11], 2) == [3, 7, 11]


def test_keras_runs_all_of_a_layer_again_as_soon_as_its_gradients_begin():
    f, b = Phase.FORWARD, Phase.BACKWARD
    nodes = (
        Node("in/op", 1.0, (), (1,), phase=f),
        Node("block/first", 2.0, (0,), (10,), phase=f),
        Node("block/last", 5.0, (1,), (1,), phase=f),
        Node("loss/op", 1.0, (2,), (1,), phase=Phase.LOSS),
        Node("grad/block/last", 1.0, (3,), (1,), phase=b),
        Node("grad/block/first", 1.0, (1, 4), (1,), phase=b),
    )
    graph = Graph("block", nodes, (5,))
    plain, whole = (chosen_from(Task(graph, None), "test", whole=flag) for flag in (False, True))
    assert plain.schedule([0])[0] == [0, 1, 2, 3, 4, 1, 5]
    assert whole.schedule([0])[0] == [0, 1, 2, 3, 1, 2, 4, 5]
    assert [choice.modules[0].cost for choice in (plain, whole)] == [2.0, 7.0]


def test_layers_are_counted_as_the_graph_lists_them():
    """Transformers counts over all stacks of layers, in the order in which the model holds them."""
    graph = modular(random.Random(4), 4)
    names = [module.name for module in modules_of(Training.of(graph, "test")) if module.name.count(".") == 1]
    assert len(names) > 2
    listed = [*reversed(names), "elsewhere.0"]
    choice = chosen_from(Task(replace(graph, metadata={"layers": listed}), None), "test")
    counted = layers_of(choice)
    assert [choice.modules[m].name if m is not None else "elsewhere.0" for m in counted] == listed
    assert every(counted, 2) == [m for m in counted[::2] if m is not None]


def test_names_without_modules_are_refused():
    nodes = (Node("a", 1.0, (), (1,), phase=Phase.FORWARD), Node("b", 1.0, (0,), (1,), phase=Phase.BACKWARD))
    for strategy in (ModuleCheckpoint(), EveryNLayers()):
        with pytest.raises(StrategyMismatch, match="needs modules"):
            strategy.solve(Task(Graph("plain", nodes, (1,)), 10), context())
