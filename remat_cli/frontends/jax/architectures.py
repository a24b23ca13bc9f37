"""Models of the zoo that are captured from JAX: ``zoo:jax/transformer`` and others.

The models are in :mod:`.models`; their options are known without JAX, so that ``remat export --list`` names them
anywhere.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from remat_cli.frontends.frameworks import CapturedArchitecture, table
from remat_cli.registry import Registry
from remat_cli.zoo.base import option


@dataclass(frozen=True)
class JaxArchitecture(CapturedArchitecture):
    """A model in JAX: a loss function, and shapes of its arguments."""

    device: str = option("cpu", "cpu or cuda: where it is meant to run", choices=("cpu", "cuda"))

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

    depth: int = option(4, "number of layers", least=1)
    heads: int = option(12, "attention heads of a layer", least=1)
    width: int = option(768, "features of a position; a multiple of heads", least=1)
    sequence: int = option(512, "positions per sequence", least=1)
    vocab: int = option(50257, "size of the vocabulary", least=1)
    dropout: float = option(0.1, "probability of dropping a feature", least=0, most=1)

    name: ClassVar[str] = "jax/transformer"
    summary: ClassVar[str] = "decoder with the sizes of GPT-2 small, captured from JAX"
    reference: ClassVar[str] = "Radford et al., 2019"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require_multiple("width", self.heads, " heads")

    def make(self) -> tuple[Any, Any]:
        """The loss function, and shapes of its arguments."""
        from remat_cli.frontends.jax.models import transformer_loss, transformer_shapes

        tokens = self.whole((self.batch, self.sequence), self.vocab)
        shapes = transformer_shapes(self.depth, self.width, self.sequence, self.vocab)
        loss = partial(transformer_loss, heads=self.heads, dropout=self.dropout)
        return loss, (shapes, tokens, tokens, self.key())


@dataclass(frozen=True)
class Vgg16(JaxArchitecture):
    """VGG16."""

    batch: int = option(32, "images per batch", least=1)
    resolution: int = option(224, "height and width of the images", least=32, most=4096)
    classes: int = option(1000, "number of classes", least=2)
    dropout: float = option(0.5, "probability of dropping a feature", least=0, most=1)

    name: ClassVar[str] = "jax/vgg16"
    summary: ClassVar[str] = "VGG with 16 layers, captured from JAX"
    reference: ClassVar[str] = "Simonyan and Zisserman, ICLR 2015"

    def make(self) -> tuple[Any, Any]:
        """The loss function, and shapes of its arguments."""
        import jax
        import jax.numpy as jnp

        from remat_cli.frontends.jax.models import vgg_loss, vgg_shapes

        images = jax.ShapeDtypeStruct((self.batch, self.resolution, self.resolution, 3), jnp.float32)
        loss = partial(vgg_loss, dropout=self.dropout)
        return loss, (
            vgg_shapes(self.resolution, self.classes),
            images,
            self.whole((self.batch,), self.classes),
            self.key(),
        )


JAX_ARCHITECTURES: Registry[JaxArchitecture] = Registry(
    kind="JAX architecture",
    table=table(__name__, "jax", {"transformer": Transformer, "vgg16": Vgg16}),
    group="remat.zoo.jax",
)
