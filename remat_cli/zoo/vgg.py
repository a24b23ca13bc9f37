"""VGG16 and VGG19 (Simonyan and Zisserman, 2015, configurations D and E)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import FUSED_HELP, ImageNetwork, option
from remat_cli.zoo.layers.common import cross_entropy, dense, flatten, relu
from remat_cli.zoo.layers.image import conv2d_relu, max_pool
from remat_cli.zoo.network import Network, Tensor

FILTERS = (64, 128, 256, 512, 512)
VGG16_CONVOLUTIONS = (2, 2, 3, 3, 3)


def vgg_stage(x: Tensor, stage: int, convolutions: int, *, fused: bool) -> Tensor:
    """One stage (from 1): convolutions with ReLU, and a pool that halves the image.

    Args:
        x: Input.
        stage: Number of the stage.
        convolutions: How many.
        fused: ReLU inside the convolution, or a layer of its own.
    """
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
