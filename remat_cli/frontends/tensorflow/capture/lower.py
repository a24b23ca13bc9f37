"""Lowers a captured step to a graph of remat: one node for operations that belong together, one value per memory.

*Values are memory.* An operation that only aliases the memory of another tensor is no node; each node that reads it
runs it again. Inputs, constants and variables are fixed memory.

*The update* is the last node: everything that writes variables, and all that follows. It runs once, and no node may run
after it. Its workspace is what its operations need one after another.
"""

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.imported import Names
from remat_cli.frontends.rates import CostModel
from remat_cli.frontends.tensorflow.capture.capture import Captured, Model, capture
from remat_cli.frontends.tensorflow.capture.costs import Work
from remat_cli.frontends.tensorflow.capture.graph_reader import read_graph
from remat_cli.frontends.tensorflow.capture.grouping import Item, group
from remat_cli.frontends.tensorflow.capture.layers import Path, repeatable, shared_path
from remat_cli.frontends.tensorflow.capture.memory import highest, update_workspace
from remat_cli.frontends.tensorflow.capture.program import Kind, Op, Program
from remat_cli.frontends.tensorflow.document import (
    FRONTEND,
    Call,
    Input,
    Made,
    Operation,
    Read,
    Ref,
    Result,
)
from remat_cli.graph.model import Graph, Node, Phase

_SMALL_SHARE = 2048
"""A value counts as small if it is at most this part of the peak: all of them together change little. Untuned."""
_LEAST_SMALL = 1024
"""Bytes up to which a value counts as small in any graph. Untuned."""

Root = tuple[int, int]
"""An output of an operation with memory of its own: number of the operation and of the output."""


def graph_of_step(
    model: Model, name: str, source: str, device: str, costs: CostModel[Work]
) -> tuple[Graph, Program, Captured]:
    """The graph of a step, its program, which knows what places are in this process, and what was captured.

    Raises:
        CaptureFailed: If it cannot be captured as a graph.
    """
    captured = capture(model)
    program = read_graph(captured)
    for op in program.ops:
        op.cost = costs.cost(Work(program, op, captured.graph))
    graph = lower(program, name, costs.unit)
    assert graph is not None  # the nodes were chosen for it
    metadata = FRONTEND.metadata(source, device, costs.description)
    return replace(graph, metadata=metadata | {"parameters": captured.parameters} | graph.metadata), program, captured


def lower(program: Program, name: str, cost_unit: str, groups: Sequence[Sequence[int]] | None = None) -> Graph | None:
    """The graph of a program whose aliases and costs are known; its metadata has everything that running it needs.

    Args:
        program: The program.
        name: Name of the graph.
        cost_unit: Unit of the costs.
        groups: The operations of each node but the update, as another graph of the step has them; None to find them.

    Returns:
        The graph; None if ``groups`` are not those of this program.
    """
    lowering = _Lowering(program)
    if groups is None:
        return lowering.graph(name, cost_unit, lowering.groups())
    if sorted(k for found in groups for k in found) != lowering.planned:
        return None
    try:
        return lowering.graph(name, cost_unit, groups)
    except (KeyError, ValueError):  # a node would read what a later one makes
        return None


@dataclass(slots=True)
class _Node:
    """A node under construction: the operations in it, and the roots that others read."""

    ops: list[int]
    update: bool
    calls: list[Call] = field(default_factory=list)
    inputs: dict[Root, int] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    outputs: list[Root] = field(default_factory=list)


class _Lowering:
    """Builds the graph of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops = program.ops
        self.planned = [k for k, op in enumerate(self.ops) if op.kind is not Kind.UPDATE and not op.is_alias]
        self.late = [k for k, op in enumerate(self.ops) if op.kind is Kind.UPDATE]
        self.results = {base for ref in program.results if (base := self.base(ref)) is not None}

    def base(self, ref: Ref) -> Root | None:
        """The output of a node that ``ref`` is an alias of, or is."""
        while isinstance(ref, Made) and self.ops[ref.op].is_alias:
            source = self.ops[ref.op].alias_of[ref.output]
            assert source is not None
            ref = self.ops[ref.op].call.inputs[source]
        return (ref.op, ref.output) if isinstance(ref, Made) else None

    def roots_read(self, op: Op) -> set[Root]:
        """The roots that an operation reads, also through aliases with several inputs."""
        roots: set[Root] = set()
        todo = list(op.call.inputs)
        while todo:
            ref = todo.pop()
            if not isinstance(ref, Made):
                continue
            other = self.ops[ref.op]
            if other.is_alias:
                todo += other.call.inputs
            else:
                root = self.program.root(ref)
                if isinstance(root, Made):
                    roots.add((root.op, root.output))
        return roots

    def bytes(self, root: Root) -> int:
        """Bytes of memory of its own that an output has."""
        made = Made(*root)
        return self.program.spec(made).bytes if self.program.root(made) == made else 0

    def graph(self, name: str, cost_unit: str, groups: Sequence[Sequence[int]]) -> Graph:
        nodes = [_Node(list(ops), update=False) for ops in groups]
        if self.late:
            nodes.append(_Node(self.late, update=True))
        self._outputs(nodes)
        for node in nodes:
            self._calls(node)
        return self._assembled(nodes, name, cost_unit)

    def groups(self) -> list[list[int]]:
        index = {k: i for i, k in enumerate(self.planned)}
        reads = [self.roots_read(self.ops[k]) for k in self.planned]
        items = [
            Item(
                frozenset((index[op], output) for op, output in roots),
                tuple(spec.bytes for spec in self.ops[k].call.outputs),
                self.ops[k].kind is Kind.PURE,
                str(self.ops[k].phase),
            )
            for k, roots in zip(self.planned, reads, strict=True)
        ]
        needed_late = {root for k in self.late for root in self.roots_read(self.ops[k])} | self.results
        kept = [(index[op], output) for op, output in needed_late if op in index]
        small = max(_LEAST_SMALL, highest(self._steps(self.planned, {}), frozenset()) // _SMALL_SHARE)
        return [[self.planned[i] for i in found] for found in group(items, kept, small)]

    def _steps(self, ops: Sequence[int], names: dict[Root, int]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """What operations read and make, with its bytes, by names of their own, see :func:`.memory.highest`."""
        steps = []
        for k in ops:
            reads = [names.setdefault(root, len(names)) for root in self.roots_read(self.ops[k])]
            roots = [(k, output) for output in range(len(self.ops[k].call.outputs))]
            steps.append((reads, [(names.setdefault(root, len(names)), self.bytes(root)) for root in roots]))
        return steps

    def _outputs(self, nodes: Sequence[_Node]) -> None:
        """Find the roots of each node that are read outside of it, or are results."""
        home = {k: number for number, node in enumerate(nodes) for k in node.ops}
        wanted = set(self.results)
        for number, node in enumerate(nodes):
            for k in node.ops:
                wanted |= {root for root in self.roots_read(self.ops[k]) if home[root[0]] != number}
        for node in nodes:
            node.outputs = sorted(root for root in wanted if root[0] in set(node.ops))

    def _calls(self, node: _Node) -> None:
        """The operations of a node with the aliases that they need, and what it reads."""
        inside = set(node.ops)
        for k in node.ops:
            self._add(node, k)
        if node.update:  # all results are there when it runs, so that nothing has to be made again after it
            for root in sorted(self.results):
                if root[0] not in inside:
                    node.inputs.setdefault(root, len(node.inputs))

    def _add(self, node: _Node, k: int) -> None:
        op = self.ops[k]
        inputs = tuple(self._ref(node, ref) for ref in op.call.inputs)
        node.at[k] = len(node.calls)
        node.calls.append(Call(op.call.op, inputs, op.call.outputs, op.call.attributes))

    def _ref(self, node: _Node, ref: Ref) -> Ref:
        if not isinstance(ref, Made):
            return ref
        if ref.op in node.at:
            return Made(node.at[ref.op], ref.output)
        if self.ops[ref.op].is_alias:
            self._add(node, ref.op)
            return Made(node.at[ref.op], ref.output)
        return Input(node.inputs.setdefault((ref.op, ref.output), len(node.inputs)))

    def _assembled(self, nodes: Sequence[_Node], name: str, cost_unit: str) -> Graph:
        number: dict[Root, int] = {}
        tokens: list[int] = []
        made: list[Node] = []
        count = 0
        names = Names(first=2)
        for node in nodes:
            once = any(self.ops[k].kind is Kind.ONCE for k in node.ops)
            read = {number[root] for root in node.inputs}
            if tokens and (once or node.update):
                read.add(tokens[-1])
            reads = sorted(read)  # documents have them in ascending order
            calls = _renumbered(node.calls, {k: reads.index(number[root]) for root, k in node.inputs.items()})
            values: list[Made | None] = [Made(node.at[op], output) for op, output in node.outputs]
            for root in node.outputs:
                number[root] = count
                count += 1
            sizes = [self.bytes(root) for root in node.outputs]
            if once:
                values.append(None)
                sizes.append(0)
                tokens.append(count)
                count += 1
            made.append(self._node(node, names, calls, tuple(reads), tuple(sizes), values, once))
        outputs = tuple(sorted(number[root] for root in self.results))
        graph = Graph(name, tuple(made), outputs, cost_unit, self._fixed(), None)
        return Graph(name, graph.nodes, outputs, cost_unit, graph.fixed_memory, self._metadata(graph, number, nodes))

    def _node(
        self,
        node: _Node,
        names: Names,
        calls: Sequence[Call],
        reads: tuple[int, ...],
        sizes: tuple[int, ...],
        values: Sequence[Made | None],
        once: bool,
    ) -> Node:
        main = max(node.ops, key=lambda k: (self.ops[k].cost, -k))
        op = self.ops[main].call.op
        name = "update" if node.update else _name(self.ops[main], [self.ops[k].layer for k in node.ops])
        return Node(
            id=names.unique(re.sub(r"[^\w./+-]", "_", name)),
            cost=math.fsum(self.ops[k].cost for k in node.ops),
            inputs=reads,
            outputs=sizes,
            workspace=max(0, self._workspace(node) - sum(sizes)),
            recompute=not (once or node.update),
            op="update" if node.update else op if len(node.ops) == 1 else f"{op}+{len(node.ops) - 1}",
            phase=self.ops[main].phase if not node.update else Phase.UPDATE,
            payload=Operation(tuple(calls), tuple(values)).document(),
        )

    def _workspace(self, node: _Node) -> int:
        """Most bytes of what the operations of a node make while one of them runs; see :mod:`.memory`."""
        if node.update:
            ops = {position: k for k, position in node.at.items()}
            calls = [(call, self.ops[ops[position]].alias_of) for position, call in enumerate(node.calls)]
            results: list[Ref] = [Made(node.at[op], output) for op, output in node.outputs]
            results += [ref for ref in map(self.program.root, self.program.results) if isinstance(ref, Read)]
            return update_workspace(self.program, calls, [self.bytes(root) for root in node.inputs], results)
        names: dict[Root, int] = {}
        held = frozenset(names.setdefault(root, len(names)) for root in node.outputs)
        return highest(self._steps(node.ops, names), held)

    def _fixed(self) -> int:
        places_bytes = sum(place.spec.bytes for place in self.program.places)
        return places_bytes + sum(len(constant.data) for constant in self.program.constants)

    def _metadata(self, graph: Graph, number: dict[Root, int], nodes: Sequence[_Node]) -> dict[str, object]:
        results = []
        for ref, spec in zip(self.program.results, self.program.specs, strict=True):
            root = self.base(ref)
            alias = _Node([], update=False)
            tensor = self._ref(alias, ref)
            if len(alias.inputs) > 1:
                raise CaptureFailed("a result depends on the shape of another in a way that graphs do not hold")
            results.append(Result(tensor, spec, None if root is None else number[root], tuple(alias.calls)))
        return {
            "places": [place.document() for place in self.program.places],
            "constants": [constant.document() for constant in self.program.constants],
            "functions": [base64.b64encode(function).decode("ascii") for function in self.program.functions],
            "results": [result.document(graph.value_name) for result in results],
            "groups": [list(node.ops) for node in nodes if not node.update],
            "update": graph.nodes[-1].id if self.late else None,
            "modules": repeatable(
                (op.layer for op in self.ops if op.phase is Phase.FORWARD),
                (op.layer for op in self.ops if op.kind is not Kind.PURE),
                self.program.by_name,
            ),
            "notes": list(self.program.notes),
        }


def _name(op: Op, layers: Sequence[Path]) -> str:
    """``block.dense/MatMul`` and ``grad/block.dense/MatMul``: the layer and the operation, if there is a layer.

    Args:
        op: The operation that gives the node its name.
        layers: The layers of all operations of the node. In the forward pass the node belongs to what they share, since
            it is recomputed as a whole; in the backward pass to the layer of ``op``, or else to the first.
    """
    if op.phase is Phase.BACKWARD:
        layer: Sequence[str] = op.layer or next(filter(None, layers), ())
        return f"grad/{'.'.join(layer)}/{op.name.rpartition('/')[2]}" if layer else op.name
    layer = shared_path(layers)
    return f"{'.'.join(layer)}/{op.name.rpartition('/')[2]}" if layer else op.name


def _renumbered(calls: Sequence[Call], position: dict[int, int]) -> list[Call]:
    """``calls`` with other positions of inputs."""

    def ref(found: Ref) -> Ref:
        return Input(position[found.position]) if isinstance(found, Input) else found

    return [Call(call.op, tuple(map(ref, call.inputs)), call.outputs, call.attributes) for call in calls]
