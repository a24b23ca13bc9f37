"""``remat fits`` on models of diffusers, timm and torchvision, whose environment is that of ``benchmarks/models``."""

import json

import pytest

import benchmarks.models.operators  # noqa: F401  # torchvision loads behind it
import remat_cli as remat
from remat_cli.frontends.torch import blocks
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.named import NameOptions, named_model
from remat_cli.planning.fits import WITHOUT

SMALL = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16, "sample_size": 16}
TEXTS = {"joint_attention_dim": 32, "pooled_projection_dim": 48}
U_NET = {"sample_size": 16, "block_out_channels": [32, 64], "layers_per_block": 1}
CONFIGURATIONS = {
    "DiTTransformer2DModel": SMALL | {"num_embeds_ada_norm": 10, "out_channels": 8},
    "SD3Transformer2DModel": SMALL | TEXTS | {"caption_projection_dim": 32, "pos_embed_max_size": 16},
    "FluxTransformer2DModel": {
        "num_layers": 2,
        "num_single_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "in_channels": 16,
        "axes_dims_rope": [4, 4, 8],
        "guidance_embeds": True,
        **TEXTS,
    },
    "PixArtTransformer2DModel": SMALL | {"cross_attention_dim": 32, "caption_channels": 48},
    "AuraFlowTransformer2DModel": {
        "num_mmdit_layers": 1,
        "num_single_dit_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "joint_attention_dim": 32,
        "caption_projection_dim": 32,
        "sample_size": 16,
        "pos_embed_max_size": 64,
    },
    "UNet2DModel": U_NET
    | {
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    },
    "UNet2DConditionModel": U_NET
    | {
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
        "cross_attention_dim": 32,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 80,
    },
}
VECTORS = {"DiTTransformer2DModel": 0, "UNet2DModel": 0, "UNet2DConditionModel": 77}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def denoiser(tmp_path):
    """``denoiser("UNet2DModel")`` is the source of a small model, of which fields may be replaced."""

    def source(kind, **changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"_class_name": kind, **CONFIGURATIONS.get(kind, {}), **changes}))
        return f"diffusers:{path}"

    return source


def answer_of(source, **options):
    return remat.fits(source, "h100", options=remat.SolveOptions(time_limit_s=2, threads=1), **options)


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_denoisers_get_all_that_they_train_with(denoiser, kind):
    source, resolution = denoiser(kind), 8 if kind.startswith("Flux") else None
    model, inputs, loss = named_model(source, NameOptions(2, resolution=resolution)).build()
    loss(model(**inputs)).backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    answer = answer_of(source, batch=2, resolution=resolution)
    choice = answer.fits.choice(WITHOUT)
    assert choice.parts["parameters"] == 4 * sum(p.numel() for p in model.parameters())
    vectors = VECTORS.get(kind, 512)
    assert (f"{vectors} vectors condition every image" in answer.assumptions) is bool(vectors)


def test_latents_are_assumed_where_the_configuration_has_no_size(denoiser):
    model = named_model(denoiser("FluxTransformer2DModel"), NameOptions())
    assert model.assumptions == ("512 vectors condition every image", "latents have 128 x 128 points")
    assert model.build()[1]["hidden_states"].shape == (1, 64 * 64, 16)


@pytest.mark.parametrize("dtype", ["bfloat16", "bfloat16-mixed"])
def test_inputs_inside_of_inputs_have_the_type_too(denoiser, dtype):
    model, inputs, loss = named_model(denoiser("UNet2DConditionModel"), NameOptions(1, dtype=dtype)).build()
    loss(model(**inputs)).backward()
    assert str(inputs["added_cond_kwargs"]["time_ids"].dtype) == f"torch.{dtype}".replace("bfloat16-mixed", "float32")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("Nothing", {}, "is of Nothing, whose inputs are not known.*FluxTransformer2DModel"),
        (None, {}, "is of no class of diffusers"),
        ("HunyuanDiT2DModel", {}, "which takes text_embedding_mask, .*nothing is known.*torch:train.py:build"),
        ("Transformer2DModel", {}, "does not say what images it takes"),
    ],
)
def test_others_are_refused_with_what_is_known(denoiser, kind, changes, message):
    with pytest.raises(remat.UsageError) as caught:
        answer_of(denoiser(kind, **changes))
    assert all(part in f"{caught.value.message} {caught.value.hint}" for part in message.split(".*"))


@pytest.mark.parametrize(
    ("source", "options", "sizes"),
    [
        ("timm:test_vit", {"batch": 2}, "2 images of 160 x 160 pixels"),
        ("timm:resnet10t", {"resolution": 64}, "1 images of 64 x 64 pixels"),
        ("torchvision:squeezenet1_1", {"resolution": 64}, "1 images of 64 x 64 pixels"),
        ("torchvision:lraspp_mobilenet_v3_large", {"resolution": 64}, "1 images of 64 x 64 pixels"),
    ],
)
def test_models_of_timm_and_torchvision(source, options, sizes):
    answer = answer_of(source, **options)
    model, inputs, loss = named_model(
        source, NameOptions(2, resolution=64 if "resolution" in options else None)
    ).build()
    loss(model(*inputs)).backward()
    assert answer.sizes == sizes
    assert answer.fits.choice(WITHOUT).parts["parameters"] == 4 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("timm:resnet18x", 'timm has no model "resnet18x"'),
        ("torchvision:resnet18x", 'torchvision has no model "resnet18x"'),
        ("torchvision:fasterrcnn_resnet50_fpn", "needs targets that have no fixed form"),
    ],
)
def test_names_that_no_library_knows_are_refused(source, message):
    with pytest.raises(remat.UsageError, match=message):
        answer_of(source)


def test_blocks_of_a_vision_transformer_are_captured_once(monkeypatch):
    import timm

    monkeypatch.setattr(blocks, "LARGEST_SHARE", 2.0)

    def build():
        model = timm.create_model("test_vit", depth=8)
        return model, *named_model("timm:test_vit", NameOptions(2)).build()[1:]

    exported = blocks.export_by_blocks(build, "vit", "x")
    graph, said = exported.graph, exported.few
    whole = export_model(build, "vit", "x")
    assert said == "the graph of 8 blocks follows from those of 3, 4 and 5 of them"
    assert [(n.id, n.cost, n.inputs, n.outputs) for n in graph.nodes] == [
        (n.id, n.cost, n.inputs, n.outputs) for n in whole.nodes
    ]
    assert json.dumps(graph.metadata) == json.dumps(whole.metadata)
