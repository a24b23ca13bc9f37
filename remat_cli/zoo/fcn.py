"""FCN-8s on VGG16 (Long et al., 2015), with padded convolutions so that nothing has to be cropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import FUSED_HELP, Segmentation, option
from remat_cli.zoo.layers.common import add, cross_entropy, dropout
from remat_cli.zoo.layers.image import conv2d, conv2d_relu, conv2d_transpose
from remat_cli.zoo.network import Network
from remat_cli.zoo.vgg import VGG16_CONVOLUTIONS, vgg_stage


@dataclass(frozen=True)
class Fcn8(Segmentation):
    """FCN-8s."""

    fused: bool = option(False, FUSED_HELP)

    name: ClassVar[str] = "fcn8"
    summary: ClassVar[str] = "FCN-8s: VGG16 made fully convolutional, scores of three scales added"
    reference: ClassVar[str] = "Long et al., CVPR 2015"
    resolution_step: ClassVar[int] = 32

    def network(self) -> Network:
        """VGG16, its dense layers as convolutions, then scores enlarged and added step by step."""
        x = self.images()
        pooled = []
        for stage, convolutions in enumerate(VGG16_CONVOLUTIONS, 1):
            x = vgg_stage(x, stage, convolutions, fused=self.fused)
            pooled.append(x)
        for k, kernel in ((6, 7), (7, 1)):
            x = dropout(f"drop{k}", conv2d_relu(f"fc{k}", f"relu{k}", x, 4096, kernel, fused=self.fused))
        x = conv2d("score_fr", x, self.classes, 1)
        for k in (4, 3):
            x = conv2d_transpose(f"upscore_pool{k + 1}", x, self.classes, 4, stride=2, bias=False)
            x = add(f"fuse_pool{k}", conv2d(f"score_pool{k}", pooled[k - 1], self.classes, 1), x)
        return cross_entropy(conv2d_transpose("upscore8", x, self.classes, 16, stride=8, bias=False))
