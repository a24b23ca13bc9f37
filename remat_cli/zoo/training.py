"""The forward pass of a network to a graph: inference alone, or forward, loss and backward by one of two rules.

``checkmate`` is the rule of the Checkmate paper (Jain et al., MLSys 2020) and its extraction from Keras: for every
layer i a node grad(i) that reads out(i) and, of every user j of i, out(j) and grad(j); it costs twice i and is as
large as out(i). The loss has no gradient node. This rule keeps more values than real derivatives need, and hardly
differs between operations.

``operator`` uses the values that each operation's derivative reads (see :class:`remat_cli.zoo.network.Derivative`):

* One node per layer makes the gradients of all its inputs, one output each; layers with weights make the weights'
  gradient in the same node, which goes to fixed memory. A first layer has only that: its node makes no value.
* It costs one forward computation for the inputs (one for each input of a matrix product of two activations) and one
  for the weights.
* Sums pass their gradient on unchanged, without a node.
* If a value has several users, nodes ``accumulate/...`` add their gradients pairwise, in the order of computation.
* Nothing is computed for network inputs, or for layers with no weights before them.
* The result is the loss; gradients of weights are in fixed memory.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.zoo.network import NETWORK_INPUT, Layer, Network, Tensor


@dataclass(frozen=True, slots=True)
class Work:
    """What a node does.

    Attributes:
        op: Kind of operation.
        flops: FLOPs; two for every multiply-accumulate.
        moved_bytes: Bytes that it reads and writes: its inputs, outputs, weights and gradients of weights.
        product: Whether it multiplies matrices or convolves: then FLOPs count, else nearly all of its time is moving.
        dtype_bytes: Bytes of one number.
    """

    op: str
    flops: int
    moved_bytes: int
    product: bool
    dtype_bytes: int


@dataclass(frozen=True, slots=True)
class CostModel:
    """A unit and a cost for every node.

    Attributes:
        unit: Unit of the costs.
        cost: The cost of a node's work.
        description: Entry ``costs`` of the graph's metadata; none for FLOPs, which need no words.
    """

    unit: str
    cost: Callable[[Work], float]
    description: Mapping[str, Any] = field(default_factory=dict)


FLOPS = CostModel("flops", lambda work: float(work.flops))
"""The costs that graphs have unless others are asked for."""


class Backward(StrEnum):
    """The rule for the backward pass of a graph."""

    CHECKMATE = "checkmate"
    OPERATOR = "operator"
    NONE = "none"
    """The forward pass alone, without a loss."""


class _Builder:
    """Nodes in order, and the values that each one makes."""

    def __init__(self, costs: CostModel, dtype_bytes: int) -> None:
        self.nodes: list[Node] = []
        self._costs = costs
        self._dtype_bytes = dtype_bytes
        self._sizes: list[int] = []

    def add(
        self,
        node_id: str,
        op: str,
        phase: Phase,
        reads: Iterable[int],
        outputs: Iterable[int],
        flops: int,
        *,
        weights: int = 0,
        product: bool = False,
    ) -> tuple[int, ...]:
        """Add a node; returns its values by index. A value that comes twice among ``reads`` is read once.

        Args:
            node_id: Its id.
            op: Kind of operation.
            phase: Its phase.
            reads: The values it reads.
            outputs: Bytes of every value it makes.
            flops: Its FLOPs.
            weights: Weights and gradients of weights that it reads or writes.
            product: Whether it multiplies matrices or convolves.
        """
        sizes, inputs = tuple(outputs), tuple(dict.fromkeys(reads))
        moved = sum(sizes) + sum(self._sizes[v] for v in inputs) + weights * self._dtype_bytes
        cost = self._costs.cost(Work(op, flops, moved, product, self._dtype_bytes))
        self.nodes.append(Node(node_id, cost, inputs, sizes, op=op, phase=phase))
        values = tuple(range(len(self._sizes), len(self._sizes) + len(sizes)))
        self._sizes.extend(sizes)
        return values

    def add_layer(self, layer: Layer, phase: Phase, values: list[tuple[int, ...]], *, saving: bool) -> None:
        """Add a layer of the forward pass or the loss and append its values to ``values``."""
        reads = [values[t.layer][t.slot] for t in layer.inputs if t.layer != NETWORK_INPUT]
        outputs = (*layer.outputs, *(layer.derivative.saved if saving else ()))
        weights, product = layer.parameters, layer.macs > 0
        own_values = self.add(layer.id, layer.op, phase, reads, outputs, layer.flops, weights=weights, product=product)
        values.append(own_values)


def to_graph(network: Network, backward: Backward, *, costs: CostModel = FLOPS, metadata: Any = None) -> Graph:
    """The graph of a network.

    Fixed memory is the network's inputs and its parameters, for training also the parameters' gradients.

    Without a backward pass, the inputs of the loss are the result.

    Raises:
        ValueError: If nothing reads a layer, or there is no loss.
    """
    builder = _Builder(costs, network.dtype_bytes)
    values: list[tuple[int, ...]] = []
    for layer in network.layers:
        builder.add_layer(layer, Phase.FORWARD, values, saving=backward is Backward.OPERATOR)
    if network.loss is None:
        raise ValueError(f"{network.name} has no loss")
    _refuse_dead_ends(network, network.loss)
    if backward is Backward.NONE:
        outputs = {values[t.layer][t.slot] for t in network.loss.inputs}
    else:
        builder.add_layer(network.loss, Phase.LOSS, values, saving=backward is Backward.OPERATOR)
        if backward is Backward.OPERATOR:
            outputs = _OperatorRule(network, network.loss, builder, values).run()
        else:
            outputs = _checkmate(network, network.loss, builder, values)
    copies = 1 if backward is Backward.NONE else 2
    return Graph(
        name=network.name,
        nodes=tuple(builder.nodes),
        outputs=tuple(sorted(outputs)),
        cost_unit=costs.unit,
        fixed_memory=network.input_bytes + copies * network.parameters * network.dtype_bytes,
        metadata=metadata,
    )


def _refuse_dead_ends(network: Network, loss: Layer) -> None:
    used = {source for layer in (*network.layers, loss) for source in layer.sources}
    for i, layer in enumerate(network.layers):
        if i not in used:
            raise ValueError(f"{network.name}: nothing reads {layer.id}")


def _checkmate(network: Network, loss: Layer, builder: _Builder, values: list[tuple[int, ...]]) -> set[int]:
    """Add the backward nodes of rule ``checkmate``; returns the graph's outputs: the last gradient."""
    users: list[list[int]] = [[] for _ in network.layers]
    for j, layer in enumerate((*network.layers, loss)):
        for source in layer.sources:
            users[source].append(j)
    gradient: dict[int, tuple[int, ...]] = {}
    for i, layer in reversed(list(enumerate(network.layers))):
        if layer.derivative.stops:
            continue
        reads = {*values[i]}
        for j in users[i]:
            reads.update(values[j], gradient.get(j, ()))
        gradient[i] = builder.add(
            *(f"grad/{layer.id}", f"{layer.op}_grad", Phase.BACKWARD, sorted(reads), [sum(layer.outputs)]),
            2 * layer.flops,
            weights=2 * layer.parameters,
            product=layer.macs > 0,
        )
    return set(gradient[min(gradient)])


class _OperatorRule:
    """Adds the backward nodes of rule ``operator`` to a graph that has its forward pass and loss."""

    def __init__(self, network: Network, loss: Layer, builder: _Builder, values: list[tuple[int, ...]]) -> None:
        self._layers = (*network.layers, loss)
        self._dtype_bytes = network.dtype_bytes
        self._builder = builder
        self._values = values
        self._gradient: dict[int, int] = {}
        """For every layer, the gradient of its first output: the sum of the parts that its users have added so far."""
        self._parts: Counter[int] = Counter()
        self._needs_gradient: list[bool] = []
        for layer in network.layers:
            upstream = any(self._needs_gradient[source] for source in layer.sources)
            self._needs_gradient.append(not layer.derivative.stops and (layer.derivative.weights or upstream))

    def run(self) -> set[int]:
        """Add the nodes; returns the graph's outputs: the loss."""
        last = len(self._layers) - 1
        for i, layer in reversed(list(enumerate(self._layers))):
            if i != last and i not in self._gradient:
                continue  # nothing that has a gradient reads it
            wanted = [tensor for tensor in layer.inputs if self._wants(tensor)]
            gradients: tuple[int, ...] = ()
            if layer.derivative.weights or (wanted and not layer.derivative.passes):
                gradients = self._add_node(i, layer, wanted)
            for k, tensor in enumerate(wanted):
                self._contribute(tensor.layer, self._gradient[i] if layer.derivative.passes else gradients[k])
        return {self._values[-1][0]}

    def _wants(self, tensor: Tensor) -> bool:
        return tensor.layer != NETWORK_INPUT and tensor.slot == 0 and self._needs_gradient[tensor.layer]

    def _add_node(self, i: int, layer: Layer, wanted: list[Tensor]) -> tuple[int, ...]:
        """Add the derivative of layer ``i``: one value for each wanted gradient that is not just passed on."""
        derivative = layer.derivative
        results = [] if derivative.passes else [self._layers[tensor.layer].outputs[0] for tensor in wanted]
        read = [layer.inputs[k] for k in derivative.inputs]
        # An elementwise layer needs one pass for the gradients of all inputs, a product one product for each input.
        passes = len(results) if derivative.per_input else min(1, len(results))
        return self._builder.add(
            f"grad/{layer.id}",
            f"{layer.op}_grad",
            Phase.BACKWARD,
            [
                *([self._gradient[i]] if i in self._gradient else []),
                *(self._values[tensor.layer][tensor.slot] for tensor in read if tensor.layer != NETWORK_INPUT),
                *(self._values[i][slot] for slot in derivative.outputs),
            ],
            results,
            layer.flops * (passes + derivative.weights),
            weights=2 * layer.parameters,
            product=layer.macs > 0,
        )

    def _contribute(self, i: int, value: int) -> None:
        """Take ``value`` as (a part of) the gradient of the first output of layer ``i``."""
        self._parts[i] += 1
        if self._parts[i] == 1:
            self._gradient[i] = value
            return
        layer = self._layers[i]
        suffix = "" if self._parts[i] == 2 else f"/{self._parts[i] - 1}"
        (self._gradient[i],) = self._builder.add(
            f"accumulate/{layer.id}{suffix}",
            "accumulate",
            Phase.BACKWARD,
            (self._gradient[i], value),
            (layer.outputs[0],),
            layer.outputs[0] // self._dtype_bytes,
        )
