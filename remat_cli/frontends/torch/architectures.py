"""Models of the zoo that are written in PyTorch and captured: ``zoo:torch/resnet50{batch=32}``."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.capturing.export import export_model
from remat_cli.frontends.torch.telling import Tell, tell_stderr
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry
from remat_cli.spec import build, format_spec, split_spec
from remat_cli.zoo.base import Architecture, option

PREFIX = "torch/"
_DEEPEST_UNET = 8


@dataclass(frozen=True)
class TorchArchitecture(Architecture):
    """A model written in PyTorch.

    Attributes:
        batch: Items per batch.
        device: The device that the graph is for.
        cost: The cost model.
    """

    batch: int = option(8, "items per batch")
    device: str = option("cpu", "cpu or cuda: where it is meant to run")
    cost: str = option("device", "times on the device at hand: device; or flops, or roofline:NAME")

    @abstractmethod
    def make(self) -> tuple[Any, Any]:
        """The module and its inputs."""

    def check(self) -> None:
        """Refuse options out of range; subclasses that add options check them and call this."""
        self.require("batch", 1)

    def build(self, tell: Tell = tell_stderr) -> Graph:
        """The captured graph.

        Args:
            tell: Told that the device is measured, if it is.

        Raises:
            UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
        """
        source = f"zoo:{format_spec(self.name, self)}"
        name = self.name.removeprefix(PREFIX)
        return export_model(self.make, name=name, source=source, device=self.device, cost=self.cost, tell=tell)


@dataclass(frozen=True)
class _Images(TorchArchitecture):
    batch: int = option(32, "images per batch")
    resolution: int = option(224, "height and width of the images")
    classes: int = option(1000, "number of classes")

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require("resolution", 32, 4096)
        self.require("classes", 2)

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
        from remat_cli.frontends.torch.models import resnet

        return resnet.ResNet50(self.classes), (self.images(), self.labels(self.batch))


@dataclass(frozen=True)
class Vgg16(_Images):
    """VGG16."""

    dropout: float = option(0.5, "probability of dropping a feature")

    name: ClassVar[str] = "torch/vgg16"
    summary: ClassVar[str] = "VGG with 16 layers, captured from PyTorch"
    reference: ClassVar[str] = "Simonyan and Zisserman, ICLR 2015"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require("dropout", 0, 1)

    def make(self) -> tuple[Any, Any]:
        """The module and its inputs."""
        from remat_cli.frontends.torch.models import vgg

        return vgg.Vgg16(self.classes, self.dropout), (self.images(), self.labels(self.batch))


@dataclass(frozen=True)
class UNet(_Images):
    """U-Net."""

    batch: int = option(8, "images per batch")
    resolution: int = option(256, "height and width of the images")
    classes: int = option(2, "number of classes")
    width: int = option(64, "channels of the first level; every level doubles them")
    depth: int = option(4, "how often the image is halved")

    name: ClassVar[str] = "torch/unet"
    summary: ClassVar[str] = "U-Net with batch normalisation, captured from PyTorch"
    reference: ClassVar[str] = "Ronneberger et al., MICCAI 2015"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require("width", 1, 4096)
        self.require("depth", 1, _DEEPEST_UNET)
        step = 2**self.depth
        if self.resolution % step:
            raise UsageError(
                f"{self.name}{{resolution}}: {self.resolution} is not a multiple of {step}",
                hint=f"choose {-(-self.resolution // step) * step}",
            )

    def make(self) -> tuple[Any, Any]:
        """The module and its inputs."""
        from remat_cli.frontends.torch.models import unet

        labels = self.labels(self.batch, self.resolution, self.resolution)
        return unet.UNet(self.width, self.depth, self.classes), (self.images(), labels)


@dataclass(frozen=True)
class Gpt2(TorchArchitecture):
    """GPT-2; the defaults are GPT-2 small."""

    batch: int = option(8, "sequences per batch")
    depth: int = option(12, "number of blocks")
    heads: int = option(12, "attention heads of a block")
    width: int = option(768, "features of a position; a multiple of heads")
    sequence: int = option(512, "positions per sequence; as many have a learned vector")
    vocab: int = option(50257, "size of the vocabulary")
    dropout: float = option(0.0, "probability of dropping a feature")

    name: ClassVar[str] = "torch/gpt2"
    summary: ClassVar[str] = "GPT-2 (defaults: GPT-2 small), captured from PyTorch"
    reference: ClassVar[str] = "Radford et al., 2019"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        for name in ("depth", "heads", "width", "sequence", "vocab"):
            self.require(name, 1)
        self.require("dropout", 0, 1)
        if self.width % self.heads:
            raise UsageError(
                f"{self.name}{{width}}: {self.width} is not a multiple of {self.heads} heads",
                hint=f"choose a width such as {-(-self.width // self.heads) * self.heads}",
            )

    def make(self) -> tuple[Any, Any]:
        """The module and its inputs."""
        import torch

        from remat_cli.frontends.torch.models import gpt

        module = gpt.Gpt2(self.depth, self.heads, self.width, self.sequence, self.vocab, self.dropout)
        shape = (self.batch, self.sequence)
        return module, (torch.randint(0, self.vocab, shape), torch.randint(0, self.vocab, shape))


TORCH_ARCHITECTURES: Registry[TorchArchitecture] = Registry(
    kind="PyTorch architecture",
    table={
        f"{PREFIX}{name}": f"{__name__}:{cls.__name__}"
        for name, cls in {"gpt2": Gpt2, "resnet50": ResNet50, "unet": UNet, "vgg16": Vgg16}.items()
    },
    group="remat.zoo.torch",
)


def build_torch_graph(spec_text: str, tell: Tell = tell_stderr) -> Graph:
    """The graph of a specification such as ``torch/resnet50{batch=32}``.

    Args:
        spec_text: The specification.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError: If there is no such architecture, or an option is unknown or out of range.
        FrameworkUnavailable, CaptureFailed: As their names say.
    """
    name, options = split_spec(spec_text)
    return build(TORCH_ARCHITECTURES.load(name), name, options).build(tell)
