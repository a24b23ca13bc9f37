"""VGG16 and VGG19 (Simonyan and Zisserman, 2015, configurations D and E), and the networks made of their layers.

FCN-8s (Long et al., 2015) has padded convolutions, so that nothing has to be cropped. SegNet (Badrinarayanan et al.,
2017) is VGG16's convolutions, and their mirror image after pooling indices.
"""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import FUSED_HELP, ImageNetwork, Segmentation, option
from remat_cli.zoo.layers.common import add, cross_entropy, dense, dropout, flatten, relu
from remat_cli.zoo.layers.image import (
    conv2d,
    conv2d_relu,
    conv2d_transpose,
    conv_bn_relu,
    max_pool,
    max_pool_indices,
    max_unpool,
)
from remat_cli.zoo.network import Network, Tensor

FILTERS = (64, 128, 256, 512, 512)
VGG16_CONVOLUTIONS = (2, 2, 3, 3, 3)


def vgg_stage(x: Tensor, stage: int, convolutions: int, *, fused: bool) -> Tensor:
    """One stage (from 1): convolutions with ReLU, and a pool that halves the image."""
    for k in range(1, convolutions + 1):
        x = conv2d_relu(f"conv{stage}_{k}", f"relu{stage}_{k}", x, FILTERS[stage - 1], 3, fused=fused)
    return max_pool(f"pool{stage}", x, 2, stride=2)


@dataclass(frozen=True)
class _Vgg(ImageNetwork):
    fused: bool = option(False, FUSED_HELP)

    reference: ClassVar[str] = "Simonyan and Zisserman, ICLR 2015"
    convolutions: ClassVar[tuple[int, ...]]

    def network(self) -> Network:
        """Five stages of convolutions, three dense layers."""
        x = self.images()
        for stage, convolutions in enumerate(self.convolutions, 1):
            x = vgg_stage(x, stage, convolutions, fused=self.fused)
        x = flatten("flatten", x)
        for k in (6, 7):
            x = dense(f"fc{k}", x, 4096, relu=self.fused)
            if not self.fused:
                x = relu(f"relu{k}", x)
        return cross_entropy(dense("fc8", x, self.classes))


@dataclass(frozen=True)
class Vgg16(_Vgg):
    """VGG16."""

    name: ClassVar[str] = "vgg16"
    summary: ClassVar[str] = "VGG with 13 convolutions and 3 dense layers"
    convolutions: ClassVar[tuple[int, ...]] = VGG16_CONVOLUTIONS


@dataclass(frozen=True)
class Vgg19(_Vgg):
    """VGG19."""

    name: ClassVar[str] = "vgg19"
    summary: ClassVar[str] = "VGG with 16 convolutions and 3 dense layers"
    convolutions: ClassVar[tuple[int, ...]] = (2, 2, 4, 4, 4)


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
