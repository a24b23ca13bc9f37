"""ResNet-18 to ResNet-200 (He et al., 2016), with the stride on the 3x3 convolution as in current implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import ImageNetwork
from remat_cli.zoo.layers.common import add, cross_entropy, dense, relu
from remat_cli.zoo.layers.image import conv_bn_relu, global_avg_pool, max_pool
from remat_cli.zoo.network import Network, Tensor


@dataclass(frozen=True)
class _ResNet(ImageNetwork):
    reference: ClassVar[str] = "He et al., CVPR 2016"
    blocks: ClassVar[tuple[int, int, int, int]]
    """Number of blocks of each stage."""
    bottleneck: ClassVar[bool] = True
    """Whether a block has three convolutions, the last of which widens the image four times; else it has two."""

    def network(self) -> Network:
        """One convolution, four stages of blocks, one dense layer."""
        x = conv_bn_relu("conv1", self.images(), 64, 7, stride=2)
        x = max_pool("pool1", x, 3, stride=2, padding="same")
        for stage, blocks in enumerate(self.blocks, 2):
            for block in range(1, blocks + 1):
                stride = 2 if block == 1 and stage > 2 else 1
                make = _bottleneck if self.bottleneck else _basic
                x = make(f"conv{stage}_{block}", x, 2 ** (stage + 4), stride)
        return cross_entropy(dense("fc", global_avg_pool("pool5", x), self.classes))


def _bottleneck(name: str, x: Tensor, filters: int, stride: int) -> Tensor:
    """Convolutions 1x1, 3x3 and 1x1 beside a shortcut."""
    shortcut = _shortcut(name, x, 4 * filters, stride)
    x = conv_bn_relu(f"{name}/a", x, filters, 1)
    x = conv_bn_relu(f"{name}/b", x, filters, 3, stride=stride)
    x = conv_bn_relu(f"{name}/c", x, 4 * filters, 1, activation=None)
    return relu(f"{name}/relu", add(f"{name}/add", shortcut, x))


def _basic(name: str, x: Tensor, filters: int, stride: int) -> Tensor:
    """Two convolutions 3x3 beside a shortcut."""
    shortcut = _shortcut(name, x, filters, stride)
    x = conv_bn_relu(f"{name}/a", x, filters, 3, stride=stride)
    x = conv_bn_relu(f"{name}/b", x, filters, 3, activation=None)
    return relu(f"{name}/relu", add(f"{name}/add", shortcut, x))


def _shortcut(name: str, x: Tensor, filters: int, stride: int) -> Tensor:
    """The input of a block, adapted by a convolution where the shape changes."""
    if stride == 1 and x.shape[1] == filters:
        return x
    return conv_bn_relu(f"{name}/shortcut", x, filters, 1, stride=stride, activation=None)


@dataclass(frozen=True)
class ResNet18(_ResNet):
    """ResNet-18."""

    name: ClassVar[str] = "resnet18"
    summary: ClassVar[str] = "ResNet with 18 layers"
    blocks: ClassVar[tuple[int, int, int, int]] = (2, 2, 2, 2)
    bottleneck: ClassVar[bool] = False


@dataclass(frozen=True)
class ResNet34(_ResNet):
    """ResNet-34."""

    name: ClassVar[str] = "resnet34"
    summary: ClassVar[str] = "ResNet with 34 layers"
    blocks: ClassVar[tuple[int, int, int, int]] = (3, 4, 6, 3)
    bottleneck: ClassVar[bool] = False


@dataclass(frozen=True)
class ResNet50(_ResNet):
    """ResNet-50."""

    name: ClassVar[str] = "resnet50"
    summary: ClassVar[str] = "ResNet with 50 layers"
    blocks: ClassVar[tuple[int, int, int, int]] = (3, 4, 6, 3)


@dataclass(frozen=True)
class ResNet101(_ResNet):
    """ResNet-101."""

    name: ClassVar[str] = "resnet101"
    summary: ClassVar[str] = "ResNet with 101 layers"
    blocks: ClassVar[tuple[int, int, int, int]] = (3, 4, 23, 3)


@dataclass(frozen=True)
class ResNet152(_ResNet):
    """ResNet-152."""

    name: ClassVar[str] = "resnet152"
    summary: ClassVar[str] = "ResNet with 152 layers"
    blocks: ClassVar[tuple[int, int, int, int]] = (3, 8, 36, 3)


@dataclass(frozen=True)
class ResNet200(_ResNet):
    """ResNet-200."""

    name: ClassVar[str] = "resnet200"
    summary: ClassVar[str] = "ResNet with 200 layers"
    blocks: ClassVar[tuple[int, int, int, int]] = (3, 24, 36, 3)
