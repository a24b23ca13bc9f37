"""The models of the suite: what they are, whose they are, and which file builds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 10.0
"""Seconds for each search, unless another number is asked for."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of the suite.

    Attributes:
        name: Its name, which is the name of the function that builds it.
        family: What it is.
        library: The library that has it.
        file: The file of that function.
    """

    name: str
    family: str
    library: str
    file: Path


def _of(family: str, library: str, file: str, names: str) -> tuple[Listed, ...]:
    return tuple(Listed(name, family, library, HERE / f"{file}.py") for name in names.split())


MODELS = (
    *_of(
        "convolutional",
        "torchvision",
        "convolutional",
        "resnet18 resnet50 densenet efficientnet_b0 mobilenet_v3_large shufflenet_v2 regnet_y_400mf convnext googlenet",
    ),
    *_of(
        "convolutional",
        "timm",
        "convolutional",
        "mobilenetv4 convnextv2_atto nf_regnet ghostnet fastvit",
    ),
    *_of("vision transformer", "torchvision", "transformers_of_images", "vit swin maxvit"),
    *_of(
        "vision transformer",
        "timm",
        "transformers_of_images",
        "vit_tiny eva02_tiny vit_dinov3 cait xcit mixer metaformer davit hiera swinv2",
    ),
    *_of("vision transformer", "transformers", "transformers_of_images", "hf_vit dinov2 vit_mae"),
    *_of(
        "detection",
        "torchvision",
        "detection",
        "faster_rcnn retinanet fcn_resnet18 deeplabv3 raft_small",
    ),
    *_of("detection", "transformers", "detection", "segformer detr yolos depth_anything"),
    *_of("video", "torchvision", "video_and_speech", "r3d_10 mvit "),
    *_of("video", "transformers", "video_and_speech", "videomae vivit timesformer"),
    *_of(
        "speech",
        "transformers",
        "video_and_speech",
        "whisper wav2vec2 hubert wavlm audio_spectrogram",
    ),
    *_of(
        "decoder",
        "transformers",
        "language",
        "gpt2 llama mistral qwen3 gemma3 phi3 bloom",
    ),
    *_of(
        "encoder",
        "transformers",
        "language",
        "bert albert deberta modernbert longformer fnet",
    ),
    *_of("encoder-decoder", "transformers", "language", "t5 bart encoder_decoder"),
    *_of(
        "experts",
        "transformers",
        "mixtures",
        "mixtral qwen2_moe qwen3_moe deepseek_v3 gpt_oss switch_transformers",
    ),
    *_of("state space", "transformers", "mixtures", "mamba mamba2 jamba recurrent_gemma rwkv"),
    *_of("adapter", "peft", "mixtures", "llama_lora t5_ia3 bert_dora"),
    *_of(
        "diffusion",
        "diffusers",
        "diffusion",
        "unet2d unet_of_stable_diffusion controlnet dit pixart stable_diffusion_3 flux sana wan "
        "autoencoder_kl vq_model",
    ),
    *_of("retrieval", "transformers", "retrieval", "clip siglip clap dpr colbert "),
    *_of("images and words", "transformers", "retrieval", "blip llava trocr decision_transformer patch_tst"),
)
"""In the order in which they are measured and shown."""

FOREIGN = (
    *_of(
        "decoder",
        "transformers",
        "foreign_words",
        "opt gpt_neo gpt_neox gptj ctrl falcon stablelm olmo2 cohere2 gemma2 mpt biogpt lfm2 granite_hybrid olmoe",
    ),
    *_of(
        "encoder",
        "transformers",
        "foreign_words",
        "roberta electra roformer convbert mobilebert squeezebert xlnet funnel nystromformer big_bird esm layout_lm",
    ),
    *_of(
        "encoder-decoder",
        "transformers",
        "foreign_words",
        "marian m2m_100 blenderbot_small led longt5 prophetnet",
    ),
    *_of(
        "vision",
        "transformers",
        "foreign_images",
        "beit deit pvt_v2 mobilenet_v2 levit focalnet swiftformer mobilevit_v2 upernet vilt",
    ),
    *_of(
        "speech",
        "transformers",
        "foreign_images",
        "sew wav2vec2_conformer dac",
    ),
    *_of(
        "series",
        "transformers",
        "foreign_images",
        "informer time_series_transformer patch_mixer",
    ),
    *_of(
        "vision",
        "timm",
        "foreign_images",
        "edgenext hrnet res2net repvit twins_svt gated_mlp conv_mixer inception_next",
    ),
    *_of(
        "diffusion",
        "diffusers",
        "foreign_images",
        "unet1d unet3d kandinsky_unet tiny_autoencoder asymmetric_autoencoder",
    ),
    *_of(
        "layers",
        "by hand",
        "foreign_layers",
        "experts_by_where volume_unet wave_net dropout_mlp scattered_writes pyramid_pooling capsules "
        "unet_of_sounds siamese packed_gru adaptive_softmax spectral_critic tied_words "
        "dictionary_of_results cells_by_hand transformer_of_torch checkpointed_inside",
    ),
    *_of(
        "sciences",
        "by hand",
        "foreign_sciences",
        "complex_layers fourier_operator euler_steps physics_informed graph_means graph_attention "
        "coupling_flow variational_autoencoder codebook radiance_field recommender splines_on_edges "
        "long_convolution decaying_memory point_cloud warped_image transcriber contrastive "
        "optimal_transport upscaler weights_from_weights",
    ),
)
"""A hundred models that are not in the suite, whose losses the loop computes: ``make foreign``."""
