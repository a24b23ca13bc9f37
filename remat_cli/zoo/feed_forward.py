"""Feed-forward networks: dense layers with ReLU, as in the experiments of Kumar et al., NeurIPS 2019."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.zoo.base import NetworkArchitecture, option
from remat_cli.zoo.layers.common import dense, relu, squared_error
from remat_cli.zoo.network import Network

DEEPEST = 100_000
"""Upper limit of the number of layers."""


@dataclass(frozen=True)
class FeedForward(NetworkArchitecture):
    """Hidden dense layers with ReLU, an output layer, and the squared error.

    The paper states the layers, the loss and plain gradient descent, and no width and no batch: these are our choice.

    Attributes:
        depth: Number of hidden layers.
        width: Features of the input, of every hidden layer and of the output.
    """

    batch: int = option(1024, "items per batch")
    depth: int = option(100, "number of hidden layers")
    width: int = option(1024, "features of the input and of every layer")

    name: ClassVar[str] = "feed-forward"
    summary: ClassVar[str] = "dense layers with ReLU and squared error"
    reference: ClassVar[str] = "Kumar et al., NeurIPS 2019, section 4"

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        self.require("depth", 1, DEEPEST)
        self.require("width", 1)

    def network(self) -> Network:
        """The hidden layers and the output."""
        x = Network(self.name, self.dtype_bytes).input(self.batch, self.width)
        for k in range(1, self.depth + 1):
            x = relu(f"relu{k}", dense(f"fc{k}", x, self.width))
        return squared_error(dense("out", x, self.width))
