"""Predicts which operations of a joint graph Inductor fuses into their readers, so that their results take no memory.

Inductor makes one loop of a chain of pointwise operations and of the reduction that ends it. Only what the loop
returns is stored. So a node of a plan is a *group*: an operation whose result is stored, and all *inlined* operations
between it and other stored results. An inlined operation with several readers belongs to the group of each, and each
computes it.

A result is stored if

- no loop makes it: products of matrices, convolutions, attention, sorting, and all operators that are not known here;
- a reduction, a concatenation or a scatter makes it, which ends its loop;
- one of the first kind reads it, or it is a result of the step;
- several groups read it, and computing it anew would keep more memory alive than it takes, or would draw random numbers
  again, which takes long;
- the expression for it would become long.

These are Inductor's own reasons (``GraphLowering.run_node``, ``StorageBox.should_realize_on_reuse``), but for the last
but one: Inductor counts reads there, and a plan has to know what stays alive. The graphs that a plan makes have a copy
of an inlined operation for each group, and stored results are marked as such, so Inductor follows this prediction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat_cli.frontends.aten.phases import ancestors
from remat_cli.frontends.torch.capture.capture import Group
from remat_cli.frontends.torch.capture.joint_program import itself, reads
from remat_cli.frontends.torch.compat.operators import is_operator
from remat_cli.frontends.torch.tensors import is_random, storage, storage_bytes, tensors_in
from remat_cli.frontends.torch.types import FxNode, GraphModule

_POINTWISE_NAMES = """
_unsafe_index _unsafe_masked_index arange clone constant_pad_nd copy embedding empty empty_like empty_strided fill flip
full full_like gather index index_select inductor_lookup_seed inductor_random inductor_randint iota lift_fresh_copy
masked_fill new_empty new_full new_ones new_zeros ones ones_like repeat scalar_tensor select_scatter slice_scatter
diagonal_scatter tril triu zeros zeros_like _to_copy
"""
_POINTWISE = frozenset(_POINTWISE_NAMES.split())
"""Operators that Inductor computes element by element and that have no tag for it."""
_END_NAMES = """
cat index_put _unsafe_index_put _unsafe_masked_index_put_accumulate scatter scatter_add scatter_reduce index_add
"""
_ENDS = frozenset(_END_NAMES.split())
"""Operators that end a loop besides reductions: what they read may be computed in it."""
_NEEDS_MEMORY = frozenset(["as_strided", "view_as_complex", "view_as_real", "view.dtype"])
"""Views of memory, which what is computed in a loop has not."""
_DRAWS = frozenset(["inductor_random", "inductor_randint"])
_MOST_READS = 10
"""Most stored tensors that a loop may read before a part of it is stored; Inductor's own limits are 8 and 12."""
_MOST_OPERATIONS = 40
"""Most operations in the expression for a stored result; Inductor's limit is 30 for what is read several times."""
_WORTH_STORING = 1.25
"""How many times the bytes of a result what it is computed from has to take for the result to be stored. Untuned."""


@dataclass(slots=True)
class Fusion:
    """The groups of a joint graph.

    Attributes:
        inlined: The FX nodes whose results are not stored.
        owner: For the memory of each tensor, the FX node that makes it.
    """

    inlined: set[FxNode]
    owner: dict[int, FxNode]

    def group(self, root: FxNode) -> Group:
        """The group that stores the result of ``root``."""
        members, read, stack = {root: None}, dict[FxNode, None](), [root]
        while stack:
            member = stack.pop()
            for argument in member.all_input_nodes:
                maker = self.maker(argument)
                if maker in self.inlined and maker not in members:
                    members[maker] = None
                    stack.append(maker)
                elif maker not in self.inlined:
                    read[argument] = None
        return Group(root, tuple(members), tuple(read))

    def maker(self, node: FxNode) -> FxNode:
        """The FX node that makes the memory in which the result of ``node`` lies; ``node`` itself for a number."""
        for _, tensor in tensors_in(node.meta.get("val")):
            return self.owner.get(storage(tensor), node)
        return node


def fusion(joint: GraphModule) -> Fusion:
    """The groups of the joint graph module ``joint``."""
    nodes = _alive(joint.graph.nodes)
    groups = Fusion(set(), {})
    makers: list[FxNode] = []
    for node in nodes:
        tensors = tensors_in(node.meta.get("val")) if node.op != "output" else []
        new = [tensor for _, tensor in tensors if storage(tensor) not in groups.owner]
        groups.owner.update((storage(tensor), node) for tensor in new)
        if new and node.op == "call_function":
            makers.append(node)
    _Choice(groups, nodes, makers).run()
    return groups


def _alive(nodes: Iterable[FxNode]) -> list[FxNode]:
    """The nodes that results depend on, and inputs, in order."""
    ordered = list(nodes)
    needed = ancestors(ordered, reads, itself, [one for one in ordered if one.op in {"placeholder", "output"}])
    return [node for node in ordered if node in needed]


class _Choice:
    """Chooses what is inlined. ``makers`` are the operations that make memory; the rest are views, inputs, results."""

    def __init__(self, fusion: Fusion, nodes: Sequence[FxNode], makers: Sequence[FxNode]) -> None:
        self.found, self.makers = fusion, makers
        self.readers: dict[FxNode, list[FxNode]] = {maker: [] for maker in makers}
        self.stored: set[FxNode] = set()
        for node in nodes:
            if node.op == "output":
                self.stored.update(map(fusion.maker, node.all_input_nodes))
            elif node in self.readers:
                self._reads(node)
            elif _name(node) in _NEEDS_MEMORY or str(node.target).endswith("view.dtype"):
                self.stored.add(fusion.maker(node))

    def _reads(self, node: FxNode) -> None:
        makers = dict.fromkeys(map(self.found.maker, node.all_input_nodes))
        for maker in makers:
            self.readers.setdefault(maker, []).append(node)
        if not _in_loop(node):
            self.stored.update(makers)

    def run(self) -> None:
        """Fill ``found.inlined``."""
        self.stored.update(maker for maker in self.makers if not _inlinable(maker))
        groups = self._groups()
        # In the order of the graph, so that what an operation reads has been decided on.
        sources: dict[FxNode, dict[int, int]] = {}
        lengths: dict[FxNode, int] = {}
        drawn: dict[FxNode, bool] = {}
        reused = set()
        for maker in self.makers:
            read = {argument: self.found.maker(argument) for argument in maker.all_input_nodes}
            inlined = {m for m in read.values() if m in sources}
            sources[maker] = {k: size for m in inlined for k, size in sources[m].items()}
            sources[maker] |= {k: s for a, m in read.items() if m not in inlined for k, s in _memory(a, m)}
            lengths[maker] = 1 + sum(lengths[m] for m in inlined)  # shared parts count each time, as in the expression
            drawn[maker] = _name(maker) in _DRAWS or any(drawn[m] for m in inlined)
            if maker not in self.stored and (len(sources[maker]) > _MOST_READS or lengths[maker] > _MOST_OPERATIONS):
                self.stored.add(maker)
            elif (
                maker not in self.stored
                and min(len(groups[maker]), len(self.readers[maker])) > 1
                and (drawn[maker] or sum(sources[maker].values()) > _WORTH_STORING * _bytes(maker))
            ):
                reused.add(maker)
                self.stored.add(maker)
            if maker in self.stored:  # its readers read its result, and not what it was computed from
                del sources[maker]
        groups = self._groups()
        # What was stored for several groups may belong to one alone, now that others are stored too.
        for maker in reversed(self.makers):
            if maker in reused and len(groups[maker]) < 2:
                self.stored.remove(maker)
        self.found.inlined.update(maker for maker in self.makers if maker not in self.stored)

    def _groups(self) -> dict[FxNode, set[FxNode]]:
        """For each operation, the stored ones whose groups it is in if it is inlined."""
        groups: dict[FxNode, set[FxNode]] = {}
        for maker in reversed(self.makers):
            groups[maker] = set()
            for reader in self.readers[maker]:
                groups[maker] |= {reader} if reader in self.stored else groups[reader]
        return groups


def _in_loop(node: FxNode) -> bool:
    """Whether what ``node`` reads may be computed in the loop that computes it."""
    import torch

    if not is_operator(node.target):
        return False
    name = _name(node)
    return name in _POINTWISE or name in _ENDS or bool({torch.Tag.pointwise, torch.Tag.reduction} & {*node.target.tags})


def _inlinable(node: FxNode) -> bool:
    """Whether ``node`` may be computed in the loops of its readers."""
    import torch

    if not is_operator(node.target) or [item for item, _ in tensors_in(node.meta["val"])] != [None]:
        return False
    return not is_random(node) and (_name(node) in _POINTWISE or torch.Tag.pointwise in node.target.tags)


def _name(node: FxNode) -> str:
    return str(node.target.overloadpacket.__name__) if is_operator(node.target) else ""


def _memory(node: FxNode, maker: FxNode) -> list[tuple[int, int]]:
    """Identity and bytes of the memory in which the result of ``node`` lies; inputs are there in any case."""
    tensors = tensors_in(node.meta.get("val"))
    return [(storage(t), storage_bytes(t) if maker.op == "call_function" else 0) for _, t in tensors]


def _bytes(node: FxNode) -> int:
    return sum(storage_bytes(tensor) for _, tensor in tensors_in(node.meta["val"]))
