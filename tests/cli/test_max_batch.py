"""The largest batch, against a search of all schedules at every batch."""

import json
import math
import random
from pathlib import Path

import bruteforce
import families
import jsonschema
import pytest
from seeded import seeded

from remat_cli.errors import Infeasible, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
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


def test_the_command(remat):
    remat("export", "zoo:unit-chain{n=17}", "-o", "chain.json")
    done = remat("max-batch", "chain.json", "--memory", "80B", "--batch", "1", "--max-overhead", "30%")
    assert "the largest batch within 80 B at 30.0% over no-remat is 16" in done.out
    assert "2.00 times as many" in done.out
    assert "17 or more is proven impossible" in done.out
    done = remat("max-batch", "chain.json", "--memory", "80B", "--batch", "1", "--max-overhead", "3GB", code=2)
    assert "is not a percentage" in done.err
    done = remat("max-batch", "chain.json", "--memory", "80B", "--batch", "1", "--max-overhead", "0.3", code=2)
    assert "(write 0.3% or 30%, or one-forward)" in done.err
    assert "say it with --batch" in remat("max-batch", "chain.json", "--memory", "80B", code=2).err


def test_documents():
    chain = build_graph("unit-chain{n=9}")
    facts = max_batch(chain, 40, graph_batch=1, most_cost=11, options=SolveOptions(time_limit_s=60))
    document = json.loads(document_json(batch_document(facts)))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert document["batch"] == facts.found
    text = batch_text(facts, chain, Style(60, color=False, unicode=False))
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 60


def test_the_command_takes_graphs_of_several_batches(remat):
    for batch in (8, 32):
        spec = f"zoo:resnet18{{batch={batch}}}"
        remat("export", spec, "--cost", "roofline:v100", "-o", f"{batch}.json")
    options = ("--memory", "4GB", "--strategy", "ap-greedy")
    done = remat("max-batch", "32.json", "8.json", *options, "--format", "json")
    several = done.json()
    one = remat("max-batch", "32.json", *options, "--format", "json").json()
    assert several["given_batches"] == [8, 32]
    assert one["given_batches"] == [32]
    # The images are fixed memory of one graph and grow with the batch of two.
    assert one["batch"] > several["batch"] > several["batch_without_remat"] > 0
    assert "--batch 8,16,32" in remat("max-batch", "8.json", "32.json", *options, "--batch", "8", code=2).err
    assert "is not a batch" in remat("max-batch", "8.json", "32.json", *options, "--batch", "8,0", code=2).err
    assert "standard input is one graph" in remat("max-batch", "-", "-", *options, code=2).err
