"""Models of the zoo that are captured from JAX: ``zoo:jax/transformer`` and others.

The models are in :mod:`.models`; their options are known without JAX, so that ``remat export --list`` names them
anywhere.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from remat_cli.errors import UsageError
from remat_cli.frontends.jax.capturing.export import export_built, require_here
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry
from remat_cli.spec import build, format_spec, split_spec
from remat_cli.zoo.base import Architecture, option

PREFIX = "jax/"
Tell = Callable[[str], None]


def _quiet(text: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class JaxArchitecture(Architecture):
    """A model in JAX. A subclass has options, and makes the loss and its arguments. Options that all have are here."""

    batch: int = option(8, "items per batch")
    device: str = option("cpu", "cpu or cuda: where it is meant to run", choices=("cpu", "cuda"))
    cost: str = option("device", "times on the device at hand: device; or flops, or roofline:NAME")

    @abstractmethod
    def make(self) -> tuple[Any, Any]:
        """The loss function, and shapes of its arguments."""

    def check(self) -> None:
        """Refuse options out of range; subclasses that add options check them and call this."""
        self.require("batch", 1)

    def build(self, tell: Tell = _quiet) -> Graph:
        """The captured graph.

        Args:
            tell: Told that the device is measured, if it is.

        Raises:
            UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
        """
        require_here(self.device, self.cost)
        source = f"zoo:{format_spec(self.name, self)}"
        name = self.name.removeprefix(PREFIX)
        return export_built(self.make, name, source, device=self.device, cost=self.cost, tell=tell)

    def key(self) -> Any:
        """A key for random numbers."""
        import jax

        return jax.random.key(0)

    def whole(self, shape: tuple[int, ...], below: int) -> Any:
        """Whole numbers below a limit, which is among them."""
        import numpy as np

        return np.full(shape, below - 1, dtype=np.int32)


@dataclass(frozen=True)
class Transformer(JaxArchitecture):
    """A decoder; the defaults are those of GPT-2 small with four layers."""

    depth: int = option(4, "number of layers")
    heads: int = option(12, "attention heads of a layer")
    width: int = option(768, "features of a position; a multiple of heads")
    sequence: int = option(512, "positions per sequence")
    vocab: int = option(50257, "size of the vocabulary")
    dropout: float = option(0.1, "probability of dropping a feature")

    name: ClassVar[str] = "jax/transformer"
    summary: ClassVar[str] = "decoder with the sizes of GPT-2 small, captured from JAX"
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
        """The loss function, and shapes of its arguments."""
        from remat_cli.frontends.jax.models import transformer

        tokens = self.whole((self.batch, self.sequence), self.vocab)
        shapes = transformer.shapes(self.depth, self.width, self.sequence, self.vocab)
        loss = partial(transformer.loss, heads=self.heads, dropout=self.dropout)
        return loss, (shapes, tokens, tokens, self.key())


@dataclass(frozen=True)
class Vgg16(JaxArchitecture):
    """VGG16."""

    batch: int = option(32, "images per batch")
    resolution: int = option(224, "height and width of the images")
    classes: int = option(1000, "number of classes")
    dropout: float = option(0.5, "probability of dropping a feature")

    name: ClassVar[str] = "jax/vgg16"
    summary: ClassVar[str] = "VGG with 16 layers, captured from JAX"
    reference: ClassVar[str] = "Simonyan and Zisserman, ICLR 2015"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require("resolution", 32, 4096)
        self.require("classes", 2)
        self.require("dropout", 0, 1)

    def make(self) -> tuple[Any, Any]:
        """The loss function, and shapes of its arguments."""
        import jax
        import jax.numpy as jnp

        from remat_cli.frontends.jax.models import vgg

        images = jax.ShapeDtypeStruct((self.batch, self.resolution, self.resolution, 3), jnp.float32)
        loss = partial(vgg.loss, dropout=self.dropout)
        return loss, (
            vgg.shapes(self.resolution, self.classes),
            images,
            self.whole((self.batch,), self.classes),
            self.key(),
        )


JAX_ARCHITECTURES: Registry[JaxArchitecture] = Registry(
    kind="JAX architecture",
    table={
        f"{PREFIX}{name}": f"{__name__}:{cls.__name__}"
        for name, cls in {"transformer": Transformer, "vgg16": Vgg16}.items()
    },
    group="remat.zoo.jax",
)


def build_jax_graph(spec_text: str, tell: Tell) -> Graph:
    """The graph of a specification such as ``jax/transformer{batch=4}``.

    Args:
        spec_text: The specification.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError: If there is no such architecture, or an option is unknown or out of range.
        FrameworkUnavailable, CaptureFailed: As their names say.
    """
    name, options = split_spec(spec_text)
    return build(JAX_ARCHITECTURES.load(name), name, options).build(tell)
