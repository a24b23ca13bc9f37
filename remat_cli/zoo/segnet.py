"""SegNet (Badrinarayanan et al., 2017): VGG16's convolutions, and their mirror image after pooling indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import Segmentation
from remat_cli.zoo.layers.common import cross_entropy
from remat_cli.zoo.layers.image import conv2d, conv_bn_relu, max_pool_indices, max_unpool
from remat_cli.zoo.network import Network
from remat_cli.zoo.vgg import FILTERS, VGG16_CONVOLUTIONS


@dataclass(frozen=True)
class SegNet(Segmentation):
    """SegNet."""

    name: ClassVar[str] = "segnet"
    summary: ClassVar[str] = "SegNet: encoder and decoder that meet through pooling indices"
    reference: ClassVar[str] = "Badrinarayanan et al., TPAMI 2017"
    resolution_step: ClassVar[int] = 32

    def network(self) -> Network:
        """Five stages down, the same five up; the last convolution gives the scores."""
        x = self.images()
        places = []
        for stage, convolutions in enumerate(VGG16_CONVOLUTIONS, 1):
            for k in range(1, convolutions + 1):
                x = conv_bn_relu(f"conv{stage}_{k}", x, FILTERS[stage - 1], 3, bias=True)
            x, indices = max_pool_indices(f"pool{stage}", x, 2)
            places.append(indices)
        for stage in range(len(places), 0, -1):
            x = max_unpool(f"unpool{stage}", x, places[stage - 1], 2)
            for k in range(VGG16_CONVOLUTIONS[stage - 1], 0, -1):
                if (stage, k) == (1, 1):
                    break
                filters = FILTERS[stage - 1] if k > 1 else FILTERS[stage - 2]
                x = conv_bn_relu(f"deconv{stage}_{k}", x, filters, 3, bias=True)
        return cross_entropy(conv2d("score", x, self.classes, 3))
