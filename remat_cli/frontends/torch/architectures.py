"""Models of the zoo that are written in PyTorch and captured: ``zoo:torch/resnet50{batch=32}``."""

from dataclasses import dataclass
from typing import Any, ClassVar

from remat_cli.frontends.frameworks import CapturedArchitecture, table
from remat_cli.registry import Registry
from remat_cli.zoo.base import option


@dataclass(frozen=True)
class _Images(CapturedArchitecture):
    batch: int = option(32, "images per batch", least=1)
    resolution: int = option(224, "height and width of the images", least=32, most=4096)
    classes: int = option(1000, "number of classes", least=2)

    def images(self) -> Any:
        """A batch of images."""
        import torch

        return torch.randn(self.batch, 3, self.resolution, self.resolution)

    def labels(self, *shape: int) -> Any:
        """A class for each item."""
        import torch

        return torch.randint(0, self.classes, shape)


@dataclass(frozen=True)
class ResNet50(_Images):
    """ResNet-50."""

    name: ClassVar[str] = "torch/resnet50"
    summary: ClassVar[str] = "ResNet-50, captured from PyTorch"
    reference: ClassVar[str] = "He et al., CVPR 2016"

    def make(self) -> tuple[Any, Any]:
        """The module and its inputs."""
        from remat_cli.frontends.torch import models

        return models.ResNet50(self.classes), (self.images(), self.labels(self.batch))


@dataclass(frozen=True)
class Vgg16(_Images):
    """VGG16."""

    dropout: float = option(0.5, "probability of dropping a feature", least=0, most=1)

    name: ClassVar[str] = "torch/vgg16"
    summary: ClassVar[str] = "VGG with 16 layers, captured from PyTorch"
    reference: ClassVar[str] = "Simonyan and Zisserman, ICLR 2015"

    def make(self) -> tuple[Any, Any]:
        """The module and its inputs."""
        from remat_cli.frontends.torch import models

        return models.Vgg16(self.classes, self.dropout), (self.images(), self.labels(self.batch))


@dataclass(frozen=True)
class UNet(_Images):
    """U-Net."""

    batch: int = option(8, "images per batch", least=1)
    resolution: int = option(256, "height and width of the images", least=32, most=4096)
    classes: int = option(2, "number of classes", least=2)
    width: int = option(64, "channels of the first level; every level doubles them", least=1, most=4096)
    depth: int = option(4, "how often the image is halved", least=1, most=8)

    name: ClassVar[str] = "torch/unet"
    summary: ClassVar[str] = "U-Net with batch normalisation, captured from PyTorch"
    reference: ClassVar[str] = "Ronneberger et al., MICCAI 2015"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require_multiple("resolution", 2**self.depth)

    def make(self) -> tuple[Any, Any]:
        """The module and its inputs."""
        from remat_cli.frontends.torch import models

        labels = self.labels(self.batch, self.resolution, self.resolution)
        return models.UNet(self.width, self.depth, self.classes), (self.images(), labels)


@dataclass(frozen=True)
class Gpt2(CapturedArchitecture):
    """GPT-2; the defaults are GPT-2 small."""

    batch: int = option(8, "sequences per batch", least=1)
    depth: int = option(12, "number of blocks", least=1)
    heads: int = option(12, "attention heads of a block", least=1)
    width: int = option(768, "features of a position; a multiple of heads", least=1)
    sequence: int = option(512, "positions per sequence; as many have a learned vector", least=1)
    vocab: int = option(50257, "size of the vocabulary", least=1)
    dropout: float = option(0.0, "probability of dropping a feature", least=0, most=1)

    name: ClassVar[str] = "torch/gpt2"
    summary: ClassVar[str] = "GPT-2 (defaults: GPT-2 small), captured from PyTorch"
    reference: ClassVar[str] = "Radford et al., 2019"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require_multiple("width", self.heads, " heads")

    def make(self) -> tuple[Any, Any]:
        """The module and its inputs."""
        import torch

        from remat_cli.frontends.torch import models

        module = models.Gpt2(self.depth, self.heads, self.width, self.sequence, self.vocab, self.dropout)
        shape = (self.batch, self.sequence)
        return module, (torch.randint(0, self.vocab, shape), torch.randint(0, self.vocab, shape))


TORCH_ARCHITECTURES: Registry[CapturedArchitecture] = Registry(
    kind="PyTorch architecture",
    table=table(__name__, "torch", {"gpt2": Gpt2, "resnet50": ResNet50, "unet": UNet, "vgg16": Vgg16}),
    group="remat.zoo.torch",
)
