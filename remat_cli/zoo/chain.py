"""Chains: with chosen costs and sizes, the unit training chain of the Checkmate paper, and feed-forward networks."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.units import parse_size
from remat_cli.zoo.base import BACKWARD_OPTION, Architecture, NetworkArchitecture, option
from remat_cli.zoo.layers.common import dense, relu, squared_error
from remat_cli.zoo.network import Derivative, Network
from remat_cli.zoo.training import FLOPS, Backward, to_graph

LARGEST_NUMBER = 10**12
"""No cost or size may be larger."""
LONGEST = 100_000
"""No chain may have more nodes in its forward pass."""
_UNITS = replace(FLOPS, unit="unit")
DEEPEST = 100_000
"""Upper limit of the number of layers."""


@dataclass(frozen=True)
class Linear(Architecture):
    """A chain of layers, each of which reads the one before; the loss has cost and size 1.

    Attributes:
        n: Number of layers of the forward pass.
        costs: One cost for all layers, or n joined by colons.
        sizes: One size for all outputs, or n joined by colons.
        backward: Rule of the backward pass.
    """

    n: int = option(32, "number of layers of the forward pass")
    costs: str = option("1", "cost of every layer, or n costs joined by colons: 1:2:4")
    sizes: str = option("1", "bytes of every output, or n sizes joined by colons: 1MB:2MB:4MB")
    backward: Backward = field(default=Backward.CHECKMATE, metadata=BACKWARD_OPTION)

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "a chain of layers with unit or given costs and sizes"
    reference: ClassVar[str] = ""

    def check(self) -> None:
        """Refuse options that make no sense."""
        self.require("n", 1, LONGEST)
        self._numbers("costs")
        self._numbers("sizes")

    def build(self) -> Graph:
        """The graph."""
        network = Network(self.name, dtype_bytes=1)
        x = network.input(1, 1, element_bytes=0)
        # Every layer is like a dense one: its derivative needs its input and makes the gradient of weights as well.
        derivative = Derivative(inputs=(0,), weights=True)
        for k, (cost, size) in enumerate(zip(self._numbers("costs"), self._numbers("sizes"), strict=True), 1):
            x = network.add(f"layer{k}", "layer", [x], (1, size), flops=cost, derivative=derivative)
        network.set_loss("loss", "loss", [x], flops=1, derivative=Derivative(inputs=(0,)))
        return to_graph(network, self.backward, costs=_UNITS, metadata=self.describe())

    def _numbers(self, option_name: str) -> list[int]:
        """The n costs or sizes.

        Raises:
            UsageError: If their number is neither 1 nor n, or one is not a positive whole number.
        """
        where = f"{self.name}{{{option_name}}}"
        parts = str(getattr(self, option_name)).split(":")
        if len(parts) not in {1, self.n}:
            raise UsageError(f"{where}: {len(parts)} values for n={self.n} layers", hint=f"give 1 or {self.n}")
        numbers = [parse_size(part) if option_name == "sizes" else _whole(part, where) for part in parts]
        if not all(1 <= number <= LARGEST_NUMBER for number in numbers):
            raise UsageError(f"{where}: a value is out of range", hint=f"choose them between 1 and {LARGEST_NUMBER}")
        return numbers * (self.n // len(numbers))


def _whole(text: str, where: str) -> int:
    if not text.isascii() or not text.strip().isdigit() or len(text) > 20:
        raise UsageError(f'{where}: "{text}" is not a whole number', hint="write costs like 4 or 1:2:4")
    return int(text)


@dataclass(frozen=True)
class UnitChain(Architecture):
    """The training step of a linear network with unit costs and sizes, as in the Checkmate paper.

    Nodes ``n0 .. n(n-1)`` in a chain; every node i below the middle also feeds node n-1-i, its gradient.

    Attributes:
        n: Number of nodes of the whole step.
    """

    n: int = option(17, "number of nodes: forward, loss and backward together")

    name: ClassVar[str] = "unit-chain"
    summary: ClassVar[str] = "the unit training chain: node i also feeds node n-1-i"
    reference: ClassVar[str] = "Jain et al., MLSys 2020"

    def check(self) -> None:
        """Refuse options that make no sense."""
        self.require("n", 1, LONGEST)

    def build(self) -> Graph:
        """The graph."""
        loss = (self.n - 1) // 2
        nodes = []
        for j in range(self.n):
            partner = self.n - 1 - j
            reads = {j - 1} if j > 0 else set()
            if partner < j:
                reads.add(partner)
            phase = Phase.FORWARD if j < loss else Phase.LOSS if j == loss else Phase.BACKWARD
            nodes.append(Node(f"n{j}", 1.0, tuple(sorted(reads)), (1,), op="unit", phase=phase))
        return Graph(self.name, tuple(nodes), (self.n - 1,), cost_unit="unit", metadata=self.describe())


@dataclass(frozen=True)
class FeedForward(NetworkArchitecture):
    """Hidden dense layers with ReLU, an output layer, and the squared error, as in Kumar et al., NeurIPS 2019.

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
