"""DenseNet-121, 161, 169 and 201, and DenseNet-BC for small images, of any depth (Huang et al., 2017)."""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.zoo.base import ImageNetwork, option
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
                x = _layer(f"block{block}_{k}", x, self.growth)
        x = relu("last/relu", batch_norm("last/bn", x))
        return cross_entropy(dense("fc", global_avg_pool("pool5", x), self.classes))


def _layer(name: str, x: Tensor, growth: int) -> Tensor:
    """A bottleneck and a convolution, joined to what they read."""
    new = _bn_relu_conv(f"{name}/a", x, 4 * growth, 1)
    return concat(f"{name}/concat", [x, _bn_relu_conv(f"{name}/b", new, growth, 3)])


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


@dataclass(frozen=True)
class DeepDenseNet(ImageNetwork):
    """DenseNet-BC for small images: three dense blocks of equal length."""

    batch: int = option(64, "images per batch")
    resolution: str = option("32", "height and width of the images: 32, or 32x64")
    classes: int = option(10, "number of classes")
    depth: int = option(250, "number of layers: 4 more than a multiple of 6")
    growth: int = option(24, "channels that every layer adds; the first convolution makes twice as many")

    name: ClassVar[str] = "densenet-deep"
    summary: ClassVar[str] = "DenseNet-BC for small images, of any depth (default: 250 layers, growth 24)"
    reference: ClassVar[str] = "Huang et al., CVPR 2017"

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        self.require("depth", 10, 10_000)
        self.require("growth", 1)
        if self.depth % 6 != 4:
            near = self.depth - (self.depth - 4) % 6
            raise UsageError(
                f"{self.name}{{depth}}: {self.depth} is not 4 more than a multiple of 6",
                hint=f"choose {near} or {near + 6}",
            )

    def network(self) -> Network:
        """One convolution, three dense blocks with transitions that halve channels and image between them."""
        x = conv2d("conv1", self.images(), 2 * self.growth, 3, bias=False)
        for block in range(1, 4):
            if block > 1:
                x = _bn_relu_conv(f"transition{block - 1}", x, x.shape[1] // 2, 1)
                x = avg_pool(f"transition{block - 1}/pool", x, 2, stride=2)
            for k in range(1, (self.depth - 4) // 6 + 1):
                x = _layer(f"block{block}_{k}", x, self.growth)
        x = relu("last/relu", batch_norm("last/bn", x))
        return cross_entropy(dense("fc", global_avg_pool("pool", x), self.classes))
