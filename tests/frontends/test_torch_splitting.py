"""Steps with regions in parts: what is offered, and that results, memory and documents are as stated."""

import contextlib
import copy
import functools
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_plans import most_bytes, plain, run_plan

import remat_cli as remat
from remat_cli.cli.main import run
from remat_cli.errors import Infeasible, UsageError
from remat_cli.frontends.captured.running import without_workspace
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.division import NotDivisible, division
from remat_cli.frontends.torch.execute.in_parts import complete, targets_weight
from remat_cli.frontends.torch.execute.program import program
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.measure.benches import result_names
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.measure.operations import place_tensors
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import graph_from_document
from remat_cli.graph.splitting import split
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.io import plan_from_document, plan_to_document

WORDS, WIDTH, BATCH, LENGTH = 300, 16, 2, 15


class Block(nn.Module):
    """Attention and a layer of GPT-2, or a gated one as of Llama."""

    def __init__(self, gated, dropout, inner_dropout):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.RMSNorm(WIDTH) if gated else nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=not gated), nn.Linear(4 * WIDTH, WIDTH, bias=not gated)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=False) if gated else None
        self.dropout, self.inner_dropout = nn.Dropout(dropout), nn.Dropout(inner_dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, 2, 8).transpose(1, 2) for p in self.qkv(self.norm(x)).split(c, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.dropout(self.out(y))
        h = self.norm2(x)
        h = nn.functional.gelu(self.up(h)) if self.gate is None else nn.functional.silu(self.gate(h)) * self.up(h)
        return x + self.dropout(self.down(self.inner_dropout(h)))


class Language(nn.Module):
    """A small language model, with its loss, of the words themselves or, as in Transformers, of those that follow."""

    def __init__(
        self,
        gated=False,
        dropout=0.0,
        inner_dropout=0.0,
        smoothing=0.0,
        logits=False,
        weight=None,
        after="nothing",
        padding=None,
        follows=False,
    ):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.blocks = nn.Sequential(*(Block(gated, dropout, inner_dropout) for _ in range(2)))
        self.head = nn.Linear(WIDTH, WORDS, bias=gated)
        if not gated:
            self.head.weight = self.words.weight
        self.smoothing, self.logits, self.reduction = smoothing, logits, "mean"
        self.after, self.follows = after, follows
        self.register_buffer("weight", weight)

    def forward(self, words, targets):
        logits = self.head(self.blocks(self.words(words)))
        if self.follows:
            targets = nn.functional.pad(targets, (0, 1), value=3)[..., 1:].contiguous()
        loss = nn.functional.cross_entropy(
            logits.view(-1, WORDS),
            targets.view(-1),
            weight=self.weight,
            ignore_index=3,
            label_smoothing=self.smoothing,
            reduction=self.reduction,
        )
        loss = loss / 2 if self.after == "half" else loss
        return (loss, logits) if self.logits else loss


KINDS = {
    "gpt": {},
    "llama": {"gated": True},
    "dropout": {"dropout": 0.1},
    "inner dropout": {"inner_dropout": 0.1},  # its mask is made outside
    "autocast": {},
    "weighted": {"weight": torch.rand(WORDS, dtype=torch.float64)},
    "half the loss": {"after": "half"},
}

EXACT = [kind for kind in KINDS if kind != "autocast"]
"""Kinds that compute in the type of their parameters."""


@functools.cache
def graph_of(kind="gpt", dtype=torch.float64, cost="flops", reduction="mean", shape=(BATCH, LENGTH), **options):
    """The graph of a language model with the regions that it offers."""

    def build():
        model = Language(**KINDS[kind], **options).to(dtype)
        model.reduction = reduction
        if kind == "autocast":
            model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
        return model, (torch.randint(0, WORDS, shape), torch.randint(0, WORDS, shape))

    return export_model(build, kind, "torch:language.py:build", cost=cost, split=True)


def ran(graph, statements, seed=0, places=None):
    """Results of statements on a CPU, with the bytes at the peak."""
    step = read_step(graph)
    places = place_tensors(step.given, "cpu", seed) if places is None else places
    number = next(k for k, place in enumerate(step.given) if place.kind == "input" and "int" in place.spec.dtype)
    targets = next(k for k in range(number + 1, len(step.given)) if "int" in step.given[k].spec.dtype)
    places[targets].view(-1)[::4] = 3  # ignored
    runnable = program(graph, statements, "cpu")
    tangents = [place for place in step.places if place.kind == "tangent"]
    torch.manual_seed(seed)
    with live_storages()(places) as live:
        results = runnable.run(places, lambda k: torch.ones((), dtype=getattr(torch, tangents[k].spec.dtype)))
    return results, graph.fixed_memory + live.peak_bytes


def whole(graph):
    return derive(graph, range(len(graph.nodes)))


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


ROUNDED = [("gpt", torch.bfloat16), ("llama", torch.bfloat16), ("autocast", torch.float32), ("gpt", torch.float16)]


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


def plan_in_parts(graph, parts):
    return plain(split(graph, parts))


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


def test_documents_keep_regions_and_plans_their_parts():
    graph = graph_of()
    plan = plan_in_parts(graph, {"loss": 4, "hidden": 2})
    document = parse_document(json.dumps(plan_to_document(plan)), "plan")
    assert read_step(plan_from_document(document).graph) == read_step(plan.graph)


def test_a_document_with_other_rows_is_refused():
    graph = graph_of()
    rows = dict.fromkeys(graph.metadata["splitting"], 7)
    damaged = replace(graph, metadata=graph.metadata | {"splitting": rows})
    with pytest.raises(UsageError, match="cannot run in parts"):
        run_plan(plan_in_parts(damaged, {"loss": 4}), steps=1)
    with pytest.raises(UsageError, match="splitting"):
        run_plan(plan_in_parts(replace(graph, metadata=graph.metadata | {"splitting": 3}), {"loss": 4}), steps=1)


def test_without_the_option_graphs_offer_nothing_and_other_compilers_are_refused(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.words, self.head = torch.nn.Embedding(500, 8), torch.nn.Linear(8, 500)\n"
        "    def forward(self, words, targets):\n"
        "        return torch.nn.functional.cross_entropy(self.head(self.words(words)), targets)\n"
        "def build():\n"
        "    return Model(), (torch.randint(0, 500, (64,)), torch.randint(0, 500, (64,)))\n"
    )
    source = f"torch:{file}:build"
    assert run(["export", source, "--cost", "flops", "-o", str(tmp_path / "plain.json")]) == 0
    assert "splits" not in json.loads((tmp_path / "plain.json").read_text())
    graph, plan = str(tmp_path / "split.json"), str(tmp_path / "plan.json")
    assert run(["export", source, "--cost", "flops", "--split", "-o", graph]) == 0
    assert run(["solve", graph, "--minimize", "peak", "--time-limit", "20s", "-o", plan]) == 0
    capsys.readouterr()
    assert run(["run", plan, "--steps", "1"]) == 0
    said = capsys.readouterr().out
    assert "✓" in said
    assert "in parts   loss in " in said
    assert "sums over parts, no longer bit for bit: result 0" in said
    assert "as predicted to the byte" in said
    assert run(["profile", graph]) == 2
    assert "without --split" in capsys.readouterr().err
    assert run(["export", source, "--split", "--compiler", "inductor", "-o", graph]) == 2
    assert run(["export", "zoo:vgg16", "--split", "-o", graph]) == 2


@pytest.mark.parametrize(("key", "title"), [("jax", "JAX"), ("tf", "TensorFlow")])
def test_frameworks_that_run_whole_operations_name_the_parts_of_a_plan(key, title):
    document = {
        "schema": "remat-graph/1",
        "name": "step",
        "metadata": {"frontend": key, "version": 1},
        "nodes": [
            {"id": "x", "inputs": [], "cost": 1, "memory": 4},
            {"id": "y", "inputs": ["x"], "cost": 1, "memory": 4},
        ],
        "splits": [
            {
                "id": "loss",
                "along": "tokens",
                "parts": [4],
                "operations": [{"id": "both", "nodes": ["x", "y"], "cost": [2], "workspace": [1]}],
            }
        ],
    }
    graph = graph_from_document(parse_document(json.dumps(document), "graph"))
    with pytest.raises(UsageError, match=f"{title} runs operations whole, .* loss in 4 parts of the tokens") as caught:
        remat.run_plan(plan_in_parts(graph, {"loss": 4}))
    assert "split=False" in str(caught.value.hint)


def test_the_plan_counts_the_workspace_of_the_parts():
    graph = split(graph_of(), {"loss": 2})
    least = peak(without_workspace(graph), range(len(graph.nodes)))
    assert least < peak(graph, range(len(graph.nodes)))


def trained(model, batch, steps=3):
    """Losses and parameters of some steps of SGD."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        losses.append(loss.detach().clone())
        optimizer.step()
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize("kind", ["gpt", "inner dropout"])
def test_modules_train_in_parts_with_the_same_numbers_and_within_the_plan(kind):
    torch.manual_seed(0)
    plain_model = Language(**KINDS[kind]).double()
    model = Language(**KINDS[kind]).double()
    model.load_state_dict(plain_model.state_dict())
    batch = tuple(torch.randint(0, WORDS, (8, 32)) for _ in range(2))
    options = remat.SolveOptions(time_limit_s=2)
    whole_graphs = remat.fit(Language(**KINDS[kind]).double(), batch, "100%", options=options, cache="", cost="flops")
    needs = remat.fitted(whole_graphs)
    budget = needs.least_bytes - 200_000
    with pytest.raises(Infeasible):
        remat.fit(Language(**KINDS[kind]).double(), batch, budget, options=options, cache="", cost="flops")
    remat.fit(model, batch, budget, options=options, cache="", cost="flops", split=True)
    said = remat.fitted(model)
    assert "loss in " in repr(said)
    assert "not bit for bit" in repr(said)
    assert said.plan_bytes <= budget
    assert said.least_bytes < needs.least_bytes
    torch.manual_seed(1)
    wanted = trained(plain_model, batch)
    torch.manual_seed(1)
    for one, other in zip(trained(model, batch), wanted, strict=True):
        assert (one - other).abs().max() <= 1e-12 * other.abs().max()
    model.zero_grad()
    assert most_bytes(lambda: model(*batch).backward(), [*model.parameters(), *batch]) <= budget


def test_fit_refuses_what_was_not_tried_in_parts():
    model, batch = Language(), tuple(torch.randint(0, WORDS, (2, 8)) for _ in range(2))
    for options in ({"cost": "measured"}, {"buckets": [8]}, {"compiler": "inductor"}):
        with pytest.raises(UsageError, match="parts"):
            remat.fit(model, batch, "100%", split=True, **options)
    with pytest.raises(UsageError, match="split"):
        remat.fit(model, batch, "100%", split="yes")


def test_workspaces_of_kernels_are_counted_part_by_part():
    from remat_cli.frontends.torch.measure.part_workspaces import part_workspaces

    graph = graph_of()
    step, loss = read_step(graph), graph.splits[-1].operations[0]
    divided = division(step, loss.nodes, loss.repeats, BATCH * LENGTH, (), "cpu", loss.ahead_of)
    before = torch.get_rng_state()
    measured = part_workspaces(divided, 5)
    assert torch.equal(before, torch.get_rng_state())
    assert len(measured) == len(divided.calls)
    assert all(0 <= size < 1 << 20 for size in measured)


def test_a_plan_in_parts_runs_under_torch_compile():
    model = Language().double()
    batch = tuple(torch.randint(0, WORDS, (BATCH, LENGTH)) for _ in range(2))
    loss = model(*batch)
    loss.backward()
    wanted = [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
    model.zero_grad()
    plan = plan_in_parts(graph_of(), {"loss": 4, "hidden": 2})
    step = torch.compile(model, backend=remat.remat_backend(plan))
    loss = step(*batch)
    loss.backward()
    for one, other in zip([loss.detach(), *(p.grad for p in model.parameters())], wanted, strict=True):
        assert (one - other).abs().max() <= 1e-12 * other.abs().max()


def test_a_loss_made_at_once_with_its_gradients_is_scaled_and_added_up_like_any_other():
    torch.manual_seed(0)
    models = [Language().double()]
    models.append(copy.deepcopy(models[0]))
    batch = tuple(torch.randint(0, WORDS, (BATCH, LENGTH)) for _ in range(2))
    plan = plan_in_parts(graph_of(), {"loss": 4})
    assert any(operation.ahead_of for operation in plan.graph.whole.splits[1].operations)
    step = torch.compile(models[0], backend=remat.remat_backend(plan))
    for scale in (1, 0.25, 3):
        for one in (step, models[1]):
            (one(*batch) * scale).backward()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert (one.grad - other.grad).abs().max() <= 1e-12 * other.grad.abs().max()


def test_gradients_that_are_not_linear_in_the_tangent_are_not_made_ahead_of_it():
    graph = graph_of()
    step, loss = read_step(graph), graph.splits[1].operations[0]
    backward = next(i for i in loss.nodes if graph.nodes[i].op == "nll_loss_backward")
    operations = list(step.operations)
    operations[backward] = replace(operations[backward], call="aten.nll_loss_squared.default")
    results = [v for i in loss.nodes for v in graph.values_of(i) if v in graph.outputs]
    for changed in (replace(step, operations=tuple(operations)), step):
        refused = pytest.raises(NotDivisible) if changed is not step else contextlib.nullcontext()
        with refused:
            division(changed, loss.nodes, (), BATCH * LENGTH, results, "cpu", loss.ahead_of)
    with pytest.raises(NotDivisible):  # only the tangent may come later
        division(step, loss.nodes, (), BATCH * LENGTH, results, "cpu", (0,))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_weight_of_all_targets_is_that_of_the_loss(weighted):
    targets = torch.randint(0, 7, (50,))
    weights = torch.rand(7, dtype=torch.float64) if weighted else None
    logs = torch.zeros(50, 7, dtype=torch.float64)
    _, wanted = torch.ops.aten.nll_loss_forward(logs, targets, weights, 1, 3)
    assert float(targets_weight(targets, weights, 3, torch.float64)) == pytest.approx(float(wanted), rel=1e-14)


def test_a_second_backward_pass_does_not_find_gradients_multiplied_twice():
    for tangent in (1.0, 2.0):
        kept = torch.ones(3, requires_grad=True).exp()
        complete(kept.detach(), torch.tensor(tangent))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            kept.sum().backward()


def test_the_gradient_of_an_embedding_is_added_without_a_tensor_of_its_own():
    """The weight of the head is that of the embedding, and larger than all else."""
    graph = graph_of()
    weight, divided = WORDS * WIDTH * 8, split(graph, {"loss": 8})
    node = next(k for k, node in enumerate(divided.nodes) if node.id == "loss/words")
    inputs = sum(divided.size[v] for v in divided.nodes[node].inputs)
    assert (divided.nodes[node].outputs, divided.nodes[node].workspace) == ((weight,), 0)
    assert weight < inputs < 2 * weight
    sparse = graph_of("gpt", padding=5)  # rows that have no gradient are left out, which the sum in place does not
    assert len(sparse.splits[1].operations) == 1


class Segmentation(nn.Module):
    """Classes of pixels in a higher resolution, with their loss."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 20, 1)

    def forward(self, images, targets):
        classes = self.head(torch.nn.functional.gelu(self.stem(images)))
        full = nn.functional.interpolate(classes, scale_factor=2, mode="bilinear")
        return nn.functional.cross_entropy(full, targets, ignore_index=3)


def test_a_segmentation_head_runs_for_some_images_at_a_time():
    def build():
        return Segmentation().double(), (torch.randn(4, 3, 6, 5).double(), torch.randint(0, 20, (4, 12, 10)))

    graph = export_model(build, "head", "torch:head.py:build", cost="flops", split=True)
    [region] = graph.splits
    assert (region.id, region.parts, region.along) == ("loss", (2, 4), "4 rows")
    plan = plan_in_parts(graph, {"loss": 4})
    assert peak(plan.graph, range(len(plan.graph.nodes))) < 0.4 * peak(graph, range(len(graph.nodes)))
    model, batch = build()
    other = copy.deepcopy(model)
    step = torch.compile(model, backend=remat.remat_backend(plan))
    losses = [one(*batch) for one in (step, other)]
    for loss in losses:
        loss.backward()
    made = ([loss.detach(), *(p.grad for p in m.parameters())] for loss, m in zip(losses, (model, other), strict=True))
    for one, wanted in zip(*made, strict=True):
        assert (one - wanted).abs().max() <= 1e-12 * wanted.abs().max()


def test_a_parameter_with_as_many_numbers_as_there_are_rows_is_none_of_the_rows():
    """What PyTorch compiles does not tell parameters from inputs."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 32), nn.Linear(32, 4)

        def forward(self, x):
            return (x + self.down(nn.functional.gelu(self.up(self.norm(x))))).square().mean()

    def build():
        return Wide().double(), (torch.randn(128, 4, dtype=torch.float64),)

    graph = export_model(build, "wide", "torch:wide.py:build", cost="flops", split=True)
    model, batch = build()
    other = copy.deepcopy(model)
    step = torch.compile(model, backend=remat.remat_backend(plan_in_parts(graph, {"hidden": 4})))
    for one in (step, other):
        one(*batch).backward()
    for one, wanted in zip(model.parameters(), other.parameters(), strict=True):
        assert (one.grad - wanted.grad).abs().max() <= 1e-12 * wanted.grad.abs().max()


def test_inductor_refuses_plans_in_parts_before_anything_is_compiled():
    plan = plan_in_parts(graph_of(), {"loss": 4, "hidden": 2})
    said = "Inductor joins whole operations, .* has (loss|hidden) in . parts of the 30 rows, "
    for refused in (lambda: remat.remat_backend(plan, compiler="inductor"), lambda: remat.RematPartitioner(plan)):
        with pytest.raises(UsageError, match=said) as caught:
            refused()
        assert 'compiler="eager"' in str(caught.value.hint)
