"""Finds the regions of a captured step that may run in parts: what lies around values that are wider than the others.

Most values of a network have the same size: rows (tokens) times its width. Some are wider, and die soon: the logits of
a large vocabulary, their softmax and its gradient, or the inside of the layers between two products. The operations
that make and read them run in parts: those of the forward pass together, and those of the backward pass together, which
compute what they need of the wide values again. Of the results that leave, each part makes some rows, or a summand.

A wide value that something else reads is whole in any case, and so is what comes with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.aten.division_rules import LIKELIHOODS, Rows, Summed
from remat_cli.frontends.torch.document import ROWS, Step, Value, read_step, tensors_read
from remat_cli.frontends.torch.execute.division import (
    Divider,
    Division,
    NotDivisible,
    added_to,
    division,
    without_data,
)
from remat_cli.frontends.torch.execute.trial import Trial
from remat_cli.frontends.torch.types import FxNode
from remat_cli.graph.model import Graph, Operation, Phase, Region
from remat_cli.graph.splitting import waits_in_a_circle

_MENU = (2, 4, 8, 16, 32, 64)
"""Numbers of parts that are offered."""
_WIDE = 1.25
"""A value is wide if it has so many times the numbers of the usual one. Untuned."""
_LEAST_SHARE = 0.01
"""A region is offered if it spares at least this share of all values of the graph together. Untuned."""
_PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default", "aten.convolution.default"})
_APART, _AT_ONCE = ("forward", "backward"), ("both",)
"""The operations of a region: one for each pass; or one for both, which is quicker, since it repeats nothing."""
_NONE = "no region of the step can run in parts, or would take much less memory so"

NodeCost = Callable[[FxNode], float]
Workspaces = Callable[[Division, int], Sequence[int]]
"""The workspace of each call of a division in parts of so many rows."""


def with_regions(graph: Graph, cost: NodeCost, workspaces: Workspaces | None = None) -> Graph:
    """``graph``, a captured step, with the regions that may run in parts; with a note if there are none.

    Args:
        graph: A graph of this frontend with whole operations.
        cost: Cost of the operation of an FX node, as the graph has it.
        workspaces: What kernels need for a part besides what they return; None to leave that out, as graphs do that are
            not measured.
    """
    step = read_step(graph)
    device = step.device or "cpu"
    groups: list[_Group] = []
    taken: set[int] = set()
    for rows in _row_counts(step):
        for found in _components(_Divided.of(step, rows, device)):
            if taken.isdisjoint(found.nodes):
                _add(groups, found)
                taken |= found.nodes
    offered = _Offered(step, device, cost, workspaces)
    regions: list[Region] = []
    rows_of: dict[str, int] = {}
    for group in groups:
        name = _name(step, group, regions)
        for kinds in (_AT_ONCE, _APART):
            region = offered.region(name, group, kinds)
            if region is not None and not waits_in_a_circle(replace(graph, splits=(*regions, region))):
                regions.append(region)
                rows_of |= {operation.id: group.rows for operation in region.operations}
                break
    if not regions:
        notes = [*graph.metadata.get("notes", ()), _NONE]
        return replace(graph, metadata=graph.metadata | {"notes": notes})
    return replace(graph, splits=tuple(regions), metadata=graph.metadata | {ROWS: rows_of})


def require_splittable(compiler: str, world: int | None = None) -> None:
    """Refuse what has no regions in parts: steps that Inductor compiles, and those of one rank of several.

    Raises:
        UsageError: If it is one.
    """
    if compiler != "eager":
        raise UsageError("operations that Inductor joins do not run in parts", hint="leave the compiler or split out")
    if world is not None:
        raise UsageError("regions in parts are for a step without other ranks", hint="leave the world or split out")


@dataclass(frozen=True, slots=True)
class _Component:
    """Operations around wide values.

    Attributes:
        rows: Number of rows.
        forward: Nodes of the forward pass, ascending.
        backward: Nodes of the backward pass, ascending.
        repeats: Nodes of the forward pass whose values the backward pass reads, ascending.
        form: Equal for components of the same operations on tensors of the same form.
    """

    rows: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    repeats: tuple[int, ...]
    form: Any

    @property
    def nodes(self) -> set[int]:
        """All nodes, those of both passes."""
        return {*self.forward, *self.backward}


@dataclass(slots=True)
class _Group:
    """Equal components, as the layers of a network have them: they are in the same number of parts."""

    rows: int
    members: list[_Component] = field(default_factory=list)


def _add(groups: list[_Group], found: _Component) -> None:
    for group in groups:
        if group.members[0].form == found.form:
            group.members.append(found)
            return
    groups.append(_Group(found.rows, [found]))


def _row_counts(step: Step) -> list[int]:
    """How many rows the products of the forward pass have, those first whose products are largest together."""
    sizes: Counter[int] = Counter()
    for node, operation in zip(step.graph.nodes, step.operations, strict=True):
        if operation.call in _PRODUCTS and node.phase in {Phase.FORWARD, Phase.LOSS}:
            sizes[operation.values[0][0].spec.shape[0]] += sum(node.outputs)
    return [rows for rows, _ in sizes.most_common() if rows > 1]


@dataclass(frozen=True, slots=True)
class _Divided:
    """Which nodes of a step can be divided along rows, each on its own, and which values then are.

    Attributes:
        step: The step.
        rows: Number of rows.
        nodes: The nodes.
        values: The values of which parts have some rows.
    """

    step: Step
    rows: int
    nodes: frozenset[int]
    values: frozenset[int]

    @classmethod
    def of(cls, step: Step, rows: int, device: str) -> _Divided:
        """Try each node in order."""
        divider, nodes = Divider(step, rows, device), set[int]()
        with without_data():
            for index in range(len(step.operations)):
                made = divider.states(index)
                if made is not None and any(isinstance(state, Rows | Summed) for state in made.values()):
                    nodes.add(index)
                    divider.made |= {n: state for n, state in made.items() if isinstance(state, Rows)}
        return cls(step, rows, frozenset(nodes), frozenset(divider.made))


def _components(divided: _Divided) -> list[_Component]:
    """Groups of nodes that wide values connect, each with all of its readers."""
    step, graph = divided.step, divided.step.graph
    wide = _wide_values(divided)
    root = {node: node for value in wide for node in (graph.producer[value], *graph.readers[value])}

    def find(node: int) -> int:
        while root[node] != node:
            node = root[node]
        return node

    for value in wide:
        for reader in graph.readers[value]:
            root[find(reader)] = find(graph.producer[value])
    members: dict[int, set[int]] = {}
    for node in root:
        members.setdefault(find(node), set()).add(node)
    found = []
    for joined in members.values():
        forward = _closed(divided, {node for node in joined if node < step.tangents})
        backward = _closed(divided, {node for node in joined if node > step.tangents})
        if not forward or backward is None:  # wide values of the backward pass alone, as joined gradients, die soon
            continue
        repeats = _repeats(graph, wide, forward, backward)
        passes = tuple(sorted(forward)), tuple(sorted(backward)), tuple(sorted(repeats))
        form = tuple(_form(step, nodes) for nodes in passes)
        found.append(_Component(divided.rows, *passes, form))
    return sorted(found, key=lambda component: min(component.nodes))


def _wide_values(divided: _Divided) -> set[int]:
    """Values of more numbers than the usual one, which only nodes read that can be divided."""
    step, graph = divided.step, divided.step.graph
    usual = _usual_numbers(divided)
    if usual is None:
        return set()
    returned = {
        tensor.number
        for result in step.results
        for tensor in tensors_read([result.tensor])
        if isinstance(tensor, Value)
    }
    return {
        value
        for value in divided.values
        if _numbers(step, value) > _WIDE * usual
        and graph.producer[value] in divided.nodes
        and graph.readers[value]
        and value not in returned
        and divided.nodes.issuperset(graph.readers[value])
    }


def _usual_numbers(divided: _Divided) -> int | None:
    """How many numbers most products of the forward pass read or return, of several equally many the fewest."""
    step, graph = divided.step, divided.step.graph
    products = [i for i in divided.nodes if i < step.tangents and step.operations[i].call in _PRODUCTS]
    values = [v for i in products for v in (*graph.nodes[i].inputs, *graph.values_of(i)) if v in divided.values]
    counts = Counter(_numbers(step, value) for value in values)
    most = max(counts.values(), default=0)
    return min((numbers for numbers, count in counts.items() if count == most), default=None)


def _numbers(step: Step, value: int) -> int:
    [tensor] = step.tensors(value)
    return math.prod(tensor.spec.shape)


def _closed(divided: _Divided, nodes: set[int]) -> set[int] | None:
    """``nodes`` with all that lie between them; None if one of these cannot be divided."""
    if not nodes:
        return nodes
    graph = divided.step.graph
    first, last = min(nodes), max(nodes)
    after, before = set(nodes), set(nodes)
    for node in range(first, last + 1):
        if any(graph.producer[value] in after for value in graph.nodes[node].inputs):
            after.add(node)
    for node in range(last, first - 1, -1):
        if any(reader in before for value in graph.values_of(node) for reader in graph.readers[value]):
            before.add(node)
    between = after & before
    return between if between <= divided.nodes else None


def _repeats(graph: Graph, wide: set[int], forward: set[int], backward: set[int]) -> set[int]:
    """The nodes of the forward pass that make the wide values that the backward pass reads."""
    found, waiting = set[int](), list(backward)
    while waiting:
        for value in graph.nodes[waiting.pop()].inputs:
            maker = graph.producer[value]
            if value in wide and maker in forward and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found


def _form(step: Step, nodes: Sequence[int]) -> Any:
    """Equal for nodes with the same operations on tensors of the same form, in the same order."""
    return tuple((step.operations[node].call, step.operations[node].values) for node in nodes)


def _name(step: Step, group: _Group, regions: Sequence[Region]) -> str:
    """``loss``, ``hidden``, ``hidden2``, ..."""
    first = group.members[0]
    name = "loss" if any(step.operations[node].call in LIKELIHOODS for node in first.forward) else "hidden"
    count = sum(region.id.rstrip("0123456789") == name for region in regions)
    return name if not count else f"{name}{count + 1}"


@dataclass(frozen=True, slots=True)
class _Offered:
    """What regions cost, and what they need.

    Attributes:
        step: The step.
        device: Its device.
        cost: Cost of the operation of an FX node.
        workspaces: What kernels need besides what they return, if that is counted.
    """

    step: Step
    device: str
    cost: NodeCost
    workspaces: Workspaces | None

    def region(self, name: str, group: _Group, kinds: Sequence[str]) -> Region | None:
        """The region of equal components, with an operation for each kind; None if it cannot be or is not worth it."""
        graph = self.step.graph
        if kinds == _AT_ONCE and not _only_reader(self.step, group):
            return None
        menu = [parts for parts in _MENU if -(-group.rows // parts) * (parts - 1) < group.rows]
        first, costs = group.members[0], dict[str, list[tuple[float, int]]]()
        spared = 0
        for kind in kinds:
            nodes, repeats = _nodes_of(first, kind)
            if nodes:
                results = _left(graph, first, kind)
                ahead_of = self._ahead_of(kind)
                try:
                    divided = division(self.step, nodes, repeats, group.rows, results, self.device, ahead_of)
                    costs[kind] = [self._of(divided, parts) for parts in menu]
                    at_once = Trial(divided, group.rows).peak_bytes()
                except NotDivisible:
                    return None
                spared = max(spared, at_once - min((space for _, space in costs[kind]), default=at_once))
        if spared <= _LEAST_SHARE * sum(graph.size):
            return None
        operations = []
        for k, member in enumerate(group.members):
            within = f"{name}/{k}" if len(group.members) > 1 else name
            for kind, found in costs.items():
                nodes, repeats = _nodes_of(member, kind)
                costs_of, spaces = zip(*found, strict=True)
                operations.append(Operation(f"{within}/{kind}", nodes, repeats, costs_of, spaces, self._ahead_of(kind)))
        operations += self._added(f"{name}/words", group, operations, len(menu))
        return Region(name, tuple(menu), tuple(operations), f"{group.rows:,} rows")

    def _added(self, name: str, group: _Group, operations: Sequence[Operation], count: int) -> list[Operation]:
        """What adds the gradient of an embedding to one that the operations make, as for a head with the same weight.

        Row by row it needs no third tensor of that size, and costs no more than the two nodes.
        """
        step, graph = self.step, self.step.graph
        made = {v for operation in operations for i in operation.nodes for v in graph.values_of(i)}
        found: list[Operation] = []
        for node in range(len(graph.nodes)):
            values = added_to(step, node)
            if values is not None and values[1] in made:
                nodes = (graph.producer[values[0]], node)
                try:
                    division(step, nodes, (), group.rows, graph.values_of(node), self.device)
                except NotDivisible:
                    continue
                cost = math.fsum(graph.nodes[i].cost for i in nodes)
                within = f"{name}{len(found) + 1}" if found else name
                found.append(Operation(within, nodes, (), (cost,) * count, (0,) * count))
        return found

    def _ahead_of(self, kind: str) -> tuple[int, ...]:
        """The nodes for which an operation does not wait."""
        return (self.step.tangents,) if kind in _AT_ONCE else ()

    def _of(self, divided: Division, parts: int) -> tuple[float, int]:
        """Cost and workspace of a division in so many parts."""
        size = divided.size(parts)
        most = Trial(divided, size)
        last = divided.rows - size * (parts - 1)
        rest = most if last == size else Trial(divided, last)
        each, again = ([self.cost(node) for node in (*trial.nodes, *trial.sums)] for trial in (most, rest))
        cost = math.fsum([*(cost * (parts - 1) for cost in each), *again])
        kernels = None if self.workspaces is None else self.workspaces(divided, size)
        return cost, most.peak_bytes(kernels)


def _only_reader(step: Step, group: _Group) -> bool:
    """Whether a single component has all of the backward pass that reads the only tangent, and a forward pass."""
    tangents = step.graph.values_of(step.tangents)
    if len(group.members) != 1 or len(tangents) != 1 or not group.members[0].forward:
        return False
    readers = step.graph.readers[tangents[0]]
    return bool(readers) and group.members[0].nodes.issuperset(readers)


def _nodes_of(component: _Component, kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Nodes and repeated nodes of one pass, or of both."""
    if kind in _AT_ONCE:
        return (*component.forward, *component.backward), ()
    return (component.forward, ()) if kind == "forward" else (component.backward, component.repeats)


def _left(graph: Graph, component: _Component, kind: str) -> list[int]:
    """The values of an operation's nodes that others read, or that are outputs of the graph.

    The backward pass reads none that it computes again.
    """
    nodes, again = set(_nodes_of(component, kind)[0]), set(component.repeats)
    left = []
    for node in sorted(nodes):
        own = nodes | set(component.backward) if node in again else nodes
        left += [v for v in graph.values_of(node) if v in graph.outputs or not own.issuperset(graph.readers[v])]
    return left
