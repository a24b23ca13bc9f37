"""Whether training fits: sums, proofs, and the peaks of plans, for functions, graphs and the zoo."""

import functools
from dataclasses import replace

import pytest
import torch
from torch_plans import most_bytes

import remat_cli as remat
from remat_cli.frontends.source import load_function
from remat_cli.frontends.torch.measure.allocator import LIBRARY_BYTES, least_limit
from remat_cli.frontends.torch.measure.memory import with_workspaces
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.memory_parts import Part, parts_of_values
from remat_cli.planning.fits import (
    BEST,
    BLOCKS,
    IN_PARTS,
    LEAST,
    UPDATE,
    WITHOUT,
    Need,
    choice_of,
    fits,
    usual,
)
from remat_cli.reports.fits import fits_document, fits_markdown

STEP = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(500, 64)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
        )
        self.head = nn.Linear(64, 500, bias=False)
        self.unread = nn.Parameter(torch.zeros(1000))

    def forward(self, tokens, targets):
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def build():
    return Net(), (torch.randint(0, 500, (64, 128)), torch.randint(0, 500, (64, 128)))
"""
IMAGES = """
import torch
from torch import nn


def build():
    stages = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1)) for _ in range(4)
    ]
    module = nn.Sequential(nn.Conv2d(3, 16, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    targets = torch.randint(0, 10, (32,))
    return module, torch.randn(32, 3, 48, 48), lambda logits: nn.functional.cross_entropy(logits, targets)
"""
ATTENTION = """
import torch
from torch import nn


def build():
    layers = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True) for _ in range(3)]
    return nn.Sequential(*layers), torch.randn(16, 64, 64), lambda hidden: hidden.square().mean()
"""
CONTEXT = 1_000_000
UNREAD = 4 * 1000
"""Bytes of the parameter that ``STEP`` does not read."""


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> str:
    """The source of a small language model with equal blocks and a parameter that its step does not read."""
    path = tmp_path_factory.mktemp("fits") / "step.py"
    path.write_text(STEP)
    return f"torch:{path}:build"


def answer_of(source, gpu="1GB", **options):
    """The answer for a graph, or for a function or model by its name, whose step is captured once for all tests."""
    return (_answer_of_name if isinstance(source, str) else _answer_of)(source, gpu, **options)


def _answer_of(source, gpu, **options):
    limits = remat.SolveOptions(time_limit_s=5, threads=1)
    return remat.fits(source, gpu, context=CONTEXT, options=limits, **options)


_answer_of_name = functools.cache(_answer_of)


def test_parts_add_up_and_choices_are_ordered_as_their_plans(step) -> None:
    answer = answer_of(step).fits
    parameters = 4 * (500 * 64 * 2 + 4 * (2 * 64 * 256 + 256 + 64) + 1000)
    for choice in answer.choices:
        assert sum(choice.parts.values()) + CONTEXT == choice.total_bytes
        assert choice.parts["parameters"] == parameters
        assert choice.parts["state of AdamW"] == 2 * (parameters - UNREAD)
        assert choice.parts["inputs"] == 2 * 8 * 64 * 128
        assert choice.solved.report.valid
        assert choice.total_bytes >= answer.least_bytes
    without, blocks = answer.choice(WITHOUT), answer.choice(BLOCKS)
    assert answer.chosen is without
    assert blocks.total_bytes < without.total_bytes
    assert 0 < blocks.overhead < 0.4
    tokens, classes = 64 * 128, 500
    assert without.parts[Part.LOSS.value] >= 2 * 4 * tokens * classes  # at the peak: the logits, and their gradient


def test_the_best_plan_is_within_the_memory_as_the_allocator_takes_it(step) -> None:
    free = answer_of(step).fits
    blocks, without = free.choice(BLOCKS).total_bytes, free.choice(WITHOUT).total_bytes
    between = (blocks + without) // 2
    answer = answer_of(step, gpu=f"{between}B").fits
    best = answer.choice(BEST)
    assert answer.chosen is min((best, answer.choice(IN_PARTS)), key=lambda choice: choice.overhead)
    assert best.total_bytes <= between
    need = answer.need
    state = need.fixed["state of AdamW"]
    limit = least_limit(best.plan.graph, best.plan.statements, need.update_bytes, state_bytes=state)
    assert limit + CONTEXT == best.total_bytes
    assert best.overhead <= free.choice(BLOCKS).overhead


def test_the_best_plan_costs_no_more_than_every_block_however_short_the_search(step) -> None:
    blocks = answer_of(step).fits.choice(BLOCKS)
    limits = remat.SolveOptions(time_limit_s=0.2, threads=1)
    answer = remat.fits(step, f"{int(1.01 * blocks.total_bytes)}B", context=CONTEXT, options=limits).fits
    assert answer.choice(BEST).overhead <= blocks.overhead


def test_a_no_is_a_proof_and_a_byte_less_than_the_least_is_refused_by_solve(step) -> None:
    answer = answer_of(step, gpu="4MB")
    assert answer.fits.impossible
    assert answer.fits.chosen is None
    assert "no plan fits" in answer.fits.missing[BEST]
    assert answer.advice == tuple(sorted(answer.advice, reverse=True))
    graph = answer.fits.need.graph
    with pytest.raises(remat.Infeasible):
        remat.solve(graph, answer.fits.least_bytes - CONTEXT - 1, options=remat.SolveOptions(time_limit_s=10))


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("sgd-momentum", 1), ("adamw-fused", 2)])
def test_state_comes_once_for_every_trained_parameter(step, optimizer, state) -> None:
    choice = answer_of(step, optimizer=optimizer).fits.choices[0]
    assert sum(size for name, size in choice.parts.items() if name.startswith("state")) == state * (
        choice.parts["parameters"] - UNREAD
    )


def test_the_step_of_an_optimizer_may_take_the_most() -> None:
    graph = remat.build_graph("unit-chain{n=9}")
    need = Need(graph, {"parameters": 1000}, context_bytes=7, update_bytes=500)
    choice = choice_of(WITHOUT, need, remat.solve(need.graph, None))
    assert choice.in_update
    outputs = sum(graph.size[v] for v in graph.outputs)
    assert choice.total_bytes == 1000 + outputs + 500 + 7
    assert choice.parts[UPDATE] == 500


def test_libraries_and_gaps_are_in_memory_during_the_step_of_an_optimizer(tmp_path) -> None:
    path = tmp_path / "wide.py"
    path.write_text(
        "import torch\ndef build():\n    layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]\n"
        "    return torch.nn.Sequential(*layers), torch.randn(2, 1024), lambda out: out.mean()\n"
    )
    answer = answer_of(f"torch:{path}:build").fits
    choice = answer.choice(WITHOUT)
    assert choice.in_update
    tensors = 5 * choice.parts["parameters"]  # with two of state, gradients, and as much for a moment
    assert choice.total_bytes >= tensors + 2 * LIBRARY_BYTES + CONTEXT
    short = answer_of(f"torch:{path}:build", gpu=f"{tensors - 1}B").fits
    assert "the optimizer's step alone takes" in short.missing[BEST]
    assert short.impossible


def test_types_of_parameters_change_their_bytes(step) -> None:
    wide, narrow = (
        answer_of(step, **options).fits.choices[0].parts["parameters"] for options in ({}, {"dtype": "bf16"})
    )
    assert wide == 2 * narrow
    mixed = answer_of(step, dtype="bfloat16-mixed").fits.choices[0]
    assert mixed.parts["parameters"] == wide


def test_a_graph_of_the_step_gives_the_same_as_its_function(step, tmp_path) -> None:
    graph = remat.export_torch(step.removeprefix("torch:"), cost="flops")
    of_graph, of_step = answer_of(graph).fits.choices[0], answer_of(step).fits.choices[0]
    names = [part.value for part in Part]
    missing = [of_step.parts.get(name, 0) - of_graph.parts.get(name, 0) for name in names]
    assert all(0 <= size <= 4 for size in missing)  # eager mode keeps where the gradient of the loss began
    assert of_step.parts["parameters"] - of_graph.parts["parameters"] == UNREAD  # of which no graph knows
    assert sum(of_step.parts.values()) == pytest.approx(sum(of_graph.parts.values()), rel=0.01)
    assert any("a graph does not say" in sentence for sentence in answer_of(graph).assumptions)


def test_graphs_without_parameters_keep_their_fixed_memory() -> None:
    answer = answer_of("zoo:resnet18{batch=4}", gpu="t4")
    assert answer.fits.choices[0].parts["fixed memory"] == remat.build_graph("resnet18{batch=4}").fixed_memory
    assert any("fixed memory of the graph holds" in sentence for sentence in answer.assumptions)
    assert answer.facts().cost_unit == "us"


def test_the_loss_is_what_lies_behind_the_last_product() -> None:
    graph = remat.build_graph("gpt2{depth=2,batch=1,sequence=64,backward=operator}")
    parts = parts_of_values(graph)
    logits = {graph.nodes[graph.producer[v]].id for v in range(len(parts)) if parts[v] is Part.LOSS}
    assert logits
    assert all(graph.size[v] <= 4 * 64 * 50257 for v in range(len(parts)) if parts[v] is Part.LOSS)
    assert len(logits) < len(graph.nodes) / 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 4}, "batch is for models by name"),
        ({"length": 4}, "length is for models by name"),
        ({"dtype": "int8"}, '"int8" is no type of parameters'),
        ({"optimizer": "adamv"}, "is not known"),
        ({"largest": True}, "only a model by name"),
    ],
)
def test_options_that_are_not_for_the_source_are_refused(step, options, message) -> None:
    with pytest.raises(remat.UsageError, match=message):
        answer_of(step, **options)


def test_a_graph_without_shapes_takes_optimizers_by_size_alone(step) -> None:
    graph = remat.export_torch(step.removeprefix("torch:"), cost="flops")
    with pytest.raises(remat.UsageError, match="depends on the shapes"):
        answer_of(graph, optimizer="adafactor")
    with pytest.raises(remat.UsageError, match="does not tell which bytes are parameters"):
        answer_of("zoo:resnet18{batch=4}", optimizer="sgd")


def test_a_captured_step_is_measured_as_it_is_predicted(step) -> None:
    """The peak without recomputation, without state and gaps, is the one that a run is measured to have."""
    replay = answer_of(step, optimizer="none").fits.choice(WITHOUT).solved.report.replay
    graph = remat.export_torch(step.removeprefix("torch:"), cost="flops")
    ran = remat.run_plan(remat.solve(graph, None), steps=1)
    assert ran.reference_peak == replay.peak_bytes


@pytest.mark.parametrize("text", [STEP, IMAGES, ATTENTION], ids=["language", "images", "attention"])
def test_fit_and_run_of_the_plan_that_is_named_keep_its_numbers(text, tmp_path) -> None:
    path = tmp_path / "step.py"
    path.write_text(text)
    source = f"torch:{path}:build"
    limits = remat.SolveOptions(time_limit_s=4, threads=1)
    need = answer_of(source, optimizer="none").fits.need
    need = replace(need, graph=with_workspaces(need.graph), context_bytes=0, reserved=None)  # of this CPU, not of CUDA
    free = fits(need, 10**12, limits)
    best = fits(need, (free.least_bytes + free.choice(WITHOUT).total_bytes) // 2, limits).choice(BEST)
    predicted = best.solved.report.replay.peak_bytes
    ran = remat.run_plan(best.plan, steps=1)
    assert ran.identical
    assert ran.memory.predicted == predicted
    assert ran.memory.measured == pytest.approx(ran.memory.predicted_without_workspace, abs=ran.memory.generator_states)
    module, inputs, *loss = load_function(f"{path}:build", "torch")()
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else [*inputs]
    total = loss[0] if loss else lambda output: output
    fixed = [*module.parameters(), *module.buffers(), *tensors]

    def trained(called):
        module.zero_grad(set_to_none=True)
        return most_bytes(lambda: called(*tensors).backward(), fixed)

    step = torch.compile(lambda *given: total(module(*given)), backend=remat.remat_backend(best.plan), dynamic=False)
    trained(step)
    assert trained(step) == pytest.approx(predicted, rel=0.01)
    remat.fit(module, tuple(tensors), predicted, loss=loss[0] if loss else None, cache="", options=limits)
    trained(lambda *given: total(module(*given)))
    assert trained(lambda *given: total(module(*given))) <= 1.01 * predicted


def test_a_step_that_fits_in_parts_alone_is_told_so(step) -> None:
    answer = answer_of(step)
    need = replace(answer.fits.need, context_bytes=0, reserved=None)
    limits = remat.SolveOptions(time_limit_s=10, threads=1)
    least = replace(answer.fits, need=need).least_bytes - CONTEXT
    found = fits(need, least - 8_000_000, limits)
    chosen = found.chosen
    assert chosen.name == IN_PARTS
    assert found.choice(BEST) is None
    assert found.least_in_parts_bytes <= chosen.total_bytes <= found.memory_bytes < found.least_bytes
    assert chosen.solved.report.valid
    assert Part.WORKSPACE.value not in chosen.parts  # what kernels need is not measured: it is of regions
    assert sum(chosen.parts.values()) == chosen.total_bytes
    parts = chosen.plan.graph.origin.parts
    assert "loss" in parts
    told = replace(answer, fits=found)
    text = fits_markdown(told.facts())
    assert f"the loss in {parts['loss']} parts" in text
    assert "with whole operations no plan fits, since each takes" in text
    assert IN_PARTS in text
    document = fits_document(told.facts())
    assert document["fits"] is True
    assert document["chosen"] == IN_PARTS
    assert document["choices"][[choice.name for choice in found.choices].index(IN_PARTS)]["regions"] == parts
    assert document["least_memory_in_parts"] == found.least_in_parts_bytes
    impossible = fits(need, found.least_in_parts_bytes - 1, limits)
    assert impossible.chosen is None
    assert impossible.impossible


def test_what_is_not_known_of_kernels_is_assumed(step, tmp_path) -> None:
    def told(answer):
        return [sentence for sentence in answer.assumptions if "kernels" in sentence or "attention" in sentence]

    assert [sentence.partition(":")[0] for sentence in told(answer_of(step))] == [
        "kernels take no memory of their own while they run"
    ]
    measured = remat.profile(remat.export_torch(step.removeprefix("torch:"), cost="flops"), repeats=1)
    assert told(answer_of(measured)) == []
    (tmp_path / "attention.py").write_text(ATTENTION)
    assert len(told(answer_of(f"torch:{tmp_path}/attention.py:build"))) == 2


ASKING = """
import torch
from torch import nn


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 256), nn.Linear(256, 1)

    def forward(self, x):
        x = self.first(x)
        if torch.compiler.is_compiling():
            x = (x.unsqueeze(-1) * torch.arange(16.0)).exp().sum(-1)
        return self.last(x).mean()


def build():
    return Asking(), torch.randn(64, 256)


class Reading(Asking):
    def forward(self, x):
        return super().forward(x * float(x.shape[0]) if torch.compiler.is_compiling() or x.sum() > 0 else x)


def reading():
    return Reading(), torch.randn(64, 256)
"""


def test_without_recomputation_a_step_takes_what_eager_mode_takes(tmp_path) -> None:
    path = tmp_path / "step.py"
    path.write_text(ASKING)
    answer = answer_of(f"torch:{path}:build", optimizer="none")
    need = replace(answer.fits.need, reserved=None)
    eager = usual(need, WITHOUT, "keep-all", remat.SolveOptions())
    assert eager.total_bytes - CONTEXT == no_remat_peak(need.eager) < no_remat_peak(need.graph)
    assert eager.plan.graph == need.graph  # its plan is one that runs
    assert not any("eager" in sentence for sentence in answer.assumptions)
    answer = answer_of(f"torch:{path}:reading", optimizer="none")
    assert any("no recomputation takes what the captured step takes" in told for told in answer.assumptions)
    need = replace(answer.fits.need, reserved=None)
    assert usual(need, WITHOUT, "keep-all", remat.SolveOptions()).total_bytes - CONTEXT == no_remat_peak(need.graph)


def test_what_eager_mode_takes_fits_though_no_plan_takes_so_little(tmp_path) -> None:
    path = tmp_path / "step.py"
    path.write_text(ASKING)
    need = replace(answer_of(f"torch:{path}:build", optimizer="none").fits.need, reserved=None)
    need = replace(need, eager=replace(need.eager, nodes=need.eager.nodes[:1], outputs=()))
    limits = remat.SolveOptions(time_limit_s=5)
    answer = fits(need, usual(need, WITHOUT, "keep-all", limits).total_bytes, limits)
    assert not answer.impossible
    assert answer.chosen.name == WITHOUT
    assert answer.choice(LEAST) is None
