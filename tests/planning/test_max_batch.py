"""The largest batch, against a search of all schedules at every batch."""

import json
import math
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import bruteforce
import families
import jsonschema
import pytest
from seeded import seeded

from remat_cli.api import max_batch as max_batch_of
from remat_cli.errors import Infeasible, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.batched import Batched
from remat_cli.graph.model import Graph
from remat_cli.planning.batch_graphs import last_within
from remat_cli.planning.max_batch import max_batch, one_forward
from remat_cli.planning.options import SolveOptions
from remat_cli.reports.batches import batch_document, batch_text
from remat_cli.reports.documents import document_json
from remat_cli.reports.style import Style
from remat_cli.strategies.published.opener import OPENING_METHODS
from remat_cli.zoo.registry import build_graph

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "batch-v1.json").read_text())


def truth(graph, memory, graph_batch, most_cost):
    """The largest batch within memory and cost, by trying every one down from the last that could fit."""
    room = memory - graph.fixed_memory
    top = room * graph_batch // (peak_bound(graph).bytes - graph.fixed_memory)
    for batch in range(top, 0, -1):
        cost = bruteforce.cheapest(graph, graph.fixed_memory + room * graph_batch // batch)
        if cost is not None and cost <= most_cost:
            return batch
    return 0


@seeded(range(12), found=8, more=5, proven=6)
def test_it_is_what_trying_every_batch_finds(seed):
    graph = families.random_graph(random.Random(seed), 8, max_outputs=2, workspace=True, fixed_memory=3)
    values = no_remat_peak(graph) - graph.fixed_memory
    memory = graph.fixed_memory + values * 5 // 2
    most_cost = graph.total_cost * 1.4
    answer = max_batch(graph, memory, graph_batch=3, most_cost=most_cost, options=SolveOptions(time_limit_s=4))
    best = truth(graph, memory, 3, most_cost)
    assert answer.without <= answer.found <= best < answer.impossible
    assert answer.without == memory_over(graph, memory, 3)
    if answer.found:
        assert answer.solved.report.replay.cost <= most_cost
        assert answer.solved.report.replay.peak_bytes <= answer.budget_bytes
    yield from ["found"] * (answer.found > 0) + ["more"] * (answer.found > answer.without)
    if answer.proven:
        assert answer.found == best
        yield "proven"


def memory_over(graph, memory, graph_batch):
    return (memory - graph.fixed_memory) * graph_batch // (no_remat_peak(graph) - graph.fixed_memory)


def test_the_default_finds_no_less_than_quick_strategies():
    graph = build_graph("vgg16")
    memory = 2 * no_remat_peak(graph)

    def found(strategy, time_limit_s):
        options = SolveOptions(strategy=strategy, time_limit_s=time_limit_s)
        return max_batch(graph, memory, graph_batch=4, most_cost=one_forward(graph), options=options)

    quick = {spec: found(spec, 60).found for spec in OPENING_METHODS}
    assert len(set(quick.values())) > 1
    answer = found("auto", 4)
    assert answer.found >= max(quick.values())
    assert answer.solved.report.replay.cost <= one_forward(graph)


def test_a_chain_of_which_the_answer_is_known():
    chain = build_graph("unit-chain{n=17}")  # cheapest at 3..10: 45 26 22 21 20 19 18 17
    answer = max_batch(chain, 80, graph_batch=1, most_cost=22, options=SolveOptions(time_limit_s=60))
    # 80 / 5 = 16 samples of 5 units each cost 22; a budget of 4 costs 26.
    assert (answer.without, answer.found, answer.impossible) == (8, 16, 17)
    assert answer.proven
    assert answer.solved.report.replay.cost == 22


def test_a_strategy_that_minds_no_budget():
    chain = build_graph("unit-chain{n=17}")
    options = SolveOptions(strategy="chen-sqrt", time_limit_s=60)
    answer = max_batch(chain, 80, graph_batch=1, most_cost=math.inf, options=options)
    assert answer.found >= answer.without == 8
    assert len(answer.tried) <= 1


def test_one_forward_pass():
    vgg = build_graph("vgg16")
    forward = sum(node.cost for node in vgg.nodes if node.phase == "forward")
    assert one_forward(vgg) == pytest.approx(vgg.total_cost + forward)
    with pytest.raises(UsageError, match="which nodes are forward"):
        one_forward(families.random_graph(random.Random(0), 4))


def test_refusals():
    chain = build_graph("unit-chain{n=5}")
    with pytest.raises(Infeasible, match="not even one sample"):
        max_batch(chain, 1, graph_batch=1, most_cost=99)
    with pytest.raises(UsageError, match="too small"):
        max_batch(chain, 10, graph_batch=0, most_cost=99)


def test_documents():
    chain = build_graph("unit-chain{n=9}")
    facts = max_batch(chain, 40, graph_batch=1, most_cost=11, options=SolveOptions(time_limit_s=60))
    document = json.loads(document_json(batch_document(facts)))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert document["batch"] == facts.found
    text = batch_text(facts, chain, Style(60, color=False, unicode=False))
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 60


# Every batch has costs of its own


GIVEN = (2, 3, 6)


def network(rng, n=7):
    """Graphs of one random network at three batches: sizes rise in uneven steps, costs and workspaces as they like."""
    first = families.random_graph(rng, n, max_outputs=2, workspace=True, fixed_memory=3)
    graphs = [first]
    for _ in GIVEN[1:]:
        nodes = [
            replace(
                node,
                cost=float(rng.randint(1, 12)),
                outputs=tuple(size + rng.randint(0, 5) for size in node.outputs),
                workspace=rng.randint(0, 6),
            )
            for node in graphs[-1].nodes
        ]
        graphs.append(replace(graphs[-1], nodes=tuple(nodes), fixed_memory=graphs[-1].fixed_memory + rng.randint(0, 2)))
    return graphs


def on_lines(graphs, batch):
    """The graph at a batch, in fractions: what the documentation says, written down a second time."""
    low = max([k for k, given in enumerate(GIVEN[:-1]) if given <= batch], default=0)
    part = Fraction(batch - GIVEN[low], GIVEN[low + 1] - GIVEN[low])

    def number(a, b):
        return max(Fraction(0), (1 - part) * Fraction(a) + part * Fraction(b))

    def whole(a, b):
        return math.ceil(number(a, b))

    one, other = graphs[low], graphs[low + 1]
    nodes = []
    for a, b in zip(one.nodes, other.nodes, strict=True):
        sizes = tuple(whole(x, y) for x, y in zip(a.outputs, b.outputs, strict=True))
        nodes.append(
            replace(a, cost=float(number(a.cost, b.cost)), outputs=sizes, workspace=whole(a.workspace, b.workspace))
        )
    fixed = whole(one.fixed_memory, other.fixed_memory)
    return Graph(one.name, tuple(nodes), one.outputs, one.cost_unit, fixed)


@pytest.mark.parametrize("seed", range(8))
def test_other_batches_lie_on_the_lines_through_the_nearest_two(seed):
    graphs = network(random.Random(seed))
    family = Batched.of(zip(GIVEN, graphs, strict=True))
    for batch in range(1, 14):
        made, wanted = family.at(batch), on_lines(graphs, batch)
        assert [node.cost for node in made.nodes] == pytest.approx([node.cost for node in wanted.nodes])
        assert (made.size, made.fixed_memory) == (wanted.size, wanted.fixed_memory)
        assert [node.workspace for node in made.nodes] == [node.workspace for node in wanted.nodes]
        if batch in GIVEN:
            assert made is graphs[GIVEN.index(batch)]
        least = peak_bound(family.least_at(batch)).bytes
        assert all(least <= peak_bound(family.at(later)).bytes for later in (*range(batch, 20), 10**6))


def batches_that_fit(graph_at, memory, overhead, top):
    """The batches up to ``top`` that have a plan within memory and cost."""
    found = set()
    for batch in range(1, top + 1):
        graph = graph_at(batch)
        cost = bruteforce.cheapest(graph, memory)
        if cost is not None and cost <= graph.total_cost * (1 + overhead) * (1 + 1e-9):
            found.add(batch)
    return found


@seeded(range(10), more=3, refuted=3, between=3)
@pytest.mark.parametrize("as_function", [False, True])
def test_with_costs_of_their_own_too_it_is_what_trying_every_batch_finds(seed, as_function):
    graphs = network(random.Random(seed))
    memory = no_remat_peak(graphs[-1]) * (3 if seed % 2 else 1)
    given = (lambda batch: on_lines(graphs, batch)) if as_function else graphs
    batches = None if as_function else GIVEN
    answer = max_batch_of(given, memory, graph_batch=batches, max_overhead="30%", options=SolveOptions(time_limit_s=2))
    possible = batches_that_fit(lambda batch: on_lines(graphs, batch), memory, 0.3, answer.impossible + 3)
    assert answer.found in possible
    assert answer.found >= answer.without
    assert not possible & set(answer.refuted)
    assert as_function or max(possible) < answer.impossible  # a function may make workspaces that fall
    report = answer.solved.report.replay
    assert report.peak_bytes <= memory
    assert report.cost <= answer.most_cost == pytest.approx(1.3 * on_lines(graphs, answer.found).total_cost)
    if answer.proven:
        assert answer.found == max(possible)
    yield from ["more"] * (answer.found > answer.without) + ["refuted"] * bool(answer.refuted)
    yield from ["between"] * (answer.found not in GIVEN)


@pytest.mark.parametrize("seed", range(40))
def test_the_last_batch_within_the_memory(seed):
    rng = random.Random(seed)
    needs = [0]
    for _ in range(200):
        needs.append(needs[-1] + rng.choice([0, 0, 1, rng.randint(0, 40)] if seed % 2 else [7]))
    memory, asked = rng.randint(0, needs[-1]), []

    def need(batch):
        asked.append(batch)
        return needs[batch] if batch <= 200 else 10**9 * batch

    low = rng.choice([0, max(b for b, used in enumerate(needs) if used <= memory) // 2])
    assert last_within(need, memory, low) == max(b for b, used in enumerate(needs) if used <= memory)
    assert len(asked) < 60
    with pytest.raises(UsageError, match="every batch fits"):
        last_within(lambda batch: 5, 5)


def test_measured_costs_change_the_answer():
    chain = build_graph("unit-chain{n=17}")

    def at(batch, dear):
        nodes = [
            replace(node, cost=node.cost + dear * (node.phase == "backward"), outputs=(batch,)) for node in chain.nodes
        ]
        return replace(chain, nodes=tuple(nodes), metadata={"batch": batch})

    fixed, growing = [at(1, 0.0), at(20, 0.0)], [at(1, 0.0), at(20, 9.5)]
    answers = [max_batch_of(graphs, "80B", max_overhead="30%") for graphs in (fixed, growing)]
    # Five values at a time cost 22, which is 29% more than 17. Where backward nodes cost more for each sample, 30% of
    # all allows to recompute any number of forward nodes, down to three values at a time: 80 / 3 = 26 samples.
    assert [answer.found for answer in answers] == [16, 26]
    assert (answers[0].refuted[0], answers[0].impossible) == (17, 27)
    assert [answer.proven for answer in answers] == [False, True]  # nothing proves 18 to 26 but solving each of them
    assert answers[0].solved.report.replay.cost == 22


def test_a_schedule_of_one_network_is_not_taken_for_another():
    def made(batch):
        chain = build_graph(f"unit-chain{{n={5 if batch < 4 else 7}}}")
        return replace(chain, nodes=tuple(replace(node, outputs=(batch,)) for node in chain.nodes))

    answer = max_batch_of(made, "17B", max_overhead="50%", options=SolveOptions(time_limit_s=5))
    possible = batches_that_fit(made, 17, 0.5, answer.impossible + 3)
    assert answer.found == max(possible)
    assert len(answer.graph.nodes) == 7
    assert answer.given == ()


def test_documents_and_words_of_several_graphs():
    graphs = network(random.Random(3))
    answer = max_batch_of(graphs, 3 * no_remat_peak(graphs[-1]), graph_batch=GIVEN, max_overhead="30%")
    document = json.loads(document_json(batch_document(answer)))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert document["given_batches"] == list(GIVEN)
    assert document["batch"] == document["graph_batch"] == answer.found
    text = batch_text(answer, answer.graph, Style(100, color=False, unicode=False))
    assert "for batches of 2, 3, 6; costs and bytes at" in text
    assert "on the lines through 3 and 6; make one near it to be sure" in " ".join(text.split())


def test_refusals_of_several_graphs():
    graphs = network(random.Random(0))
    for given, batches, words in (
        (graphs, (2, 2, 6), "two graphs are for a batch of 2"),
        (graphs, (2, 3), "3 graphs and 2 batches"),
        (graphs, (3, 2, 6), "has fewer bytes for a batch of 3 than for 2"),
        (graphs[:1], (2,), "two at least"),
        ([graphs[0], network(random.Random(1))[1]], (2, 3), "not of one network"),
        (graphs, None, "does not say for which batch"),
        (lambda batch: graphs[0], 3, "makes the graph of any batch"),
    ):
        with pytest.raises(UsageError, match=words):
            max_batch_of(given, "100B", graph_batch=batches, max_overhead="30%")
    with pytest.raises(UsageError, match="most_cost is for one graph"):
        max_batch_of(graphs, "100B", graph_batch=GIVEN, most_cost=3.0)
    with pytest.raises(UsageError, match="every batch fits"):
        max_batch_of(lambda batch: graphs[0], "1GB", max_overhead="30%")
    with pytest.raises(Infeasible, match="not even one sample"):
        max_batch_of(graphs, "3B", graph_batch=GIVEN, max_overhead="30%")
