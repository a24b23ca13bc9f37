"""Models of the zoo that are written in Keras and captured: ``zoo:tf/resnet50{batch=32}``."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from remat_cli.frontends.frameworks import CapturedArchitecture, table
from remat_cli.registry import Registry
from remat_cli.zoo.base import option


@dataclass(frozen=True)
class TensorFlowArchitecture(CapturedArchitecture):
    """A model written in Keras, trained with the cross entropy of classes: it and its batch, inputs and classes."""

    device: str = option("cpu", "cpu or gpu: where it is meant to run")
    cost: str = option("flops", "flops, or roofline:NAME; remat profile measures times")

    @abstractmethod
    def model(self) -> tuple[Any, Any]:
        """The model and its batch."""

    def make(self) -> tuple[Any, ...]:
        """The model, its batch and the loss."""
        import keras

        return *self.model(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@dataclass(frozen=True)
class _Images(TensorFlowArchitecture):
    batch: int = option(32, "images per batch", least=1)
    resolution: int = option(224, "height and width of the images", least=32, most=4096)
    classes: int = option(1000, "number of classes", least=2)

    def batch_of(self, *labels: int) -> tuple[Any, Any]:
        """Images, and classes in this shape."""
        import tensorflow as tf

        images = tf.TensorSpec((self.batch, self.resolution, self.resolution, 3))
        return images, tf.fill(labels, self.classes - 1)

    def application(self, name: str) -> tuple[Any, Any]:
        """A model of ``keras.applications`` without weights, and its batch."""
        import keras

        model = getattr(keras.applications, name)(
            weights=None,
            input_shape=(self.resolution, self.resolution, 3),
            classes=self.classes,
            classifier_activation=None,
        )
        return model, self.batch_of(self.batch)


@dataclass(frozen=True)
class Vgg16(_Images):
    """VGG16."""

    name: ClassVar[str] = "tf/vgg16"
    summary: ClassVar[str] = "VGG with 16 layers of keras.applications, captured from TensorFlow"
    reference: ClassVar[str] = "Simonyan and Zisserman, ICLR 2015"

    def model(self) -> tuple[Any, Any]:
        """See :meth:`TensorFlowArchitecture.model`."""
        return self.application("VGG16")


@dataclass(frozen=True)
class ResNet50(_Images):
    """ResNet-50."""

    name: ClassVar[str] = "tf/resnet50"
    summary: ClassVar[str] = "ResNet-50 of keras.applications, captured from TensorFlow"
    reference: ClassVar[str] = "He et al., CVPR 2016"

    def model(self) -> tuple[Any, Any]:
        """See :meth:`TensorFlowArchitecture.model`."""
        return self.application("ResNet50")


@dataclass(frozen=True)
class MobileNet(_Images):
    """MobileNet."""

    name: ClassVar[str] = "tf/mobilenet"
    summary: ClassVar[str] = "MobileNet of keras.applications, captured from TensorFlow"
    reference: ClassVar[str] = "Howard et al., 2017"

    def model(self) -> tuple[Any, Any]:
        """See :meth:`TensorFlowArchitecture.model`."""
        return self.application("MobileNet")


@dataclass(frozen=True)
class UNet(_Images):
    """U-Net."""

    batch: int = option(8, "images per batch", least=1)
    resolution: int = option(256, "height and width of the images", least=32, most=4096)
    classes: int = option(2, "number of classes", least=2)
    width: int = option(64, "channels of the first level; every level doubles them", least=1, most=4096)
    depth: int = option(4, "how often the image is halved", least=1, most=8)

    name: ClassVar[str] = "tf/unet"
    summary: ClassVar[str] = "U-Net with batch normalisation, captured from TensorFlow"
    reference: ClassVar[str] = "Ronneberger et al., MICCAI 2015"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require_multiple("resolution", 2**self.depth)

    def model(self) -> tuple[Any, Any]:
        """See :meth:`TensorFlowArchitecture.model`."""
        from remat_cli.frontends.tensorflow.architectures import unet

        model = unet(self.resolution, self.width, self.depth, self.classes)
        return model, self.batch_of(self.batch, self.resolution, self.resolution)


@dataclass(frozen=True)
class Bert(TensorFlowArchitecture):
    """BERT; the defaults are BERT base."""

    batch: int = option(8, "sequences per batch", least=1)
    depth: int = option(12, "number of blocks", least=1)
    heads: int = option(12, "attention heads of a block", least=1)
    width: int = option(768, "features of a position; a multiple of heads", least=1)
    sequence: int = option(128, "positions per sequence; as many have a learned vector", least=1)
    vocab: int = option(30522, "size of the vocabulary", least=1)
    dropout: float = option(0.1, "probability of dropping a feature", least=0, most=1)

    name: ClassVar[str] = "tf/bert"
    summary: ClassVar[str] = "BERT (defaults: BERT base) that predicts tokens, captured from TensorFlow"
    reference: ClassVar[str] = "Devlin et al., NAACL 2019"

    def check(self) -> None:
        """Refuse options out of range."""
        super().check()
        self.require_multiple("width", self.heads, " heads")

    def model(self) -> tuple[Any, Any]:
        """See :meth:`TensorFlowArchitecture.model`."""
        import tensorflow as tf

        from remat_cli.frontends.tensorflow.architectures import bert

        model = bert(self.vocab, self.sequence, self.depth, self.width, self.heads, self.dropout)
        tokens = tf.fill((self.batch, self.sequence), self.vocab - 1)
        return model, (tokens, tokens)


TENSORFLOW_ARCHITECTURES: Registry[TensorFlowArchitecture] = Registry(
    kind="TensorFlow architecture",
    table=table(
        __name__, "tf", {"bert": Bert, "mobilenet": MobileNet, "resnet50": ResNet50, "unet": UNet, "vgg16": Vgg16}
    ),
    group="remat.zoo.tf",
)


def bert(vocab: int, sequence: int, depth: int, width: int, heads: int, dropout: float) -> Any:
    """An encoder: embeddings of tokens and positions, ``depth`` blocks, and a product with the vocabulary.

    Args:
        vocab: Size of the vocabulary.
        sequence: Positions of a sequence.
        depth: Number of blocks.
        width: Features of a position; a multiple of ``heads``.
        heads: Attention heads of a block.
        dropout: Probability of dropping a feature.
    """
    import keras
    import tensorflow as tf

    layers = keras.layers

    class Positions(keras.layers.Layer):  # type: ignore[misc]  # Keras is Any to the type checker
        """Adds a learned vector to each position."""

        def build(self, shape: Any) -> None:
            self.table = self.add_weight(name="table", shape=(sequence, shape[-1]), initializer="uniform")

        def call(self, x: Any) -> Any:
            return x + tf.cast(self.table, x.dtype)

    tokens = keras.Input((sequence,), dtype="int32")
    x = layers.LayerNormalization()(Positions()(layers.Embedding(vocab, width)(tokens)))
    x = layers.Dropout(dropout)(x)
    for _ in range(depth):
        attended = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(dropout)(attended))
        hidden = layers.Dense(4 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dropout(dropout)(layers.Dense(width)(hidden)))
    return keras.Model(tokens, layers.Dense(vocab)(x))


def unet(resolution: int, width: int, depth: int, classes: int) -> Any:
    """A U-Net with batch normalisation: ``depth`` times halved and doubled again, two convolutions at each level.

    Args:
        resolution: Height and width of the images; a multiple of 2**depth.
        width: Channels of the first level; every level doubles them.
        depth: How often the image is halved.
        classes: Classes of a pixel.
    """
    import keras

    layers = keras.layers

    def twice(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input((resolution, resolution, 3))
    x, skips = inputs, []
    for level in range(depth):
        x = twice(x, width << level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = twice(x, width << depth)
    for level in reversed(range(depth)):
        x = layers.Conv2DTranspose(width << level, 2, strides=2)(x)
        x = twice(layers.Concatenate()([skips[level], x]), width << level)
    return keras.Model(inputs, layers.Conv2D(classes, 1)(x))
