"""Chen et al.'s heuristics and Checkmate's generalisations of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import networkx as nx
import pytest
from families import computes_of, random_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.phases import Training
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.replay import replay
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.solvers.registry import solver_from_spec
from remat_cli.strategies.base import Context, NotFound, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.published.chen import checkpointed, every_root, greedy
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

KINDS = ("sqrt", "greedy")


def training(seed: int, n: int = 12) -> Graph:
    rng = random.Random(seed)
    return random_graph(
        rng,
        n,
        max_outputs=2,
        workspace=True,
        recompute_false=0.1,
        random_outputs=seed % 3 == 0,
        zero_outputs=seed % 4 == 0,
        phases=True,
    )


def schedule(graph: Graph, strategy: str, budget: int | str | None = None) -> tuple[int, ...]:
    return computes_of(solve(graph, budget, SolveOptions(strategy=strategy)).plan)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chain", ["linear{n=14,sizes=3:1:4:1:5:9:2:6:5:3:5:8:9:7}", "vgg16", "mobilenet-v1"])
def test_all_variants_agree_on_chains(kind: str, chain: str) -> None:
    graph = build_graph(chain)
    for budget in ("100%", "80%") if kind == "greedy" else (None,):
        plans = {schedule(graph, f"{variant}-{kind}", budget) for variant in ("chen", "ap", "linearized")}
        assert len(plans) == 1


def test_a_chain_of_sixteen_by_hand() -> None:
    # 16 layers, checkpoints after the 4th, 8th and 12th (the 16th ends the segment at hand): what lies before each of
    # the three is computed twice, three layers of each.
    graph = build_graph("linear{n=16}")
    solved = solve(graph, None, SolveOptions(strategy="chen-sqrt"))
    assert {r.node: r.times for r in solved.report.recomputed} == {
        f"layer{k}": 2 for k in (1, 2, 3, 5, 6, 7, 9, 10, 11)
    }
    # Three checkpoints, the segment at hand, and two gradients besides what the first of them reads.
    assert solved.report.replay.peak_bytes == 3 + 4 + 2


def test_the_root_of_candidates() -> None:
    assert every_root(range(10)) == {2, 5, 8}
    assert every_root([4]) == {4}
    assert every_root([]) == frozenset()


def test_greedy_ends_a_segment_at_the_first_candidate_past_its_size() -> None:
    part = Training.of(build_graph("linear{n=6,sizes=5:1:1:7:2:2}"), "test")
    assert greedy(part, part.forward, 0) == set(part.forward)
    assert greedy(part, part.forward, 5) == {1, 3}  # 5 + 1 > 5, then 1 + 7
    assert greedy(part, {0, 2, 5}, 5) == {2, 5}
    assert greedy(part, part.forward, 18) == frozenset()


@seeded(range(40), recomputed=25)
def test_any_checkpoints_make_a_valid_plan(seed: int) -> Iterator[str]:
    graph = training(seed)
    part = Training.of(graph, "test")
    rng = random.Random(seed)
    for share in (0.0, 0.3, 0.7, 1.0):
        chosen = [i for i in part.forward if rng.random() < share]
        computes = checkpointed(part, chosen)
        assert replay(graph, derive(graph, computes)).valid
        counts = [computes.count(i) for i in range(len(graph.nodes))]
        assert all(counts[i] == 1 for i in range(len(graph.nodes)) if i not in part.forward or i in chosen)
        if max(counts) > 1:
            yield "recomputed"
    assert checkpointed(part, part.forward) == tuple(range(len(graph.nodes)))


@seeded(range(60), points=50, others=100)
def test_articulation_points_are_those_of_the_undirected_graph(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(2, 24), max_inputs=rng.choice((2, 3)), phases=True)
    part = Training.of(graph, "test")
    around = nx.Graph()
    read = {j for i in part.forward for j in part.predecessors(i)}
    for i in part.forward:
        before = part.predecessors(i)
        around.add_edges_from((j, i) for j in before or {f"input of {i}"})
        around.add_edges_from([] if i in read else [(i, f"reader of {i}")])
    expected = set(nx.articulation_points(around))
    assert set(part.articulation_points()) == expected
    yield from ["points"] * len(expected) + ["others"] * (len(part.forward) - len(expected))


def test_articulation_points_of_a_network_with_skips() -> None:
    graph = build_graph("resnet50")
    part = Training.of(graph, "test")
    points = {graph.nodes[i].id for i in part.articulation_points()}
    assert "pool1" in points
    assert not any("/a/" in name for name in points), "beside a shortcut"
    assert 16 <= len(points) < len(part.forward)


def test_inputs_do_not_connect_what_reads_them() -> None:
    graph = build_graph("transformer")
    part = Training.of(graph, "test")
    around = nx.Graph([(j, i) for i in part.forward for j in part.predecessors(i)])
    cuts = set(nx.articulation_points(around))
    ends = {"encoder/tokens", "decoder/tokens", "head/logits"}
    names = {graph.nodes[i].id for i in part.articulation_points()}
    assert len(cuts) == 21
    assert names == {graph.nodes[i].id for i in cuts} | ends
    assert "encoder3/mlp/add" in names, "although the decoder has an input of its own"
    assert not any("cross/add" in name for name in names - {"decoder6/cross/add"}), "they also read the encoder"


@pytest.mark.parametrize("spec", ["linear{n=6}", "vgg16{fused=true}", "mobilenet-v1"])
def test_on_a_chain_all_nodes_are_articulation_points(spec: str) -> None:
    part = Training.of(build_graph(spec), "test")
    assert part.articulation_points() == part.forward


@pytest.mark.parametrize("strategy", ["chen-greedy", "ap-greedy", "linearized-greedy"])
def test_the_cheapest_segment_size_that_fits_is_found(strategy: str) -> None:
    graph = build_graph("linear{n=9,costs=1:2:3:4:5:4:3:2:1,sizes=9:3:7:1:8:2:6:4:5}")
    part = Training.of(graph, "test")
    top = no_remat_peak(graph)
    for budget in (top, top - 2, top - 6, top - 10):
        fitting = []
        for size in range(47):
            computes = checkpointed(part, greedy(part, part.forward, size))
            if peak(graph, computes) <= budget:
                fitting.append(sum(graph.nodes[k].cost for k in computes))
        if not fitting:
            with pytest.raises(Infeasible, match=f"no plan that {strategy} makes fits"):
                solve(graph, budget, SolveOptions(strategy=strategy))
            continue
        solved = solve(graph, budget, SolveOptions(strategy=strategy))
        assert solved.report.replay.cost == min(fitting)
        # The plan says which size it was, and that alone makes it again.
        again = solve(graph, budget, SolveOptions(strategy=solved.plan.strategy))
        assert again.plan.statements == solved.plan.statements


def test_a_given_segment_size_is_used_as_such() -> None:
    graph = build_graph("linear{n=9}")
    assert schedule(graph, "chen-greedy{b=2}") == schedule(graph, "chen-sqrt")
    with pytest.raises(Infeasible):
        solve(graph, "50%", SolveOptions(strategy="chen-greedy{b=0}"))
    with pytest.raises(UsageError):
        strategy_from_spec("chen-greedy{b=-1}")


def test_a_refusal_knows_the_smallest_peak_that_came_up() -> None:
    graph = build_graph("vgg16")
    context = Context(Control(), solver_from_spec("highs"))
    answer = strategy_from_spec("chen-greedy").solve(Task(graph, 15_000_000_000), context)
    assert isinstance(answer, NotFound)
    assert answer.best is not None
    assert 15_000_000_000 < peak(graph, answer.best.computes) < no_remat_peak(graph)


def test_what_is_no_chain_is_refused_by_name() -> None:
    with pytest.raises(StrategyMismatch, match="node up4/concat reads down4/dropout") as refusal:
        solve(build_graph("unet"), "80%", SolveOptions(strategy="chen-greedy"))
    assert "linearized-greedy" in refusal.value.hint


def test_mixed_phases_are_refused() -> None:
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD)
    nodes = tuple(Node(f"n{k}", 1.0, (k - 1,) if k else (), (1,), phase=phase) for k, phase in enumerate(phases))
    for name in ("ap-sqrt", "linearized-greedy"):
        with pytest.raises(StrategyMismatch, match="forward node n2 comes after backward node n1"):
            solve(Graph("g", nodes, (2,)), None, SolveOptions(strategy=name))


@pytest.mark.parametrize("name", ["ap-sqrt", "linearized-greedy"])
@pytest.mark.parametrize("budget", [None, "100%"])
def test_a_forward_pass_alone_is_left_as_it_is(name: str, budget: str | None) -> None:
    graph = build_graph("resnet50{backward=none}")
    assert schedule(graph, name, budget) == tuple(range(len(graph.nodes)))


@pytest.mark.parametrize("strategy", ["chen-greedy", "linearized-greedy"])
def test_large_graphs_get_nearly_the_same_plan_from_few_sizes(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = []
    offer = Incumbent.offer

    def counting(incumbent: Incumbent, *arguments: str) -> bool:
        offered.append(arguments[1])
        return offer(incumbent, *arguments)

    monkeypatch.setattr(Incumbent, "offer", counting)
    costs = ":".join(str(10 + 7 * k % 11) for k in range(60))
    sizes = ":".join(str(1000 + 500 * (k % 3)) for k in range(60))
    graph = build_graph(f"linear{{n=60,costs={costs},sizes={sizes}}}")
    for percent in range(20, 100, 5):
        found = {}
        for each in (10**9, 0):
            monkeypatch.setattr("remat_cli.strategies.published.chen._EACH", each)
            offered.clear()
            try:
                found[each] = solve(graph, f"{percent}%", SolveOptions(strategy=strategy)).plan.claim.cost
            except Infeasible:
                found[each] = None
                continue
            assert each or len(offered) <= 17
        assert (found[0] is None) == (found[10**9] is None)
        assert found[0] is None or found[10**9] <= found[0] <= 1.03 * found[10**9]
