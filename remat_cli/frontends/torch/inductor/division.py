"""Divides a joint graph by plan: two graphs of FX, in the order of the plan, which Inductor compiles.

The plan is cut at the tangents, as in :mod:`remat_cli.frontends.torch.execute.forward_backward`: the forward graph
computes what is before, and returns the results and what is read after the cut. Each computation of a group becomes
nodes of its own: a node that is computed twice is there twice, and an inlined one is there once for each group. The
stored result of a group is marked, so that Inductor stores it; where it makes one loop of several groups, it may leave
it out. An inlined result that a group reads several times is marked too, since Inductor would store each copy of it.

What the step writes into inputs is written at the end of the forward graph. An input that the backward graph reads in
its old state is copied before.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.torch.capture.capture import Captured, Inductor
from remat_cli.frontends.torch.capture.joint_program import tensor_name
from remat_cli.frontends.torch.capture.lower import Lowering
from remat_cli.frontends.torch.compat.aot_autograd import saved_description
from remat_cli.frontends.torch.compat.inductor import apart, inlined, laid_out, lay_out_joined, leave_to_library, stored
from remat_cli.frontends.torch.compat.operators import is_operator
from remat_cli.frontends.torch.inductor.image_layouts import LAYOUT, is_image, reads_contiguous_copies
from remat_cli.frontends.torch.inductor.loops import LIMIT, Limit
from remat_cli.frontends.torch.tensors import storage_bytes, tensors_in
from remat_cli.frontends.torch.types import FxNode, GraphModule
from remat_cli.plan.model import Compute, Plan
from remat_cli.plan.replay import replay

UNUSED = "remat_unused"
"""Key of the positions of the tangents that a backward graph does not read, in its ``meta``."""


def divided(
    captured: Captured, lowering: Lowering, plan: Plan, joint: GraphModule, tangents: Sequence[FxNode]
) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph module for a plan.

    Args:
        captured: The joint graph, perhaps without some of its tangents.
        lowering: The graph that it was lowered to.
        plan: A valid plan of that graph; its own graph may have workspace.
        joint: Inductor's own joint graph module, which holds constants.
        tangents: The placeholders of all tangents, which the backward graph is given.
    """
    import torch

    assert captured.inductor is not None
    replayed = replay(plan.graph, plan.statements)
    parts = _Parts(captured, captured.inductor, lowering, [node.workspace for node in plan.graph.nodes])
    steps = [
        _Step(statement.node, replayed.peak_bytes - used)
        for statement, used in zip(plan.statements, replayed.profile, strict=True)
        if isinstance(statement, Compute)
    ]
    steps = _read_later(lowering, steps)
    # The tangents belong to no FX node of their own: that step is where autograd hands over to the backward pass.
    cut = [step.index for step in steps].index(lowering.fx_nodes.index(None))
    left, right = steps[:cut], steps[cut + 1 :]
    saved = parts.saved(right)
    early, late = parts.forward(left, saved), parts.backward(right, saved, tangents)
    forward, backward = torch.fx.GraphModule(joint, early.graph), torch.fx.GraphModule(joint, late.graph)
    # AOTAutograd passes every tangent to the backward graph, also those that were pruned from the joint graph. An input
    # that nothing reads would stay to the end, so it is taken out again around the compiled function.
    read = {node.name for node in parts.tangents}
    backward.meta[UNUSED] = tuple(len(saved) + k for k, node in enumerate(tangents) if node.name not in read)
    # Inductor's own peak is simulated without inputs, parameters and buffers, so the limit is without them as well.
    peak = replayed.peak_bytes - plan.graph.fixed_memory
    there = set(parts.inputs).difference(parts.tangents)  # inputs of the step, which are there in any case
    input_bytes = {node.name: parts.bytes_of(node) for node in [*saved, *parts.tangents] if node not in there}
    forward.meta[LIMIT] = Limit(peak, {}, early.workspaces)
    backward.meta[LIMIT] = Limit(peak, input_bytes, late.workspaces)
    return forward, backward


@dataclass(frozen=True, slots=True)
class _Step:
    """A computation of a plan: the group's index, and the bytes that are free meanwhile, below the peak of the plan."""

    index: int
    free: int


def _read_later(lowering: Lowering, steps: Sequence[_Step]) -> list[_Step]:
    """``steps`` without what nothing reads before it is computed again.

    A plan computes every node where its order has it, even if it must let the result go. Inductor leaves such a
    computation out, but would hold what that reads to the end of the half.
    """
    graph, read_later = lowering.graph, set(lowering.graph.outputs)
    needed: list[_Step] = []
    for step in reversed(steps):
        values = graph.values_of(step.index)
        if values and read_later.isdisjoint(values) and lowering.fx_nodes[step.index] is not None:
            continue
        read_later.difference_update(values)
        read_later.update(graph.nodes[step.index].inputs)
        needed.append(step)
    return needed[::-1]


class _Parts:
    """Makes the graphs of both parts."""

    def __init__(self, captured: Captured, inductor: Inductor, lowering: Lowering, workspaces: Sequence[int]) -> None:
        self.inductor, self.lowering, self.workspaces = inductor, lowering, workspaces
        graph = captured.joint.graph
        output = graph.output_node()
        roots = {node for node in lowering.fx_nodes if node is not None}
        tangents = {name for index, node in enumerate(lowering.fx_nodes) if node is None for name in self.names(index)}
        self.inputs = graph.find_nodes(op="placeholder")
        self.tangents = [node for node in self.inputs if node.name in tangents]
        self.names_stored = {name for names in lowering.values for name in names} | {node.name for node in self.inputs}
        self.writes = inductor.writes
        self.written, self.results, self.gradients = self._outputs(output.args[0], captured.forward_outputs)
        _, self.told, self.gradients_told = self._outputs(output.meta["desc"], captured.forward_outputs)
        self.marks = {node for node in roots if _is_pointwise(node)}

    def _outputs(self, outputs: Sequence[Any], forward_outputs: int) -> tuple[list[Any], list[Any], list[Any]]:
        """What is written into inputs, results, and gradients."""
        cut = len(self.writes)
        return list(outputs[:cut]), list(outputs[cut:forward_outputs]), list(outputs[forward_outputs:])

    def root(self, index: int) -> FxNode:
        """The FX node of a group, whose result is stored."""
        node = self.lowering.fx_nodes[index]
        assert node is not None, "the tangents are computed by nobody"
        return node

    def names(self, index: int) -> list[str]:
        """The names of the tensors that a node makes."""
        graph = self.lowering.graph
        return [name for value in graph.values_of(index) for name in self.lowering.values[value]]

    def saved(self, right: Sequence[_Step]) -> list[FxNode]:
        """The nodes of the tensors that the backward part reads and does not make itself; inputs first."""
        here = {node.name for node in self.tangents}
        saved: dict[str, FxNode] = {}
        for step in right:
            read = self._read(self.root(step.index).all_input_nodes)
            saved |= {name: node for name, node in read if name not in here}
            here.update(self.names(step.index))
        gradients = [node for node in self.gradients if node is not None]
        saved |= {name: node for name, node in self._read(gradients) if name not in here}
        return sorted(saved.values(), key=lambda node: node.op != "placeholder")

    def _read(self, nodes: Sequence[FxNode]) -> Iterator[tuple[str, FxNode]]:
        """Name and node of the stored tensors that are behind ``nodes``."""
        stack, seen = list(nodes), set(nodes)
        while stack:
            node = stack.pop()
            name = tensor_name(node)
            if name in self.names_stored:
                yield name, node
                continue
            for argument in node.all_input_nodes:
                if argument not in seen:
                    seen.add(argument)
                    stack.append(argument)

    def forward(self, left: Sequence[_Step], saved: Sequence[FxNode]) -> _Half:
        """The forward half."""
        import torch

        half = _Half(self)
        for node in self.inputs:
            if node not in self.tangents:
                half.take(node)
        for step in left:
            half.compute(step)
        outputs = [None if node is None else half.read(node, {}) for node in self.results]
        # Running statistics are written at the end of this graph, before the backward graph reads its saved inputs.
        written = {write.args[0].name for write in self.writes}
        for node in saved:
            tensor = half.read(node, {})
            if node.name in written:
                tensor = half.graph.call_function(torch.ops.aten.clone.default, (tensor,))
                tensor.meta = dict(self.meta(node))
            outputs.append(tensor)
        for write, value in zip(self.writes, self.written, strict=True):
            into = half.env[write.args[0].name]
            copied = half.graph.call_function(write.target, (into, half.read(value, {})))
            copied.meta = dict(write.meta)
        return half.end(outputs, [*self.told, *map(saved_description, range(len(saved)))])

    def backward(self, right: Sequence[_Step], saved: Sequence[FxNode], tangents: Sequence[FxNode]) -> _Half:
        """The backward half."""
        half = _Half(self)
        for node in [*saved, *tangents]:
            half.take(node)
        for step in right:
            half.compute(step)
        outputs = [None if node is None else half.read(node, {}) for node in self.gradients]
        return half.end(outputs, self.gradients_told)

    def bytes_of(self, node: FxNode) -> int:
        """Bytes of the memory in which a tensor lies."""
        return sum(storage_bytes(tensor) for _, tensor in tensors_in(node.meta["val"]))

    def meta(self, node: FxNode) -> dict[str, Any]:
        """What Inductor's own graph says of a node."""
        return self.inductor.metas[node]


class _Half:
    """One of the two graphs.

    Attributes:
        env: The nodes of the stored tensors that are in memory, by the names of the tensors.
        workspaces: Bytes that each call of a library takes while it runs, by the name of its node.
        free: Bytes below the peak of the plan while a group is computed, by the group's last node.
        inlined: The copies of inlined operations.
    """

    def __init__(self, parts: _Parts) -> None:
        import torch

        self.parts = parts
        self.graph = torch.fx.Graph()
        self.env: dict[str, FxNode] = {}
        self.workspaces: dict[str, int] = {}
        self.free: dict[FxNode, int] = {}
        self.inlined: list[FxNode] = []

    def take(self, node: FxNode) -> None:
        """Take the tensor of ``node`` as an input."""
        placeholder = self.graph.placeholder(node.name)
        placeholder.meta = dict(self.parts.meta(node))
        self.env[tensor_name(node)] = placeholder

    def compute(self, step: _Step) -> None:
        """Compute a group."""
        node = self.parts.root(step.index)
        # What is inlined is copied for each group: {} means that nothing inlined is shared with an earlier group.
        root = self._copied(node, {})
        self.workspaces[root.name] = self.parts.workspaces[step.index]
        if LAYOUT in node.meta:
            root.update_kwarg("memory_format", node.meta[LAYOUT])
            root = laid_out(self.graph, root, node.meta[LAYOUT])
        elif node in self.parts.marks:  # reductions and calls of libraries are stored in any case
            root = stored(self.graph, root)
        self.free[root] = step.free
        names = set(self.parts.names(step.index))
        self.env.update({node.name: root} if node.name in names else {})
        for item in node.users:
            if item.target is operator.getitem and tensor_name(item) in names:
                copy = self.graph.node_copy(item, lambda _: root)
                copy.meta = dict(self.parts.meta(item))
                self.env[tensor_name(item)] = stored(self.graph, copy)

    def read(self, node: FxNode, local: dict[FxNode, FxNode]) -> FxNode:
        """The node that makes the result of ``node`` here; ``local`` holds what is inlined already."""
        name = tensor_name(node)
        if name in self.env:
            return self.env[name]
        if node not in local:
            local[node] = copy = self._copied(node, local)
            if is_operator(node.target) and not node.target.is_view:  # it makes memory
                self.inlined.append(copy)
        return local[node]

    def _copied(self, node: FxNode, local: dict[FxNode, FxNode]) -> FxNode:
        copy = self.graph.node_copy(node, lambda argument: self.read(argument, local))
        copy.meta = dict(self.parts.meta(node))
        if reads_contiguous_copies(node):
            leave_to_library(copy)
        return copy

    def end(self, outputs: Sequence[FxNode], descriptions: Sequence[Any]) -> _Half:
        """End the graph, which returns ``outputs``, described as ``descriptions``."""
        joined = self._joined_images()  # before marks come between concatenations and what reads them
        for copy in self.inlined:
            readers = list(copy.users)
            if _is_read_again(copy):
                mark = inlined(self.graph, copy)
                for reader in readers:
                    reader.replace_input_with(copy, mark)
        self._keep_apart(outputs)
        self._leave_layouts_open()
        for node in joined:
            lay_out_joined(node)
        node = self.graph.output(tuple(outputs))
        node.meta["desc"] = list(descriptions)
        node.meta["output_stack_traces"] = [None] * len(outputs)  # Inductor expects one for each output
        self.graph.lint()
        return self

    def _keep_apart(self, outputs: Sequence[FxNode]) -> None:
        """Mark what concatenations read if it is read for longer than they are, or made before there is room for them.

        Inductor computes a part in the memory of the concatenation, which is then there as early and as long as the
        part.
        """
        import torch

        position = {node: k for k, node in enumerate(self.graph.nodes)}
        free = {position[node]: size for node, size in self.free.items()}
        place = position | dict.fromkeys((node for node in outputs if node is not None), len(position))
        separate = []
        for joined in self.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
            more = self.parts.bytes_of(joined)
            # The first part to be computed brings the whole concatenation into memory.
            for part in sorted(dict.fromkeys(joined.args[0]), key=position.__getitem__):
                if part.op == "placeholder":  # it has memory already, and is copied in
                    continue
                size = self.parts.bytes_of(part)
                meanwhile = [k for k in free if position[part] <= k < position[joined]]
                if _last_read(part, place) > _last_read(joined, place) or any(free[k] < more - size for k in meanwhile):
                    separate.append((joined, part))
                    continue
                free |= {k: free[k] - (more - size) for k in meanwhile}  # later parts find less room
                more = 0  # the rest of it is there for parts that come later
        for joined, part in separate:
            joined.replace_input_with(part, apart(self.graph, part))

    def _leave_layouts_open(self) -> None:
        """Let gradients of convolutions alone decide in which layout something is stored that others read, too.

        Inductor gives it the layout that it has in eager mode, and may then copy it for the convolution.
        """
        import torch

        gradients = torch.ops.aten.convolution_backward.default
        for node in self.graph.find_nodes(op="call_function", target=gradients):
            for read in dict.fromkeys(node.args[:2]):
                if len(read.users) > 1:
                    node.replace_input_with(read, stored(self.graph, read))

    def _joined_images(self) -> list[FxNode]:
        """The concatenations of images that convolutions read, which are told to have channels last.

        In a graph that computes a convolution on a CPU, Inductor has all of them read images with channels last.
        """
        import torch

        aten = torch.ops.aten
        convolutions = {aten.convolution.default, aten.convolution_backward.default}
        computed = self.graph.find_nodes(op="call_function", target=aten.convolution.default)
        if not computed or not torch.backends.mkldnn.is_available():
            return []
        images = [
            joined
            for joined in self.graph.find_nodes(op="call_function", target=aten.cat.default)
            if is_image(joined) and not convolutions.isdisjoint(reader.target for reader in joined.users)
        ]
        for joined in images:  # Inductor takes strides from here
            joined.meta["val"] = joined.meta["val"].contiguous(memory_format=torch.channels_last)
        return images


def _last_read(node: FxNode, place: Mapping[FxNode, int]) -> int:
    """Where the result of a node is read last, perhaps through views; that of a result of the graph is its end."""
    reads = [_last_read(reader, place) if _is_view(reader) else place[reader] for reader in node.users]
    return max([place[node], *reads])


def _is_view(node: FxNode) -> bool:
    return is_operator(node.target) and bool(node.target.is_view)


def _is_pointwise(node: FxNode) -> bool:
    import torch

    return is_operator(node.target) and torch.Tag.pointwise in node.target.tags


def _is_read_again(node: FxNode) -> bool:
    """Whether a result is read several times, perhaps through views."""
    readers = list(node.users)
    return len(readers) > 1 or any(_is_read_again(reader) for reader in readers if _is_view(reader))
