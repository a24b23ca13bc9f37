"""The base classes of architectures: frozen dataclasses whose fields are options, and which build graphs.

Most architectures derive from :class:`NetworkArchitecture` or :class:`ImageNetwork` and describe only their forward
pass; shape inference, costs and the backward rules are shared.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph
from remat_cli.spec import format_spec, options_of
from remat_cli.zoo.network import Network, Tensor
from remat_cli.zoo.training import FLOPS, Backward, CostModel, to_graph

LARGEST_COUNT = 1_000_000
"""Upper limit of every count among the options (batch, classes, width, ...)."""
EXACT = 2**53
"""Upper limit of costs and sizes: up to here, every whole number is exact in a float."""


BACKWARD_OPTION = {
    "help": "rule of the backward pass: " + ", ".join(Backward),
    "choices": tuple(rule.value for rule in Backward),
}
"""Metadata of a field ``backward``, for listings and ``remat_cli.spec``."""
FUSED_HELP = "ReLU inside convolutions and dense layers, as Keras counts layers"


def option(default: Any, help_text: str, **metadata: Any) -> Any:
    """A field of an architecture: its default, its line in listings, and its metadata for ``remat_cli.spec``."""
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass(frozen=True)
class Architecture(ABC):
    """A network as a family of graphs. Subclasses are frozen dataclasses; their fields are options."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for listings."""
    reference: ClassVar[str]
    """The paper, or an empty string."""

    def __post_init__(self) -> None:
        """Refuse options that make no sense.

        Raises:
            UsageError: If one is out of range.
        """
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Refuse options that make no sense.

        Raises:
            UsageError: If one is out of range.
        """

    @abstractmethod
    def build(self) -> Graph:
        """The graph.

        Raises:
            UsageError: If the options do not go together.
        """

    def require(self, option_name: str, lowest: int, highest: int = LARGEST_COUNT) -> None:
        """Refuse an option whose value is not within ``lowest..highest``.

        Raises:
            UsageError: With the option, its value and the range.
        """
        value = getattr(self, option_name)
        if not lowest <= value <= highest:
            raise UsageError(
                f"{self.name}{{{option_name}}}: {value} is out of range",
                hint=f"choose {option_name} between {lowest} and {highest}",
            )

    def describe(self) -> dict[str, Any]:
        """Metadata of the graph: architecture, specification and all options."""
        options = {k: str(v) if isinstance(v, StrEnum) else v for k, v in options_of(self).items()}
        return {"architecture": self.name, "spec": format_spec(self.name, self), "options": options}


@dataclass(frozen=True)
class NetworkArchitecture(Architecture):
    """An architecture that describes a forward pass and leaves the rest to the backward rule.

    Attributes:
        batch: Items per batch.
        backward: Rule of the backward pass.
        dtype_bytes: Bytes of one number.
    """

    batch: int = option(256, "items per batch")
    backward: Backward = field(default=Backward.CHECKMATE, metadata=BACKWARD_OPTION)
    dtype_bytes: int = option(4, "bytes of one activation, parameter or gradient")

    def check(self) -> None:
        """Refuse options that make no sense; subclasses that add options check them and call this."""
        self.require("batch", 1)
        self.require("dtype_bytes", 1, 8)

    @abstractmethod
    def network(self) -> Network:
        """The forward pass and the loss."""

    def build(self, costs: CostModel = FLOPS) -> Graph:
        """The graph, with parameters, FLOPs and multiply-accumulates of the forward pass in its metadata.

        Args:
            costs: What a node costs.

        Raises:
            UsageError: If the options contradict each other, or costs or sizes are above ``EXACT``.
        """
        network = self.network()
        largest = network.input_bytes + 2 * network.parameters * network.dtype_bytes + 4 * network.flops
        if largest >= EXACT:
            raise UsageError(
                f"{format_spec(self.name, self)} is too large: its costs are above {EXACT:.0e}",
                hint="choose smaller options",
            )
        metadata = self.describe() | {
            "parameters": network.parameters,
            "forward_flops": network.flops,
            "forward_macs": network.macs,
        }
        if costs.description:
            metadata["costs"] = dict(costs.description)
        return to_graph(network, self.backward, costs=costs, metadata=metadata)


@dataclass(frozen=True)
class ImageNetwork(NetworkArchitecture):
    """A network on images of three channels.

    Attributes:
        resolution: Height and width: ``224`` or ``416x608``.
        classes: Number of classes.
    """

    resolution: str = option("224", "height and width of the images: 224, or 416x608")
    classes: int = option(1000, "number of classes")

    smallest_resolution: ClassVar[int] = 32
    """The smallest height and width that leave at least one pixel for the last layers."""
    resolution_step: ClassVar[int] = 1
    """Height and width must be multiples of this, so that encoder and decoder have matching shapes."""

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        self.require("classes", 2)
        where = f"{self.name}{{resolution}}: "
        step, least = self.resolution_step, self.smallest_resolution
        for size in self.image_size:
            if not least <= size <= LARGEST_COUNT:
                raise UsageError(
                    f"{where}{size} is {'too small' if size < least else 'too large'}",
                    hint=f"choose height and width between {least} and {LARGEST_COUNT}",
                )
            if size % step:
                lower = size // step * step
                near = " or ".join(str(s) for s in (lower, lower + step) if s >= least)
                raise UsageError(f"{where}{size} is not a multiple of {step}", hint=f"choose {near}")

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width.

        Raises:
            UsageError: If ``resolution`` does not give them.
        """
        match = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9}))?", str(self.resolution), re.ASCII)
        if match is None:
            raise UsageError(
                f'{self.name}{{resolution}}: "{self.resolution}" is not a height and width',
                hint="write it like 224 or 416x608",
            )
        return int(match[1]), int(match[2] or match[1])

    def images(self) -> Tensor:
        """A batch of images, the input of a new network."""
        return Network(self.name, self.dtype_bytes).input(self.batch, 3, *self.image_size)


@dataclass(frozen=True)
class Segmentation(ImageNetwork):
    """A network that assigns a class to every pixel.

    Batch and resolution are those of Checkmate's U-Net.
    """

    batch: int = option(32, "images per batch")
    resolution: str = option("416x608", "height and width of the images: 224, or 416x608")
    classes: int = option(21, "number of classes")
