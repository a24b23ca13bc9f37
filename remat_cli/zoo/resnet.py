"""ResNet-18 to ResNet-200 (He et al., 2016), with the stride on the 3x3 convolution as in current implementations.

And the networks of any depth for small images with activations before convolutions, such as ResNet-1001 (He et al.,
"Identity mappings in deep residual networks", ECCV 2016).
"""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.zoo.base import ImageNetwork, option
from remat_cli.zoo.layers.common import add, cross_entropy, dense, relu
from remat_cli.zoo.layers.image import batch_norm, conv2d, conv_bn_relu, global_avg_pool, max_pool
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
    """Convolutions 1x1, 3x3 and 1x1, and a shortcut."""
    shortcut = _shortcut(name, x, 4 * filters, stride)
    x = conv_bn_relu(f"{name}/a", x, filters, 1)
    x = conv_bn_relu(f"{name}/b", x, filters, 3, stride=stride)
    x = conv_bn_relu(f"{name}/c", x, 4 * filters, 1, activation=None)
    return relu(f"{name}/relu", add(f"{name}/add", shortcut, x))


def _basic(name: str, x: Tensor, filters: int, stride: int) -> Tensor:
    """Two convolutions 3x3, and a shortcut."""
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


@dataclass(frozen=True)
class DeepResNet(ImageNetwork):
    """Bottleneck blocks with activations before convolutions; three stages of equal blocks."""

    batch: int = option(128, "images per batch")
    resolution: str = option("32", "height and width of the images: 32, or 32x64")
    classes: int = option(10, "number of classes")
    depth: int = option(1001, "number of layers: 2 more than a multiple of 9")
    wide: int = option(1, "how many times as many channels as in the paper; 4: ResNet-1001 of Rotor's experiments")

    name: ClassVar[str] = "resnet-deep"
    summary: ClassVar[str] = "pre-activation ResNet for small images, of any depth (default: ResNet-1001)"
    reference: ClassVar[str] = "He et al., ECCV 2016"
    _widths: ClassVar[tuple[int, int, int]] = (64, 128, 256)

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        self.require("depth", 11, 100_001)
        self.require("wide", 1, 64)
        if self.depth % 9 != 2:
            near = self.depth - (self.depth - 2) % 9
            raise UsageError(
                f"{self.name}{{depth}}: {self.depth} is not 2 more than a multiple of 9",
                hint=f"choose {near} or {near + 9}",
            )

    def network(self) -> Network:
        """One convolution, three stages of blocks, one dense layer."""
        x = conv2d("conv1", self.images(), 16 * self.wide, 3, bias=False)
        for stage, width in enumerate(self._widths, 1):
            for block in range(1, (self.depth - 2) // 9 + 1):
                stride = 2 if block == 1 and stage > 1 else 1
                x = _before(f"stage{stage}_{block}", x, width * self.wide, stride, first=block == 1)
        x = relu("last/relu", batch_norm("last/bn", x))
        return cross_entropy(dense("fc", global_avg_pool("pool", x), self.classes))


def _before(name: str, x: Tensor, width: int, stride: int, *, first: bool) -> Tensor:
    """Norm, activation and convolution three times, and a shortcut; the first of a stage adapts the shape."""
    y = relu(f"{name}/a/relu", batch_norm(f"{name}/a/bn", x))
    shortcut = conv2d(f"{name}/shortcut", y, width, 1, stride=stride, bias=False) if first else x
    y = conv2d(f"{name}/a/conv", y, width // 4, 1, stride=stride, bias=False)
    y = relu(f"{name}/b/relu", batch_norm(f"{name}/b/bn", y))
    y = conv2d(f"{name}/b/conv", y, width // 4, 3, bias=False)
    y = relu(f"{name}/c/relu", batch_norm(f"{name}/c/bn", y))
    return add(f"{name}/add", shortcut, conv2d(f"{name}/c/conv", y, width, 1, bias=False))
