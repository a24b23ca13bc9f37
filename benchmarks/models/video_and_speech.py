"""Video and speech."""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import torch
import torchvision.models.video as tv
import transformers as hf

from benchmarks.models.common import classes, classified, supervised, words

_SIZE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}


def _clip(batch: int = 2, frames: int = 8, side: int = 56) -> Any:
    return torch.randn(batch, 3, frames, side, side)


def _resnet(convolution: Any, stem: Any) -> Any:
    """With one block per stage instead of two."""
    return tv.resnet.VideoResNet(tv.resnet.BasicBlock, [convolution] * 4, [1, 1, 1, 1], stem, num_classes=10)


def r3d_10() -> tuple[Any, ...]:
    return classified(_resnet(tv.resnet.Conv3DSimple, tv.resnet.BasicStem), _clip(4))


def mvit() -> tuple[Any, ...]:
    block = tv.mvit.MSBlockConfig
    blocks = [
        block(1, 32, 64, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
        block(2, 64, 64, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
    ]
    module = tv.MViT((64, 64), 8, blocks, residual_pool=True, residual_with_cls_embed=False, rel_pos_embed=True,
                     proj_after_attn=True, stochastic_depth_prob=0.1, num_classes=10)  # fmt: skip
    return classified(module, _clip(2, 8, 64))


def videomae() -> tuple[Any, ...]:
    config = hf.VideoMAEConfig(**_SIZE, image_size=64, patch_size=16, num_frames=8, num_labels=10)
    pixels = torch.randn(4, 8, 3, 64, 64)
    return supervised(hf.VideoMAEForVideoClassification(config), pixel_values=pixels, labels=classes(4))


def vivit() -> tuple[Any, ...]:
    config = hf.VivitConfig(**_SIZE, image_size=64, num_frames=8, tubelet_size=[2, 16, 16], num_labels=10)
    pixels = torch.randn(4, 8, 3, 64, 64)
    return supervised(hf.VivitForVideoClassification(config), pixel_values=pixels, labels=classes(4))


def timesformer() -> tuple[Any, ...]:
    config = hf.TimesformerConfig(**_SIZE, image_size=64, patch_size=16, num_frames=4, num_labels=9)
    pixels = torch.randn(4, 4, 3, 64, 64)
    return supervised(hf.TimesformerForVideoClassification(config), pixel_values=pixels, labels=classes(4, 9))


def whisper() -> tuple[Any, ...]:
    config = hf.WhisperConfig(
        vocab_size=500,
        num_mel_bins=40,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=100,
        dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    module = hf.WhisperForConditionalGeneration(config)
    return supervised(module, input_features=torch.randn(4, 40, 200), labels=words(4, 48))


_WAVES = _SIZE | {
    "vocab_size": 40,
    "conv_dim": (32, 32, 32),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 4, 4),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def wav2vec2() -> tuple[Any, ...]:
    """With SpecAugment, which draws by numpy, and a loss by CTC."""
    module = hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(**_WAVES, mask_time_length=2))
    return supervised(module, input_values=torch.randn(2, 8000), labels=torch.randint(1, 40, (2, 10)))


def hubert() -> tuple[Any, ...]:
    config = hf.HubertConfig(**_WAVES, apply_spec_augment=False, layerdrop=0.0, num_labels=10)
    module = hf.HubertForSequenceClassification(config)
    return supervised(module, input_values=torch.randn(4, 8000), labels=classes(4))


def wavlm() -> tuple[Any, ...]:
    config = hf.WavLMConfig(**_WAVES, apply_spec_augment=False, layerdrop=0.0, num_labels=10)
    module = hf.WavLMForSequenceClassification(config)
    return supervised(module, input_values=torch.randn(4, 8000), labels=classes(4))


def audio_spectrogram() -> tuple[Any, ...]:
    config = hf.ASTConfig(**_SIZE, num_mel_bins=64, max_length=128, num_labels=10)
    values = torch.randn(4, 128, 64)
    return supervised(hf.ASTForAudioClassification(config), input_values=values, labels=classes(4))
