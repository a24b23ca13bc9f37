"""Steps with regions in parts: what is offered, and that results and memory are as stated."""

import math

import pytest
import torch
from divided_models import BATCH, EXACT, LENGTH, WIDTH, WORDS, graph_of, plan_in_parts, ran, whole
from torch_plans import run_plan

from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.measure.benches import result_names
from remat_cli.frontends.torch.measure.operations import place_tensors
from remat_cli.graph.splitting import split
from remat_cli.plan.derive import derive, peak

ROUNDED = [("gpt", torch.bfloat16), ("llama", torch.bfloat16), ("autocast", torch.float32), ("gpt", torch.float16)]
CHOICES = ({"loss": 2}, {"loss": 8}, {"hidden": 2}, {"hidden": 8}, {"loss": 4, "hidden": 4})


@pytest.mark.parametrize("parts", CHOICES, ids=str)
@pytest.mark.parametrize("kind", EXACT)
def test_in_float64_results_are_equal_to_1e_12(kind, parts):
    graph = graph_of(kind)
    wanted, _ = ran(graph, whole(graph))
    divided = split(graph, parts)
    results, _ = ran(divided, whole(divided))
    assert len(results) == len(wanted) > 10
    for one, other in zip(results, wanted, strict=True):
        assert one.shape == other.shape
        assert one.stride() == other.stride()
        assert (one - other).abs().max() <= 1e-12 * other.abs().max()


@pytest.mark.parametrize("parts", CHOICES, ids=str)
@pytest.mark.parametrize("kind", EXACT)
def test_the_peak_is_predicted_to_the_byte(kind, parts):
    graph = split(graph_of(kind), parts)
    order = list(range(len(graph.nodes)))
    again = next((i for i, node in enumerate(graph.nodes) if node.id.endswith("/forward")), 0)
    for computes in (order, [*order[: again + 1], again, *order[again + 1 :]]):
        statements = derive(graph, computes)
        assert ran(graph, statements)[1] == peak(graph, computes)


def test_the_sum_of_losses_is_divided_as_well():
    graph = graph_of(reduction="sum")
    wanted, _ = ran(graph, whole(graph))
    divided = split(graph, {"loss": 4})
    results, _ = ran(divided, whole(divided))
    assert all((a - b).abs().max() <= 1e-12 * b.abs().max() for a, b in zip(results, wanted, strict=True))


@pytest.mark.parametrize("shape", [(1, 30), (2, 15), (1, 16), (1, 64), (2, 8)], ids=str)
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_rows_are_found_however_many_there_are(kind, shape):
    """Of one sequence, targets are a view; as many rows as a layer is wide, or as it is wide inside, are no others."""
    graph = graph_of(kind, shape=shape, follows=True)
    assert [region.id for region in graph.splits] == ["hidden", "loss"]
    assert len(graph.splits[0].operations) == 4
    wanted, _ = ran(graph, whole(graph))
    divided = split(graph, {"loss": 4, "hidden": 2})
    results, most = ran(divided, whole(divided))
    assert all((a - b).abs().max() <= 1e-12 * b.abs().max() for a, b in zip(results, wanted, strict=True))
    assert most == peak(divided, range(len(divided.nodes)))


def test_in_float32_sums_differ_by_no_more_than_their_order_explains():
    """Higham, Accuracy and Stability, 3.1: a sum of n terms in any order is off by n u sum |terms| at most."""
    graph = graph_of(dtype=torch.float32)
    divided = split(graph, {"loss": 8})
    [loss, *_], _ = ran(graph, whole(graph))
    [loss_in_parts, *_], _ = ran(divided, whole(divided))
    n = BATCH * LENGTH
    unit = torch.finfo(torch.float32).eps / 2
    assert abs(float(loss) - float(loss_in_parts)) <= 2 * 2 * n * unit * float(loss)  # all terms are positive
    names = result_names(read_step(graph))
    one, other = (dict(zip(names, ran(g, whole(g))[0], strict=True)) for g in (graph, divided))
    assert names == result_names(read_step(divided))
    for name in names:
        assert (one[name] - other[name]).abs().max() <= 4096 * 2 * unit * other[name].abs().max()


def test_equal_layers_are_one_region_and_the_loss_another():
    graph = graph_of()
    assert [(r.id, r.parts, len(r.operations)) for r in graph.splits] == [
        ("hidden", (2, 4, 8), 4),
        ("loss", (2, 4, 8), 2),
    ]
    both, words = graph.splits[1].operations
    assert [graph.nodes[i].op for i in words.nodes] == ["embedding_dense_backward", "add"]
    assert [(r.id, len(r.operations)) for r in graph_of("llama").splits] == [("hidden", 4), ("loss", 1)]
    passes = ["mm", "_log_softmax", "nll_loss_forward"], ["nll_loss_backward", "_log_softmax_backward_data", "mm", "mm"]
    assert [graph.nodes[i].op for i in both.nodes] == [*passes[0], *passes[1]]
    assert (both.repeats, both.ahead_of) == ((), (read_step(graph).tangents,))
    rows = math.ceil(BATCH * LENGTH / 4)
    at_once = rows * (WORDS + WIDTH) * 8  # one tensor with a number for each word, beside the gradient of hidden states
    assert both.workspaces[1] == at_once + 8  # and the number of targets
    graph = graph_of("half the loss")  # the tangent is not that of the loss in parts
    forward, backward, _ = graph.splits[1].operations
    assert [[graph.nodes[i].op for i in one.nodes] for one in (forward, backward)] == [*passes]
    assert [graph.nodes[i].op for i in backward.repeats] == ["mm", "_log_softmax"]
    assert backward.workspaces[1] == at_once


def test_costs_in_parts_are_those_of_the_same_model_on_smaller_shapes():
    flops = graph_of()
    for region in flops.splits:
        for operation in region.operations:
            once = sum(flops.nodes[i].cost for i in (*operation.nodes, *operation.repeats))
            assert operation.costs == pytest.approx([once] * len(region.parts), rel=2e-3)  # and adding up
    timed = graph_of(cost="roofline:a100")
    for region in timed.splits:
        for operation in region.operations:
            assert list(operation.costs) == sorted(operation.costs)  # more launches
            once = sum(timed.nodes[i].cost for i in operation.nodes)
            assert operation.costs[0] == pytest.approx(once) if "words" in operation.id else operation.costs[0] > once


def test_what_draws_random_numbers_and_what_leaves_the_step_is_in_no_operation():
    graph = graph_of("inner dropout")
    inside = {graph.nodes[i].op for r in graph.splits for o in r.operations for i in (*o.nodes, *o.repeats)}
    assert "native_dropout" not in inside
    assert "native_dropout" in {node.op for node in graph.nodes}
    graph = graph_of(logits=True)
    loss = next(region for region in graph.splits if region.id == "loss")
    assert not any(graph.nodes[i].op == "mm" for i in loss.operations[0].nodes)  # the logits are whole


def with_numbers_of(graph, reference):
    """Places of two steps with the same numbers: those of the first, rounded to its types."""
    own = place_tensors(read_step(graph).given, "cpu", 0)
    others = place_tensors(read_step(reference).given, "cpu", 0)
    for one, other in zip(own, others, strict=True):
        other.copy_(one)
    return own, others


@pytest.mark.parametrize(("kind", "dtype"), ROUNDED, ids=str)
def test_of_16_bits_sums_are_as_exact_as_whole_operations(kind, dtype):
    """Each result is no further from that of float32 than twice what rounding does to the whole operations."""
    graph, exact = graph_of(kind, dtype), graph_of("gpt" if kind == "autocast" else kind, torch.float32)
    places, wanted_places = with_numbers_of(graph, exact)
    wanted, _ = ran(exact, whole(exact), places=wanted_places)
    rounded, _ = ran(graph, whole(graph), places=places)
    names = result_names(read_step(graph))
    assert {region.id for region in graph.splits} >= {"hidden" if dtype is torch.float16 else "loss"}
    for parts in ({region.id: count} for region in graph.splits for count in region.parts):
        divided = split(graph, parts)
        results, most = ran(divided, whole(divided), places=places)
        assert most == peak(divided, range(len(divided.nodes)))
        for name, one, whole_one, truth in zip(names, results, rounded, wanted, strict=True):
            off, off_whole = ((tensor.double() - truth.double()).norm() for tensor in (one, whole_one))
            assert off <= 2 * off_whole, (parts, name)


def test_a_sum_in_16_bits_would_be_less_exact(monkeypatch):
    """The test above would be worth nothing if sums in bfloat16 passed it."""
    from remat_cli.frontends.torch.execute import division

    graph, exact = graph_of("gpt", torch.bfloat16), graph_of("gpt", torch.float32)
    places, wanted_places = with_numbers_of(graph, exact)
    name = result_names(read_step(graph)).index("gradient of words.weight")
    truth = ran(exact, whole(exact), places=wanted_places)[0][name]
    divided = split(graph, {"loss": 8})

    def off():
        return (ran(divided, whole(divided), places=places)[0][name].double() - truth.double()).norm()

    exactly = off()
    monkeypatch.setattr(division, "_ADDED_WIDER", ())
    monkeypatch.setattr(division, "_SUMMED_TYPES", ("bfloat16",))
    assert off() > exactly


def test_the_mean_of_a_loss_in_float16_is_not_divided():
    """Its sum may be infinite, though the mean is not."""
    assert "loss" not in {region.id for region in graph_of("gpt", torch.float16).splits}


def test_label_smoothing_is_divided_or_left_whole_but_never_wrong():
    graph = graph_of(smoothing=0.1)
    wanted, _ = ran(graph, whole(graph))
    for region in graph.splits:
        divided = split(graph, {region.id: 4})
        results, _ = ran(divided, whole(divided))
        assert all((a - b).abs().max() <= 1e-12 * b.abs().max() for a, b in zip(results, wanted, strict=True))


def test_a_run_says_what_is_no_longer_bit_for_bit():
    graph = graph_of("dropout")
    report = run_plan(plan_in_parts(graph, {"loss": 8}), steps=1)
    assert report.in_parts.regions == {"loss": 8}
    assert report.in_parts.summed[0] == "result 0"
    assert report.in_parts.within
    assert report.as_expected
    assert report.memory.measured == report.memory.predicted_without_workspace == report.memory.predicted
    assert report.in_parts.largest < 1e-12


@pytest.mark.parametrize(("kind", "dtype"), ROUNDED[:3], ids=str)
def test_a_run_in_16_bits_accepts_what_rounding_explains(kind, dtype):
    report = run_plan(plan_in_parts(graph_of(kind, dtype), {"loss": 8}), steps=1)
    assert report.in_parts.within
    assert report.in_parts.summed
    assert report.memory.measured == report.memory.predicted


@pytest.mark.parametrize(("kind", "dtype"), [("gpt", torch.float64), *ROUNDED[:3]], ids=str)
def test_a_wrong_sum_is_noticed(kind, dtype, monkeypatch):
    """The comparison would be worth nothing if it said yes to everything."""
    graph = graph_of(kind, dtype)
    divided = plan_in_parts(graph, {"loss": 4})
    from remat_cli.frontends.torch.execute import in_parts

    monkeypatch.setattr(in_parts, "part_of", lambda tensor, rows, start, count: tensor_part(tensor, rows, 0, count))
    report = run_plan(divided, steps=1)
    assert not report.in_parts.within
    assert not report.as_expected


def tensor_part(tensor, rows, start, count):
    from remat_cli.frontends.torch.execute.division import part_of

    return part_of(tensor, rows, start, count)
