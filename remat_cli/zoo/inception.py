"""Inception v3 (Szegedy et al., 2016)."""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import ImageNetwork, option
from remat_cli.zoo.layers.common import concat, cross_entropy, dense, dropout
from remat_cli.zoo.layers.image import Padding, Window, avg_pool, conv_bn_relu, global_avg_pool, max_pool
from remat_cli.zoo.network import Network, Tensor

Step = tuple[str, int, Window] | tuple[str, int, Window, int]
"""Name, filters, kernel, and stride where it is not 1; a stride above 1 means no padding."""


@dataclass(frozen=True)
class InceptionV3(ImageNetwork):
    """Inception v3."""

    resolution: str = option("299", "height and width of the images: 299, or 299x400")
    auxiliary: bool = option(False, "with the auxiliary classifier, whose loss is added")

    name: ClassVar[str] = "inception-v3"
    summary: ClassVar[str] = "Inception v3"
    reference: ClassVar[str] = "Szegedy et al., CVPR 2016"
    smallest_resolution: ClassVar[int] = 75

    def network(self) -> Network:
        """The stem, three groups of blocks with two reductions between them, one dense layer."""
        x = _stem(self.images())
        for k, pool_filters in enumerate((32, 64, 64), 1):
            x = _block_a(f"a{k}", x, pool_filters)
        x = _reduction_a("reduce_a", x)
        for k, filters in enumerate((128, 160, 160, 192), 1):
            x = _block_c(f"c{k}", x, filters)
        heads = [_auxiliary_head(x, self.classes)] if self.auxiliary else []
        x = _reduction_b("reduce_b", x)
        for k in (1, 2):
            x = _block_e(f"e{k}", x)
        x = dropout("dropout", global_avg_pool("pool", x))
        return cross_entropy(dense("fc", x, self.classes), *heads)


def _chain(name: str, x: Tensor, *steps: Step) -> Tensor:
    for step, filters, kernel, *stride in steps:
        padding: Padding = "valid" if stride else "same"
        x = conv_bn_relu(f"{name}/{step}", x, filters, kernel, stride=stride[0] if stride else 1, padding=padding)
    return x


def _stem(x: Tensor) -> Tensor:
    x = conv_bn_relu("stem/1a", x, 32, 3, stride=2, padding="valid")
    x = conv_bn_relu("stem/2a", x, 32, 3, padding="valid")
    x = conv_bn_relu("stem/2b", x, 64, 3)
    x = max_pool("stem/pool1", x, 3, stride=2)
    x = conv_bn_relu("stem/3b", x, 80, 1)
    x = conv_bn_relu("stem/4a", x, 192, 3, padding="valid")
    return max_pool("stem/pool2", x, 3, stride=2)


def _pooled(name: str, x: Tensor, filters: int) -> Tensor:
    x = avg_pool(f"{name}/pool", x, 3, stride=1, padding="same")
    return conv_bn_relu(f"{name}/pool_1x1", x, filters, 1)


def _block_a(name: str, x: Tensor, pool_filters: int) -> Tensor:
    branches = [
        _chain(name, x, ("1x1", 64, 1)),
        _chain(name, x, ("5x5a", 48, 1), ("5x5b", 64, 5)),
        _chain(name, x, ("3x3a", 64, 1), ("3x3b", 96, 3), ("3x3c", 96, 3)),
        _pooled(name, x, pool_filters),
    ]
    return concat(f"{name}/concat", branches)


def _reduction_a(name: str, x: Tensor) -> Tensor:
    branches = [
        _chain(name, x, ("3x3", 384, 3, 2)),
        _chain(name, x, ("dbl3x3a", 64, 1), ("dbl3x3b", 96, 3), ("dbl3x3c", 96, 3, 2)),
        max_pool(f"{name}/pool", x, 3, stride=2),
    ]
    return concat(f"{name}/concat", branches)


def _block_c(name: str, x: Tensor, filters: int) -> Tensor:
    f = filters
    double: tuple[Step, ...] = (
        ("dbl7x7a", f, 1),
        ("dbl7x7b", f, (7, 1)),
        ("dbl7x7c", f, (1, 7)),
        ("dbl7x7d", f, (7, 1)),
        ("dbl7x7e", 192, (1, 7)),
    )
    branches = [
        _chain(name, x, ("1x1", 192, 1)),
        _chain(name, x, ("7x7a", f, 1), ("7x7b", f, (1, 7)), ("7x7c", 192, (7, 1))),
        _chain(name, x, *double),
        _pooled(name, x, 192),
    ]
    return concat(f"{name}/concat", branches)


def _reduction_b(name: str, x: Tensor) -> Tensor:
    branches = [
        _chain(name, x, ("3x3a", 192, 1), ("3x3b", 320, 3, 2)),
        _chain(name, x, ("7x7a", 192, 1), ("7x7b", 192, (1, 7)), ("7x7c", 192, (7, 1)), ("7x7d", 192, 3, 2)),
        max_pool(f"{name}/pool", x, 3, stride=2),
    ]
    return concat(f"{name}/concat", branches)


def _block_e(name: str, x: Tensor) -> Tensor:
    single = _chain(name, x, ("3x3a", 384, 1))
    double = _chain(name, x, ("dbl3x3a", 448, 1), ("dbl3x3b", 384, 3))
    branches = [
        _chain(name, x, ("1x1", 320, 1)),
        _fork(f"{name}/3x3", single),
        _fork(f"{name}/dbl3x3", double),
        _pooled(name, x, 192),
    ]
    return concat(f"{name}/concat", branches)


def _fork(name: str, x: Tensor) -> Tensor:
    """A row and a column convolution side by side."""
    return concat(f"{name}/concat", [_chain(name, x, ("row", 384, (1, 3))), _chain(name, x, ("column", 384, (3, 1)))])


def _auxiliary_head(x: Tensor, classes: int) -> Tensor:
    x = avg_pool("aux/pool", x, 5, stride=3)
    x = conv_bn_relu("aux/1x1", x, 128, 1)
    x = conv_bn_relu("aux/5x5", x, 768, 5, padding="valid")
    return dense("aux/fc", global_avg_pool("aux/mean", x), classes)
