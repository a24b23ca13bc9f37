"""Vision transformers and their relatives, of torchvision, timm and transformers."""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import timm
import torchvision.models as tv
import transformers as hf

from benchmarks.models.common import classes, classified, image, supervised


def vit() -> tuple[Any, ...]:
    module = tv.VisionTransformer(64, 8, 3, 4, 128, 256, dropout=0.1, attention_dropout=0.1, num_classes=10)
    return classified(module, image(8))


def swin() -> tuple[Any, ...]:
    module = tv.SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.1, num_classes=10)
    return classified(module, image(8))


def maxvit() -> tuple[Any, ...]:
    module = tv.MaxVit((64, 64), 32, 4, [32, 64], [1, 1], 16, stochastic_depth_prob=0.1, num_classes=10)
    return classified(module, image(8))


def _created(name: str, batch: int = 8, side: int = 64, **options: Any) -> tuple[Any, ...]:
    return classified(timm.create_model(name, num_classes=10, drop_path_rate=0.1, **options), image(batch, side))


def vit_tiny() -> tuple[Any, ...]:
    return _created("vit_tiny_patch16_224", img_size=64, patch_size=8, depth=3)


def eva02_tiny() -> tuple[Any, ...]:
    return _created("eva02_tiny_patch14_224", img_size=56, patch_size=7, depth=2, side=56)


def vit_dinov3() -> tuple[Any, ...]:
    return _created("vit_small_patch16_dinov3", img_size=64, patch_size=8, depth=2, embed_dim=128, num_heads=4)


def cait() -> tuple[Any, ...]:
    return _created("cait_xxs24_224", img_size=64, patch_size=8, depth=2)


def xcit() -> tuple[Any, ...]:
    return _created("xcit_nano_12_p8_224", img_size=64, depth=2)


def mixer() -> tuple[Any, ...]:
    return classified(
        timm.models.MlpMixer(10, img_size=64, patch_size=8, num_blocks=3, embed_dim=128, drop_path_rate=0.1), image(8)
    )


def metaformer() -> tuple[Any, ...]:
    return classified(
        timm.models.MetaFormer(depths=(1, 1, 2, 1), dims=(32, 64, 96, 128), drop_path_rate=0.1, num_classes=10),
        image(8),
    )


def davit() -> tuple[Any, ...]:
    return _created("davit_tiny", side=56, depths=(1, 1, 1), embed_dims=(32, 64, 128), num_heads=(1, 2, 4))


def hiera() -> tuple[Any, ...]:
    return _created("hiera_tiny_224", img_size=(64, 64), embed_dim=32, stages=(1, 1, 2, 1))


def swinv2() -> tuple[Any, ...]:
    return _created(
        "swinv2_tiny_window8_256", img_size=64, window_size=4, depths=(2, 2), embed_dim=32, num_heads=(2, 4)
    )


_VIT = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "image_size": 64,
    "patch_size": 8,
    "num_labels": 10,
}


def hf_vit() -> tuple[Any, ...]:
    config = hf.ViTConfig(**_VIT, hidden_dropout_prob=0.1)
    return supervised(hf.ViTForImageClassification(config), pixel_values=image(8), labels=classes(8))


def dinov2() -> tuple[Any, ...]:
    config = hf.Dinov2Config(**_VIT, mlp_ratio=2, drop_path_rate=0.1)
    return supervised(hf.Dinov2ForImageClassification(config), pixel_values=image(8), labels=classes(8))


def vit_mae() -> tuple[Any, ...]:
    """Reconstructs patches that it does not see; which ones is random."""
    size = {k: v for k, v in _VIT.items() if k != "num_labels"}
    small = {"decoder_hidden_size": 64, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    config = hf.ViTMAEConfig(**size, **small, decoder_intermediate_size=128)
    return supervised(hf.ViTMAEForPreTraining(config), pixel_values=image(8))
