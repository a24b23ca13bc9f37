"""Inputs of denoisers of diffusers (U-Nets and transformers), from their configuration.

No table of models: an argument of ``forward`` has one meaning in all of them, and the configuration tells its size. A
model with an argument that is not known here is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.types import Tensor

LATENTS = 128
"""Height and width of latents where the configuration has none: those of images with 1024 pixels."""
_VECTORS, _VECTORS_OF_UNETS = 512, 77
"""How many vectors condition an image: the tokens of T5 and of CLIP that pipelines pad to."""
_WIDTHS = ("caption_channels", "joint_attention_dim", "text_embed_dim", "text_dim", "cross_attention_dim")
"""Fields with the width of the vectors that condition an image. The first that a configuration has decides: others may
have it after a projection."""
_LEFT_OUT = frozenset(
    {
        "attention_kwargs",
        "attention_mask",
        "block_controlnet_hidden_states",
        "controlnet_block_samples",
        "controlnet_blocks_repeat",
        "controlnet_single_block_samples",
        "cross_attention_kwargs",
        "down_block_additional_residuals",
        "down_intrablock_additional_residuals",
        "encoder_attention_mask",
        "joint_attention_kwargs",
        "mid_block_additional_residual",
        "return_dict",
        "skip_layers",
        "timestep_cond",
    }
)
"""Arguments without which models are trained: masks, adapters, and results of a ControlNet."""


@dataclass(frozen=True, slots=True)
class Denoiser:
    """A denoiser.

    Attributes:
        kind: Its class in diffusers.
        config: Its configuration, with defaults.
        arguments: The arguments of its ``forward``.
    """

    kind: str
    config: Mapping[str, Any]
    arguments: tuple[str, ...]

    @property
    def is_packed(self) -> bool:
        """Whether two by two latents are one token, in a sequence, as in Flux."""
        return "img_ids" in self.arguments

    @property
    def resolution(self) -> int | None:
        """The height and width that the configuration says; None if it does not."""
        own = self.config.get("sample_size")
        return None if own is None else int(own if isinstance(own, int) else own[-1])

    def assumptions(self, resolution: int | None) -> tuple[str, ...]:
        """What is assumed of inputs, in sentences; ``resolution`` is what the user asked for."""
        assumed = [f"{self.vectors} vectors condition every image"] if self.vectors else []
        if not resolution and not self.resolution:
            assumed.append(f"latents have {LATENTS} x {LATENTS} points")
        return tuple(assumed)

    @property
    def vectors(self) -> int:
        """How many vectors condition an image; 0 if none do."""
        if not self.width:
            return 0
        return _VECTORS_OF_UNETS if "sample" in self.arguments else _VECTORS

    @property
    def width(self) -> int:
        """The width of these vectors; 0 if there are none."""
        if "encoder_hidden_states" not in self.arguments:
            return 0
        own = next((self.config[name] for name in _WIDTHS if self.config.get(name)), 0)
        return int(own if isinstance(own, int) else max(own))

    def inputs(self, batch: int, resolution: int) -> dict[str, Any]:
        """The arguments of ``forward`` for images of noise; ``resolution`` is that of latents, if there are."""
        given = {name: _KNOWN[name](self, batch, resolution) for name in self.arguments if name in _KNOWN}
        return {name: argument for name, argument in given.items() if argument is not None}

    def loss(self, batch: int, resolution: int) -> Callable[[Any], Tensor]:
        """The mean square against the noise. A model that also predicts variances has as many channels for these."""
        import torch

        noise = _image(self, batch, resolution)

        def loss(output: Any) -> Tensor:
            prediction = output[0]
            doubled = prediction.dim() == 4 and prediction.shape[1] == 2 * noise.shape[1]
            return torch.nn.functional.mse_loss(prediction.chunk(2, dim=1)[0] if doubled else prediction, noise)

        return loss


def denoiser(diffusers: Any, document: Mapping[str, Any], path: str) -> Denoiser:
    """The denoiser of a configuration.

    Raises:
        UsageError: If it is no class of diffusers, or takes inputs that its configuration does not tell.
    """
    kind = document.get("_class_name")
    made = getattr(diffusers, kind, None) if isinstance(kind, str) else None
    forward = getattr(made, "forward", None)
    remedy = "for others write a function: torch:train.py:build"
    if made is None or forward is None or not hasattr(made, "from_config"):
        raise UsageError(
            f"{path} is of {kind or 'no class of diffusers'}, whose inputs are not known",
            hint=f"known: U-Nets and transformers of diffusers for images, such as FluxTransformer2DModel; {remedy}",
        )
    arguments = tuple(name for name in inspect.signature(forward).parameters if name != "self")
    defaults = {name: p.default for name, p in inspect.signature(made).parameters.items()}
    config = {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty} | dict(document)
    unknown = [name for name in arguments if name not in _KNOWN and name not in _LEFT_OUT]
    if unknown or not config.get("in_channels") or not {"sample", "hidden_states"} & set(arguments):
        wanted = f"takes {', '.join(unknown)}" if unknown else "does not say what images it takes"
        raise UsageError(
            f"{path} is of {kind}, which {wanted}: nothing is known of that",
            hint=f"known are models that take {', '.join(_KNOWN)}; {remedy}",
        )
    return Denoiser(str(kind), config, arguments)


def _image(model: Denoiser, batch: int, resolution: int) -> Tensor:
    import torch

    channels = int(model.config["in_channels"])
    if model.is_packed:
        return torch.randn(batch, (resolution // 2) ** 2, channels)
    return torch.randn(batch, channels, resolution, resolution)


def _timestep(model: Denoiser, batch: int, resolution: int) -> Tensor:
    import torch

    return torch.randint(0, 1000, (batch,))


def _conditions(model: Denoiser, batch: int, resolution: int) -> Tensor | None:
    import torch

    return torch.randn(batch, model.vectors, model.width) if model.vectors else None


def _pooled(model: Denoiser, batch: int, resolution: int) -> Tensor:
    import torch

    return torch.randn(batch, int(model.config["pooled_projection_dim"]))


def _classes(model: Denoiser, batch: int, resolution: int) -> Tensor | None:
    """Classes, where a model has a table of them: the transformers for ImageNet, and some U-Nets."""
    import torch

    of_norms = model.config.get("norm_type") == "ada_norm_zero" and model.config.get("num_embeds_ada_norm")
    count = model.config.get("num_class_embeds") or (of_norms or 0)
    return torch.randint(0, int(count), (batch,)) if count else None


def _image_ids(model: Denoiser, batch: int, resolution: int) -> Tensor:
    import torch

    return torch.zeros((resolution // 2) ** 2, len(model.config["axes_dims_rope"]))


def _text_ids(model: Denoiser, batch: int, resolution: int) -> Tensor:
    import torch

    return torch.zeros(model.vectors, len(model.config["axes_dims_rope"]))


def _guidance(model: Denoiser, batch: int, resolution: int) -> Tensor | None:
    import torch

    return torch.randn(batch) if model.config.get("guidance_embeds") else None


def _added(model: Denoiser, batch: int, resolution: int) -> dict[str, Any] | None:
    """Sizes of images and pooled texts, as U-Nets like that of SDXL take them, and PixArt its resolutions."""
    import torch

    config = model.config
    if config.get("addition_embed_type") == "text_time":
        texts = int(config["projection_class_embeddings_input_dim"]) - 6 * int(config["addition_time_embed_dim"])
        return {"text_embeds": torch.randn(batch, texts), "time_ids": torch.randn(batch, 6)}
    if "use_additional_conditions" not in config:
        return None
    asks = config["use_additional_conditions"]
    if asks or (asks is None and model.resolution == LATENTS):  # as PixArt decides by itself
        return {"resolution": torch.randn(batch, 2), "aspect_ratio": torch.randn(batch, 1)}
    return {"resolution": None, "aspect_ratio": None}


_KNOWN: dict[str, Callable[[Denoiser, int, int], Any]] = {
    "sample": _image,
    "hidden_states": _image,
    "timestep": _timestep,
    "encoder_hidden_states": _conditions,
    "pooled_projections": _pooled,
    "class_labels": _classes,
    "img_ids": _image_ids,
    "txt_ids": _text_ids,
    "guidance": _guidance,
    "added_cond_kwargs": _added,
}
"""What makes each argument that is known, for a batch and a resolution; None leaves it out."""
