"""The description of a network's forward pass: tensors, layers, and the needs of their derivatives.

An architecture starts a :class:`Network`, asks it for its inputs, and calls the functions of
``remat_cli.zoo.layers``, which take tensors, work out shapes and costs, and add one :class:`Layer` each.
``remat_cli.zoo.training`` turns the result into a graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NETWORK_INPUT: Final = -1
"""Stands for a layer's index: the tensor is an input of the network, and in fixed memory."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the forward pass.

    Attributes:
        network: The network it belongs to.
        shape: Batch first: (batch, channels, height, width) of images, (batch, features) of vectors,
            (batch, length, features) of sequences, (batch, heads, length, features) inside attention.
        layer: Index of the layer that makes it, or ``NETWORK_INPUT``.
        slot: Which of that layer's outputs it is.
    """

    network: Network
    shape: tuple[int, ...]
    layer: int = NETWORK_INPUT
    slot: int = 0

    @property
    def elements(self) -> int:
        """Number of elements, the batch included."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Derivative:
    """The values that the derivative of a layer reads and makes, besides the gradients; only for rule ``operator``.

    Attributes:
        inputs: Positions of the layer's inputs whose values it reads.
        outputs: Slots of the layer's values that it reads; those of ``saved`` follow those of ``Layer.outputs``.
        saved: Bytes of values that the forward pass leaves for the derivative alone (a mask, a mean).
        weights: Whether the layer has weights that get a gradient, shared ones included.
        passes: The gradient of the output is also the gradient of every input, so nothing is computed.
        per_input: The gradient of every input costs as much as the layer; else those of all inputs together do.
        stops: There is no gradient: it makes integers or truth values.
    """

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    weights: bool = False
    passes: bool = False
    per_input: bool = False
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation of the forward pass.

    Attributes:
        id: Unique in the network; becomes the node's id.
        op: Kind of operation.
        inputs: The tensors it reads, network inputs included.
        outputs: Bytes of every value it makes. Only the first one is differentiated.
        flops: Cost for the whole batch; two for every multiply-accumulate.
        macs: Multiply-accumulates for the whole batch; zero for operations that have none.
        parameters: Number of its own trainable parameters.
        derivative: The needs of its derivative.
    """

    id: str
    op: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[int, ...]
    flops: int
    macs: int
    parameters: int
    derivative: Derivative

    @property
    def sources(self) -> tuple[int, ...]:
        """The layers it reads, ascending, each once; network inputs left out."""
        return tuple(sorted({tensor.layer for tensor in self.inputs} - {NETWORK_INPUT}))


class Network:
    """The forward pass, described so far.

    Args:
        name: For messages.
        dtype_bytes: Bytes of one element of an activation, parameter or gradient.
    """

    def __init__(self, name: str, dtype_bytes: int = 4) -> None:
        self.name = name
        self.dtype_bytes = dtype_bytes
        self.layers: list[Layer] = []
        self.loss: Layer | None = None
        self.input_bytes = 0
        self._ids: set[str] = set()

    def input(self, *shape: int, element_bytes: int | None = None) -> Tensor:
        """An input tensor; its bytes are part of the fixed memory."""
        tensor = Tensor(self, shape)
        self.input_bytes += tensor.elements * (self.dtype_bytes if element_bytes is None else element_bytes)
        return tensor

    def add(
        self,
        layer_id: str,
        op: str,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        *,
        flops: int | None = None,
        macs: int = 0,
        parameters: int = 0,
        further_outputs: Sequence[int] = (),
        derivative: Derivative,
    ) -> Tensor:
        """Add a layer and return its first output.

        Args:
            layer_id: Unique name.
            op: Kind of operation.
            inputs: The tensors it reads.
            shape: Shape of its first output.
            flops: Its cost; by default two per multiply-accumulate.
            macs: Multiply-accumulates.
            parameters: Number of trainable parameters.
            further_outputs: Bytes of its other outputs.
            derivative: The needs of its derivative.

        Raises:
            ValueError: If the name is taken, an input belongs to another network, or the layer costs nothing.
        """
        tensor = Tensor(self, tuple(shape), len(self.layers))
        size = tensor.elements * self.dtype_bytes
        self.layers.append(
            self._layer(layer_id, op, inputs, (size, *further_outputs), flops, macs, parameters, derivative)
        )
        return tensor

    def set_loss(self, layer_id: str, op: str, inputs: Sequence[Tensor], *, flops: int, derivative: Derivative) -> None:
        """Set the inputs of the loss, which makes one number per item of the batch. Only training graphs have a loss.

        Raises:
            ValueError: As for :meth:`add`.
        """
        size = inputs[0].shape[0] * self.dtype_bytes
        self.loss = self._layer(layer_id, op, inputs, (size,), flops, 0, 0, derivative)

    def _layer(
        self,
        layer_id: str,
        op: str,
        inputs: Sequence[Tensor],
        outputs: tuple[int, ...],
        flops: int | None,
        macs: int,
        parameters: int,
        derivative: Derivative,
    ) -> Layer:
        cost = 2 * macs if flops is None else flops
        if layer_id in self._ids:
            raise ValueError(f"{self.name}: two layers are called {layer_id}")
        if any(tensor.network is not self for tensor in inputs):
            raise ValueError(f"{self.name}: {layer_id} reads a tensor of another network")
        if cost <= 0:
            raise ValueError(f"{self.name}: {layer_id} moves data and must cost something")
        self._ids.add(layer_id)
        return Layer(layer_id, op, tuple(inputs), outputs, cost, macs, parameters, derivative)

    @property
    def parameters(self) -> int:
        """Number of trainable parameters; running statistics of batch normalisation are not among them."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> int:
        """Cost of the forward pass of the whole batch, the loss left out."""
        return sum(layer.flops for layer in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass of the whole batch."""
        return sum(layer.macs for layer in self.layers)
