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
