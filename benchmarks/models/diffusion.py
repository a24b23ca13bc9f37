"""Diffusion: denoisers, autoencoders and controls."""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import diffusers as df
import torch

from benchmarks.models.common import image


def _denoiser(module: Any, noised: Any, **inputs: Any) -> tuple[Any, ...]:
    """A module that predicts noise of the form of ``noised``; the first half of the channels where it returns more."""
    noise = torch.randn_like(noised)

    def loss(output: Any) -> Any:
        return (output.sample[:, : noise.shape[1]] - noise).square().mean()

    return module.train(), inputs, loss


def _times(batch: int = 2) -> Any:
    return torch.randint(0, 1000, (batch,))


def unet2d() -> tuple[Any, ...]:
    module = df.UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        dropout=0.1,
    )
    x = image(4, 32)
    return _denoiser(module, x, sample=x, timestep=_times(4))


def unet_of_stable_diffusion() -> tuple[Any, ...]:
    module = df.UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    x = image(4, 32, 4)
    return _denoiser(module, x, sample=x, timestep=_times(4), encoder_hidden_states=torch.randn(4, 16, 32))


def controlnet() -> tuple[Any, ...]:
    module = df.ControlNetModel(
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        conditioning_embedding_out_channels=(16, 32),
    )
    inputs = {
        "sample": image(4, 32, 4),
        "timestep": _times(4),
        "encoder_hidden_states": torch.randn(4, 16, 32),
        "controlnet_cond": image(4, 64),
    }

    def loss(output: Any) -> Any:
        samples = [*output.down_block_res_samples, output.mid_block_res_sample]
        return sum((sample - 1).square().mean() for sample in samples)

    return module.train(), inputs, loss


_SMALL = {"num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 32}


def dit() -> tuple[Any, ...]:
    module = df.DiTTransformer2DModel(**_SMALL, in_channels=4, out_channels=8, sample_size=16, patch_size=2)
    x = image(4, 16, 4)
    return _denoiser(module, x, hidden_states=x, timestep=_times(4), class_labels=_times(4))


def pixart() -> tuple[Any, ...]:
    module = df.PixArtTransformer2DModel(
        **_SMALL, in_channels=4, out_channels=8, sample_size=16, cross_attention_dim=128, caption_channels=32
    )
    x = image(4, 16, 4)
    return _denoiser(
        module,
        x,
        hidden_states=x,
        timestep=_times(4),
        encoder_hidden_states=torch.randn(4, 16, 32),
        added_cond_kwargs={"resolution": None, "aspect_ratio": None},
    )


def stable_diffusion_3() -> tuple[Any, ...]:
    module = df.SD3Transformer2DModel(
        **_SMALL,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        joint_attention_dim=32,
        caption_projection_dim=128,
        pooled_projection_dim=64,
        pos_embed_max_size=16,
    )
    x = image(4, 16, 4)
    return _denoiser(
        module,
        x,
        hidden_states=x,
        timestep=_times(4),
        encoder_hidden_states=torch.randn(4, 16, 32),
        pooled_projections=torch.randn(4, 64),
    )


def flux() -> tuple[Any, ...]:
    module = df.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[8, 12, 12],
    )
    x = torch.randn(4, 128, 4)
    return _denoiser(
        module,
        x,
        hidden_states=x,
        timestep=torch.rand(4),
        encoder_hidden_states=torch.randn(4, 16, 32),
        pooled_projections=torch.randn(4, 32),
        img_ids=torch.zeros(128, 3),
        txt_ids=torch.zeros(16, 3),
    )


def sana() -> tuple[Any, ...]:
    """Linear attention."""
    module = df.SanaTransformer2DModel(
        **_SMALL,
        in_channels=4,
        out_channels=4,
        sample_size=16,
        patch_size=1,
        num_cross_attention_heads=4,
        cross_attention_head_dim=32,
        cross_attention_dim=128,
        caption_channels=32,
    )
    x = image(4, 16, 4)
    return _denoiser(module, x, hidden_states=x, timestep=_times(4), encoder_hidden_states=torch.randn(4, 16, 32))


def wan() -> tuple[Any, ...]:
    """Video."""
    module = df.WanTransformer3DModel(
        **_SMALL, in_channels=4, out_channels=4, text_dim=32, freq_dim=64, ffn_dim=256, rope_max_seq_len=64
    )
    x = torch.randn(2, 4, 4, 16, 16)
    return _denoiser(module, x, hidden_states=x, timestep=_times(2), encoder_hidden_states=torch.randn(2, 16, 32))


def _autoencoder(module: Any, x: Any, **more: Any) -> tuple[Any, ...]:
    return module.train(), {"sample": x} | more, lambda output: (output.sample - x).square().mean()


def autoencoder_kl() -> tuple[Any, ...]:
    module = df.AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        layers_per_block=1,
    )
    return _autoencoder(module, image(2), sample_posterior=True)


def vq_model() -> tuple[Any, ...]:
    """Chooses from a codebook, with a loss of its own for that."""
    module = df.VQModel(block_out_channels=(32,), num_vq_embeddings=64, layers_per_block=1)
    x = image(2)
    return module.train(), (x,), lambda output: (output.sample - x).square().mean() + output.commit_loss.mean()
