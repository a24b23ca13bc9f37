"""``remat fits`` on configurations of Transformers: what training takes, as measured, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from trainable import step_bytes

import remat_cli as remat
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.families import sized_graph
from remat_cli.frontends.torch.measure.costs import cost_model
from remat_cli.frontends.torch.measure.memory import with_workspaces
from remat_cli.frontends.torch.measure.part_workspaces import part_workspaces
from remat_cli.frontends.torch.named import NameOptions, named_model
from remat_cli.frontends.torch.regions import with_regions
from remat_cli.plan.replay import replay
from remat_cli.planning.fits import BLOCKS, IN_PARTS, WITHOUT, fits
from remat_cli.planning.lengths import covered

CONFIGURATIONS = {
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 172,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "dtype": "float32",
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 3,
        "vocab_size": 1000,
        "resid_pdrop": 0.0,
    },
    "bert": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "vocab_size": 1000,
        "max_position_embeddings": 128,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 1000,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "image_size": 64,
        "patch_size": 8,
    },
}
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")


@pytest.fixture
def named(tmp_path):
    """``named("llama")`` is the source of a small model, of which fields of the configuration may be replaced."""

    def source(name: str, **changes) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(CONFIGURATIONS[name] | changes))
        return f"hf:{path}"

    return source


def answer_of(source, **options):
    return remat.fits(source, "h100", options=remat.SolveOptions(time_limit_s=4, threads=1), **options)


@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [
        ("llama", {"batch": 4, "length": 128}, "4 x 128 tokens"),
        ("bert", {"batch": 8}, "8 x 128 tokens"),
        ("bert", {"task": "question-answering", "length": 32}, "1 x 32 tokens"),
        ("bert", {"task": "sequence-classification", "dtype": "bfloat16-mixed"}, "1 x 128 tokens"),
        ("t5", {"length": 64}, "1 x 64 tokens"),
        ("vit", {"batch": 2, "dtype": "bfloat16"}, "2 images of 64 x 64 pixels"),
    ],
)
def test_parameters_are_those_of_the_model(named, name, options, sizes):
    answer = answer_of(named(name), **options)
    choice = answer.fits.choice(WITHOUT)
    assert answer.sizes == sizes
    config = CONFIGURATIONS[name]
    kind = {
        "question-answering": "BertForQuestionAnswering",
        "sequence-classification": "BertForSequenceClassification",
    }
    made = getattr(transformers, kind.get(options.get("task"), config["architectures"][0]))
    fields = {key: value for key, value in config.items() if key != "model_type"}
    model = made(transformers.AutoConfig.for_model(config["model_type"], **fields))
    item = 2 if options.get("dtype") == "bfloat16" else 4
    assert choice.parts["parameters"] == item * sum(p.numel() for p in model.parameters())
    assert choice.parts["state of AdamW"] == 2 * choice.parts["parameters"]


NO_DROPOUT = {"bert": ("attention_probs_dropout_prob", "hidden_dropout_prob"), "gpt2": ("attn_pdrop", "embd_pdrop")}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {"batch": 16, "length": 128}),
        ("gpt2", {"batch": 16, "length": 128}),
        ("bert", {"batch": 32}),
    ],
)
def test_the_peak_is_the_measured_one(named, name, options):
    source = named(name, **dict.fromkeys(NO_DROPOUT.get(name, ()), 0.0))
    predicted = answer_of(source, optimizer="none", **options).fits.choice(WITHOUT).solved.report.replay.peak_bytes
    model, batch = named_model(source, NameOptions(**options)).build()
    measured = step_bytes(lambda: model(**batch).loss.backward(), model, batch.values())
    assert measured == pytest.approx(predicted, rel=0.01)


class LossAlone(torch.nn.Module):
    """A model that keeps its logits to itself, so that they may be made in parts."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch).loss


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_plan_with_the_loss_in_parts_keeps_its_numbers(named, name, dtype):
    options = {"batch": 8, "length": 128, "dtype": dtype}
    layers = {"gpt2": "n_layer", "llama": "num_hidden_layers"}[name]
    source = named(name, **dict.fromkeys(NO_DROPOUT.get(name, ()), 0.0), vocab_size=4000, **{layers: 2})
    need = answer_of(source, optimizer="none", **options).fits.need
    costs = cost_model("flops")
    # Of this CPU: with the workspace of its kernels, and without the gaps of CUDA's allocator.
    need = replace(
        need,
        graph=with_workspaces(need.graph),
        context_bytes=0,
        reserved=None,
        with_regions=lambda graph: with_regions(graph, costs.cost, part_workspaces),
    )
    limits = remat.SolveOptions(time_limit_s=10, threads=1)
    found = fits(need, need.graph.fixed_memory + 14_000_000, limits)
    assert found.chosen.name == IN_PARTS
    assert found.least_bytes > found.memory_bytes >= found.least_in_parts_bytes
    predicted = found.chosen.total_bytes
    assert "loss" in found.chosen.plan.graph.origin.parts
    model, batch = named_model(source, NameOptions(**options)).build()
    model = LossAlone(model)
    remat.fit(model, dict(batch), predicted, split=True, cache="", cost="flops", options=limits)
    assert "loss in " in remat.fitted(model).regions
    measured = step_bytes(lambda: model(**batch).backward(), model, batch.values())
    assert measured <= 1.01 * predicted
    ran = remat.run_plan(found.chosen.plan, steps=1)
    assert ran.as_expected
    assert ran.memory.predicted == predicted
    assert ran.memory.measured == ran.memory.predicted_without_workspace


def test_adapters_alone_are_trained_and_their_layers_are_known(named):
    whole, adapted = (answer_of(named("llama"), batch=4, length=128, lora=rank).fits for rank in (0, 4))
    own, state = (adapted.choice(WITHOUT).parts[name] for name in ("parameters", "state of AdamW"))
    extra = own - whole.choice(WITHOUT).parts["parameters"]
    assert 0 < extra < 0.2 * own
    assert state == 2 * extra
    assert adapted.choice(BLOCKS).total_bytes < adapted.choice(WITHOUT).total_bytes


def test_the_largest_batch_fits_and_sequences_end_with_the_positions(named):
    source, options = named("llama"), {"batch": 4, "length": 256, "context": 0}
    limits = remat.SolveOptions(time_limit_s=4, threads=1)
    four = remat.fits(source, "1GB", options=limits, **options).fits.choice(WITHOUT).total_bytes
    answer = remat.fits(source, f"{3 * four}B", options=limits, largest=True, **options)
    batch, length = answer.fits.largest["batch"], answer.fits.largest["length"]
    assert 4 < batch.without <= batch.found < batch.too_much
    assert batch.exact
    assert (length.found, length.most) == (512, 512)
    larger = remat.fits(source, f"{3 * four}B", options=limits, **(options | {"batch": batch.without}))
    # The last whole sequence leaves up to a twelfth unused; the rest are gaps of the allocator.
    assert larger.fits.choice(WITHOUT).total_bytes == pytest.approx(3 * four, rel=0.1)


@pytest.mark.parametrize(("name", "batch"), [("llama", 3), ("llama", 1), ("bert", 3), ("t5", 2)])
def test_one_graph_holds_for_every_length(named, name, batch):
    """Byte for byte and node for node as each length is captured by itself; a plan takes the most at the longest."""
    model = named_model(named(name), NameOptions(batch, 24))
    sizes = {"batch": batch, "length": 24}
    sized = sized_graph(lambda found: model.resized(**found).build(), sizes, "m", "s", tell=print)
    plan = remat.solve_smallest(sized.exact(batch, 40), options=remat.SolveOptions(time_limit_s=2, threads=1)).plan
    proven = covered(sized, plan.statements, batch, 40)
    for length in (2, 3, 7, 8, 16, 17, 31, 40):
        static = export_model(model.resized(length=length).build, "m", "s")
        assert sized.same_bytes(static, batch, length)
        replayed = replay(static, plan.statements)
        assert not replayed.findings
        assert replayed.peak_bytes <= proven.peak_bytes
    assert replayed.peak_bytes == proven.peak_bytes


def test_buckets_fit_as_they_are_measured_one_by_one(named):
    source, options = named("llama", num_hidden_layers=2), {"context": 0, "optimizer": "sgd"}
    limits = remat.SolveOptions(time_limit_s=1, threads=1)

    def needed(batch, length):
        answer = remat.fits(source, "9GB", batch=batch, length=length, options=limits, **options)
        return answer.fits.choice(WITHOUT).total_bytes

    memory = needed(6, 96)
    answer = remat.fits(source, f"{memory}B", batch=6, length=96, buckets=(48, 96), options=limits, **options)
    short, long = answer.buckets
    assert (short.length, long.length) == (48, 96)
    assert short.best.size >= long.best.size >= long.without.size >= 6
    assert short.best.size >= short.without.size >= long.without.size
    assert needed(long.without.size + 1, 96) > memory
    table = remat.describe(answer.facts())
    assert "Batches by length" in table
    assert "proven for all batches from 2" in " ".join(table.split())


def test_gradients_of_earlier_parts_wait(named):
    limits = remat.SolveOptions(time_limit_s=1, threads=1)
    source = named("llama", num_hidden_layers=1)
    answer = remat.fits(source, "h100", batch=2, length=32, global_batch=3, options=limits)
    assert [(row.batch, row.parts) for row in answer.parted] == [(3, 1), (1, 3)]
    whole, parts = answer.parted
    assert "gradients that wait" not in whole.choice.parts
    assert parts.choice.parts["gradients that wait"] == answer.fits.choices[0].parts["parameters"]
    assert "A batch in parts" in remat.describe(answer.facts())


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        ({"model_type": "lama"}, {}, remat.UsageError, 'model of type lama.*did you mean "llama"'),
        ({"dtype": "float8_e4m3fn"}, {}, remat.UsageError, "parameters are float8_e4m3fn.*write one of float32"),
        ({"architectures": None}, {}, remat.UsageError, "names no architecture, so its task is not known"),
        ({}, {"task": "causal"}, remat.UsageError, 'no task "causal".*did you mean "causal-lm"'),
        ({}, {"task": "image-classification"}, remat.UsageError, "no model of type llama for image-classification"),
        ({}, {"length": 600}, remat.UsageError, "600 tokens are more than the 512 positions"),
        ({}, {"resolution": 64}, remat.UsageError, "resolution is for images"),
        ({}, {"buckets": (64, 600)}, remat.UsageError, "600 tokens are more than the 512 positions"),
        ({"num_attention_heads": "x"}, {}, remat.InputError, "is refused by Transformers"),
    ],
)
def test_configurations_without_what_is_needed_are_refused(named, changes, options, error, message):
    with pytest.raises(error) as caught:
        answer_of(named("llama", **changes), **options)
    assert all(part in f"{caught.value.message} {caught.value.hint}" for part in message.split(".*"))


def test_an_architecture_may_be_one_text_and_quantization_is_not_passed_over_in_silence(named):
    source = named("llama", architectures="LlamaForCausalLM", quantization_config={"quant_method": "bitsandbytes"})
    model = named_model(source, NameOptions())
    assert "weights are not quantized, though the configuration says that they are" in model.assumptions


def test_missing_files_and_libraries_are_named(tmp_path):
    with pytest.raises(remat.UsageError, match="there is no such file"):
        answer_of(f"hf:{tmp_path}/none.json")
    (tmp_path / "other.json").write_text('{"_class_name": "UNet2DModel"}')
    with pytest.raises(remat.InputError, match="a model of diffusers is named diffusers:CONFIG"):
        answer_of(f"hf:{tmp_path}/other.json")
    with pytest.raises(remat.FrameworkUnavailable, match="timm is missing"):
        answer_of("timm:resnet18")


def test_typed_inputs_keep_whole_numbers(named):
    model, batch = named_model(named("vit"), NameOptions(batch=2, dtype="bfloat16")).build()
    assert (batch["pixel_values"].dtype, batch["labels"].dtype) == (torch.bfloat16, torch.int64)
    assert model.training
