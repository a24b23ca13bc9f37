"""ResNet-50, 101 and 152 (He et al., 2016), with the stride on the 3x3 convolution as in current implementations."""

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
    """Number of bottleneck blocks of each stage."""

    def network(self) -> Network:
        """One convolution, four stages of bottleneck blocks, one dense layer."""
        x = conv_bn_relu("conv1", self.images(), 64, 7, stride=2)
        x = max_pool("pool1", x, 3, stride=2, padding="same")
        for stage, blocks in enumerate(self.blocks, 2):
            for block in range(1, blocks + 1):
                stride = 2 if block == 1 and stage > 2 else 1
                x = _bottleneck(f"conv{stage}_{block}", x, 2 ** (stage + 4), stride, project=block == 1)
        return cross_entropy(dense("fc", global_avg_pool("pool5", x), self.classes))


def _bottleneck(name: str, x: Tensor, filters: int, stride: int, *, project: bool) -> Tensor:
    """Three convolutions beside a shortcut, which a convolution adapts where the shape changes."""
    shortcut = x
    if project:
        shortcut = conv_bn_relu(f"{name}/shortcut", x, 4 * filters, 1, stride=stride, activation=None)
    x = conv_bn_relu(f"{name}/a", x, filters, 1)
    x = conv_bn_relu(f"{name}/b", x, filters, 3, stride=stride)
    x = conv_bn_relu(f"{name}/c", x, 4 * filters, 1, activation=None)
    return relu(f"{name}/relu", add(f"{name}/add", shortcut, x))


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
