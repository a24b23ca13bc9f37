"""DenseNet-121, 161, 169 and 201 (Huang et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import ImageNetwork
from remat_cli.zoo.layers.common import concat, cross_entropy, dense, relu
from remat_cli.zoo.layers.image import avg_pool, batch_norm, conv2d, conv_bn_relu, global_avg_pool, max_pool
from remat_cli.zoo.network import Network, Tensor


@dataclass(frozen=True)
class _DenseNet(ImageNetwork):
    reference: ClassVar[str] = "Huang et al., CVPR 2017"
    growth: ClassVar[int] = 32
    """Channels that every layer adds; the first convolution makes twice as many."""
    blocks: ClassVar[tuple[int, int, int, int]]
    """Number of layers of each block."""

    def network(self) -> Network:
        """One convolution, four dense blocks with transitions that halve channels and image between them."""
        x = conv_bn_relu("conv1", self.images(), 2 * self.growth, 7, stride=2)
        x = max_pool("pool1", x, 3, stride=2, padding="same")
        for block, layers in enumerate(self.blocks, 1):
            if block > 1:
                x = _bn_relu_conv(f"transition{block - 1}", x, x.shape[1] // 2, 1)
                x = avg_pool(f"transition{block - 1}/pool", x, 2, stride=2)
            for k in range(1, layers + 1):
                new = _bn_relu_conv(f"block{block}_{k}/a", x, 4 * self.growth, 1)
                new = _bn_relu_conv(f"block{block}_{k}/b", new, self.growth, 3)
                x = concat(f"block{block}_{k}/concat", [x, new])
        x = relu("last/relu", batch_norm("last/bn", x))
        return cross_entropy(dense("fc", global_avg_pool("pool5", x), self.classes))


def _bn_relu_conv(name: str, x: Tensor, filters: int, kernel: int) -> Tensor:
    x = relu(f"{name}/relu", batch_norm(f"{name}/bn", x))
    return conv2d(f"{name}/conv", x, filters, kernel, bias=False)


@dataclass(frozen=True)
class DenseNet121(_DenseNet):
    """DenseNet-121."""

    name: ClassVar[str] = "densenet121"
    summary: ClassVar[str] = "DenseNet with 121 layers, growth 32"
    blocks: ClassVar[tuple[int, int, int, int]] = (6, 12, 24, 16)


@dataclass(frozen=True)
class DenseNet161(_DenseNet):
    """DenseNet-161."""

    name: ClassVar[str] = "densenet161"
    summary: ClassVar[str] = "DenseNet with 161 layers, growth 48"
    growth: ClassVar[int] = 48
    blocks: ClassVar[tuple[int, int, int, int]] = (6, 12, 36, 24)


@dataclass(frozen=True)
class DenseNet169(_DenseNet):
    """DenseNet-169."""

    name: ClassVar[str] = "densenet169"
    summary: ClassVar[str] = "DenseNet with 169 layers, growth 32"
    blocks: ClassVar[tuple[int, int, int, int]] = (6, 12, 32, 32)


@dataclass(frozen=True)
class DenseNet201(_DenseNet):
    """DenseNet-201."""

    name: ClassVar[str] = "densenet201"
    summary: ClassVar[str] = "DenseNet with 201 layers, growth 32"
    blocks: ClassVar[tuple[int, int, int, int]] = (6, 12, 48, 32)
