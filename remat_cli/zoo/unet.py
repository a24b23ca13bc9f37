"""U-Nets with padded convolutions: that of Ronneberger et al., 2015, and the one on VGG16 of Checkmate's experiments.

The first makes an output as large as the image, the second one of half its height and width.
"""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import FUSED_HELP, Segmentation, option
from remat_cli.zoo.layers.common import concat, cross_entropy, dropout
from remat_cli.zoo.layers.image import (
    batch_norm,
    conv2d,
    conv2d_relu,
    conv2d_transpose,
    max_pool,
    upsample,
    zero_padding,
)
from remat_cli.zoo.network import Network, Tensor
from remat_cli.zoo.vgg import FILTERS, VGG16_CONVOLUTIONS, vgg_stage

DOWNS = 4
"""How often the image is halved."""


@dataclass(frozen=True)
class UNet(Segmentation):
    """U-Net."""

    filters: int = option(64, "channels of the first level; every level doubles them")
    fused: bool = option(False, FUSED_HELP)

    name: ClassVar[str] = "unet"
    summary: ClassVar[str] = "U-Net: encoder and decoder with joined skip connections"
    reference: ClassVar[str] = "Ronneberger et al., MICCAI 2015"
    resolution_step: ClassVar[int] = 2**DOWNS

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        self.require("filters", 1, 4096)

    def network(self) -> Network:
        """Four levels down, the bottom, four levels up; dropout at the end of the way down."""
        x = self.images()
        skips: list[Tensor] = []
        for level in range(1, DOWNS + 1):
            x = self._convolutions(f"down{level}", x, self.filters * 2 ** (level - 1))
            if level == DOWNS:
                x = dropout(f"down{level}/dropout", x)
            skips.append(x)
            x = max_pool(f"down{level}/pool", x, 2, stride=2)
        x = dropout("bottom/dropout", self._convolutions("bottom", x, self.filters * 2**DOWNS))
        for level in range(DOWNS, 0, -1):
            filters = self.filters * 2 ** (level - 1)
            x = conv2d_transpose(f"up{level}/upconv", x, filters, 2, stride=2)
            x = concat(f"up{level}/concat", [skips[level - 1], x])
            x = self._convolutions(f"up{level}", x, filters)
        return cross_entropy(conv2d("score", x, self.classes, 1))

    def _convolutions(self, name: str, x: Tensor, filters: int) -> Tensor:
        for k in (1, 2):
            x = conv2d_relu(f"{name}/conv{k}", f"{name}/relu{k}", x, filters, 3, fused=self.fused)
        return x


@dataclass(frozen=True)
class VggUNet(Segmentation):
    """A U-Net whose way down is VGG16 without its last stage.

    The experiments published with the Checkmate paper call it ``vgg_unet`` and run it in place of U-Net. The skip
    connections start at the pools, so the largest values are read soon, and the last layer works at half resolution. On
    the way up, padding is a layer of its own, which copies the image.
    """

    classes: int = option(19, "number of classes")
    fused: bool = option(False, FUSED_HELP)

    name: ClassVar[str] = "vgg-unet"
    summary: ClassVar[str] = "U-Net on the first four stages of VGG16: the U-Net of Checkmate's experiments"
    reference: ClassVar[str] = "Jain et al., MLSys 2020, code of the experiments"
    resolution_step: ClassVar[int] = 2**DOWNS

    def network(self) -> Network:
        """Four stages of VGG16 down; up by repeating pixels, with the pool of that size joined, and a convolution."""
        x = self.images()
        pools: list[Tensor] = []
        for stage in range(1, DOWNS + 1):
            x = vgg_stage(x, stage, VGG16_CONVOLUTIONS[stage - 1], fused=self.fused)
            pools.append(x)
        x = self._decoded(f"up{DOWNS}", x, FILTERS[DOWNS - 1])
        for level in range(DOWNS - 1, 0, -1):
            x = upsample(f"up{level}/upsample", x, 2)
            x = concat(f"up{level}/concat", [pools[level - 1], x])
            x = self._decoded(f"up{level}", x, FILTERS[level - 1])
        return cross_entropy(conv2d("score", x, self.classes, 3))

    def _decoded(self, name: str, x: Tensor, filters: int) -> Tensor:
        x = zero_padding(f"{name}/pad", x)
        x = conv2d_relu(f"{name}/conv", f"{name}/relu", x, filters, 3, fused=self.fused, padding="valid")
        return batch_norm(f"{name}/bn", x)
