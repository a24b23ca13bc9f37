"""MobileNet v1 (Howard et al., 2017) and v2 (Sandler et al., 2018)."""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.zoo.base import ImageNetwork, option
from remat_cli.zoo.layers.common import add, cross_entropy, dense, dropout, relu6
from remat_cli.zoo.layers.image import batch_norm, conv_bn_relu, depthwise_conv2d, global_avg_pool
from remat_cli.zoo.network import Network, Tensor


def _depthwise(name: str, x: Tensor, stride: int) -> Tensor:
    x = depthwise_conv2d(f"{name}/conv", x, 3, stride=stride, bias=False)
    return relu6(f"{name}/relu6", batch_norm(f"{name}/bn", x))


@dataclass(frozen=True)
class _MobileNet(ImageNetwork):
    batch: int = option(512, "images per batch")
    width: float = option(1.0, "factor on the number of channels")

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        if not 0.1 <= self.width <= 10:
            raise UsageError(
                f"{self.name}{{width}}: {self.width} is out of range", hint="choose width between 0.1 and 10"
            )

    def head(self, x: Tensor) -> Network:
        """Mean over the image, dropout, one dense layer."""
        x = dropout("dropout", global_avg_pool("pool", x))
        return cross_entropy(dense("fc", x, self.classes))


@dataclass(frozen=True)
class MobileNetV1(_MobileNet):
    """MobileNet v1: depthwise and pointwise convolutions in turn."""

    name: ClassVar[str] = "mobilenet-v1"
    summary: ClassVar[str] = "MobileNet v1: depthwise separable convolutions"
    reference: ClassVar[str] = "Howard et al., arXiv 1704.04861, 2017"
    blocks: ClassVar[tuple[tuple[int, int], ...]] = (
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *((512, 1),) * 5,
        (1024, 2),
        (1024, 1),
    )
    """Channels and stride."""

    def network(self) -> Network:
        """One convolution, then 13 blocks."""
        x = conv_bn_relu("stem", self.images(), self._channels(32), 3, stride=2, activation="relu6")
        for k, (channels, stride) in enumerate(self.blocks, 1):
            x = _depthwise(f"block{k}/dw", x, stride)
            x = conv_bn_relu(f"block{k}/pw", x, self._channels(channels), 1, activation="relu6")
        return self.head(x)

    def _channels(self, channels: int) -> int:
        return max(1, int(channels * self.width))


@dataclass(frozen=True)
class MobileNetV2(_MobileNet):
    """MobileNet v2: inverted residuals with linear bottlenecks."""

    name: ClassVar[str] = "mobilenet-v2"
    summary: ClassVar[str] = "MobileNet v2: inverted residuals"
    reference: ClassVar[str] = "Sandler et al., CVPR 2018"
    stages: ClassVar[tuple[tuple[int, int, int, int], ...]] = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    """Expansion, channels, blocks, stride of the first block."""

    def network(self) -> Network:
        """One convolution, 17 inverted residuals, one pointwise convolution."""
        x = conv_bn_relu("stem", self.images(), _divisible(32 * self.width), 3, stride=2, activation="relu6")
        number = 0
        for expansion, channels, blocks, first_stride in self.stages:
            for stride in (first_stride, *(1,) * (blocks - 1)):
                number += 1
                x = _inverted_residual(f"block{number}", x, expansion, _divisible(channels * self.width), stride)
        x = conv_bn_relu("last", x, _divisible(1280 * max(1.0, self.width)), 1, activation="relu6")
        return self.head(x)


def _inverted_residual(name: str, x: Tensor, expansion: int, channels: int, stride: int) -> Tensor:
    shortcut = x
    if expansion > 1:
        x = conv_bn_relu(f"{name}/expand", x, expansion * x.shape[1], 1, activation="relu6")
    x = _depthwise(f"{name}/dw", x, stride)
    x = conv_bn_relu(f"{name}/project", x, channels, 1, activation=None)
    return add(f"{name}/add", shortcut, x) if x.shape == shortcut.shape else x


def _divisible(channels: float) -> int:
    """The multiple of 8 nearest to ``channels``, but not below 90% of it: the paper's rounding."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
