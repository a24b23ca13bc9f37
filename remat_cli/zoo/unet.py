"""U-Net (Ronneberger et al., 2015), with padded convolutions so that the output is as large as the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import FUSED_HELP, Segmentation, option
from remat_cli.zoo.layers.common import concat, cross_entropy, dropout
from remat_cli.zoo.layers.image import conv2d, conv2d_relu, conv2d_transpose, max_pool
from remat_cli.zoo.network import Network, Tensor

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
