"""Models of diffusers that take more than a name and sizes."""

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision, which diffusers imports

# isort: split

import diffusers as df
import torch

from benchmarks.models.tasks import Built, denoised, image, times


def controlnet() -> Built:
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
        "timestep": times(4),
        "encoder_hidden_states": torch.randn(4, 16, 32),
        "controlnet_cond": image(4, 64),
    }

    def loss(output: Any) -> Any:
        samples = [*output.down_block_res_samples, output.mid_block_res_sample]
        return sum((sample - 1).square().mean() for sample in samples)

    return module.train(), inputs, loss


def pixart() -> Built:
    sizes = {"num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 32, "sample_size": 16}
    return denoised(
        df.PixArtTransformer2DModel(
            **sizes, in_channels=4, out_channels=8, cross_attention_dim=128, caption_channels=32
        ),
        "hidden_states",
        hidden_states=image(4, 16, 4),
        timestep=times(4),
        encoder_hidden_states=torch.randn(4, 16, 32),
        added_cond_kwargs={"resolution": None, "aspect_ratio": None},
    )


def vq_model() -> Built:
    """Chooses from a codebook, with a loss of its own for that."""
    module = df.VQModel(block_out_channels=(32,), num_vq_embeddings=64, layers_per_block=1)
    x = image(2)
    return module.train(), (x,), lambda output: (output.sample - x).square().mean() + output.commit_loss.mean()
