"""Foreign models of images, sounds and series: transformers, timm and diffusers, small, with random weights.

Every builder returns a module that does not know its loss: the loop computes it from what the module returns.
"""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import diffusers as df
import timm
import torch
import transformers as hf
from torch.nn import functional

from benchmarks.models.common import classes, classified, cross_entropy, image, words

_SIZE = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}


def _seen(module: Any, side: int = 96, batch: int = 4) -> tuple[Any, ...]:
    """A classifier of transformers."""
    labels = classes(batch, 2)

    def loss(output: Any) -> Any:
        return cross_entropy(output.logits, labels)

    return module.train(), {"pixel_values": image(batch, side)}, loss


def beit() -> tuple[Any, ...]:
    config = hf.BeitConfig(**_SIZE, image_size=96, patch_size=8, use_relative_position_bias=True, drop_path_rate=0.1)
    return _seen(hf.BeitForImageClassification(config))


def deit() -> tuple[Any, ...]:
    config = hf.DeiTConfig(**_SIZE, image_size=96, patch_size=8, hidden_dropout_prob=0.1)
    return _seen(hf.DeiTForImageClassification(config))


def pvt_v2() -> tuple[Any, ...]:
    config = hf.PvtV2Config(
        hidden_sizes=[16, 32, 64, 96], depths=[1, 1, 2, 1], num_attention_heads=[1, 2, 4, 4], drop_path_rate=0.1
    )
    return _seen(hf.PvtV2ForImageClassification(config), 128)


def mobilenet_v2() -> tuple[Any, ...]:
    return _seen(hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(depth_multiplier=0.35)), 128)


def levit() -> tuple[Any, ...]:
    config = hf.LevitConfig(
        image_size=128,
        hidden_sizes=[64, 96, 128],
        num_attention_heads=[4, 4, 4],
        depths=[1, 1, 1],
        key_dim=[16, 16, 16],
    )
    return _seen(hf.LevitForImageClassification(config), 128, 16)


def focalnet() -> tuple[Any, ...]:
    config = hf.FocalNetConfig(
        image_size=96, embed_dim=32, depths=[1, 1, 1, 1], hidden_sizes=[32, 64, 96, 128], drop_path_rate=0.1
    )
    return _seen(hf.FocalNetForImageClassification(config))


def swiftformer() -> tuple[Any, ...]:
    config = hf.SwiftFormerConfig(embed_dims=[16, 32, 48, 64], depths=[1, 1, 2, 1], drop_path_rate=0.1)
    return _seen(hf.SwiftFormerForImageClassification(config), 128)


def mobilevit_v2() -> tuple[Any, ...]:
    config = hf.MobileViTV2Config(image_size=96, width_multiplier=0.5, n_attn_blocks=[1, 1, 1])
    return _seen(hf.MobileViTV2ForImageClassification(config))


def upernet() -> tuple[Any, ...]:
    """Segmentation, with an auxiliary head that the loss leaves out."""
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = hf.ConvNextConfig(hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 2, 1], out_features=stages)
    config = hf.UperNetConfig(backbone_config=backbone, hidden_size=32, num_labels=5, auxiliary_in_channels=32)
    labels = torch.randint(0, 5, (4, 128, 128))
    module = hf.UperNetForSemanticSegmentation(config)
    return module.train(), {"pixel_values": image(4, 128)}, lambda output: cross_entropy(output.logits, labels)


def vilt() -> tuple[Any, ...]:
    """Words and patches in one encoder."""
    config = hf.ViltConfig(**_SIZE, vocab_size=500, image_size=64, patch_size=8, num_labels=10)
    labels = torch.rand(4, 10)
    inputs = {
        "input_ids": words(4, 32),
        "pixel_values": image(4),
        "pixel_mask": torch.ones(4, 64, 64, dtype=torch.long),
    }
    module = hf.ViltForQuestionAnswering(config)
    return module.train(), inputs, lambda out: functional.binary_cross_entropy_with_logits(out.logits, labels)


def sew() -> tuple[Any, ...]:
    """Speech, squeezed."""
    config = hf.SEWConfig(
        **_SIZE,
        conv_dim=(32, 64, 64),
        conv_stride=(5, 4, 2),
        conv_kernel=(10, 5, 3),
        squeeze_factor=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
        layerdrop=0.0,
        num_labels=6,
    )
    labels = classes(4, 6)
    module = hf.SEWForSequenceClassification(config)
    return module.train(), {"input_values": torch.randn(4, 8000)}, lambda output: cross_entropy(output.logits, labels)


def wav2vec2_conformer() -> tuple[Any, ...]:
    config = hf.Wav2Vec2ConformerConfig(
        **(_SIZE | {"num_hidden_layers": 2}),
        conv_dim=(32, 64, 64),
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 5, 5),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        conv_depthwise_kernel_size=15,
        position_embeddings_type="rotary",
        apply_spec_augment=False,
        layerdrop=0.0,
        vocab_size=32,
    )
    labels = torch.randint(1, 32, (4, 20))

    def loss(output: Any) -> Any:
        log_probabilities = output.logits.log_softmax(-1).transpose(0, 1)
        lengths = torch.full((4,), len(log_probabilities)), torch.full((4,), 20)
        return functional.ctc_loss(log_probabilities, labels, *lengths)

    return hf.Wav2Vec2ConformerForCTC(config).train(), {"input_values": torch.randn(4, 8000)}, loss


class _Codec(torch.nn.Module):
    """Encoder and decoder of a codec of sounds, without its quantizer."""

    def __init__(self, codec: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = codec.encoder, codec.decoder

    def forward(self, sound: Any) -> Any:
        return self.decoder(self.encoder(sound))


def dac() -> tuple[Any, ...]:
    """A codec with sines as its activations."""
    config = hf.DacConfig(
        encoder_hidden_size=16,
        downsampling_ratios=[2, 4],
        decoder_hidden_size=64,
        upsampling_ratios=[4, 2],
        n_codebooks=2,
        codebook_size=32,
        codebook_dim=4,
    )
    sound = torch.randn(2, 1, 2048)
    return _Codec(hf.DacModel(config)).train(), (sound,), lambda out: (out - sound[..., : out.shape[-1]]).abs().mean()


_SERIES = {"prediction_length": 24, "context_length": 48, "lags_sequence": [1, 2, 3], "num_time_features": 2}
_LAYERS = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}


def _likelihood(module: Any, batch: int = 32) -> tuple[Any, ...]:
    """A model of series that returns the parameters of a distribution."""
    past, future = _SERIES["context_length"] + 3, _SERIES["prediction_length"]
    values = torch.rand(batch, future)
    inputs = {
        "past_values": torch.rand(batch, past),
        "past_time_features": torch.randn(batch, past, 2),
        "past_observed_mask": torch.ones(batch, past),
        "future_values": values,
        "future_time_features": torch.randn(batch, future, 2),
    }

    def loss(output: Any) -> Any:
        degrees, place, scale = output.params
        return -torch.distributions.StudentT(degrees, place, scale).log_prob(values).mean()

    return module.train(), inputs, loss


def informer() -> tuple[Any, ...]:
    """Attention for the queries that matter most."""
    return _likelihood(hf.InformerForPrediction(hf.InformerConfig(**_SERIES, **_LAYERS)))


def time_series_transformer() -> tuple[Any, ...]:
    return _likelihood(hf.TimeSeriesTransformerForPrediction(hf.TimeSeriesTransformerConfig(**_SERIES, **_LAYERS)))


def patch_mixer() -> tuple[Any, ...]:
    config = hf.PatchTSMixerConfig(
        context_length=128,
        prediction_length=16,
        num_input_channels=4,
        d_model=64,
        num_layers=4,
        patch_length=8,
        patch_stride=8,
    )
    wanted = torch.randn(32, 16, 4)
    module, series = hf.PatchTSMixerForPrediction(config), torch.randn(32, 128, 4)
    return module.train(), {"past_values": series}, lambda out: (out.prediction_outputs - wanted).square().mean()


def _of_timm(name: str, side: int = 96, **more: Any) -> tuple[Any, ...]:
    return classified(timm.create_model(name, num_classes=10, **more), image(4, side))


def edgenext() -> tuple[Any, ...]:
    return _of_timm("edgenext_xx_small", drop_path_rate=0.1)


def hrnet() -> tuple[Any, ...]:
    """Four resolutions side by side."""
    return _of_timm("hrnet_w18_small", 64)


def res2net() -> tuple[Any, ...]:
    return _of_timm("res2net50_14w_8s", 64, layers=(1, 1, 1, 1))


def repvit() -> tuple[Any, ...]:
    return _of_timm("repvit_m0_9", 96)


def twins_svt() -> tuple[Any, ...]:
    return _of_timm("twins_svt_small", 96, img_size=96, embed_dims=(32, 64, 96, 128), depths=(1, 1, 2, 1))


def gated_mlp() -> tuple[Any, ...]:
    """Gates over places instead of attention."""
    parts = {"block_layer": timm.models.mlp_mixer.SpatialGatingBlock, "mlp_layer": timm.layers.GatedMlp}
    module = timm.models.mlp_mixer.MlpMixer(
        num_classes=10, img_size=64, patch_size=4, num_blocks=4, embed_dim=128, mlp_ratio=4, **parts
    )
    return classified(module, image(8))


def conv_mixer() -> tuple[Any, ...]:
    return classified(timm.models.convmixer.ConvMixer(dim=128, depth=4, patch_size=4, num_classes=10), image(16))


def inception_next() -> tuple[Any, ...]:
    return _of_timm("inception_next_atto", drop_path_rate=0.1)


def _cleaned(module: Any, noised: Any, **inputs: Any) -> tuple[Any, ...]:
    """A denoiser of diffusers."""
    noise = torch.randn_like(noised)
    return module.train(), {"sample": noised} | inputs, lambda out: functional.mse_loss(out.sample, noise)


def unet1d() -> tuple[Any, ...]:
    module = df.UNet1DModel(
        sample_size=512,
        in_channels=14,
        out_channels=14,
        extra_in_channels=64,
        block_out_channels=(32, 32, 64),
        time_embedding_type="fourier",
        use_timestep_embedding=False,
        down_block_types=("DownBlock1DNoSkip", "DownBlock1D", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"),
    )
    return _cleaned(module, torch.randn(4, 14, 512), timestep=torch.tensor([3, 30, 300, 900]))


def unet3d() -> tuple[Any, ...]:
    """Videos under a text."""
    module = df.UNet3DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    noised = torch.randn(1, 4, 4, 16, 16)
    return _cleaned(module, noised, timestep=torch.tensor([50]), encoder_hidden_states=torch.randn(1, 8, 32))


def kandinsky_unet() -> tuple[Any, ...]:
    """A U-Net under the embedding of an image, with attention in every block."""
    module = df.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        cross_attention_dim=32,
        attention_head_dim=8,
        resnet_time_scale_shift="scale_shift",
    )
    noised = image(4, 32, 4)
    return _cleaned(
        module, noised, timestep=torch.tensor([3, 30, 300, 900]), encoder_hidden_states=torch.randn(4, 8, 32)
    )


def tiny_autoencoder() -> tuple[Any, ...]:
    channels = (32, 32, 32)
    module = df.AutoencoderTiny(
        encoder_block_out_channels=channels,
        decoder_block_out_channels=channels,
        num_encoder_blocks=(1, 1, 1),
        num_decoder_blocks=(1, 1, 1),
    )
    x = torch.rand(4, 3, 64, 64)
    return module.train(), {"sample": x}, lambda output: functional.l1_loss(output.sample, x)


def asymmetric_autoencoder() -> tuple[Any, ...]:
    module = df.AsymmetricAutoencoderKL(
        down_block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_out_channels=(32, 64),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        norm_num_groups=8,
        sample_size=32,
    )
    x = image(2, 32)
    return module.train(), {"sample": x}, lambda output: functional.mse_loss(output.sample, x)
