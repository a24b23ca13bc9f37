"""Graphs as other tools take them: values by the names under which a tool saves them, and memory as a tool holds it.

Tools that save single values (``jax.checkpoint`` with a policy, torch's selective checkpointing) run the forward pass,
keep the values with the chosen names, and recompute the others when the backward pass needs them. ``metadata["tags"]``
maps the names of values to these names; several values may have one name, and are saved or not together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_cli.errors import StrategyMismatch, Worded
from remat_cli.graph.model import Graph, Phase
from remat_cli.graph.modules import module_of
from remat_cli.graph.phases import Training

KEPT, REPEATED = -1, -2
"""In place of a group: what the node makes is saved in any case; it cannot be saved."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A training step whose forward values have names.

    What a node makes is saved or not as a whole, and so is all that has one name. So names fall into groups.

    Attributes:
        training: The step.
        names: The name of each value; None for none.
        groups: The names in each group, in the order in which they are made.
        group: For each node the number of its group, :data:`KEPT` or :data:`REPEATED`. Nodes of other phases than
            forward, nodes that may not run twice, and those that make a graph output are kept.
    """

    training: Training
    names: tuple[str | None, ...]
    groups: tuple[tuple[str, ...], ...]
    group: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, strategy: str) -> Tagged:
        """``graph`` with the names in its metadata.

        Raises:
            StrategyMismatch: If there are none, or a node has no phase.
        """
        training = Training.of(graph, strategy)
        name_of = graph.metadata.get("tags") if isinstance(graph.metadata, dict) else None
        if not isinstance(name_of, dict) or not all(isinstance(name, str) for name in name_of.values()):
            raise StrategyMismatch(
                f"{strategy} needs names of values in the graph's metadata",
                hint="graphs of remat export torch:... and jax:... have them; export it again",
            )
        names = tuple(name_of.get(graph.value_name(value)) for value in range(len(graph.size)))
        outputs = frozenset(graph.outputs)
        of: list[tuple[str, ...] | None] = []
        for k, node in enumerate(graph.nodes):
            values = graph.values_of(k)
            free = node.phase is Phase.FORWARD and node.recompute and outputs.isdisjoint(values)
            own = [name for value in values if (name := names[value]) is not None]
            of.append(None if not free else tuple(own) if len(own) == len(values) else ())
        joined = _joined([own for own in of if own])
        numbers = {name: number for number, group in enumerate(joined) for name in group}
        group = tuple(KEPT if own is None else numbers[own[0]] if own else REPEATED for own in of)
        return cls(training, names, joined, group)

    def free(self, node: int) -> bool:
        """Whether a node may be recomputed."""
        return self.group[node] != KEPT

    def saves(self, node: int, chosen: frozenset[int]) -> bool:
        """Whether what a node makes is saved if the groups ``chosen`` are."""
        return self.group[node] == KEPT or self.group[node] in chosen


def _joined(sets: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """The names, joined where they come up in one of ``sets``."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for own in sets:
        for name in own:
            parent.setdefault(name, name)
            parent[root(name)] = root(own[0])
    groups: dict[str, list[str]] = {}
    for name in parent:
        groups.setdefault(root(name), []).append(name)
    return tuple(map(tuple, groups.values()))


_CARRY = "carry."


def as_autograd_holds(graph: Graph) -> Graph:
    """``graph`` whose backward operations hold what their autograd node saved until its last operation.

    Eager autograd runs the gradient of a forward operation as one node: the values that it saved for that node are let
    go when the whole node is done. A graph has several operations for such a node (the gradient of a product is two),
    and a plan may free a value between them.

    Operations of one module that read the same gradient count as one node. That may join too many, and then the
    peak is overestimated.

    Raises:
        StrategyMismatch: If a node has no phase.
    """
    sweep = Training.of(graph, "eager autograd").sweep
    last: dict[tuple[str, int], int] = {}
    held: dict[int, set[int]] = {}

    def gradients(k: int) -> list[tuple[str, int]]:
        node = graph.nodes[k]
        return [(module_of(node.id), value) for value in node.inputs if graph.producer[value] >= sweep]

    for k in range(sweep, len(graph.nodes)):
        for key in gradients(k):
            last[key] = k
    for k in range(sweep, len(graph.nodes)):
        end = max((last[key] for key in gradients(k)), default=k)
        held.setdefault(end, set()).update(v for v in graph.nodes[k].inputs if graph.producer[v] < sweep)
    nodes = tuple(
        replace(node, inputs=tuple(sorted({*node.inputs, *held.get(k, ())}))) for k, node in enumerate(graph.nodes)
    )
    return replace(graph, nodes=nodes)


def as_scans_hold(graph: Graph) -> Graph:
    """``graph``, in which what lies outside of loops, and what a step of one hands to the next, is kept.

    Only the steps of loops may be recomputed, as with jax.checkpoint inside of a scan.

    A compiler may run all of a step again before its gradients, so all that a step would keep for them counts as
    there at any time (``metadata["step_bytes"]``). This is no bound on what a compiler holds: it may
    fuse or copy more.

    Values in a loop are those whose name several values have, one in each step.

    Raises:
        StrategyMismatch: If there is no loop with its steps told apart.
    """
    tags = graph.metadata.get("tags") or {}
    counts = Counter(tags.values())
    if not any(name.startswith(_CARRY) and count > 1 for name, count in counts.items()):
        raise StrategyMismatch(
            "jax-scan needs a jax.lax.scan whose steps the graph tells apart, and there is none",
            hint=Worded(
                'to="jax-names" takes other programs; export unrolled scans to tell their steps apart',
                "--to jax-names takes other programs; remat export --scans unrolled tells steps of long scans apart",
            ),
        )

    def kept(node: int) -> bool:
        own = [name for value in graph.values_of(node) if (name := tags.get(graph.value_name(value))) is not None]
        return any(counts[name] == 1 or name.startswith(_CARRY) for name in own)

    nodes = tuple(
        replace(node, recompute=False) if node.phase is Phase.FORWARD and kept(k) else node
        for k, node in enumerate(graph.nodes)
    )
    return replace(graph, nodes=nodes, fixed_memory=graph.fixed_memory + graph.metadata["step_bytes"])
