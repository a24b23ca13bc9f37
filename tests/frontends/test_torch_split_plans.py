"""Plans with regions in parts: documents, refusals, and training by them."""

import contextlib
import copy
import json
from dataclasses import replace

import pytest
import torch
from divided_models import BATCH, KINDS, LENGTH, WIDTH, WORDS, Language, graph_of, plan_in_parts
from torch import nn
from torch_plans import most_bytes, run_plan

import remat_cli as remat
from remat_cli.cli.main import run
from remat_cli.errors import Infeasible, UsageError
from remat_cli.frontends.captured.running import without_workspace
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.division import NotDivisible, division
from remat_cli.frontends.torch.execute.in_parts import complete, targets_weight
from remat_cli.frontends.torch.export import export_model
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import graph_from_document
from remat_cli.graph.splitting import split
from remat_cli.plan.derive import peak
from remat_cli.plan.io import plan_from_document, plan_to_document


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
