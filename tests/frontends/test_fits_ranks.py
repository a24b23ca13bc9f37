"""What one of several ranks needs: against processes that train together, and bytes counted by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import ranked_models
import torch
from torch import nn
from torch_processes import least_peak, together

import remat_cli as remat
from remat_cli.frontends.gpus import Gpu, gpu
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.ranks import BUCKET_BYTES, Ranks
from remat_cli.frontends.torch.measure.memory import changes_of
from remat_cli.frontends.torch.sharding import divided
from remat_cli.graph.memory_parts import Part, parts_of_values
from remat_cli.graph.model import Graph, Node, NodeQueue, Phase
from remat_cli.plan.derive import derive
from remat_cli.plan.replay import replay
from remat_cli.planning.fits import AGAIN, BLOCKS, UPDATE, WITHOUT

RANKS = 2
FULL, GRAD, NONE = "full", "grad", "none"
_answers = {}


def answer_of(shard, build="build", ranks=RANKS, **options):
    if (shard, build, ranks, *options.items()) not in _answers:
        limits = remat.SolveOptions(time_limit_s=2, threads=1)
        source = f"torch:{Path(ranked_models.__file__)}:{build}"
        asked = {"ranks": ranks, "shard": shard, "context": 0, "options": limits} | options
        _answers[shard, build, ranks, *options.items()] = remat.fits(source, "h100", **asked)
    return _answers[shard, build, ranks, *options.items()]


def run(rank, shard, build, enough):
    """Bytes that dividing the module and a first step leave, and those that later steps take at most."""
    module, batch = getattr(ranked_models, build)()
    made = []

    def begin():
        made.append(getattr(ranked_models, shard)(module))
        for _ in range(4):  # DDP makes new buckets after the first
            step(), clear()
        torch.distributed.barrier()

    def step():
        made[0](*batch).backward()

    def clear():
        module.zero_grad()
        getattr(module, "parts", {}).clear()

    [left] = changes_of([begin])
    return sum(left), least_peak(step, clear, enough)


def on_gloo(graph):
    """The graph as processes on CPUs run it: gloo takes a buffer as large as what all ranks have together."""

    def staged(node):
        if node.op not in {"all_gather_into_tensor", "reduce_scatter_tensor"}:
            return node
        return replace(node, workspace=max(sum(node.outputs), sum(graph.size[v] for v in node.inputs)))

    return replace(graph, nodes=tuple(map(staged, graph.nodes)))


@pytest.mark.parametrize("build", ["build", "build_few"])
@pytest.mark.parametrize("shard", [FULL, GRAD, NONE])
def test_processes_that_train_so_take_what_is_predicted(shard, build):
    graph = on_gloo(answer_of(shard, build).fits.need.graph)
    predicted = replay(graph, derive(graph, range(len(graph.nodes)))).peak_bytes - graph.fixed_memory
    left, measured = zip(*together(run, shard, build, 1.01 * predicted, count=RANKS), strict=True)
    assert measured == pytest.approx([predicted] * RANKS, rel=0.01)
    if shard == NONE:  # a thread of gloo may still hold the first buckets of a rank, beside those that replace them
        buckets = sum(parameter.nbytes for parameter in getattr(ranked_models, build)()[0].parameters())
        assert min(left) in (pytest.approx(buckets, rel=0.01), pytest.approx(2 * buckets, rel=0.01))


def run_plan(rank, build, plan, enough):
    """Most bytes of a step by the plan of an answer."""
    module, batch = getattr(ranked_models, build)()
    divided(module, Ranks(RANKS, FULL, 1, Interconnect.of("1GB/s")))
    compiled = torch.compile(module, backend=remat.remat_backend(plan), dynamic=False)

    def step():
        compiled(*batch).backward()

    step(), step(), module.zero_grad()
    return least_peak(step, module.zero_grad, enough)


@pytest.mark.parametrize("strategy", ["keep-all", "fsdp{checkpoint=true}"])
def test_processes_can_train_by_the_plan_of_an_answer(strategy):
    graph = on_gloo(answer_of(FULL, "build_few").fits.need.graph)
    plan = remat.solve(graph, None, options=remat.SolveOptions(strategy=strategy)).plan
    predicted = replay(graph, plan.statements).peak_bytes - graph.fixed_memory
    for measured in together(run_plan, "build_few", plan, 1.01 * predicted, count=RANKS):
        assert measured == pytest.approx(predicted, rel=0.01)


# Bytes counted by hand.

SHAPES = [tuple(parameter.shape) for parameter in ranked_models.Llama(*ranked_models.ODD).parameters()]
WHOLE = [4 * math.prod(shape) for shape in SHAPES]


def part(shape, ranks):
    """Bytes of the first and largest part, along the first dimension."""
    return 4 * -(-shape[0] // ranks) * math.prod(shape[1:])


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_parts_of_parameters_gradients_and_state_are_padded_shares(ranks):
    answer = answer_of(FULL, ranks=ranks).fits
    parts = [part(shape, ranks) for shape in SHAPES]
    assert answer.need.fixed["parameters"] == sum(parts)
    assert answer.need.fixed["state of AdamW"] == 2 * sum(parts)
    graph = answer.need.graph
    assert sum(graph.size[v] for v in graph.outputs) == sum(parts) + 4, "gradients, and the loss"
    embedding = SHAPES[0]
    gathered = sum(ranks * part(shape, ranks) for shape in SHAPES) - ranks * part(embedding, ranks)
    assert answer.choice(WITHOUT).parts[Part.GATHERED.value] == gathered, (
        "all but the embedding, whose backward needs none"
    )
    assert Part.GATHERED.value not in answer.choice(AGAIN).parts, "at the logits nothing is gathered"


def test_gradients_and_state_alone_are_divided():
    answer = answer_of(GRAD, ranks=8).fits
    parts = [4 * -(-math.prod(shape) // 8) for shape in SHAPES]
    assert answer.need.fixed["parameters"] == sum(WHOLE)
    assert answer.need.fixed["state of AdamW"] == 2 * sum(parts)
    assert answer.need.update_bytes == sum(parts)
    graph = answer.need.graph
    assert sum(graph.size[v] for v in graph.outputs) == sum(parts) + 4
    kinds = parts_of_values(graph)
    assert sum(graph.size[v] for v, kind in enumerate(kinds) if kind is Part.BUFFERS) == sum(WHOLE)


def test_nothing_is_divided():
    answer = answer_of(NONE, ranks=8).fits
    fixed, parameters = answer.need.fixed, sum(WHOLE)
    assert [fixed[name] for name in ("parameters", "state of AdamW", Part.BUFFERS.value)] == [
        parameters, 2 * parameters, parameters
    ]  # fmt: skip
    graph = answer.need.graph
    assert sum(graph.size[v] for v in graph.outputs) == parameters + 4


def test_the_optimizers_step_is_that_of_the_part():
    choices = [answer_of(shard, "build_few", ranks=RANKS).fits.choice(WITHOUT) for shard in (FULL, GRAD, NONE)]
    assert [choice.parts.get(UPDATE, 0) for choice in choices] == sorted(
        choice.parts.get(UPDATE, 0) for choice in choices
    )
    totals = [choice.total_bytes for choice in choices]
    assert totals == sorted(totals)


def test_what_is_recomputed_takes_less_and_longer():
    answer = answer_of(FULL).fits
    without, again, blocks = (answer.choice(name) for name in (WITHOUT, AGAIN, BLOCKS))
    assert without.total_bytes > again.total_bytes > blocks.total_bytes
    assert without.overhead < again.overhead < blocks.overhead


# Times.


def test_reductions_take_the_time_of_a_ring_and_buckets_are_those_of_ddp():
    size = BUCKET_BYTES // 4
    nodes = [Node(f"g{k}", 1.0, (), (size,), phase=Phase.BACKWARD) for k in range(10)]
    results = [{"kind": "gradient", "of": k, "tensor": {"value": f"g{k}:0"}} for k in range(10)]
    graph = Graph("g", tuple(nodes), tuple(range(10)), "us", metadata={"results": results})
    links = Interconnect.of("10GB/s")
    buckets = [node for node in Ranks(4, NONE, 1, links).reduced(graph).nodes if node.queue is NodeQueue.COMMUNICATION]
    assert [len(node.inputs) for node in buckets] == [1, 4, 4, 1], "the first is small, so that reductions begin early"
    assert [node.outputs for node in buckets] == [(0,)] * 4
    assert [node.cost for node in buckets] == pytest.approx(
        [3 + 2 * 3 / 4 * len(node.inputs) * size / 1e4 for node in buckets]
    )
    scattered = Ranks(4, GRAD, 1, links).reduced(graph)
    parts = [node for node in scattered.nodes if node.queue is NodeQueue.COMMUNICATION]
    assert [node.outputs for node in parts] == [(-(-size // 4),)] * 10
    assert [node.cost for node in parts] == pytest.approx([3 + 3 / 4 * size / 1e4] * 10)
    assert replay(scattered, derive(scattered, range(20))).findings == ()


def test_links_are_those_of_the_card_unless_they_are_given():
    inside, outside = (answer_of(FULL, ranks=ranks).facts().ranks for ranks in (8, 16))
    assert inside.bytes_per_s == {"fsdp": 450e9}
    assert outside.bytes_per_s == {"fsdp": 50e9}
    slow = answer_of(FULL, ranks=8, interconnect="1GB/s")
    assert slow.facts().ranks.bytes_per_s == {"fsdp": 1e9}
    assert slow.fits.need.graph.no_remat_cost > answer_of(FULL, ranks=8).fits.need.graph.no_remat_cost
    assert any("machines with 8 such cards" in sentence for sentence in answer_of(FULL, ranks=8).assumptions)
    assert not any("such cards" in sentence for sentence in slow.assumptions)


# What is refused.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "24GB", "ranks": 8}, "of the card only its memory is known"),
        ({"gpu": "rtx4090", "ranks": 8}, "the links between cards of the kind .* are not known"),
        ({"ranks": 8, "tp": 3}, "8 ranks cannot be divided into groups of 3"),
        ({"ranks": 8, "shard": "half"}, '"half" is no way to divide a training'),
        ({"ranks": 1 << 21}, "2,097,152 ranks are too many"),
        ({"ranks": 8, "interconnect": "tp=50GB/s"}, 'no bandwidth is given for the dimension "fsdp"'),
        ({"ranks": 8, "interconnect": "pp=50GB/s"}, 'no dimension "pp"'),
        ({"ranks": 8, "tp": 2}, "Llama has no plan for ranks that share matrices"),
        ({"ranks": 8, "largest": True}, "larger batches and other lengths are not looked for on several ranks"),
        ({"ranks": 8, "buckets": [64]}, "larger batches and other lengths are not looked for on several ranks"),
        ({"shard": "full"}, "shard is for several ranks"),
        ({"tp": 2}, "tp is for several ranks"),
        ({"interconnect": "50GB/s"}, "interconnect is for several ranks"),
    ],
)
def test_ranks_that_make_no_sense(options, message):
    asked = {"gpu": "h100"} | options
    with pytest.raises(remat.UsageError, match=message) as caught:
        remat.fits(f"torch:{Path(ranked_models.__file__)}:build", **asked)
    assert caught.value.hint


def test_graphs_have_their_own_ranks():
    with pytest.raises(remat.UsageError, match="ranks is for models by name; the graph has its own"):
        remat.fits("zoo:resnet18{batch=4}", "h100", ranks=8)


def test_what_is_divided_already_is_not_divided_again():
    ranks = Ranks.of(2, FULL, 1, "", gpu("h100"))

    def twice():
        module, batch = ranked_models.build()
        return divided(divided(module, ranks), ranks), batch

    from remat_cli.frontends.torch.export import export_model

    with pytest.raises(remat.UsageError, match="are divided over ranks already"):
        export_model(twice, "x", "test", cost="roofline:h100", world=2, interconnect=ranks.captured)


def test_parameters_that_are_tied_stay_tied():
    from remat_cli.frontends.torch.compat.distributed import fake_group

    with fake_group(4):
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        module[1].weight = module[0].weight
        divided(module, Ranks(4, FULL, 1, Interconnect.of("1GB/s")))
        assert module._modules["0"]._parameters["weight"] is module._modules["1"]._parameters["weight"]
        assert len(list(module.parameters())) == 3
        assert type(module[0]) is type(module[1])


def test_cards_of_which_only_memory_is_known_have_no_links():
    assert gpu("24GB") == Gpu("24 GB", 24_000_000_000)
    assert gpu("a100").links == (300e9, 25e9)
