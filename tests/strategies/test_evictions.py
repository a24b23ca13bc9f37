"""Strategies that decide value by value: min-cut, xla-greedy and dtr."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import networkx
import numpy as np
import pytest
from families import computes_of, random_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.phases import Training
from remat_cli.kernels.flow import sink_side
from remat_cli.plan.derive import derive
from remat_cli.plan.replay import replay
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.published.dtr import _SCORES, _Machine
from remat_cli.strategies.published.min_cut import cheapest_cut, recomputed_once
from remat_cli.strategies.published.xla_greedy import _GONE, _STAYS, _Key, _Lengths, _Walk
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

EVICTING = [
    "min-cut",
    "xla-greedy",
    "xla-greedy{cost_aware=true}",
    *(f"dtr{{h={h}}}" for h in ("eq", "full", "local", "msps", "lru", "size")),
]


def computes(graph: Graph, budget: int | str | None, strategy: str) -> list[int]:
    return list(computes_of(solve(graph, budget, SolveOptions(strategy=strategy)).plan))


@pytest.mark.parametrize("strategy", EVICTING)
def test_plans_of_larger_graphs_are_valid_and_within_the_budget(strategy: str) -> None:
    fitting = 0
    for seed in range(12):
        rng = random.Random(seed)
        once = 0.1 * (seed % 2)
        graph = random_graph(rng, 30, max_outputs=2, workspace=True, recompute_false=once, phases=True, unread=False)
        top, least = no_remat_peak(graph), peak_bound(graph).bytes
        for budget in (top, (4 * top + least) // 5, (top + least) // 2):
            try:
                solved = solve(graph, budget, SolveOptions(strategy=strategy))
            except Infeasible:
                continue
            seen = replay(graph, solved.plan.statements)
            assert seen.valid
            assert seen.peak_bytes <= budget
            assert budget < top or once or seen.cost == graph.total_cost, "nothing to evict"
            fitting += budget < top
    assert fitting > 2


# min-cut


def saves_enough(part: Training, saved: set[int], most_cost: float) -> bool:
    """Whether all that the backward pass reads can be made from ``saved`` without a banned node."""
    graph = part.graph
    todo = [v for t in range(part.sweep, len(graph.nodes)) for v in graph.nodes[t].inputs]
    while todo:
        v = todo.pop()
        node = graph.nodes[graph.producer[v]]
        if graph.producer[v] not in part.forward or v in saved:
            continue
        if node.cost > most_cost or not node.recompute:
            return False
        todo.extend(node.inputs)
    return True


@seeded(range(40), recomputed=40, cut=60)
def test_no_set_of_values_to_save_is_smaller_than_the_cut(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = random_graph(rng, 12, max_outputs=2, recompute_false=0.2, zero_outputs=seed % 4 == 0, phases=True)
    part = Training.of(graph, "test")
    values = [v for i in part.forward for v in graph.values_of(i)]
    for most_cost in (0.0, 3.0, 9.0):
        cut = cheapest_cut(part, most_cost)
        assert saves_enough(part, set(cut), most_cost)
        least = min(
            sum(graph.size[v] for v in saved)
            for r in range(len(values) + 1)
            for saved in itertools.combinations(values, r)
            if saves_enough(part, set(saved), most_cost)
        )
        assert sum(graph.size[v] for v in cut) == least
        schedule = recomputed_once(part, cut)
        assert replay(graph, derive(graph, schedule)).valid
        for i, node in enumerate(graph.nodes):
            assert schedule.count(i) <= (2 if i in part.forward and node.recompute else 1)
        yield from ["recomputed"] * (len(schedule) > len(graph.nodes)) + ["cut"] * (least > 0)


@seeded(range(20), flowing=8)
def test_flows_leave_the_same_sink_side_as_networkx(seed: int) -> Iterator[str]:
    """With capacities whose sums do not fit into 32 bits; an arc back and forth between two vertices now and then."""
    rng = random.Random(seed)
    count = rng.randint(2, 30)
    sizes = {
        (i, j): rng.choice((0, rng.randint(1, 9), rng.randint(1, 2**40)))
        for i in range(count)
        for j in range(count)
        if i != j and rng.random() < 3 / count
    }
    network = networkx.DiGraph()
    network.add_nodes_from(range(count))
    network.add_edges_from((i, j, {"capacity": size}) for (i, j), size in sizes.items())
    flow, (_, after) = networkx.minimum_cut(network, 0, 1)
    columns = [[i for i, _ in sizes], [j for _, j in sizes], list(sizes.values())]
    found = sink_side(*(np.array(column, dtype=np.int64) for column in columns), count, 0, 1)
    assert {v for v in range(count) if found[v]} == after
    if flow > 0:
        yield "flowing"


def test_a_cut_saves_what_is_small_and_recomputes_what_is_cheap() -> None:
    nodes = (
        Node("conv", 100.0, (), (10,), phase=Phase.FORWARD),
        Node("relu", 1.0, (0,), (10,), phase=Phase.FORWARD),
        Node("pool", 1.0, (1,), (3,), phase=Phase.FORWARD),
        Node("loss", 1.0, (2,), (1,), phase=Phase.LOSS),
        Node("grad pool", 1.0, (1, 2, 3), (10,), phase=Phase.BACKWARD),
        Node("grad conv", 1.0, (0, 4), (10,), phase=Phase.BACKWARD),
    )
    part = Training.of(Graph("g", nodes, (5,)), "test")
    assert cheapest_cut(part, 1.0) == {0}, "10 bytes, and the rest follows from them for 2"
    assert cheapest_cut(part, 100.0) == frozenset()
    assert cheapest_cut(part, 0.0) == {0, 1, 2}
    assert recomputed_once(part, frozenset({0})) == (0, 1, 2, 3, 1, 2, 4, 5)


# xla-greedy

SKIPS = Graph(
    "skips",
    (
        Node("dear", 50.0, (), (8,)),
        Node("cheap", 1.0, (), (6,)),
        Node("wide", 1.0, (), (10,)),
        Node("small", 1.0, (2,), (1,)),
        Node("end", 1.0, (0, 1, 3), (1,)),
    ),
    outputs=(4,),
)


def test_the_most_memory_goes_unless_cost_counts() -> None:
    # While "wide" runs 24 bytes are live, while "small" does 25; either of the first two is enough to let go.
    assert computes(SKIPS, 19, "xla-greedy") == [0, 1, 2, 3, 0, 4]
    assert computes(SKIPS, 19, "xla-greedy{cost_aware=true}") == [0, 1, 2, 3, 1, 4]
    assert computes(SKIPS, 25, "xla-greedy") == [0, 1, 2, 3, 4]


def test_longer_runs_are_tried_when_single_nodes_do_not_help() -> None:
    # What "far" reads is made from something larger, which is gone by the time memory runs out.
    nodes = (
        Node("root", 1.0, (), (9,)),
        Node("mid", 1.0, (0,), (4,)),
        Node("wide", 1.0, (), (12,)),
        Node("narrow", 1.0, (2,), (1,)),
        Node("far", 1.0, (1, 3), (1,)),
    )
    graph = Graph("g", nodes, (4,))
    with pytest.raises(Infeasible, match="no plan that xla-greedy makes fits"):
        solve(graph, 14, SolveOptions(strategy="xla-greedy{block=1}"))
    solved = solve(graph, 14, SolveOptions(strategy="xla-greedy"))
    assert solved.plan.strategy == "xla-greedy{block=4}"
    assert list(computes_of(solved.plan)) == [0, 1, 2, 3, 0, 1, 4]


def test_cost_awareness_pays_on_a_network() -> None:
    graph = build_graph("mobilenet-v1")
    plain, aware = (solve(graph, "60%", SolveOptions(strategy=s)).report.overhead for s in EVICTING[1:3])
    assert aware < plain / 10


class _LookingThrough(_Walk):
    """Looks through all runs each time, and at each from its start."""

    def _best_of(self, lengths: _Lengths, pinned: frozenset[int]) -> _Key | None:
        found = []
        for start in range(self.stage):
            for end in range(start + lengths.shortest - 1, min(start + lengths.longest, self.stage)):
                nodes = range(start, end + 1)
                made = {v for i in nodes for v in self.graph.values_of(i)}
                read = {v for i in nodes for v in self.graph.nodes[i].inputs} - made
                kept = [v for v in made if self._next_read(v) is not None]
                stay = any(self._next_read(v) == (len(self.graph.nodes), math.inf) for v in made)
                if stay or made & pinned or not all(self.graph.nodes[i].recompute for i in nodes):
                    continue
                gain = sum(self.graph.size[v] for v in kept)
                gain -= sum(self.graph.size[v] for v in read - pinned if self._next_read(v) is None)
                cost = sum(self.graph.nodes[i].cost for i in nodes)
                if gain > 0:
                    found.append((cost / gain if self.cost_aware else -gain, start, end))
        assert all(self.state[v] in {_GONE, _STAYS} or self._next_read(v) for v in range(len(self.state)))
        return min(found, default=None)


@seeded(range(16), recomputed=120, stuck=80)
def test_what_is_known_of_runs_is_what_looking_through_all_finds(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = random_graph(
        rng,
        rng.choice((8, 25)),
        max_outputs=2,
        workspace=True,
        recompute_false=0.1 * (seed % 2),
        random_outputs=seed % 3 == 0,
    )
    top, least = no_remat_peak(graph), peak_bound(graph).bytes
    for budget in ((4 * top + least) // 5, (top + least) // 2, least):
        for block, cost_aware in itertools.product((1, 4, 16), (False, True)):
            walks = [kind(graph, budget, block, cost_aware) for kind in (_Walk, _LookingThrough)]
            for walk in walks:
                walk.run(Control())
            assert walks[0].items == walks[1].items
            assert walks[0].stuck == walks[1].stuck
            yield from ["recomputed"] * (len(walks[0].items) > len(graph.nodes)) + ["stuck"] * bool(walks[0].stuck)


# dtr


class _Scanning(_Machine):
    """Works out all scores each time."""

    def _victim(self, running: int) -> int | None:
        table, scores = self.table, {}
        for v in sorted(self.resident):
            size, free = self.graph.size[v], self.graph.nodes[self.graph.producer[v]].recompute
            if free and size and not self.locks.get(v, 0) and v not in self.graph.values_of(running):
                stale = max(self.clock - table.accessed[v], 1e-9 * self.clock, 1e-300) if table.timed else 1.0
                scores[v] = self._weight(v) / (table.size[v] * stale)
        return min(scores, key=lambda v: scores[v], default=None)


def test_dtr_stops_amid_the_recomputations_for_one_node() -> None:
    graph, looks = build_graph("unit-chain{n=81}"), itertools.count()
    room = peak_bound(graph).bytes - graph.fixed_memory
    lengths = []
    for control in (Control(), Control().stoppable(when=lambda: next(looks) >= 200)):
        machine = _Machine(graph, room, "eq", math.inf, control)
        machine.run()
        lengths.append(len(machine.computes))
    most = 200 + 2 * len(graph.nodes)  # then nothing is evicted, so every node runs once more at most
    assert lengths[1] <= most < lengths[0]


@pytest.mark.parametrize("h", _SCORES)
def test_what_is_known_of_scores_is_what_scanning_all_finds(h: str) -> None:
    graphs = [random_graph(random.Random(seed), 30, max_outputs=2, recompute_false=0.1) for seed in range(8)]
    recomputed = 0
    for graph in (*graphs, build_graph("unit-chain{n=81}"), build_graph("vgg16")):
        top, least = no_remat_peak(graph), peak_bound(graph).bytes
        for budget in ((4 * top + least) // 5, (top + least) // 2):
            room = budget - graph.fixed_memory
            machines = [kind(graph, room, h, 10 * graph.total_cost, Control()) for kind in (_Machine, _Scanning)]
            for machine in machines:
                machine.run()
            assert machines[0].computes == machines[1].computes
            recomputed += len(machines[0].computes) - len(graph.nodes)
    assert recomputed > 50


@pytest.mark.parametrize(
    ("h", "gone"),
    [("lru", 0), ("size", 1), ("local", 2), ("eq", 2), ("full", 2), ("msps", 2)],
)
def test_the_value_with_the_smallest_score_goes(h: str, gone: int) -> None:
    nodes = (
        Node("oldest", 9.0, (), (4,)),
        Node("largest", 9.0, (), (5,)),
        Node("cheapest", 0.5, (), (4,)),
        Node("recent", 9.0, (), (4,)),
        Node("wide", 1.0, (3,), (10,)),
        Node("end", 1.0, (0, 1, 2, 3), (1,)),
    )
    # 27 bytes are live while "wide" runs, 18 while "end" does.
    assert computes(Graph("g", nodes, (5,)), 23, f"dtr{{h={h}}}") == [0, 1, 2, 3, 4, gone, 5]


def test_evicted_neighbours_count() -> None:
    # "a" and "b" are as dear as "c" is; but once "a" is gone, "b" needs it as well.
    nodes = (
        Node("a", 2.0, (), (4,)),
        Node("b", 2.0, (0,), (4,)),
        Node("c", 3.0, (), (4,)),
        Node("first", 1000.0, (), (8,)),
        Node("second", 1000.0, (), (12,)),
        Node("end", 1.0, (0, 1, 2), (1,)),
    )
    graph = Graph("g", nodes, (5,))
    assert computes(graph, 16, "dtr{h=local}") == [0, 1, 2, 3, 4, 0, 1, 5]
    for h in ("full", "eq", "msps"):
        assert computes(graph, 16, f"dtr{{h={h}}}") == [0, 1, 2, 3, 4, 0, 2, 5]


@pytest.mark.parametrize("layers", [49, 100])
def test_a_chain_runs_in_linear_time_with_memory_of_its_root(layers: int) -> None:
    """Kirisame et al., theorem 3.1: unit chains within O(sqrt(n)) memory take O(n) operations with the full score."""
    graph = build_graph(f"unit-chain{{n={2 * layers + 1}}}")
    solved = solve(graph, 2 * math.isqrt(layers) + 3, SolveOptions(strategy="dtr{h=full}"))
    assert solved.report.overhead < 1


def test_a_hopeless_budget_ends() -> None:
    graph = build_graph("unit-chain{n=201}")
    with pytest.raises(Infeasible, match="no plan that dtr makes fits") as refusal:
        solve(graph, 4, SolveOptions(strategy="dtr"))
    assert "the smallest budget known to work is" in refusal.value.hint


@pytest.mark.parametrize("spec", ["dtr{most_cost=0.5}", "xla-greedy{block=0}", "min-cut{most_cost=-1}", "dtr{h=x}"])
def test_options_that_mean_nothing(spec: str) -> None:
    with pytest.raises(UsageError):
        strategy_from_spec(spec)


@pytest.mark.parametrize(("strategy", "knob"), [("min-cut", "most_cost"), ("xla-greedy", "block")])
def test_the_plan_says_how_the_knob_stood(strategy: str, knob: str) -> None:
    graph = build_graph("vgg16")
    solved = solve(graph, "60%", SolveOptions(strategy=strategy))
    assert solved.plan.strategy.startswith(f"{strategy}{{{knob}=")
    again = solve(graph, "60%", SolveOptions(strategy=solved.plan.strategy))
    assert again.plan.statements == solved.plan.statements
